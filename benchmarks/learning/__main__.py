"""`python -m benchmarks.learning run [PRESET ...]` trains several seeds; `report` prints a table and draws curves."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.learning.curves import draw
from benchmarks.learning.summary import markdown, summarize
from benchmarks.learning.zoo import NAMES
from benchmarks.record import ROOT, provenance, write_json

RESULTS = Path(__file__).parent / "results"
CURVES = ROOT / "docs" / "assets" / "curves"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train; all presets if none is named")
    run.add_argument("presets", nargs="*", metavar="PRESET", help=f"of {', '.join(NAMES)}")
    run.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    run.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    run.add_argument("--env-steps", type=int, help="another budget, to try the benchmark itself")
    report = verbs.add_parser("report", help="print the table as markdown; draw curves where matplotlib is installed")
    report.add_argument("--curves", type=Path, default=CURVES, help="where curves are written")
    for verb in (run, report):
        verb.add_argument("--results", type=Path, default=RESULTS, help="where results are")
    arguments = parser.parse_args()
    unknown = [name for name in getattr(arguments, "presets", []) if name not in NAMES]
    if unknown:
        parser.error(f"unknown preset {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Every seed of every preset; a preset's file is written as soon as its last seed is there."""
    names = arguments.presets or list(NAMES)
    settings = {} if arguments.env_steps is None else {"trainer__total_env_steps": arguments.env_steps}
    options = f"--seeds {' '.join(map(str, arguments.seeds))} --jobs {arguments.jobs}"
    if settings:
        options += f" --env-steps {arguments.env_steps}"
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(arguments.jobs) as pool:
        origins = {name: provenance(f"python -m benchmarks.learning run {name} {options}") for name in names}
        pending = {
            name: [pool.submit(train, name, seed, directory, settings) for seed in arguments.seeds] for name in names
        }
        try:
            for name, seeds in pending.items():
                results = [seed.result() for seed in seeds]
                write_json(
                    arguments.results / f"{name}.json",
                    {**origins[name], "summary": summarize(*NAMES[name], results), "seeds": results},
                )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def train(name: str, seed: int, directory: str, settings: dict[str, Any]) -> dict[str, Any]:
    env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    command = [
        sys.executable,
        "-m",
        "benchmarks.learning.worker",
        *NAMES[name],
        str(seed),
        directory,
        json.dumps(settings),
    ]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    last = result["final"]["last"]["return_mean"]
    print(
        f"{name}  seed {seed}  {last:.1f} after {result['env_steps'][-1]:,} env steps, {result['train_s']:.0f} s",
        flush=True,
    )
    return result


def report(arguments: argparse.Namespace) -> None:
    files = {name: arguments.results / f"{name}.json" for name in NAMES}
    records = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    if not records:
        raise SystemExit(f"no results in {arguments.results}; first run `python -m benchmarks.learning run`")
    print(markdown(records))
    if importlib.util.find_spec("matplotlib") is None:
        print("no curves: matplotlib is not installed", file=sys.stderr)
        return
    for name, record in records.items():
        print(f"wrote {draw(name, record, arguments.curves)}", file=sys.stderr)


if __name__ == "__main__":
    arguments = parse()
    (run if arguments.verb == "run" else report)(arguments)
