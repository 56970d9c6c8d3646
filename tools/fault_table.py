"""Runs the tests of faults, and writes docs/reliability/index.md: each fault, what the library does, and its tests.

A test names the faults that it shows as in `tools/requirement_coverage.py`. When all tests of a fault have passed, the
date is kept in docs/reliability/seen.json; a test that was skipped, for want of permissions or a package, is counted.

    python tools/fault_table.py run            # runs the tests of all faults (an hour), then writes the page
    python tools/fault_table.py run F15 F16    # of these
    python tools/fault_table.py                # writes the page
    python tools/fault_table.py --check        # exit 1 if the committed page differs
"""

import argparse
import datetime
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.requirement_coverage import ROOT, catalogue, proofs

FOLDER = ROOT / "docs/reliability"
PAGE, ANSWERS, SEEN = FOLDER / "index.md", FOLDER / "faults.yaml", FOLDER / "seen.json"
HEAD = """\
# Faults

What can fail, what the library then does, and the tests that show it with real faults. Written by `make faults`, which
runs all of them, from the ids that tests name; not edited by hand. "Seen" is the day on which all tests of a line have
passed last. Another page has [campaigns of kills](campaign.md).

| | what fails | what the library does | seen | shown by |
|---|---|---|---|---|
"""


class Outcomes:
    """What became of each test, as a plugin of pytest."""

    def __init__(self) -> None:
        self.of: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts failures of every phase, and the calls that passed or were skipped.

        Args:
            report: of one phase of one test.
        """
        if report.failed or report.when == "call" or report.skipped:
            self.of[report.nodeid.partition("[")[0]][report.outcome] += 1


def tests_of_faults() -> dict[str, list[str]]:
    """The tests that name each fault."""
    sections = catalogue()
    faults = next(section.ids for section in sections if section.title == "Faults")
    tests = proofs(ROOT, {id_ for section in sections for id_ in section.ids})
    return {id_: sorted(tests.get(id_, ())) for id_ in faults}


def run(ids: list[str], more: list[str]) -> int:
    """Runs the tests of some faults, and keeps the date of those of which all have passed.

    Args:
        ids: of the faults.
        more: options for pytest.
    """
    tests, outcomes = tests_of_faults(), Outcomes()
    chosen = sorted({test for id_ in ids for test in tests[id_]})
    code = pytest.main(["-q", *more, *chosen], plugins=[outcomes])
    seen = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    for id_ in ids:
        counts = sum((outcomes.of[test] for test in tests[id_]), Counter[str]())
        if all(outcomes.of[test] for test in tests[id_]) and counts["passed"] and not counts["failed"]:
            seen[id_] = {"date": datetime.date.today().isoformat(), "skipped": counts["skipped"]}
    ordered = {id_: seen[id_] for id_ in tests if id_ in seen}
    SEEN.write_text("{\n" + ",\n".join(f'  "{i}": {json.dumps(e)}' for i, e in ordered.items()) + "\n}\n", "utf-8")
    return int(code)


def page() -> str:
    """The text of docs/reliability/index.md."""
    answers, lines = yaml.safe_load(ANSWERS.read_text(encoding="utf-8")), []
    seen = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    titles = next(section.ids for section in catalogue() if section.title == "Faults")
    for id_, tests in tests_of_faults().items():
        entry = seen.get(id_)
        when = "not yet" if entry is None else entry["date"] + f" ({entry['skipped']} skipped)" * bool(entry["skipped"])
        shown = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests) or "no test yet"
        lines.append(f"| {id_} | {titles[id_]} | {answers[id_]} | {when} | {shown} |")
    return HEAD + "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Runs tests, and writes or checks the page; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the tests of faults, and write the table of faults.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is not up to date")
    parser.add_argument("words", nargs="*", help="run, and faults such as F15; all of them if left out")
    given, more = parser.parse_known_args(arguments)
    code = 0
    if given.words[:1] == ["run"]:
        code = run(given.words[1:] or list(tests_of_faults()), more)
    if not given.check:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE.relative_to(ROOT)} is not up to date; run `python tools/fault_table.py`", file=sys.stderr)
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
