"""Tests of the benchmarks of robots: what their reports say."""

import json

import pytest

from benchmarks.learning import robots
from benchmarks.speed import robots as serving


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(robots, "PIECES", tmp_path)

    def write(learner, trial, seed, success):
        record = {"seed": seed, "env_steps": [*range(len(success))], "success": success, "train_s": 1.0}
        robots.file_of(learner, trial, seed).write_text(json.dumps(record))

    return write


def test_the_best_trial_is_the_one_with_most_success_and_the_first_of_equals(pieces):
    assert robots.best_trial("sac") == 0
    early, late = [0.9] * 4 + [0.0] * 4, [0.0] * 7 + [0.9]
    for trial, success in enumerate([[0.0] * 8, late, early]):
        pieces("sac", trial, robots.TUNING_SEED, success)
        pieces("blind", trial, robots.TUNING_SEED, success)
    assert robots.best_trial("sac") == 1, "what counts is where it ends"
    assert robots.best_trial("blind") == 2, "what counts is how soon it learns"


def test_a_report_says_which_seeds_and_trials_it_has(pieces):
    pieces("hierarchical", 0, 0, [0.0, 0.8])
    pieces("hierarchical", 0, 3, [0.0, 1.0])
    text = robots.markdown(robots.report(), "hierarchy")
    (row,) = (line for line in text.splitlines() if line.startswith("| hierarchical"))
    assert "| 0 | 2 of 5 | 0.90 ± 1.27 | 0.80, 1.00 | 1 ± 0 | 0.45 ± 0.64 |" in row
    assert "| SAC | 48,000 | 0 | 0 of 5 | – |" in text


def test_flat_learners_have_three_times_the_budget_and_learners_of_a_study_as_many_trials():
    budgets = {name: robots.LEARNERS[name].budget for name in robots.STUDIES["hierarchy"]}
    assert {name: budget // budgets["hierarchical"] for name, budget in budgets.items()} == {
        "hierarchical": 1, "sac": 3, "ppo": 3, "sac_hindsight": 3
    }  # fmt: skip
    for learners in robots.STUDIES.values():
        assert len({len(robots.LEARNERS[name].trials) for name in learners}) == 1
    assert len({robots.LEARNERS[name].budget for name in robots.STUDIES["perception"]}) == 1


def test_steps_to_a_success_are_those_of_the_first_point_that_has_it():
    learned, late, never = ([10, 20, 30], [0.0, 0.9, 0.7]), ([10, 20, 30], [0.0, 0.0, 0.8]), ([10, 20, 30], [0.0] * 3)
    assert robots.steps_to(0.8, [learned, late]) == "25 ± 64"
    assert robots.steps_to(0.8, [learned, never]) == "20 (1 of 2)"
    assert robots.steps_to(0.8, [never]) == "never" and robots.steps_to(0.8, []) == "–"


def test_success_while_training_is_that_of_the_episodes_of_each_part(tmp_path):
    rows = ["env_steps,return", *(f"{steps},{earned}" for steps, earned in ((90, 0), (100, 1), (101, 0), (800, 1)))]
    (tmp_path / "episodes.csv").write_text("\n".join(rows))
    found = dict(robots.trained(tmp_path, 800))
    assert found[100] == 0.5 and found[200] == 0 and found[800] == 1 and list(found) == [*range(100, 900, 100)]


@pytest.mark.parametrize("study", robots.STUDIES)
def test_the_tutorial_shows_the_committed_studies(study):
    text = (robots.RESULTS / f"robots_{study}.md").read_text().strip()
    assert text in (robots.ROOT / robots.PAGE).read_text()


def test_serving_is_measured_by_threads_that_ask_and_agents_that_step():
    batched = serving.throughput("2 x 64", 4, 4, 0.2)
    assert batched["requests_per_s"] > 10 and 1 <= batched["batch_size"] <= 4
    found = serving.overhead("threads", 4, 20)
    assert found["request_us"] == pytest.approx(found["forward_us"] + found["overhead_us"])
