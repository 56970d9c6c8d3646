"""Tests of `palaestra.distributed.Pace`: how many rows are drawn for those that are written."""

from typing import Any

import pytest

from palaestra.core import POLICY
from palaestra.distributed import AsynchronousConfig, Pace
from palaestra.envs import probe_specs
from palaestra.rollout import buffer_for
from tests.distributed.actors import CATCH, make_algorithm


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
