"""Measures what a resumed run has of the run that was interrupted; writes results/resume.json.

    python -m benchmarks.resume                                  # this library; the others' rows stay
    python -m benchmarks.resume --peers /path/to/venv/bin/python # and Stable-Baselines3 and Tianshou, installed there

DQN trains on CartPole-v1 for 2,000 env steps at a stretch, and again in two halves, each in a process of its own. Of
the second half's process it is noted what it holds once it has loaded all that its library says to
save, and whether it ends with the weights of the run at a stretch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import provenance, write_json

FOLDER = Path(__file__).parent
RESULT = FOLDER.parent / "results" / "resume.json"
LIBRARIES = {"palaestra": "ours.py", "stable_baselines3": "sb3.py", "tianshou": "tianshou_dqn.py"}


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


def measured(python: str, script: str) -> dict[str, bool]:
    """What is as it was, by part; `end` is whether the last weights are those of the run at a stretch.

    Args:
        python: interpreter.
        script: of the library.
    """
    with tempfile.TemporaryDirectory() as name:
        whole = run(python, script, "whole", Path(name))[-1]
        again = run(python, script, "whole", Path(name) / "again")[-1]
        first = run(python, script, "first", Path(name))[-1]
        *loaded, second = run(python, script, "second", Path(name))
    if whole["weights"] != again["weights"]:
        raise SystemExit(f"{script}: two runs at a stretch differ, so that nothing can be said about halves")
    parts = {part: loaded[0][part] == first[part] for part in first} if loaded else {}
    return {**parts, "end": second["weights"] == whole["weights"]}


def version(python: str, library: str) -> str:
    """Which version of a library an interpreter has.

    Args:
        python: interpreter.
        library: its name.
    """
    ask = f"import importlib.metadata as m; print(m.version({library!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="interpreter that has stable-baselines3 and tianshou")
    peers = parser.parse_args().peers
    found = json.loads(RESULT.read_text())
    for library, script in LIBRARIES.items():
        python = sys.executable if library == "palaestra" else peers
        if python:
            command = "python -m benchmarks.resume" + (" --peers PYTHON" if peers else "")
            found[library] = {"resumed": measured(python, script), "version": version(python, library)}
            found[library] |= provenance(command)
            print(library, found[library]["resumed"])
    write_json(RESULT, found)


if __name__ == "__main__":
    main()
