"""Gradient workers that join and leave while a learner goes on (F35)."""

import copy

import pytest

from palaestra.core import ConfigError
from palaestra.distributed import GradientWorkers
from palaestra.testing.algorithms import different, whole_state
from tests.algorithms.parts import any_kind, collected
from tests.distributed.parts import local, twin


def test_learners_join_and_leave_between_updates_and_no_bit_changes():
    """F35: one, three, two, four and one again; whoever joins is waited for by nobody, and gets the whole state."""
    algorithm, collector = collected("ppo", any_kind("ppo"))
    numbers = [0, 2, 2, 1, 3, 3, 0]
    unbroken, mine, there = twin(algorithm), algorithm, list[float]()
    with local() as runtime:
        alone = GradientWorkers({"policy": unbroken}, runtime, 0, num_shards=4)
        for _ in numbers:
            alone.update("policy", copy.deepcopy(collector.buffer))
        pool = GradientWorkers({"policy": mine}, runtime, 0, num_shards=4)
        for number in numbers:
            pool.resize(number)
            runtime.wait([], timeout_s=0.0)  # one of them begins
            pool.update("policy", copy.deepcopy(collector.buffer))
            there.append(pool.metrics()["learners/there"])
    assert there[0] == there[-1] == 1
    assert max(there) > 2
    assert not different(whole_state(unbroken), whole_state(mine))


def test_who_may_join_is_said():
    algorithm, _ = collected("ppo", "discrete")
    with local() as runtime:
        with pytest.raises(ConfigError, match=r"4 gradient workers .* need num_shards, at least 5 \(it is 4\)"):
            GradientWorkers({"policy": algorithm}, runtime, 0, num_shards=4).resize(4)
        with pytest.raises(ConfigError, match=r"at least 2 \(it is None\), and no allocator"):
            GradientWorkers({"policy": algorithm}, runtime, 1).resize(1)
