"""The page on how a run flows lists the calls that a run makes."""

import re

from tests.architecture.calls import calls
from tests.architecture.source import ROOT


def test_the_calls_of_a_run_are_those_on_the_page():
    page = (ROOT / "docs/concepts/run.md").read_text(encoding="utf-8")
    listed = re.findall(r"^  \|? +(\d+)  (\w+) +(\w+/\w+\.py)", page, re.MULTILINE)
    *made, engine = calls()["backward"]
    assert [f"{path}:{name}" for _, name, path in listed] == made
    assert [int(number) for number, _, _ in listed] == list(range(1, len(made) + 1))
    assert f"{len(made) + 1}  {engine}" in page
