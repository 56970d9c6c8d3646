"""Runs of robots: what collects, and how they are evaluated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palaestra.core import POLICY, ConfigError
from palaestra.envs import load_lane
from palaestra.experiments.config import ExperimentConfig
from palaestra.policies import Policy, load_policy
from palaestra.robots import AgentFactory, Robot, RobotCollector, evaluate_robot
from palaestra.rollout import Evaluation
from palaestra.runtime import Runtime
from palaestra.training import Callback, Trainer, acting_policy, named_policies

__all__ = ["TasksView", "evaluate_robot_run", "robot_collecting", "robot_evaluation"]


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


def evaluate_robot_run(
    config: ExperimentConfig, robot: Robot, saved: Path | None, *, episodes: int, seed: int
) -> Evaluation:
    """Evaluates a robot with the policies of a run.

    Args:
        config: of the run.
        robot: from `make_algorithm`, with weights from a checkpoint where `saved` is `None`.
        saved: the run's `policy` folder.
        episodes: how many.
        seed: of the environments.
    """
    policies = named_policies(acting_policy(robot.algorithms))
    if saved is not None:
        for name in policies:
            path = saved / ("" if name == POLICY else name)
            if path.is_dir():  # a task that only watches keeps none
                policies[name] = load_policy(path)
    factory = AgentFactory(
        agent_class=robot.agent_class,
        config=robot.config,
        specs=robot.specs,
        make_env=functools.partial(load_lane, config.env),
        num_agents=config.env.num_envs,
        seed=seed,
    )
    return _evaluate(config, factory, policies, episodes, seed)


def _evaluate(
    config: ExperimentConfig, factory: AgentFactory, policies: Mapping[str, Policy], episodes: int, seed: int
) -> Evaluation:
    num = min(config.run.eval_num_envs, episodes)
    make_env = functools.partial(load_lane, config.env.for_evaluation(num))
    factory = dataclasses.replace(factory, make_env=make_env, num_agents=num, seed=seed, stream="evaluation")
    return evaluate_robot(factory, policies, episodes=episodes)
