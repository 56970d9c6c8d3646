"""Tests of `palaestra.envs.wrappers.episode_ends`."""

import functools

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError
from palaestra.envs import EnvConfig, LaneEnvironment, SerialDriver, TimeLimit, create_environment, load
from palaestra.envs.wrappers import ActionRepeat, RandomNoop, ScaleReward
from tests.envs.worlds import Doubled, counter


def pairs(env, count):
    steps = [env.step(0) for _ in range(count)]
    return [(int(step.step_type), float(step.discount)) for step in steps]


def test_only_the_step_type_changes_at_the_limit():
    """ALF-26, ALF-28, ALF-30."""
    env = counter(limit=3)
    assert pairs(env, 5) == [(0, 1.0), (1, 1.0), (1, 1.0), (2, 1.0), (0, 1.0)]


def test_a_termination_on_the_limit_step_stays_one():
    """ALF-31, ALF-25."""
    assert pairs(counter({3: "terminated"}, limit=3), 4)[-1] == (2, 0.0)


def test_the_limit_counts_from_every_reset():
    assert pairs(counter({2: "terminated"}, limit=3), 6)[3:] == [(0, 1.0), (1, 1.0), (2, 0.0)]


def test_a_native_limit_at_n_is_hijacked_at_n_minus_one():
    """ALF-32: the environment calls its time limit of 4 steps an end."""
    assert pairs(counter({4: "terminated"}), 5)[-1] == (2, 0.0)
    assert pairs(counter({4: "terminated"}, limit=3), 4)[-1] == (2, 1.0)


def test_the_registered_limit_is_the_default_and_can_be_changed():
    """ALF-30."""
    assert load("CartPole-v1").duration == 500
    assert load("CartPole-v1", max_episode_steps=7).duration == 7
    assert not isinstance(load("CartPole-v1", max_episode_steps=0), TimeLimit)


@pytest.mark.parametrize("wrap", [lambda env: env, Doubled], ids=["direct", "wrapped"])
def test_the_limit_is_the_same_in_a_batch(wrap):
    """ALF-30, ALF-31: with and without the shorter way that a batch takes through plain layers."""
    scripts = [{}, {2: "terminated"}, {3: "terminated"}, {3: "truncated"}]
    env = LaneEnvironment(SerialDriver([wrap(counter(script, limit=3)) for script in scripts]), lane_seeds=range(4))
    actions = torch.zeros(4, dtype=torch.int64)
    steps = [env.step(actions) for _ in range(9)]
    for lane, script in enumerate(scripts):
        alone = pairs(counter(script, limit=3), 9)
        assert [(int(step.step_type[lane]), float(step.discount[lane])) for step in steps] == alone


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        TimeLimit(counter(), 0)


def test_what_outer_layers_change_is_changed_in_the_raw_step_as_well():
    """ALF-19, ALF-30, PARL-02: whoever learns from the raw step sees the same episodes."""
    env = ActionRepeat(TimeLimit(ScaleReward(counter(), scale=0.5), 5), repeat=3)
    steps = [env.step(np.int64(0)) for _ in range(3)]
    assert [float(step.reward) for step in steps] == [0, 30, 45]
    raw = [step.untransformed for step in steps]
    assert [(int(step.step_type), float(step.reward)) for step in raw] == [(0, 0), (1, 60), (2, 90)]


def test_fractions_of_steps_are_refused():
    with pytest.raises(ConfigError, match=r"TimeLimit\(duration=2.5\); an episode needs a whole number of steps"):
        TimeLimit(counter(), 2.5)
    with pytest.raises(ConfigError, match=r"ActionRepeat\(repeat=2.5, pool=1\); integers"):
        ActionRepeat(counter(), repeat=2.5)
    with pytest.raises(ConfigError, match="TimeLimit"):
        TimeLimit(counter(), True)
    with pytest.raises(ConfigError, match=r"RandomNoop\(maximum=2.5\); it must be an integer"):
        RandomNoop(counter(), maximum=2.5)


@pytest.mark.parametrize("wrappers", [(), (functools.partial(ScaleReward, scale=2.0),)], ids=["direct", "layers"])
def test_a_limit_that_is_set_holds_from_the_next_episode_on(wrappers):
    config = EnvConfig(name="CartPole-v1", num_envs=2, max_episode_steps=6, wrappers=wrappers, vectorization="serial")
    with create_environment(config, seed=0) as env:
        env.reset()
        env.step(torch.zeros(2, dtype=torch.int64))
        env.set_attr("duration", 3)
        lengths, length = [], 1
        for _ in range(14):
            length += 1
            if env.step(torch.tensor([0, 1])).last[0]:
                lengths.append(length)
                length = -1
    assert lengths[:3] == [6, 3, 3]
