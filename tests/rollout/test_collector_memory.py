"""Tests of `palaestra.rollout.collector` with a policy that has a memory."""

import pytest
import torch

from palaestra import Collector, Policy, ReplayBuffer
from palaestra.core import Batch, TensorSpec
from palaestra.policies import PolicyStep
from tests.rollout.worlds import FIRST, LAST, Numbered


class Counting(Policy):
    """Remembers how many steps of the episode it has seen."""

    @property
    def state_spec(self):
        return {"seen": TensorSpec((1,))}

    def initial_state(self, batch_size):
        return Batch(seen=torch.zeros(batch_size, 1))

    def choose(self, observation, state, explore, deterministic):
        return PolicyStep(torch.zeros(len(observation), dtype=torch.int64), Batch(seen=state.seen + 1))


@pytest.mark.parametrize("num_ready", [1, 2, 4])
@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("random", [False, True])
def test_rows_carry_the_memory_with_which_their_actions_were_chosen(num_ready, same_step, random):
    """TS-26: the memory begins anew at FIRST, is each lane's own, and goes on under random actions."""
    env = Numbered([3, 1, 5, 2], same_step=same_step, num_ready=num_ready)
    policy = Counting(env.observation_spec, env.action_spec)
    buffer = ReplayBuffer(
        None, 4, observation_spec=env.observation_spec, action_spec=env.action_spec, state_spec=policy.state_spec
    )
    collector = Collector(env, policy, buffer)
    collector.unroll(4, random=random)
    collector.unroll(6, random=random)
    assert collector._state.seen.shape == (4, 1)
    drawn = buffer.newest(min(buffer.positions.counts.tolist()))
    for lane in range(4):
        kinds, seen = drawn.step_type[:-1, lane].tolist(), drawn.state.seen[:, lane, 0].tolist()
        since = None
        for kind, memory in zip(kinds, seen, strict=True):
            since = 0 if kind == FIRST else None if since is None else since + 1
            if since is not None and not (same_step and kind == LAST):
                assert memory == since
