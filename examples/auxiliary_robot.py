"""A task that learns to foresee the next observation, beside the task that plays: both train the same perception."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from palaestra import DQN, AlgorithmConfig, CoreModel, DQNConfig, GradientAlgorithm, Linear, Losses, NetworkConfig
from palaestra import OptimizerOption, Replay, RunSeeds, Trainer, TrainerConfig
from palaestra.envs import load
from palaestra.policies import RandomPolicy
from palaestra.robots import Agent, ComputationTask, Robot, RobotCollector, task_seeds


class Foresight(GradientAlgorithm[Any]):
    """Predicts the next observation and the reward from the features that an action value network has."""

    def __init__(self, q: Any, policy: Any, seeds: RunSeeds, learning_rate: float = 1e-3) -> None:
        size, num_actions = policy.observation_spec.shape[0], policy.action_spec.num
        self.q, self.num_actions = q, num_actions
        features = q.mlp.layers[-1].in_features
        self.head = nn.Sequential(nn.Linear(features + num_actions, 64), nn.ReLU(), nn.Linear(64, size + 1))
        model = CoreModel(
            {
                "foresight": nn.ModuleDict({"perception": q, "head": self.head})
            },  # the same object, hence the same weights
            {"foresight": OptimizerOption("adam", {"lr": learning_rate})},
        )
        plan = Replay(unroll_length=1, capacity=20_000, mini_batch_size=64, initial_collect_steps=200)
        super().__init__(AlgorithmConfig(), policy=RandomPolicy(policy.observation_spec, policy.action_spec), model=model,
                         plan=plan, seeds=seeds)  # fmt: skip

    def losses(self, batch: Any) -> Losses:
        action = nn.functional.one_hot(batch.action, self.num_actions).float()
        foreseen = self.head(torch.cat([self.q.mlp.hidden(batch.observation), action], -1))
        truth = torch.cat([batch.next_observation, batch.reward[1][:, None]], -1)
        return Losses({"foresight": (foreseen - truth).square().mean()}, {})


@dataclass(frozen=True, kw_only=True)
class WatchfulConfig(AlgorithmConfig):
    """Settings of `WatchfulRobot`."""

    foresee: bool = True
    """Whether the second task learns."""


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
        config = DQNConfig(
            unroll_length=1, initial_collect_steps=200, mini_batch_size=64, target_period=100, learning_rate=1e-3,
            capacity=20_000, epsilon=Linear(0.5, 0.05, 0.5), network=NetworkConfig(hidden_sizes=(64,), activation="relu"),
        )  # fmt: skip
        play = DQN(self.observation_spec, self.action_spec, config, seeds)
        tasks = {"play": ComputationTask(play)}
        if self.config.foresee:
            tasks["watch"] = ComputationTask(Foresight(play.network, play.policy, task_seeds(seeds, 1)))
        return tasks


def catch(number: int) -> Any:
    """The environment of an agent."""
    return load("palaestra.envs.tiny:Catch", env_id=number)


def main() -> None:
    torch.set_num_threads(1)
    env = load("palaestra.envs.tiny:Catch")
    robot = WatchfulRobot(env.observation_spec, env.action_spec)
    with RobotCollector(robot, catch) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=1_500)).run()
    print({name: task.algorithm.num_gradient_steps for name, task in robot.tasks.items()})


if __name__ == "__main__":
    main()
