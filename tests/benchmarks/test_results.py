"""What the committed results say of themselves."""

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import fqe
from benchmarks.record import ROOT
from benchmarks.speed.workloads import WORKLOADS

LOST = {"14edc4d91e32", "42176cb7cfe5", "0e57d8baa7fe"}
"""Of `resume.json`, on a branch that was put together: which commit they have become cannot be told."""

OWN = ("buffers", "envs", "frames", "gpu", "instructions", "jax_envs", "minatar", "peak", "robots", "room", "serve")
PAGES = {
    **{f"speed/results/{name}": "speed.compare:markdown" for name in WORKLOADS if name != "qr_dqn"},
    **{f"speed/results/{name}": f"speed.{name}:markdown" for name in (*OWN, "tensors", "together")},
    **{f"speed/results/{name}": f"speed.{name}:text_of" for name in ("losses", "roofline", "scale")},
    "speed/results/distributed": "speed.distributed:report",
    "speed/results/import": "speed.start_up:markdown",
    "speed/results/mujoco": "speed.envs:markdown",
    "speed/results/rooms": "speed.revisions:markdown",
    "learning/results/fqe": "learning.fqe:text_of",
    "learning/results/imitation": "learning.imitation:text",
    "learning/results/reference": "learning.reference:text",
    "learning/results/solved": "learning.solved:markdown",
    "learning/results/tabular": "learning.tabular:page",
    "learning/results/teachers": "learning.teachers:text",
    "results/faults": "faults:markdown",
    "results/heal": "heal:report",
}
"""What makes a page of its record; records of `qr_dqn` and `revisions` are older than what makes theirs today."""


def git(*arguments: str, told: str = "") -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, input=told, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def revisions(value: Any) -> Iterator[str]:
    """All that stand in a record."""
    if isinstance(value, dict):
        if isinstance(value.get("revision"), str):
            yield value["revision"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from revisions(one)


def test_every_revision_is_a_commit_of_this_history():
    try:
        whole = git("rev-parse", "--is-shallow-repository").strip() == "false"
    except OSError:
        whole = False
    if not whole or Path(git("rev-parse", "--show-toplevel").strip()).resolve() != ROOT:
        pytest.skip("the history is not here")
    by_revision: dict[str, set[str]] = {}
    for file in sorted((ROOT / "benchmarks").glob("**/results/**/*.json")):
        for revision in revisions(json.loads(file.read_text())):
            by_revision.setdefault(revision.removesuffix("+"), set()).add(file.name)
    asked = [revision for revision in by_revision if revision not in LOST]
    told = git("cat-file", "--batch-check=%(objecttype)", told="".join(f"{one}^{{commit}}\n" for one in asked))
    kinds = dict(zip(asked, told.splitlines(), strict=True))
    assert {one: sorted(by_revision[one]) for one, kind in kinds.items() if kind != "commit"} == {}


def test_the_truth_is_summed_until_what_is_left_out_is_less_than_an_interval_can_tell():
    """Until gamma was a thousandth, 20 came out as 19.98, and an interval up to 19.994 held it."""
    assert 20 * (1 - 0.95 ** fqe.horizon(0.95)) == pytest.approx(20.0, abs=3e-4)
    record = json.loads(fqe.RESULT.read_text())
    last = record["cases"][-1]
    assert last["truth"]["mean"] == pytest.approx(20.0, abs=1e-3)
    assert fqe.inside(last) == 4
    assert record["held"] == [sum(map(fqe.inside, record["cases"])), 20]


@pytest.mark.parametrize("result", PAGES)
def test_a_page_says_what_its_record_says(result):
    module, _, function = PAGES[result].partition(":")
    text = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    place = ROOT / "benchmarks" / result
    record = json.loads(place.with_suffix(".json").read_text())
    assert place.with_suffix(".md").read_text().rstrip("\n") == text(record).rstrip("\n")


def test_the_documentation_shows_committed_results():
    texts = {file.read_text().strip() for file in (ROOT / "benchmarks").glob("**/results/*.md")}
    shown = {
        f"{page.relative_to(ROOT)}: {place}": block.strip() in texts
        for page in sorted((ROOT / "docs").glob("**/*.md"))
        for place, block in re.findall(r"<!-- ([a-z0-9 ]+) -->\n(.*?)<!-- end -->", page.read_text(), re.DOTALL)
    }
    assert len(shown) > 20 and all(shown.values()), shown
