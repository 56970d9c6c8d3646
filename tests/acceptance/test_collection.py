"""Scenario 6 of REQUIREMENTS section 5: a collector of several environments, its buffer, and complete episodes."""

import numpy as np
import pytest
import torch

from palaestra import DQN, Collector, EnvConfig, create_environment
from palaestra.core import Replay, StepType

FIRST, MID, LAST = (int(kind) for kind in StepType)


def collector(num_envs=3, **named):
    """Catch, whose episodes take 9 env steps and a reset."""
    env = create_environment(
        EnvConfig(name="palaestra.envs.tiny:Catch", num_envs=num_envs), lane_seeds=list(range(num_envs))
    )
    return Collector.of(env, DQN(env.observation_spec, env.action_spec), **named)


@pytest.mark.parametrize("request_", [{"n_step": 50}, {"n_episode": 7}], ids=str)
def test_s6_at_least_what_was_asked_for_is_collected_and_stored(request_):
    """Scenario 6: TS-23, TS-25."""
    collect = collector()
    info = collect.collect(**request_)
    assert info.env_steps >= request_.get("n_step", 0)
    assert len(info.episodes) >= request_.get("n_episode", 0)
    rows = collect.buffer.sample(0, torch.Generator())[0]
    assert int((rows.step_type != LAST).sum()) == info.env_steps == collect.env_steps
    assert len(collect.buffer.episodes()) >= len(info.episodes)


def test_s6_rows_of_several_environments_do_not_interleave():
    """Scenario 6: TS-24: every lane is one stream, every complete run goes from FIRST to LAST."""
    buffer = (collect := collector()).buffer
    collect.collect(n_step=100)
    for lane in range(3):
        kinds = buffer.step_type[buffer.in_time_order(lane)].tolist()
        assert kinds == ([FIRST, *[MID] * 8, LAST] * 9)[: len(kinds)]
    episodes = buffer.episodes()
    assert [len(rows) for rows in episodes] == [10] * len(episodes)
    for rows in episodes:
        assert len(set((rows % 3).tolist())) == 1
        assert np.array_equal(buffer.next(rows[:-1]), rows[1:])


def test_s6_only_complete_episodes_are_learned_from_where_that_is_asked_for():
    """Scenario 6: TS-24, TS-25: Tianshou's rule; what is running waits."""
    collect = collector(complete_episodes_only=True)
    collect.collect(n_step=45)  # 15 rows of each lane: one episode, and part of the next
    plan = Replay(unroll_length=1, mini_batch_size=300)
    drawn = collect.buffer.draw(plan, torch.Generator().manual_seed(0))
    ended = {int(row) for rows in collect.buffer.episodes() for row in rows[:-1]}
    assert set(drawn.index.tolist()) == ended
    assert len(ended) == 27
