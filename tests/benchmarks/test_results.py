"""What the committed results say of themselves."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import fqe
from benchmarks.record import ROOT

LOST = {"14edc4d91e32", "42176cb7cfe5", "0e57d8baa7fe"}
"""Of `resume.json`, on a branch that was put together: which commit they have become cannot be told."""


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
    assert fqe.RESULT.with_suffix(".md").read_text() == fqe.text_of(record) + "\n"
