"""`python -m benchmarks.packages [PACKAGE ...]`: what packages of environments do beside this library.

Each is installed into a Python environment of its own over this one, in the versions that this one has, or those of
its family in `palaestra venv create`; looked at by `palaestra check-env`, which steps it about 2,000 times by chance,
and trained by PPO for 300 env steps. What has a result is not tried again, unless it is named; so a command that was
broken off goes on where it stopped.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.record import publish, table, write_json
from palaestra.cli.environments import families

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGE = "docs/tutorials/packages.md"
SMALL = ("--algorithm.network.hidden-sizes", "32", "--trainer.eval-episodes", "0", "--run.no-tensorboard")


def known() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((Path(__file__).parent / "packages.yaml").read_text())


def tried(name: str, facts: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Installs one package, and uses it; returns what came of it, and removes it."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = Path(tempfile.mkdtemp(prefix="package-"))
    try:
        venv.create(folder / "venv")  # with the pip of this one
        python = folder / "venv/bin/python"
        site = next((folder / "venv/lib").glob("python*/site-packages"))
        (site / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        (folder / "constraints.txt").write_text(_constraints(facts.get("family")))
        packages = [f"{name}=={facts['version']}", *facts.get("with", ())]
        pip = [str(python), "-m", "pip", "install", "--no-cache-dir", "--no-compile", "--disable-pip-version-check"]
        done = ran([*pip, "-q", "-c", str(folder / "constraints.txt"), *packages], folder, timeout_s)
        found: dict[str, Any] = {"version": str(facts["version"]), "install": _outcome(done)}
        found["mib"] = _mib(site)
        if found["install"] == "yes" and facts["env"]:
            palaestra, options = [str(python), "-m", "palaestra"], facts.get("options", [])
            done = ran([*palaestra, "check-env", facts["env"], *options], folder, timeout_s)
            rules = re.search(r"\d+ rules: .*", done.stdout)
            found["check"] = rules[0] if rules else _outcome(done)
            train = [
                *palaestra,
                "train",
                facts.get("algorithm", "ppo"),
                facts["env"],
                *options,
                *facts.get("train", []),
            ]
            short = ["--trainer.total-env-steps", "300", "--env.num-envs", "2", *SMALL]
            found["train"] = _outcome(ran([*train, *short], folder, timeout_s))
    finally:
        shutil.rmtree(folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found | {"processor_s": round(used), "wall_s": round(time.monotonic() - began)}


def _constraints(family: str | None) -> str:
    """Versions of this environment, without editable packages; or those of a family alone, as it is installed."""
    if family:
        return "\n".join(re.sub(r"\[.*\]", "", package) for package in families()[family]["packages"])
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line and not line.startswith(("#", "-")))


def ran(command: Sequence[str], folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # what is left behind holds no pipe
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=err, start_new_session=True)
        try:
            process.wait(timeout_s)
            late = ""
        except subprocess.TimeoutExpired:
            late = f"not done in {timeout_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # with the programs of games that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, 124 if late else process.returncode, out.read(), late or err.read())


def _outcome(done: subprocess.CompletedProcess[str]) -> str:
    """`yes`, or the first line that says what is wrong."""
    if done.returncode == 0:
        return "yes"
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Error|ERROR|depends on|not done", line)]
    first = (telling or lines or [f"exit code {done.returncode}"])[0]
    return re.sub(r"(/[\w.+-]+){2,}", "...", first)[:160]


def _mib(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) >> 20


def markdown(packages: dict[str, dict[str, Any]], results: dict[str, dict[str, Any]]) -> str:
    """The table of the page."""
    rows = [_row(name, facts, results.get(name)) for name, facts in packages.items()]
    count = sum(name in results for name in packages)
    header = ["package", "version", "environment", "MiB", "installs", "check-env", "trains", "what to know"]
    return (
        f"{table(header, rows)}\n\n{count} of {len(packages)} were run by `python -m benchmarks.packages`; *not run* "
        "means by this command: what is to know of those was seen by hand.\n"
    )


def _row(name: str, facts: dict[str, Any], found: dict[str, Any] | None) -> list[str]:
    env = f"`{facts['env']}`" if facts["env"] else ""
    seen = f"; by hand: {facts['seen']}" if "seen" in facts else ""
    found = found or {"install": f"not run{seen}"}
    said = [str(found.get(key, "")) for key in ("mib", "install", "check", "train")]
    own = f"`palaestra venv create {facts['family']}`" if "family" in facts else ""
    notes = "; ".join(filter(None, (own, facts.get("note", ""))))
    return [name, str(facts["version"]), env, *(one.replace("|", "\\|") for one in said), notes]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packages", description=__doc__)
    parser.add_argument("packages", nargs="*", help="which; by default all that have no result and are not big")
    parser.add_argument("--page", action="store_true", help="try nothing; write the page from the results")
    parser.add_argument("--timeout-s", type=float, default=240.0, help="for each installation, check and training")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where packages.json and packages.md are written")
    arguments = parser.parse_args()
    packages, file = known(), arguments.results / "packages.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    todo = arguments.packages or [
        name for name, facts in packages.items() if name not in results and not facts.get("big")
    ]
    if unknown := [name for name in todo if name not in packages]:
        sys.exit(f"benchmarks/packages.yaml has no {', '.join(unknown)}")
    for name in [] if arguments.page else todo:
        results[name] = tried(name, packages[name], arguments.timeout_s)
        write_json(file, dict(sorted(results.items())))
        print(name, results[name], flush=True)
    publish(arguments.results / "packages.md", markdown(packages, results), PAGE, "packages")


if __name__ == "__main__":
    main()
