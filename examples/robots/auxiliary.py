"""A robot that learns to see by what its actions change, beside learning to act: an auxiliary task for perception.

In `Backdrop` a walker is hidden among a thousand sensors, before a backdrop that is another one in every episode, and
only one place pays. The task "see" guesses from two observations in a row which action lay between them. It has a label
in every step, paid or not, and the backdrop falls out of the difference. The task "play" (A2C) acts on the features
that are found so. No gradient passes between the two. With `see` off, "play" reads the sensors itself.

palaestra train examples.robots.auxiliary:SeeingRobot palaestra.envs.tiny:Backdrop --env.max-episode-steps 60 \
    --env.num-envs 8 --trainer.total-env-steps 12000
"""

import functools
from dataclasses import dataclass
from typing import Any

from torch import nn

from palaestra import AlgorithmConfig, NetworkConfig, OptimizerOption, Replay, RunSeeds, Trainer, TrainerConfig
from palaestra.algorithms import A2C, A2CConfig
from palaestra.envs import load
from palaestra.robots import Agent, ComputationTask, ModelTask, Robot, RobotCollector, task_seeds

NUM_FEATURES = 4


class InverseDynamics(nn.Module):
    """Which action lay between two observations, from the difference of their features."""

    def __init__(self, num_sensors: int, num_actions: int) -> None:
        super().__init__()
        self.perception, self.head = nn.Linear(num_sensors, NUM_FEATURES), nn.Linear(NUM_FEATURES, num_actions)
        nn.init.normal_(self.perception.weight, std=1e-4)  # what no change speaks for should stay near 0

    def forward(self, observation: Any) -> Any:
        return self.perception(observation)

    def loss(self, batch: Any) -> Any:
        guess = self.head(self(batch.next_observation) - self(batch.observation))
        right = (guess.argmax(-1) == batch.action).float().mean()
        return nn.functional.cross_entropy(guess, batch.action), {"right": right}


@dataclass(frozen=True, kw_only=True)
class SeeingConfig(AlgorithmConfig):
    """Settings of `SeeingRobot`."""

    see: bool = True
    """Whether there is a task for perception."""
    learning_rate: float = 2e-3
    """Step size of the task that acts."""
    normalize: bool = True
    """Whether that task shifts and scales what it sees to mean 0 and standard deviation 1."""


class SeeingAgent(Agent):
    """Looks, acts, and lets the perception learn from what came of it."""

    def run_one_episode(self) -> None:
        see, play = self.helpers.get("see"), self.helpers["play"]
        step = self.env.reset()
        while True:
            seen = step if see is None else step._replace(observation=see.predict(step))
            if not step.first:
                play.store_data(seen)
            if step.last:
                return
            step = self.env.step(play.predict(seen))
            if see is not None:
                see.store_data(step, action=play.action)


class SeeingRobot(Robot):
    """A2C on features, or on what the sensors say."""

    config_class, agent_class = SeeingConfig, SeeingAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        sensors, actions = self.observation_spec, self.action_spec
        inverse = functools.partial(InverseDynamics, sensors.shape[0], actions.num)
        plan = Replay(unroll_length=8, gradient_steps=8, mini_batch_size=64, capacity=20_000)
        optimizer = OptimizerOption("adam", {"lr": 3e-3})
        see = ModelTask(inverse, sensors, actions, plan=plan, optimizer=optimizer, seeds=task_seeds(seeds, 1))
        settings = A2CConfig(
            learning_rate=self.config.learning_rate,
            normalize_observation=self.config.normalize,
            network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
            unroll_length=8,
            gamma=0.95,
            gae_lambda=0.95,
        )
        spec = see.algorithm.policy.action_spec if self.config.see else sensors
        tasks = {"play": ComputationTask(A2C(spec, actions, settings, task_seeds(seeds, 0)))}
        return ({"see": see} if self.config.see else {}) | tasks


def backdrop(number: int) -> Any:
    return load("palaestra.envs.tiny:Backdrop", env_id=number, max_episode_steps=60)


def main() -> None:
    env = backdrop(0)
    robot = SeeingRobot(env.observation_spec, env.action_spec)
    with RobotCollector(robot, backdrop, num_agents=8) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=800)).run()
    print({name: task.algorithm.num_gradient_steps for name, task in robot.tasks.items()})


if __name__ == "__main__":
    main()
