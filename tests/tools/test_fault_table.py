"""Tests of `tools/fault_table.py`."""

import json
from types import SimpleNamespace

import pytest
import yaml

from tools import fault_table


def test_the_committed_page_is_up_to_date():
    assert fault_table.main(["--check"]) == 0


def test_every_fault_has_an_answer_and_a_test():
    answers, tests = yaml.safe_load(fault_table.ANSWERS.read_text()), fault_table.tests_of_faults()
    assert list(answers) == list(tests) == [f"F{number}" for number in range(1, 37)]
    assert [id_ for id_, found in tests.items() if not found] == []


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        (["passed", "passed"], {"skipped": 0}),
        (["passed", "skipped"], {"skipped": 1}),
        (["passed", "failed"], None),
        (["skipped", "skipped"], None),
        (["passed"], None),
    ],
)
def test_a_date_is_kept_where_every_test_was_run_and_none_failed(tmp_path, monkeypatch, outcomes, kept):
    """One that fails keeps the date on which the fault was last seen to hold."""
    monkeypatch.setattr(fault_table, "SEEN", tmp_path / "seen.json")
    monkeypatch.setattr(fault_table, "tests_of_faults", lambda: {"F1": ["test_a", "test_b"], "F2": ["test_c"]})
    (tmp_path / "seen.json").write_text('{"F1": {"date": "2020-01-01", "skipped": 0}}')

    def main(arguments, plugins):
        assert arguments == ["-q", "-x", "test_a", "test_b"]
        for test, outcome in zip(("test_a[1]", "test_b"), outcomes, strict=False):
            failed, skipped = outcome == "failed", outcome == "skipped"
            report = SimpleNamespace(nodeid=test, outcome=outcome, when="call", failed=failed, skipped=skipped)
            plugins[0].pytest_runtest_logreport(report)
        return 1

    monkeypatch.setattr(fault_table.pytest, "main", main)
    assert fault_table.run(["F1"], ["-x"]) == 1
    found = json.loads((tmp_path / "seen.json").read_text())
    assert found["F1"]["skipped"] == (kept or {"skipped": 0})["skipped"]
    assert (found["F1"]["date"] == "2020-01-01") == (kept is None)
