"""What a run says that its best policy has reached, after sessions that were cut."""

from typing import Any

import pytest

from palaestra.runs import records
from palaestra.runs.records import write_evaluation
from tests.experiments.parts import rows_of, written


def result(mean: float, best: bool) -> dict[str, Any]:
    """Of an evaluation of one episode."""
    return {
        "return_mean": mean,
        "length_mean": 6.0,
        "episodes": 1,
        "returns": [mean],
        "return_ci95": [mean, mean],
        "best": best,
    }


@pytest.mark.parametrize(
    ("later", "kept"), [([(2000, 100.0, True), (3000, 80.0, False)], 100.0), ([(2000, 40.0, False)], 50.0)]
)
def test_an_evaluation_made_again_where_a_run_goes_on_counts(tmp_path, later, kept):
    """F25: it was cut in the evaluation at 2000, after the checkpoint there; what had been best was 50."""
    run = written(tmp_path, rows_of([1.0]))
    write_evaluation(run.path, 1000, result(50.0, best=True))
    run.write_info({"best_return": 50.0, "resumed_at": 2000, "resumes": 1})
    for step, mean, best in later:
        write_evaluation(run.path, step, result(mean, best))
    assert run.kept_return == kept


def test_an_evaluation_of_the_session_before_does_not_count_again(tmp_path):
    """It ended with that at 2000; the policy of 100 was lost, and what is kept has reached 50."""
    run = written(tmp_path, rows_of([1.0]))
    write_evaluation(run.path, 2000, result(100.0, best=True))
    run.write_info({"best_return": 50.0, "resumed_at": 2000, "resumes": 1})
    assert run.kept_return == 50.0


def test_a_fork_takes_the_policy_whose_return_it_says(tmp_path, monkeypatch):
    """The run goes on: it finds a better policy while the one before is copied."""
    run, child = written(tmp_path, rows_of([1.0])), tmp_path / "child"
    write_evaluation(run.path, 1000, result(50.0, best=True))
    (run.path / "policy").mkdir(exist_ok=True)
    (run.path / "policy" / "policy.json").write_text("50")

    def copy_while_the_run_goes_on(source, target):
        (target / "policy.json").write_text((source / "policy.json").read_text())
        if run.kept_return == 50.0:
            (source / "policy.json").write_text("90")
            write_evaluation(run.path, 2000, result(90.0, best=True))

    monkeypatch.setattr(records, "copy_policy", copy_while_the_run_goes_on)
    assert records.copy_policies(run.path, child, lambda: run.kept_return) == 90.0
    assert (child / "policy" / "policy.json").read_text() == "90"
