"""Tests of `palaestra.algorithms.actor_critic`: what policy and value network share."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.testing import assert_close

from palaestra import Collector, EnvConfig, NetworkConfig, create_environment
from palaestra.algorithms import ALGORITHMS
from palaestra.core import RunSeeds
from palaestra.policies import load_policy, save_policy

ACTIONS = {
    "choice": spaces.Discrete(3),
    "vector": spaces.Box(-1, 1, (2,), np.float32),
    "parts": spaces.Dict({"choice": spaces.Discrete(2), "vector": spaces.Box(-1, 1, (1,), np.float32)}),
}


class Pictures(gymnasium.Env[np.ndarray, Any]):
    """Random pictures; every step pays the brightness of the last one."""

    def __init__(self, actions: str) -> None:
        self.observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)
        self.action_space = ACTIONS[actions]

    def _picture(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (1, 36, 36)).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        picture = self._picture()
        return picture, float(picture.mean() / 255), False, False, {}


def on_pictures(name: str, actions: str = "choice") -> tuple[Any, Collector]:
    config = EnvConfig(name=f"{__name__}:Pictures", kwargs={"actions": actions}, num_envs=2, max_episode_steps=6)
    env, kind = create_environment(config, seed=0), ALGORITHMS[name]
    settings = kind.config_class(unroll_length=8, network=NetworkConfig(hidden_sizes=(8,), image_size=8))
    algorithm: Any = kind(env.observation_spec, env.action_spec, settings, RunSeeds(0))
    return algorithm, Collector.of(env, algorithm)


def convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_pictures_are_encoded_once_for_policy_and_value(name, actions):
    algorithm, collector = on_pictures(name, actions)
    assert not convolutions(algorithm.value.network)
    collector.unroll(8)
    first = convolutions(algorithm.model)[0]
    before, calls = first.weight.detach().clone(), []
    batch = algorithm.preprocess(collector.buffer.draw(algorithm.plan, torch.Generator()), collector.buffer)
    handle = first.register_forward_hook(lambda *_: calls.append(1))
    algorithm.losses(batch)
    handle.remove()
    assert len(calls) == 1
    algorithm.update(collector.buffer)
    assert not torch.equal(first.weight, before)


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_the_value_trains_the_code_that_it_shares(name):
    algorithm, collector = on_pictures(name)
    value = algorithm.value(collector.env.reset().observation)
    first = convolutions(algorithm.policy)[0]
    assert torch.autograd.grad(value.sum(), [first.weight])[0].any()


@pytest.mark.parametrize("name", ["ppg", "trpo"])
def test_networks_that_are_trained_apart_encode_pictures_each(name):
    """The policy's step of TRPO is none of the value's; PPG keeps both apart on purpose."""
    algorithm, collector = on_pictures(name)
    assert len(convolutions(algorithm.policy)) == len(convolutions(algorithm.value.network)) == 3
    collector.unroll(8)
    algorithm.update(collector.buffer)
    assert algorithm.policy_version == 1


@pytest.mark.parametrize("actions", ACTIONS)
def test_a_policy_on_pictures_is_the_same_after_saving_and_loading(actions, tmp_path):
    algorithm, collector = on_pictures("ppo", actions)
    save_policy(algorithm.policy, tmp_path / "policy")
    observation = collector.env.reset().observation
    loaded: Any = load_policy(tmp_path / "policy")
    features, _ = loaded.features(observation)
    assert_close(features, algorithm.policy.features(observation)[0], rtol=0, atol=0)
    assert_close(loaded.head(features), algorithm.policy.head(features), rtol=0, atol=0)
