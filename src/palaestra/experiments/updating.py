"""Where the policies of a run learn: in its process, by gradients of other workers, or on policy hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.algorithms import Algorithm
from palaestra.core import POLICY, ConfigError
from palaestra.distributed import (
    DistributedPolicyManager,
    GradientWorkers,
    PolicyServer,
    RolloutManager,
    require_gradients,
)
from palaestra.experiments.agents import Agents, Learner
from palaestra.experiments.config import ExperimentConfig
from palaestra.policies import PopulationPolicy
from palaestra.robots import Robot
from palaestra.training import DataCollector, PolicyManager, SimplePolicyManager

__all__ = ["algorithms_of", "make_update", "require_update"]


def algorithms_of(learner: Learner) -> Mapping[str, Algorithm[Any]]:
    """What learns, by policy name.

    Args:
        learner: from `make_learner`.
    """
    return learner.algorithms if isinstance(learner, Agents | Robot) else {POLICY: learner}


def require_update(config: ExperimentConfig, learner: Learner) -> None:
    """Refuses actors, gradient workers and policy hosts where they cannot be; nothing has been started then.

    Args:
        config: of the run.
        learner: from `make_learner`.

    Raises:
        ConfigError: robots learn in the process of the run, many agents learn synchronously, gradient workers and hosts
            compute on the CPU, an algorithm states no losses, or there are more hosts than policies.
    """
    distributed, algorithms = config.distributed, algorithms_of(learner)
    given = [name for name in ("num_gradient_workers", "num_policy_hosts") if getattr(distributed, name)]
    if isinstance(learner, Robot):
        given += ["mode=async"] if distributed.mode == "async" else []
        if given:
            raise ConfigError(
                f"{config.algorithm_name} is a robot, whose tasks learn in the process of the run when its agents say "
                f"so; leave out {', '.join(f'distributed.{name}' for name in given)}"
            )
    if isinstance(learner, Agents) and distributed.mode == "async":
        raise ConfigError(
            f"distributed.mode=async is for one policy, and {config.env.name} has many agents; leave it out: with "
            "distributed.min_finished_workers, mode=sync does not wait for slow workers either"
        )
    if config.env.num_ready is not None and any(
        isinstance(algorithm.policy, PopulationPolicy) for algorithm in algorithms.values()
    ):
        raise ConfigError(
            f"{config.algorithm_name} tries one perturbation in each environment, all together; leave out env.num_ready"
        )
    workers = [name for name in ("num_gradient_workers", "num_policy_hosts") if getattr(distributed, name)]
    if workers and config.run.device != "cpu":
        raise ConfigError(
            f"distributed.{' and distributed.'.join(workers)} compute in processes of their own on the CPU, and "
            f"run.device is {config.run.device!r}; leave out one or the other. Roll-out workers go with a device"
        )
    if distributed.num_gradient_workers:
        require_gradients(algorithms)
    if distributed.num_policy_hosts > len(algorithms):
        raise ConfigError(
            f"distributed.num_policy_hosts is {distributed.num_policy_hosts}, but the policies that learn are "
            f"{', '.join(algorithms)}: a host for each is the most that is of use; give {len(algorithms)} or less"
        )


def make_update(config: ExperimentConfig, learner: Learner, collect: DataCollector) -> Algorithm[Any] | PolicyManager:
    """What the trainer of a run learns with.

    Args:
        config: of the run.
        learner: from `make_learner`.
        collect: of the run; its workers' runtime is where gradient workers and hosts live too.
    """
    hosts, count = config.distributed.num_policy_hosts, config.distributed.num_gradient_workers
    if not isinstance(collect, RolloutManager | PolicyServer) or not (hosts or count):
        return learner.manager if isinstance(learner, Agents) else learner
    algorithms, runtime = algorithms_of(learner), collect.runtime
    workers = GradientWorkers(algorithms, runtime, count) if count else None
    if hosts:
        return DistributedPolicyManager(algorithms, runtime, num_hosts=hosts, gradient_workers=workers)
    return SimplePolicyManager(algorithms, gradient_workers=workers)
