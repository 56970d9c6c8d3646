"""What the learning benchmark says about its seeds."""

import pytest

from benchmarks.learning.summary import curve, markdown, summarize
from benchmarks.learning.zoo import NAMES, ZOO
from benchmarks.record import provenance


def seed(number, last, *, returns=(20.0, 500.0, 500.0), train_s=20.0):
    return {
        "seed": number,
        "env_steps": [50_000, 90_000 + number, 100_100],
        "return_mean": list(returns),
        "episodes": 20,
        "final": {which: {"return_mean": last, "return_std": 1.0, "episodes": 100} for which in ("last", "best")},
        "train_s": train_s,
    }


@pytest.mark.parametrize(("mean", "met"), [(-78.9, [True, False]), (-77.0, [True, True]), (-79.1, [False, False])])
def test_the_bar_is_the_zoos_mean_minus_two_standard_errors(mean, met):
    assert ZOO["dqn", "Acrobot-v1"].bar() == pytest.approx(-76.639 - 2 * 1.1752)
    summary = summarize("dqn", "Acrobot-v1", [seed(i, mean + i - 2) for i in range(5)])
    assert [bar["met"] for bar in summary["bars"]] == met
    assert summary["last"]["half_width"] == pytest.approx(2.776 * 2.5**0.5 / 5**0.5)


@pytest.mark.parametrize(
    ("failed", "met"),
    [
        ([], True),
        ([seed(9, 500.0, returns=(500.0, 500.0, 499.0))], True),
        ([seed(9, 500.0, train_s=31.0), seed(8, 500.0, returns=(20.0, 400.0, 500.0))], False),
    ],
)
def test_cartpole_needs_four_of_five_seeds_at_500_within_budget_and_time(failed, met):
    seeds = [*failed, *(seed(i, 500.0) for i in range(5 - len(failed)))]
    bar = summarize("ppo", "CartPole-v1", seeds)["bars"][-1]
    assert bar["met"] == met
    assert bar["text"].endswith(f"{5 - len(failed)} of 5 seeds")


def test_the_curve_averages_the_evaluations_that_all_seeds_have():
    short = seed(2, 500.0, returns=(40.0, 300.0))
    short["env_steps"] = short["env_steps"][:2]
    points = curve([seed(0, 500.0), short])
    assert [steps for steps, _ in points] == [50_000, 90_001]
    assert [interval.mean for _, interval in points] == [30.0, 400.0]


def test_the_table_has_a_row_for_every_preset_with_results():
    records = {
        name: {
            **provenance(f"python -m benchmarks.learning run {name}"),
            "seeds": [seed(i, -100.0 + i) for i in range(5)],
        }
        for name in NAMES
    }
    text = markdown(records)
    assert (
        "| DQN | MountainCar-v0 | 100,100 | 5 | -98.0 ± 2.0 | -98.0 ± 2.0 | 20 s | -100.849 ± 9.925 (120,000) |" in text
    )
    assert text.count("`python -m benchmarks.learning run ") == len(NAMES)
