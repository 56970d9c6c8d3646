"""What the trainer of a run gets its data from: environments here, workers elsewhere, or data that was there before."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, ConfigError, Offline, RunSeeds
from palaestra.distributed import AgentsFactory, CollectorFactory, DistributedConfig, PolicyServer, RolloutManager
from palaestra.envs import probe_specs
from palaestra.experiments.agents import Agents, Learner
from palaestra.experiments.build import acting_parts
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.faults import Reporter
from palaestra.experiments.hindsight import hindsight_sampler
from palaestra.experiments.offline import make_collect, mixed, training_environment
from palaestra.experiments.robots import robot_collecting
from palaestra.multiagent import create_worlds
from palaestra.robots import Robot
from palaestra.rollout import OfflineData, buffer_for
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime, RestartPolicy, Runtime
from palaestra.training import DataCollector

__all__ = ["collecting", "make_runtime"]


@contextmanager
def collecting(
    config: ExperimentConfig, algorithm: Learner, data: Mapping[str, ReplayBuffer]
) -> Iterator[tuple[DataCollector, Reporter | None]]:
    """What a run collects with, and what knows its faults and how exactly it resumes; both end with the context.

    Args:
        config: of the run.
        algorithm: that learns.
        data: from `load_data`.

    Raises:
        ConfigError: the settings do not fit together.
    """
    sampler = hindsight_sampler(config, algorithm)
    with _collecting(config, algorithm, data) as (collect, reporter):
        if sampler is not None:
            for buffer in (*collect.buffers.values(), *data.values()):
                assert isinstance(buffer, ReplayBuffer)
                buffer.sampler = sampler(base=buffer.sampler)
        yield collect, reporter


@contextmanager
def _collecting(
    config: ExperimentConfig, algorithm: Learner, data: Mapping[str, ReplayBuffer]
) -> Iterator[tuple[DataCollector, Reporter | None]]:
    if isinstance(algorithm, Robot):
        remote = config.distributed.runtime not in (None, "local")
        with (
            make_runtime(config.distributed) if remote else nullcontext() as runtime,
            robot_collecting(config, algorithm, runtime) as collector,
        ):
            yield collector, collector
        return
    if config.distributed.runtime is None:
        if isinstance(algorithm, Agents) and algorithm.offline:
            yield OfflineData(data), None
        elif isinstance(algorithm, Agents):
            with create_worlds(config.env, seed=config.run.seed) as worlds:
                collector = algorithm.collector(worlds)
                for name, loaded in data.items():
                    collector.sources[name] = mixed(config, collector.buffers[name], loaded)
                yield collector, worlds
        else:
            with training_environment(config, algorithm) as env:
                yield make_collect(config, algorithm, env, data), env
        return
    workers, algorithms, buffers = _shares(config, algorithm)
    distributed = config.distributed
    with make_runtime(distributed) as runtime:
        manager: RolloutManager | PolicyServer
        if distributed.mode == "async":
            manager = PolicyServer(runtime, workers, algorithms, buffers, distributed, config.asynchronous)
        else:
            policies = {name: one.policy for name, one in algorithms.items()}
            manager = RolloutManager(runtime, workers, policies, buffers, distributed, config.env.num_envs)
        for name, loaded in data.items():
            manager.sources[name] = mixed(config, buffers[name], loaded)
        yield manager, manager


def _shares(config: ExperimentConfig, algorithm: Algorithm[Any] | Agents) -> tuple[Any, Any, dict[str, ReplayBuffer]]:
    """What makes the workers' parts, what learns, and the buffers that workers share."""
    if algorithm.offline if isinstance(algorithm, Agents) else isinstance(algorithm.plan, Offline):
        raise ConfigError(f"{config.algorithm_name} collects nothing; leave out distributed.runtime")
    if isinstance(algorithm, Agents):
        make_actors = functools.partial(acting_parts, config, torch.get_num_threads())
        number, seed = config.distributed.num_workers, config.run.seed
        agents = AgentsFactory(env=config.env, actors=make_actors, num_workers=number, seed=seed)
        with create_worlds(config.env, seed=seed) as worlds:
            return agents, algorithm.algorithms, algorithm.collector(worlds).buffers
    observation_spec, action_spec, reward_spec = probe_specs(config.env)
    kind: Any = type(algorithm)
    make = functools.partial(kind, observation_spec, action_spec, config.algorithm, RunSeeds(config.run.seed))
    number, seed = config.distributed.num_workers, config.run.seed
    workers = CollectorFactory(env=config.env, algorithm=make, num_workers=number, seed=seed)
    buffer = buffer_for(algorithm, config.env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    return workers, {POLICY: algorithm}, {POLICY: buffer}


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
