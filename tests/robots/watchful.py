"""A robot whose second task watches the first and trains the same perception, for tests of what they share."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from palaestra import (
    DQN,
    AlgorithmConfig,
    CoreModel,
    DQNConfig,
    GradientAlgorithm,
    Linear,
    Losses,
    NetworkConfig,
    OptimizerOption,
    Replay,
    RunSeeds,
)
from palaestra.envs.tiny import Catch
from palaestra.policies import RandomPolicy
from palaestra.robots import Agent, ComputationTask, Robot, task_seeds

WARM_UP = {"capacity": 20_000, "mini_batch_size": 64, "learning_starts": 200, "unroll_length": 1}


class NoisyCatch(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`Catch` with normal noise on every pixel."""

    def __init__(self, noise: float = 0.5) -> None:
        super().__init__(Catch())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (50,), np.float32)
        self.noise = noise

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return (observation + self.noise * self.np_random.standard_normal(50)).astype(np.float32)


class Foresight(GradientAlgorithm[Any, Any]):
    """Predicts the next observation from the features that a network of action values has."""

    config_class = AlgorithmConfig

    def __init__(self, q: Any, policy: Any, seeds: RunSeeds, learning_rate: float) -> None:
        size, self.num_actions = policy.observation_spec.shape[0], policy.action_spec.num
        features = q.mlp.layers[-1].in_features
        self.perception = q.mlp
        self.head = nn.Sequential(nn.Linear(features + self.num_actions, 64), nn.ReLU(), nn.Linear(64, size))
        parts = nn.ModuleDict({"perception": q, "head": self.head})  # the same object, hence the same weights
        self.model = CoreModel({"foresight": parts}, {"foresight": OptimizerOption("adam", {"lr": learning_rate})})
        self.plan = Replay(**WARM_UP)
        super().__init__(policy.observation_spec, policy.action_spec, seeds=seeds)

    def build(self, observation_spec: Any, action_spec: Any, config: AlgorithmConfig) -> None:
        self.policy = RandomPolicy(observation_spec, action_spec)

    def losses(self, batch: Any) -> Losses:
        action = nn.functional.one_hot(batch.action, self.num_actions).float()
        foreseen = self.head(torch.cat([self.perception.hidden(batch.observation), action], -1))
        return Losses({"foresight": (foreseen - batch.next_observation).square().mean()}, {})


@dataclass(frozen=True, kw_only=True)
class WatchfulConfig(AlgorithmConfig):
    """Settings of `WatchfulRobot`."""

    foresee: bool = True
    """Whether the second task learns."""
    foresight_learning_rate: float = 3e-4
    """Step size of the second task."""


class WatchfulAgent(Agent):
    """Acts by the first task, and lets the second one watch."""

    def run_one_episode(self) -> None:
        play, watch = self.helpers["play"], self.helpers.get("watch")
        step = self.env.reset()
        if watch is not None:
            watch.begin(step)
        while not step.last:
            step = self.env.step(play.predict(step))
            if watch is not None:
                watch.store_data(step, action=play.action)
            play.store_data(step)


class WatchfulRobot(Robot):
    """DQN, with or without foresight."""

    config_class, agent_class = WatchfulConfig, WatchfulAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        network = NetworkConfig(hidden_sizes=(128,), activation="relu")
        settings = {"target_period": 100, "learning_rate": 1e-3, "epsilon": Linear(0.5, 0.05, 0.5), **WARM_UP}
        play = DQN(self.observation_spec, self.action_spec, DQNConfig(**settings, network=network), seeds)
        tasks = {"play": ComputationTask(play)}
        if self.config.foresee:
            rate = self.config.foresight_learning_rate
            tasks["watch"] = ComputationTask(Foresight(play.network, play.policy, task_seeds(seeds, 1), rate))
        return tasks
