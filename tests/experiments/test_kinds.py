"""Objects of another kind than the one that is needed: a sentence for each, before anything begins (F27)."""

import functools

import gymnasium
import pytest

import palaestra
from palaestra import PPO, Collector, EnvConfig, Trainer, create_environment
from palaestra.algorithms import DQNConfig
from palaestra.analysis.stats import stats
from palaestra.core import ConfigError
from palaestra.rollout import evaluate


@functools.cache
def environments(name="CartPole-v1"):
    return create_environment(EnvConfig(name=name, num_envs=2))


@functools.cache
def algorithm(seed=0):
    env = environments()
    return PPO(env.observation_spec, env.action_spec)


def made(*more):
    env = environments()
    return PPO(env.observation_spec, env.action_spec, *more)


def collector():
    return Collector.of(environments(), algorithm())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: create_environment("CartPole-v1"),
            "create_environment was given a str: 'CartPole-v1'; give EnvConfig",
        ),
        (
            lambda: evaluate(algorithm(), environments()),
            r"evaluate was given a PPO; give a policy, such as algorithm\.p",
        ),
        (
            lambda: evaluate(algorithm().policy, gymnasium.make("CartPole-v1")),
            "evaluate was given a TimeLimit; give env",
        ),
        (lambda: evaluate(algorithm().policy, environments("Acrobot-v1")), r"observations are .*\(6,\).* for .*\(4,\)"),
        (
            lambda: Collector.of(environments("Acrobot-v1"), algorithm()),
            r"Collector\.of was given environments whose obs",
        ),
        (lambda: Collector.of(environments("MountainCar-v0"), algorithm()), r"whose observations are .*\(2,\)"),
        (lambda: Collector.of(environments(), algorithm().policy), r"Collector\.of was given a .*; give an algorithm"),
        (lambda: made(DQNConfig()), r"as config, was given a DQNConfig; give a PPOConfig\(\.\.\.\)"),
        (lambda: made(None, 3), r"as seeds, was given a int: 3; give a RunSeeds\(\.\.\.\)"),
        (lambda: Trainer(collector(), algorithm(1)), "acts with another policy than the one that this PPO learns"),
        (lambda: Trainer(collector(), algorithm().policy), "give an algorithm, or a PolicyManager"),
        (lambda: palaestra.run({}), "a run was given a dict; give an ExperimentConfig"),
        (
            lambda: palaestra.tune("ppo", "CartPole-v1", search={"a": [1]}),
            r"give a Search\(\.\.\.\); ranges are its `space`",
        ),
        (
            lambda: palaestra.train("ppo", "CartPole-v1", loggers=[print]),
            "objects with the methods start, metrics, episodes",
        ),
        (lambda: stats({"a": [1, 2]}), "scores are no mapping of mappings"),
    ],
)
def test_another_kind_is_named(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        call()
    assert not list(tmp_path.iterdir())
