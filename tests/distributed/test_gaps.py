"""Tests of what is learned around the gaps that dropped fragments leave."""

import functools

import pytest
import torch

from palaestra import NetworkConfig
from palaestra.core import StepType
from palaestra.ops import valid_starts
from palaestra.runtime import LocalRuntime
from tests.distributed.runs import QUICK, HoldBack, env_of, make_algorithm, make_manager, worker_of

MEMORY = {"network": NetworkConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=6), "mini_batch_length": 4}


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [("r2d2", "recurrent", {}), ("sac", "continuous", MEMORY), ("dreamer", "discrete", {"burn_in": 1})],
)
def test_nothing_is_learned_with_the_memory_of_another_episode(name, kind, settings):
    """The rest of the episode behind the gap of a dropped fragment, up to the next FIRST row."""
    make = functools.partial(make_algorithm, name, kind, **settings)
    algorithm = make()
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        manager = make_manager(runtime, algorithm, env_of(kind), make, num_workers=4, min_finished_workers=3)
        manager.unroll(1)
        hold.held.add(worker_of(manager, 3))
        manager.unroll(1)
        algorithm.policy.version += 1
        hold.held.clear()
        while not manager.dropped:
            manager.unroll(1)
        manager.unroll(12)
        buffer = manager.buffers["policy"]
    drawn = buffer.rows_of(algorithm.plan, buffer.reader.starts(algorithm.plan.window))
    kinds = drawn.step_type.tolist()
    behind = torch.zeros(drawn.step_type.shape, dtype=torch.bool)
    for t, before in enumerate(kinds[:-1]):
        for n, kind_before in enumerate(before):
            goes_on = kinds[t + 1][n] != StepType.FIRST
            behind[t + 1, n] = goes_on and (kind_before == StepType.LAST or behind[t, n])
    batch = algorithm.prepared(drawn, drawn, buffer)
    rows = len(batch.valid)
    assert (behind[:-1] & valid_starts(drawn.step_type))[1:rows].any()
    assert not batch.valid[behind[:rows]].any()
    assert batch.valid.any()
    other = torch.where(behind[: len(batch.observation), :, None], 9.0, batch.observation)
    assert algorithm.losses(batch.replace(observation=other)).terms == algorithm.losses(batch).terms
