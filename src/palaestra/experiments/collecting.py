"""What the trainer of a run gets its data from: environments here, workers elsewhere, or data that was there before."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, ConfigError, Offline, RunSeeds
from palaestra.distributed import CollectorFactory, DistributedConfig, PolicyServer, RolloutManager
from palaestra.envs import Environment, probe_specs
from palaestra.experiments.agents import Agents, Learner
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.offline import make_collect, mixed, training_environment
from palaestra.experiments.robots import robot_collecting
from palaestra.multiagent import Worlds, create_worlds
from palaestra.robots import Robot, RobotCollector
from palaestra.rollout import buffer_for
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime, RestartPolicy, Runtime
from palaestra.training import Collect

__all__ = ["collecting", "make_runtime"]


@contextmanager
def collecting(
    config: ExperimentConfig, algorithm: Learner, data: ReplayBuffer | None
) -> Iterator[tuple[Collect, Environment | RolloutManager | PolicyServer | RobotCollector | Worlds | None]]:
    """What a run collects with, and what knows its faults and how exactly it resumes; both end with the context.

    Args:
        config: of the run.
        algorithm: that learns.
        data: from `load_data`.

    Raises:
        ConfigError: the settings do not fit together.
    """
    distributed = config.distributed
    if isinstance(algorithm, Robot | Agents) and (distributed.mode == "async" or distributed.num_gradient_workers):
        raise ConfigError(
            "robots and many agents have no actors and no gradient workers yet; leave out distributed.mode=async and "
            "distributed.num_gradient_workers"
        )
    if isinstance(algorithm, Robot):
        remote = config.distributed.runtime not in (None, "local")
        with (
            make_runtime(config.distributed) if remote else nullcontext() as runtime,
            robot_collecting(config, algorithm, runtime) as collector,
        ):
            yield collector, collector
        return
    if isinstance(algorithm, Agents):
        if config.distributed.runtime is not None:
            raise ConfigError("runs with many agents collect in this process so far; leave out distributed.runtime")
        with create_worlds(config.env, seed=config.run.seed) as worlds:
            yield algorithm.collector(worlds), worlds
        return
    if config.distributed.runtime is None:
        with training_environment(config, algorithm) as env:
            yield make_collect(config, algorithm, env, data), env
        return
    if isinstance(algorithm.plan, Offline):
        raise ConfigError(f"{config.algorithm_name} collects nothing; leave out distributed.runtime")
    observation_spec, action_spec, reward_spec = probe_specs(config.env)
    kind: Any = type(algorithm)
    make = functools.partial(kind, observation_spec, action_spec, config.algorithm, RunSeeds(config.run.seed))
    workers = CollectorFactory(
        env=config.env, algorithm=make, num_workers=config.distributed.num_workers, seed=config.run.seed
    )
    buffer = buffer_for(algorithm, config.env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    with make_runtime(config.distributed) as runtime:
        buffers = {POLICY: buffer}
        manager: RolloutManager | PolicyServer
        if config.distributed.mode == "async":
            manager = PolicyServer(
                runtime, workers, {POLICY: algorithm}, buffers, config.distributed, config.asynchronous
            )
        else:
            manager = RolloutManager(runtime, workers, {POLICY: algorithm.policy}, buffers, config.distributed)
        if data is not None:
            manager.sources[POLICY] = mixed(config, buffer, data)
        yield manager, manager


def make_runtime(config: DistributedConfig) -> Runtime:
    """Where the workers of a run live.

    Args:
        config: with a runtime.

    Raises:
        MissingExtraError: ray is needed and not installed.
        ConfigError: the cluster cannot be joined.
    """
    restarts = RestartPolicy(
        max_restarts=config.max_restarts, backoff_s=config.backoff_s, max_backoff_s=max(30.0, config.backoff_s)
    )
    if config.runtime == "ray":
        return RayRuntime(restarts, address=config.address)
    return ProcessRuntime(restarts) if config.runtime == "process" else LocalRuntime(restarts)
