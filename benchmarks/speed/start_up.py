"""How long a user waits: `import palaestra` beside `import torch`, and a typed command's first environment step."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import ROOT, origin, table
from benchmarks.speed.first_step import VARIABLE

IMPORT_BAR = 1.5
FIRST_STEP_BAR_S = 2.5
TYPED = ("train", "ppo", "benchmarks.speed.first_step:FirstStep", "--env.num-envs", "8")
"""`palaestra train ppo CartPole-v1`, with the environment that tells when it is stepped."""


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turns; one round more is dropped, so that files are in memory and bytecode is compiled."""
    seconds: dict[str, list[float]] = {"import torch": [], "import palaestra": [], "first step": []}
    for number in range(rounds + 1):
        done = {
            "import torch": import_s("torch"),
            "import palaestra": import_s("palaestra"),
            "first step": first_step_s(),
        }
        if number:
            print(
                f"import  round {number}/{rounds}  " + "  ".join(f"{k} {v:.2f} s" for k, v in done.items()), flush=True
            )
            for name, value in done.items():
                seconds[name].append(value)
    return seconds


def import_s(module: str) -> float:
    code = f"import time; begin = time.perf_counter(); import {module}; print(time.perf_counter() - begin)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout)


def first_step_s() -> float:
    """From starting the process, as the shell does after Enter, to the first `step`; the code is the script's own."""
    code = "from palaestra.cli import main; main()"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "first_step"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, VARIABLE: str(file)}
        begin = time.time()
        done = subprocess.run(
            [sys.executable, "-c", code, *TYPED], cwd=directory, env=env, capture_output=True, text=True, timeout=120
        )
        if not file.exists():
            raise SystemExit(f"no environment was stepped:\n{done.stderr[-4000:]}")
        return float(file.read_text()) - begin


def evaluate(seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    each = ratios(seconds["import palaestra"], seconds["import torch"])
    first = spread(seconds["first step"])
    return {
        "seconds": {name: spread(values)._asdict() for name, values in seconds.items()},
        "ratio": {**spread(each)._asdict(), "rounds": each},
        "bars": {
            "import": {"below": IMPORT_BAR, "met": spread(each).median < IMPORT_BAR},
            "first step": {"below": FIRST_STEP_BAR_S, "met": first.median < FIRST_STEP_BAR_S},
        },
    }


def markdown(record: Mapping[str, Any]) -> str:
    summary = record["summary"]
    ratio, bars = summary["ratio"], summary["bars"]
    each = ", ".join(f"{value:.2f}" for value in ratio["rounds"])
    met = {name: "yes" if bar["met"] else "**no**" for name, bar in bars.items()}
    notes = {
        "import torch": ["", "", ""],
        "import palaestra": [f"{ratio['median']:.2f} ({each})", f"ratio below {IMPORT_BAR}", met["import"]],
        "first step": ["", f"below {FIRST_STEP_BAR_S:g} s", met["first step"]],
    }
    titles = {"first step": "`palaestra train ppo CartPole-v1` to the first environment step"}
    rows = [
        [titles.get(name, f"`{name}`"), f"{s['median']:.2f}", f"{s['low']:.2f} to {s['high']:.2f}", *notes[name]]
        for name, s in summary["seconds"].items()
    ]
    header = ["", "seconds, median", "min to max", "ratio to torch, median (each round)", "bar", "met"]
    return "\n\n".join(["## Start-up, fresh processes in turns", table(header, rows), origin(record)])
