"""Small asynchronous runs for the tests."""

import copy
import dataclasses
import functools
from typing import Any

from palaestra.algorithms import ALGORITHMS, Algorithm
from palaestra.core import POLICY, RunSeeds
from palaestra.distributed import AsynchronousConfig, CollectorFactory, DistributedConfig, PolicyServer, worker_streams
from palaestra.envs import EnvConfig, probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import LocalRuntime, Runtime
from palaestra.training import Trainer, TrainerConfig
from tests.algorithms.parts import KINDS, tiny_config
from tests.distributed.parts import QUICK

CATCH = dataclasses.replace(KINDS["discrete"], num_envs=4)
TRACK = dataclasses.replace(KINDS["continuous"], num_envs=4)


def make_algorithm(name: str, env: EnvConfig, **settings: Any) -> Algorithm[Any, Any]:
    """A tiny algorithm for an environment."""
    kind: Any = ALGORITHMS[name]
    observation_spec, action_spec, _ = probe_specs(env)
    return kind(observation_spec, action_spec, tiny_config(kind, **settings), RunSeeds(0))


def server(runtime: Runtime, algorithm: Algorithm, env: EnvConfig, actors: int = 4, **settings: Any) -> PolicyServer:
    """A policy server over actors that share the environments."""
    known = {key: settings.pop(key) for key in list(settings) if key in AsynchronousConfig.__dataclass_fields__}
    config = DistributedConfig(runtime="local", mode="async", num_workers=actors, **{"timeout_s": 200.0, **settings})
    parts = CollectorFactory(env=env, algorithm=functools.partial(copy.deepcopy, algorithm), num_workers=actors)
    observation_spec, _, reward_spec = probe_specs(env)
    buffer = buffer_for(algorithm, env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    pace, buffers = AsynchronousConfig(**known), {POLICY: buffer}
    made = worker_streams(runtime, parts, {POLICY: algorithm}, buffers, config, pace, env.num_envs)
    assert isinstance(made, PolicyServer)
    return made


def asynchronous(runtime: Runtime, name: str, env: EnvConfig = CATCH, *, total: int = 400, **settings: Any) -> Trainer:
    names = ("num_epochs", "gradient_steps", "mini_batch_size", "capacity")
    plan = {key: settings.pop(key) for key in names if key in settings}
    checkpoints = settings.pop("checkpoints", None)
    algorithm = make_algorithm(name, env, **plan)
    config = TrainerConfig(total_env_steps=total)
    return Trainer(server(runtime, algorithm, env, **settings), algorithm, config, checkpoints=checkpoints)


class Overtaken(LocalRuntime):
    """One actor is slow: others do so many calls while it does one."""

    def __init__(self, slow: str, every: int) -> None:
        super().__init__(QUICK)
        self._slow, self._every, self._others = slow, every, 0

    def poll(self, timeout_s: float) -> Any:
        if self._asked and self._is_slow() and self._others < self._every:
            if len(self._asked) == 1:
                return []
            self._asked.rotate(-1)
        if self._asked:
            self._others = 0 if self._is_slow() else self._others + 1
        return super().poll(timeout_s)

    def _is_slow(self) -> bool:
        worker, call, _ = self._asked[0]
        return worker.id == self._slow and call.method == "collect"
