"""Tests of `palaestra.envs.suites.envpool`."""

import importlib.util
import itertools

import pytest
import torch

from palaestra.core import ConfigError, EnvError, MissingExtraError, check_time_step
from palaestra.envs import EnvConfig, create_environment, load
from palaestra.envs.suites import envpool as suite

pytestmark = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="the extra `envpool`")


def pool(name="envpool:CartPole-v1", seeds=(3, 4), **settings):
    return create_environment(EnvConfig(name=name, num_envs=2, **settings), lane_seeds=seeds)


def play(env, steps):
    action = torch.zeros(2, *env.action_spec.shape, dtype=env.action_spec.dtype)
    return [env.reset(), *(env.step(action) for _ in range(steps))]


def test_a_pool_emits_time_steps_with_true_final_observations():
    """ALF-25, ALF-33: a pole that falls is an end; the step after it is FIRST."""
    with pool() as env:
        stream = play(env, 40)
    assert env.seeding == "per_batch"
    ends = 0
    for before, after in itertools.pairwise(stream):
        check_time_step(after)
        assert torch.equal(after.first, before.last)
        assert not after.reward[after.first].any()
        ends += int(after.terminated.sum())
        fallen = (after.observation[:, 2].abs() > 0.2095) | (after.observation[:, 0].abs() > 2.4)
        assert torch.equal(after.last, fallen)
    assert ends > 4


def test_the_time_limit_truncates():
    """ALF-26, ALF-28, ALF-30."""
    with pool("envpool:Pendulum-v1", max_episode_steps=5) as env:
        stream = play(env, 6)
    assert [step.step_type[0].item() for step in stream] == [0, 1, 1, 1, 1, 2, 0]
    assert all((step.discount == 1).all() for step in stream)


def test_the_seed_decides_and_a_second_reset_has_another():
    """ALF-55, ALF-56: though EnvPool takes a seed only when it is made."""
    with pool() as one, pool() as two, pool(seeds=(5, 6)) as three:
        first, same, other = (env.reset().observation for env in (one, two, three))
        second = one.reset().observation
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_a_single_environment_of_a_pool_does_not_exist():
    with pytest.raises(ConfigError, match="exists as a pool only"):
        load("envpool:CartPole-v1")
    with pytest.raises(ConfigError, match="exists as a pool only"):
        pool(vectorization="process")
    with pytest.raises(ConfigError, match="Gymnasium's wrappers, such as"):
        pool(gym_wrappers=("ClipReward",))


def test_unknown_names_and_arguments_are_refused():
    """F27."""
    with pytest.raises(ConfigError, match="EnvPool has no 'CartPoll-v1' — did you mean 'CartPole-v1'"):
        pool("envpool:CartPoll-v1")
    with pytest.raises(ConfigError, match="colour"):
        pool(kwargs={"colour": "red"})


def test_a_pool_draws_lane_0_or_says_why_it_cannot():
    """`palaestra play` of every such run failed, and asked for the render_mode that it had given."""
    with pool(kwargs={"render_mode": "rgb_array"}) as env:
        env.reset()
        assert env.render().shape == (400, 600, 3)
    with pool() as env, pytest.raises(EnvError, match="cannot draw 'CartPole-v1': render_mode must be set to 'rgb_"):
        env.render()
    with pool("envpool:FrozenLake-v1", kwargs={"render_mode": "rgb_array"}) as env:
        env.reset()
        with pytest.raises(EnvError, match="cannot draw 'FrozenLake-v1': render not implemented"):
            env.render()


def test_a_pool_draws_every_step_in_its_window(monkeypatch):
    drawn = []
    monkeypatch.setattr(suite.EnvPoolVectorEnv, "render", lambda self: drawn.append(self))
    with pool(kwargs={"render_mode": "human"}) as env:
        play(env, 2)
    assert len(drawn) == 3


def test_a_missing_package_is_named(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtraError, match=r"palaestra\[envpool\]"):
        suite.EnvPoolVectorEnv("envpool:CartPole-v1", 1, {})
