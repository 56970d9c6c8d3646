"""Tests of `palaestra.rollout.metrics`."""

import json
import math

import pytest

from palaestra.rollout import AverageOf, Episode, default_metrics
from tests.training.parts import Recorder, trainer

NAN, INF = float("nan"), float("inf")
EPISODES = [
    Episode(1.0, 2, 0, {"x": 1.0}, 0.5),
    Episode(3.0, 4, 0, {}, 1.5),
    Episode(8.0, 6, 0, {"x": 2.0, "y@max": NAN}, NAN),
]


def result(metrics):
    return {name: value for metric in metrics for name, value in metric.result().items()}


def test_metrics_are_counts_and_averages_over_the_episodes_that_have_them():
    """ALF-57: environment steps, episodes, returns, lengths, discounted returns, infos; non-finite values skipped."""
    metrics = default_metrics()
    for metric in metrics:
        metric.add(12, EPISODES)
    assert result(metrics) == {
        "env_steps": 12,
        "episodes": 3,
        "return_mean": 4.0,
        "length_mean": 4.0,
        "discounted_return_mean": 1.0,
        "info/x": 1.5,
    }
    assert result(default_metrics()) == {"env_steps": 0, "episodes": 0}


def test_only_the_newest_episodes_count():
    """ALF-57: a buffer of so many episodes; of more at once some from all over them."""
    metric = AverageOf("r", lambda episode: episode.episode_return, window=2)
    metric.add(1, EPISODES)
    assert metric.result() == {"r": 2.0}
    metric.add(1, EPISODES[2:])
    assert metric.result() == {"r": 5.5}


def test_of_many_episodes_at_once_those_of_every_worker_count():
    """Four workers' fragments in a row: each has a quarter of the window."""
    metric = AverageOf("r", lambda episode: episode.episode_return, window=8)
    metric.add(1, [Episode(float(worker), 1, worker, {}) for worker in range(4) for _ in range(30)])
    assert metric.result() == {"r": 1.5}
    assert [values["r"] for values in metric.state()] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_values_that_are_not_finite_are_skipped(value):
    metric = AverageOf("info/", lambda episode: episode.info)
    metric.add(1, [Episode(0.0, 1, 0, {"x": value}), Episode(0.0, 1, 0, {"x": 4.0})])
    assert metric.result() == {"info/x": 4.0}


def test_a_metric_goes_on_from_its_state():
    """F25: through JSON."""
    before, after, whole = default_metrics(), default_metrics(), default_metrics()
    for old, new, one in zip(before, after, whole, strict=True):
        old.add(1, EPISODES[:1])
        new.load_state(json.loads(json.dumps(old.state())))
        new.add(2, EPISODES[1:])
        one.add(1, EPISODES[:1])
        one.add(2, EPISODES[1:])
    assert result(after) == result(whole)


def test_a_metric_of_ones_own_is_in_every_row():
    """ALF-57: user-defined."""
    recorder = Recorder()
    made = trainer("ppo", total=300, log_every_steps=100, loggers=[recorder])
    made.metrics.append(AverageOf("won", lambda episode: episode.episode_return > 0))
    made.run()
    shares = [row["won"] for row in recorder.rows]
    assert shares[-1] == sum(e.episode_return > 0 for e in recorder.ended[-100:]) / min(100, len(recorder.ended))
    assert all(math.isfinite(row["discounted_return_mean"]) for row in recorder.rows)


def test_averages_are_over_the_newest_hundred_episodes_by_default():
    episodes = [Episode(0.0 if number else 1000.0, 0 if number else 1000, 0, {}) for number in range(101)]
    metrics = [AverageOf("own", lambda episode: episode.episode_return), *default_metrics()]
    for metric in metrics:
        metric.add(0, episodes[:100])
    assert metrics[0].result() == {"own": 10.0}
    for metric in metrics:
        metric.add(0, episodes[100:])
    results = {name: value for metric in metrics for name, value in metric.result().items()}
    assert (results["own"], results["return_mean"], results["length_mean"]) == (0.0, 0.0, 0.0)
