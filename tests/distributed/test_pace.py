"""Tests of `palaestra.distributed.Pace`: how many rows are drawn for those that are written."""

from collections import Counter
from typing import Any

import pytest

from palaestra.core import POLICY
from palaestra.distributed import AsynchronousConfig, Pace
from palaestra.distributed.policy_server import _histogram
from palaestra.envs import probe_specs
from palaestra.rollout import buffer_for
from tests.distributed.actors import CATCH, asynchronous, make_algorithm
from tests.distributed.parts import local


def test_without_a_pace_as_many_rows_are_drawn_for_each_one_as_in_a_run_of_one_process():
    """There 2 minibatches of 10 rows follow 4 time steps of 4 lanes."""
    algorithm: Any = make_algorithm("dqn", CATCH, gradient_steps=2, mini_batch_size=10, unroll_length=4)
    observation_spec, _, reward_spec = probe_specs(CATCH)
    buffer = buffer_for(algorithm, 4, observation_spec=observation_spec, reward_spec=reward_spec)
    pace = Pace({POLICY: algorithm}, {POLICY: buffer}, 4, AsynchronousConfig(), num_envs=4)
    pace.took(16, env_steps=10_000)  # which begins the count
    pace.took(16, env_steps=10_000)
    assert pace.ahead == pytest.approx(20)
    assert pace.enough(1, 10_000)
    assert pace.ahead == pytest.approx(0)


def test_without_a_pace_actors_and_learning_keep_to_that_ratio():
    """20 rows are drawn for 12 time steps of 4 lanes, and fragments are 16 steps of 2."""
    with local() as runtime:
        trainer = asynchronous(runtime, "dqn", actors=2, capacity=100_000)
        for _ in range(60):
            trainer.train_iter()
        rows = len(trainer.collector.buffers[POLICY])
    drawn = trainer.algorithm.num_gradient_steps * 10
    assert drawn > 1_000
    assert drawn == pytest.approx(rows * 20 / (12 * 4), abs=100)


def test_lags_are_counted_in_bins_that_double():
    lags = Counter({0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 8: 7, 9: 8, 16: 9, 17: 10})
    bins = {"0": 1, "1": 2, "2": 3, "3-4": 9, "5-8": 13, "9-16": 17, "17+": 10}
    assert _histogram(lags) == bins
