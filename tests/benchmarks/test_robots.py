"""Tests of the benchmarks of robots: what their reports say."""

import json

import pytest

from benchmarks.learning import robots
from benchmarks.speed import robots as serving


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(robots, "PIECES", tmp_path)

    def write(learner, trial, seed, budget, success):
        record = {"seed": seed, "env_steps": [budget], "success": success}
        robots.file_of(learner, trial, seed, budget).write_text(json.dumps(record))

    return write


def test_the_best_trial_is_the_one_with_most_success_and_the_first_of_equals(pieces):
    assert robots.best_trial("sac") == 0
    for trial, success in enumerate([[0, 0, 0.1], [0, 0.5, 0.9], [0.9, 0.9, 0.0]]):
        pieces("sac", trial, robots.TUNING_SEED, robots.BUDGET, success)
    assert robots.best_trial("sac") == 1


def test_a_report_says_which_seeds_and_trials_it_has(pieces):
    pieces("hierarchical", 0, 0, robots.BUDGET, [0.0, 0.8])
    pieces("hierarchical", 0, 3, robots.BUDGET, [0.0, 1.0])
    text = robots.markdown(robots.report())
    (row,) = (line for line in text.splitlines() if line.startswith("| hierarchical"))
    assert "| 0 | 2 of 5 | 0.90 ± 1.27 | 0.80, 1.00 |" in row
    assert "| sac | 48,000 | 0 | 0 of 5 | – |" in text


def test_flat_learners_have_three_times_the_budget_and_as_many_trials():
    assert robots.FLAT_BUDGET == 3 * robots.BUDGET
    assert len({len(trials) for trials in robots.TRIALS.values()}) == 1


def test_serving_is_measured_by_threads_that_ask_and_agents_that_step():
    batched = serving.throughput("2 x 64", 4, 4, 0.2)
    assert batched["requests_per_s"] > 10 and 1 <= batched["batch_size"] <= 4
    found = serving.overhead("threads", 4, 20)
    assert found["request_us"] == pytest.approx(found["forward_us"] + found["overhead_us"])
