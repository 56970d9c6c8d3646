"""Tests of `palaestra.envs.suites.gym`."""

import pytest

from palaestra.core import ConfigError
from palaestra.envs.suites import gym
from palaestra.envs.wrappers import TimeLimit
from tests.envs.worlds import Doubled


def test_load_adds_the_registered_limit_and_the_wrappers():
    """ALF-44."""
    env = gym.load("MountainCar-v0", env_id=2, wrappers=[Doubled])
    assert isinstance(env, Doubled)
    assert isinstance(env.env, TimeLimit)
    assert env.env.duration == 200
    assert env.reset().env_id == 2


def test_an_unknown_id_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="MountainCar"):
        gym.load("MountianCar-v0")


def test_arguments_that_the_environment_does_not_take_are_refused():
    with pytest.raises(ConfigError, match="colour"):
        gym.load("CartPole-v1", kwargs={"colour": "red"})
