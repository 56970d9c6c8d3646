"""Measures what a resumed run has of the run that was interrupted; writes results/resume.json and the page's table.

    python -m benchmarks.resume                        # this library; the others' rows stay
    python -m benchmarks.resume --peers FOLDER         # and each library that has a virtual environment in FOLDER
    python -m benchmarks.resume --peers FOLDER --only skrl

A virtual environment has the name of the library's row (`FOLDER/skrl/bin/python`). A run trains on CartPole-v1 at a
stretch, twice, and again in two halves, each in a process of its own. Of the second half's process it is noted what it
holds once it has loaded all that its library says to save, and whether it ends with the weights of that run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import provenance, publish, table, write_json

FOLDER = Path(__file__).parent
RESULT = FOLDER.parent / "results" / "resume.json"
LIBRARIES = {  # by the name of a row: the script, the package, the name in the table
    "palaestra": ("ours.py", "palaestra", "Palaestra"),
    "stable_baselines3": ("sb3.py", "stable_baselines3", "Stable-Baselines3"),
    "tianshou": ("tianshou_dqn.py", "tianshou", "Tianshou"),
    "torchrl": ("torchrl_dqn.py", "torchrl", "TorchRL"),
    "rllib": ("rllib_dqn.py", "ray", "RLlib"),
    "skrl": ("skrl_dqn.py", "skrl", "skrl"),
    "rsl_rl": ("rsl_rl_ppo.py", "rsl-rl-lib", "RSL-RL (PPO)"),
    "d3rlpy": ("d3rlpy_dqn.py", "d3rlpy", "d3rlpy"),
}
PARTS = ("weights", "optimizer", "counters", "buffer", "generators", "environment", "normaliser", "schedule", "end")


def run(python: str, script: str, what: str, folder: Path) -> list[dict[str, object]]:
    """The lines that one process prints.

    Args:
        python: interpreter.
        script: of the library.
        what: whole, first or second.
        folder: that the halves share.
    """
    module = ["-m", "benchmarks.resume.ours"] if script == "ours.py" else [str(FOLDER / script)]
    done = subprocess.run([python, *module, what, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script} {what} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measured(python: str, script: str) -> dict[str, bool | None]:
    """What is as it was, by part; `end` is whether the last weights are those at a stretch, None if these vary.

    Args:
        python: interpreter.
        script: of the library.
    """
    with tempfile.TemporaryDirectory() as name:
        whole = run(python, script, "whole", Path(name))[-1]
        again = run(python, script, "whole", Path(name) / "again")[-1]
        first = run(python, script, "first", Path(name))[-1]
        *loaded, second = run(python, script, "second", Path(name))
    held = {part: value for line in loaded for part, value in line.items()}
    parts: dict[str, bool | None] = {part: held[part] == value for part, value in first.items() if part in held}
    varies = whole["weights"] != again["weights"]
    return {**parts, "end": None if varies else second["weights"] == whole["weights"]}


def version(python: str, library: str) -> str:
    """Which version of a library an interpreter has.

    Args:
        python: interpreter.
        library: its name.
    """
    ask = f"import importlib.metadata as m; print(m.version({library!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def row(library: str, entry: dict[str, Any]) -> list[str]:
    """Of the table.

    Args:
        library: of this row.
        entry: of `resume.json`.
    """
    words = {True: "yes", False: "no", None: "it varies"}
    found = entry["resumed"]
    cells = [words[found[part]] if part in found else "-" for part in PARTS]
    return [f"{LIBRARIES[library][2]} {entry['version']}", *cells[:-1], f"**{cells[-1]}**"]


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="has a virtual environment for each library")
    parser.add_argument("--only", choices=LIBRARIES, help="one library")
    options = parser.parse_args()
    for library, (script, package, _) in LIBRARIES.items():
        ours = library == "palaestra"
        python = sys.executable if ours else str(options.peers / library / "bin" / "python") if options.peers else ""
        if not Path(python).is_file() or options.only not in (None, library):
            continue
        command = "python -m benchmarks.resume" + (" --peers FOLDER" if options.peers else "")
        origin = provenance(command)
        entry = {"resumed": measured(python, script), "version": version(python, package), **origin}
        entry["versions"] = {name: version(python, name) for name in ("torch", "numpy", "gymnasium", package)}
        found = {**json.loads(RESULT.read_text()), library: entry}  # of this moment: another process may have written
        print(library, found[library]["resumed"], flush=True)
        write_json(RESULT, found)
    found = json.loads(RESULT.read_text())
    rows = [row(library, found[library]) for library in LIBRARIES if library in found]
    publish(RESULT.with_suffix(".md"), table(["", *PARTS], rows), "docs/concepts/what_resumes.md")


if __name__ == "__main__":
    main()
