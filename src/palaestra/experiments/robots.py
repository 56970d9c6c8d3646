"""Runs of robots: what collects, and how they are evaluated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core import POLICY, ConfigError, TimeStep
from palaestra.envs import EnvironmentWrapper, SingleEnvironment, load_lane
from palaestra.experiments.config import ExperimentConfig
from palaestra.policies import NetworkPolicy, Policy, load_policy
from palaestra.robots import AgentFactory, Robot, RobotCollector, evaluate_robot
from palaestra.rollout import Evaluation
from palaestra.runtime import Runtime
from palaestra.training import Callback, Trainer, acting_policy, named_policies

__all__ = ["TasksView", "evaluate_robot_run", "film_robot", "robot_collecting", "robot_evaluation", "robot_policies"]


@contextmanager
def robot_collecting(config: ExperimentConfig, robot: Robot, runtime: Runtime | None) -> Iterator[RobotCollector]:
    """Agents at work; they end with the context.

    Args:
        config: of the run.
        robot: whose tasks they use.
        runtime: where they live; `None` is in threads of this process.

    Raises:
        ConfigError: the settings are of environments in worker processes, or of loaded data.
    """
    env = config.env
    if config.offline.data is not None:
        raise ConfigError(f"{config.algorithm_name} is a robot, whose agents collect; leave out offline.data")
    if env.vectorization not in ("auto", "serial"):
        raise ConfigError(
            f"env.vectorization is {env.vectorization}, but each agent of a robot has an environment of its own; leave "
            "it out, and give --runtime process for agents in worker processes"
        )
    collector = RobotCollector(
        robot,
        functools.partial(load_lane, env),
        env.num_envs,
        seed=config.run.seed,
        config=config.robot,
        runtime=runtime,
        num_workers=config.distributed.num_workers,
    )
    collector.on_fault, collector.max_restarts = env.on_fault, env.max_restarts
    with collector:
        yield collector


class TasksView(Callback):
    """Adds to rows of metrics how a robot's tasks serve its agents.

    Args:
        collector: of the robot.
    """

    def __init__(self, collector: RobotCollector) -> None:
        self._collector = collector

    def logged(self, trainer: Trainer, row: dict[str, float]) -> None:
        """See `Callback.logged`."""
        row |= self._collector.metrics()


def robot_evaluation(config: ExperimentConfig, factory: AgentFactory, acting: Any) -> Evaluation:
    """An evaluation as the trainer makes it, in new environments.

    Args:
        config: of the run.
        factory: of the agents that train.
        acting: the policy, or a `ModuleDict` of them.
    """
    return _evaluate(config, factory, named_policies(acting), config.trainer.eval_episodes, config.run.seed)


def robot_policies(robot: Robot, saved: Path) -> dict[str, Policy]:
    """The policies that a run has kept, by task; a task that only watches has kept none.

    Args:
        robot: from `make_algorithm`.
        saved: the run's `policy` folder.
    """
    policies = named_policies(acting_policy(robot.algorithms))
    paths = {name: saved / ("" if name == POLICY else name) for name in policies}
    kept = {name: path for name, path in paths.items() if path.is_dir()}
    return policies | {name: load_policy(path, classes=_classes(policies[name])) for name, path in kept.items()}


def _classes(policy: Policy) -> list[type[NetworkPolicy]]:
    """What the library need not know: a task's policy may be of a class of the robot's own."""
    return [type(policy)] if isinstance(policy, NetworkPolicy) else []


def evaluate_robot_run(
    config: ExperimentConfig, robot: Robot, policies: Mapping[str, Policy], *, episodes: int, seed: int
) -> Evaluation:
    """Evaluates a robot of a run.

    Args:
        config: of the run.
        robot: from `make_algorithm`.
        policies: of its tasks.
        episodes: how many.
        seed: of the environments.
    """
    return _evaluate(config, _factory(config, robot, seed), policies, episodes, seed)


def film_robot(
    config: ExperimentConfig, robot: Robot, policies: Mapping[str, Policy], *, episodes: int, seed: int
) -> tuple[list[list[np.ndarray]], list[float]]:
    """The pictures of each episode of one agent, and its return.

    Args:
        config: of the run.
        robot: from `make_algorithm`.
        policies: of its tasks.
        episodes: how many.
        seed: of the environment.
    """
    films: list[list[np.ndarray]] = []
    drawn = config.env.for_evaluation(1, render_mode="rgb_array")
    factory = dataclasses.replace(
        _factory(config, robot, seed), make_env=lambda lane: _Filmed(load_lane(drawn, lane), films), num_agents=1
    )
    return films, evaluate_robot(factory, policies, episodes=episodes).returns


class _Filmed(EnvironmentWrapper):
    """Keeps a picture of every step."""

    def __init__(self, env: SingleEnvironment, films: list[list[np.ndarray]]) -> None:
        super().__init__(env)
        self._films = films

    def begin_episode(self, seed: int) -> TimeStep:
        time_step = self.env.begin_episode(seed)
        self._films.append([self.env.render()])
        return time_step

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        self._films[-1].append(self.env.render())
        return time_step


def _factory(config: ExperimentConfig, robot: Robot, seed: int) -> AgentFactory:
    return AgentFactory(
        agent_class=robot.agent_class,
        config=robot.config,
        specs=robot.specs,
        make_env=functools.partial(load_lane, config.env),
        num_agents=config.env.num_envs,
        seed=seed,
        stream="evaluation",
    )


def _evaluate(
    config: ExperimentConfig, factory: AgentFactory, policies: Mapping[str, Policy], episodes: int, seed: int
) -> Evaluation:
    num = min(config.run.eval_num_envs, episodes)
    make_env = functools.partial(load_lane, config.env.for_evaluation(num))
    factory = dataclasses.replace(factory, make_env=make_env, num_agents=num, seed=seed, stream="evaluation")
    return evaluate_robot(factory, policies, episodes=episodes)
