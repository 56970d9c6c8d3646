"""Changes the library in one small place at a time and asks whether a test notices.

    python -m tools.mutants --number 300 --jobs 2      # draws the mutants, runs the tests on each, writes the score
    python -m tools.mutants --only 17 204              # these again, whatever was found before
    python -m tools.mutants --since 03a29d0            # of files that were added after a revision

First every test of `FOLDERS` is run once on the unchanged library, to see how long it takes and which lines it reaches.
A mutant then meets the tests that reach its line (one outside of functions: its file) and those of the file named after
its own, which may reach it in a process that they start; those of its own package first, quick ones before slow ones,
up to `BOUND_S`; it is killed when one fails or hangs. Each has a copy of `src` and a process, forked where PyTorch is
already imported. Results are kept as they come: a run that broke off goes on.
"""

import argparse
import compileall
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage
import pytest
import torch  # noqa: F401 - what takes long to import is there in all processes that are forked

from tools.mutation import PACKAGES, ROOT, Mutant, draw, inside_functions, page

SOURCE = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py")))).hexdigest()
KEPT = ROOT / ".cache/mutants" / SOURCE[:12]
PAGE = ROOT / "docs/mutants.md"
FOLDERS = (*PACKAGES, "golden", "contracts", "faults")
BOUND_S = 30.0  # of tests, as long as they took on the unchanged library, for one mutant
DEFAULTS = "tests/golden/test_losses.py::test_defaults_are_the_golden_ones"  # first for what runs at an import


class Reached:
    """A plugin of pytest: how long each test takes, and which lines of the library it reaches."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = defaultdict(lambda: {"seconds": 0.0, "passed": True})
        self.coverage = coverage.Coverage(data_file=None, include=["*/src/palaestra/*"])
        self.coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid]["seconds"] += report.duration
        self.tests[report.nodeid]["passed"] &= report.outcome == "passed"

    def save(self, files: list[str]) -> None:
        """One file for each test file: the tests that pass, with seconds, and lines by file."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                for test in contexts:
                    lines[test][path[path.index("src/palaestra/") :]].append(line)
        for file in files:
            of_file = [test for test in self.tests if test.split("::")[0] == file and self.tests[test]["passed"]]
            kept = {test: {"seconds": self.tests[test]["seconds"], "lines": lines[test]} for test in of_file}
            kept_at(file).write_text(json.dumps(kept))


def kept_at(file: str) -> Path:
    return KEPT / f"{file.removeprefix('tests/').replace('/', '.')}.json"


class Wanted:
    """A plugin of pytest: these tests of their files, in this order; a change may do away with some."""

    def __init__(self, tests: list[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.places), key=lambda i: self.places[i.nodeid])


def child(folder: str, mutant: Mutant | None, tests: list[str], reached: bool = False) -> int:
    """Runs pytest in this process, which was forked for it, on a copy of `src`."""
    assert "palaestra" not in sys.modules
    os.setsid()  # whatever the tests start ends with them
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))  # a mutant may ask for any memory
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.dup2(os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT), 1), 2)
    shutil.copytree(ROOT / "src", f"{folder}/src")
    if mutant:
        Path(folder, mutant.file).write_bytes(mutant.changed())
    sys.path.insert(0, f"{folder}/src")
    os.environ.update(PYTHONPATH=f"{folder}/src:{ROOT}", TMPDIR=folder)
    tempfile.tempdir = None
    sys.modules["__main__"] = types.ModuleType("__main__")  # spawned processes of a test must not import this file
    plugin = Reached() if reached else None
    command = ["-q" if reached else "-qx", "-m", "not slow and not fault", "-p", "no:cacheprovider"]
    files = dict.fromkeys(test.split("::")[0] for test in tests)
    status = pytest.main([*command, f"--basetemp={folder}/tests", *files], [plugin or Wanted(tests)])
    if plugin:
        plugin.save(tests)
    return int(status)


def run(limit_s: float, *arguments: Any) -> tuple[str, str]:
    """(`passed`, `failed` or `hung`; what pytest printed) of `child` in a forked process."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        pid, deadline_s, ended, status = os.fork(), time.monotonic() + limit_s, None, 70
        if not pid:
            try:
                status = child(folder, *arguments)
            finally:
                os._exit(status)
        while not ended and time.monotonic() < deadline_s:
            time.sleep(0.02)
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        said = Path(folder, "log").read_text(errors="replace")
        assert status not in (70 << 8, pytest.ExitCode.USAGE_ERROR << 8), said
        return "hung" if not ended else "failed" if status else "passed", said


def reached_lines() -> dict[str, dict[str, Any]]:
    """The tests with their seconds and lines; runs those that are new or changed."""
    found: dict[str, dict[str, Any]] = {}
    for folder in FOLDERS:
        paths = sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        kept = {path: kept_at(path.relative_to(ROOT).as_posix()) for path in paths}
        new = [path for path, at in kept.items() if not at.exists() or at.stat().st_mtime < path.stat().st_mtime]
        if new:
            result, said = run(4 * 3600, None, [str(path.relative_to(ROOT)) for path in new], True)
            print(f"unchanged library, tests/{folder} {result}: {said.splitlines()[-1]}", flush=True)
        for at in kept.values():
            found |= json.loads(at.read_text())
    return found


def chosen(mutant: Mutant, tests: dict[str, dict[str, Any]]) -> list[str]:
    """The tests that reach a mutant's line or are named after its file, within `BOUND_S`: its own package's first."""
    package, inside = Path(mutant.file).parts[2], mutant.lineno in inside_functions(ROOT / mutant.file)
    named = re.compile(rf"tests/{package}/(.*/)?test_{Path(mutant.file).stem}(_\w+)?\.py::")
    met = {
        test: seen["seconds"]
        for test, seen in tests.items()
        if named.match(test)
        or (mutant.file in seen["lines"] and (not inside or mutant.lineno in seen["lines"][mutant.file]))
    }
    met |= {} if inside else {DEFAULTS: 0.0}
    reaching = {test for test in met if mutant.file in tests.get(test, {"lines": ()})["lines"]} | {DEFAULTS}
    order = sorted(
        met, key=lambda test: (f"tests/{package}/" not in test and test != DEFAULTS, test not in reaching, met[test])
    )
    total = itertools.accumulate(met[test] for test in order)
    return [test for test, seconds in zip(order, total, strict=True) if seconds < BOUND_S]


def main() -> None:
    """Draws, tests and reports mutants."""
    parser = argparse.ArgumentParser(description="Change the library in small places and see what the tests notice.")
    parser.add_argument("--number", type=int, default=300, help="how many mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the draw, to run again")
    parser.add_argument("--since", default="", help="of files that were added after this revision")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    sys.dont_write_bytecode = not compileall.compile_dir(ROOT / "src", quiet=1)  # else each process compiles everything
    tests, drawn = reached_lines(), draw(options.number, options.since, options.seed)
    results = KEPT / f"results_{options.number}_{options.since}_{options.seed}.jsonl"
    results.touch()
    known = {json.loads(line)[0] for line in results.read_text().splitlines()}
    wanted = sorted(set(range(len(drawn))) - known) if options.only is None else options.only
    for job in range(options.jobs):
        if os.fork():
            continue
        for number in wanted[job :: options.jobs]:
            names = chosen(drawn[number], tests)
            limit_s = 120 + 10 * sum(tests[name]["seconds"] for name in names if name in tests)
            result, said = run(limit_s, drawn[number], names) if names else ("passed", "no test reaches it")
            (KEPT / f"{number}.log").write_text(said)
            failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
            with results.open("a") as file:
                file.write(json.dumps([number, result, failed]) + "\n")
            print(number, result, drawn[number].line(), *failed, flush=True)
        os._exit(0)
    for _ in range(options.jobs):
        os.wait()
    latest = {n: (result, failed) for n, result, failed in map(json.loads, results.read_text().splitlines())}
    killers = sorted({test for _, failed in latest.values() for test in failed} & tests.keys())
    if killers and (said := run(1800, None, killers))[0] != "passed":
        sys.exit(f"tests that killed a mutant fail without one, too; run their mutants again with --only:\n{said[1]}")
    PAGE.write_text(page([(drawn[n], latest[n][0]) for n in sorted(latest)], len(drawn)), encoding="utf-8")


if __name__ == "__main__":
    main()
