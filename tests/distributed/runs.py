"""Small distributed runs for the tests."""

import dataclasses
import functools
from typing import Any

import torch

from palaestra.algorithms import ALGORITHMS, Algorithm
from palaestra.core import POLICY, RunSeeds
from palaestra.distributed import CollectorFactory, DistributedConfig, RolloutManager
from palaestra.envs import EnvConfig, probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import Runtime
from palaestra.training import Trainer, TrainerConfig
from tests.algorithms.parts import KINDS, TINY

CATCH = dataclasses.replace(KINDS["discrete"], num_envs=4)
TRACK = dataclasses.replace(KINDS["continuous"], num_envs=4)


def make_algorithm(name: str, env: EnvConfig, seed: int = 0, **settings: Any) -> Algorithm[Any]:
    """A tiny algorithm for an environment."""
    kind = ALGORITHMS[name]
    known = {f.name for f in dataclasses.fields(kind.config_class)}
    config = kind.config_class(**{key: value for key, value in (TINY | settings).items() if key in known})
    observation_spec, action_spec, _ = probe_specs(env)
    return kind(observation_spec, action_spec, config, RunSeeds(seed))  # pyright: ignore[reportCallIssue]


def make_manager(
    runtime: Runtime, algorithm: Algorithm[Any], env: EnvConfig, name: str, make: Any = None, **config: Any
) -> RolloutManager:
    """A manager over workers that act with the algorithm of `make_algorithm`."""
    distributed = DistributedConfig(**{"runtime": "local", "timeout_s": 60.0, **config})
    factory = make or functools.partial(make_algorithm, name, env)
    parts = CollectorFactory(env=env, algorithm=factory, num_workers=distributed.num_workers)
    observation_spec, _, reward_spec = probe_specs(env)
    buffer = buffer_for(algorithm, env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    return RolloutManager(runtime, parts, {POLICY: algorithm.policy}, {POLICY: buffer}, distributed)


def weights_after(runtime: Runtime, name: str, env: EnvConfig, iterations: int, **config: Any) -> dict[str, Any]:
    """All that was learned in a few iterations."""
    with runtime:
        algorithm = make_algorithm(name, env)
        trainer = Trainer(make_manager(runtime, algorithm, env, name, **config), algorithm, TrainerConfig())
        torch.set_flush_denormal(True)
        try:
            for _ in range(iterations):
                trainer.train_iter()
        finally:
            torch.set_flush_denormal(False)
        return {**algorithm.state_tensors(), "env_steps": trainer.collect.env_steps}
