"""Small distributed runs for the tests."""

import contextlib
import copy
import dataclasses
import functools
import threading
from collections import Counter, deque
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from palaestra.algorithms import ALGORITHMS, Algorithm
from palaestra.core import POLICY, RunSeeds, join_state, split_state
from palaestra.distributed import ActingParts, AsynchronousConfig, CollectorFactory, DistributedConfig, worker_streams
from palaestra.envs import EnvConfig, probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import Call, RestartPolicy, Runtime, WorkerDiedError
from palaestra.training import Trainer
from tests.algorithms.parts import KINDS, SETTINGS, tiny_config

NUM_ENVS = 4
QUICK = RestartPolicy(max_restarts=3, backoff_s=0.01)


def env_of(kind: str) -> EnvConfig:
    """Environments of a run with actions of some kind."""
    return dataclasses.replace(KINDS[kind], num_envs=NUM_ENVS)


def make_algorithm(name: str, kind: str, **settings: Any) -> Algorithm[Any, Any]:
    """A tiny algorithm for actions of some kind; workers make theirs by it, too."""
    algorithm: Any = ALGORITHMS[name]
    observation_spec, action_spec, _ = probe_specs(env_of(kind))
    config = tiny_config(algorithm, **{**SETTINGS.get(kind, {}), **settings})
    return algorithm(observation_spec, action_spec, config, RunSeeds(0))


def make_manager(
    runtime: Runtime, algorithm: Algorithm[Any, Any], env: EnvConfig, make: Any, *, slow_s: float = 0.0, **config: Any
) -> Any:
    """A manager whose workers act with what `make` makes; the first may step slowly."""
    distributed = DistributedConfig(**{"runtime": "local", "timeout_s": 60.0, "grace_timeout_s": 0.0, **config})
    parts: Any = CollectorFactory(env=env, algorithm=make, num_workers=distributed.num_workers)
    parts = SlowWorker(parts, 0, slow_s) if slow_s else parts
    observation_spec, _, reward_spec = probe_specs(env)
    buffer = buffer_for(algorithm, env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    buffers, pace = {POLICY: buffer}, AsynchronousConfig()
    return worker_streams(runtime, parts, {POLICY: algorithm}, buffers, distributed, pace, env.num_envs)


def make_trainer(runtime: Runtime, name: str, kind: str = "discrete", **config: Any) -> Trainer:
    """A trainer over such a manager, of an algorithm by name."""
    make = functools.partial(make_algorithm, name, kind)
    algorithm = make()
    return Trainer(make_manager(runtime, algorithm, env_of(kind), make, **config), algorithm)


def iterate(trainer: Trainer, iterations: int) -> dict[str, Any]:
    """All that was learned after so many more iterations, under the numerics of `Trainer.run`."""
    torch.set_flush_denormal(True)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_flush_denormal, False)
        for _ in range(iterations):
            trainer.train_iter()
    return {**trainer.algorithm.state_tensors(), "env_steps": trainer.collector.env_steps}


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Compares bit by bit."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        other = second[name]
        equal = (
            value == other if isinstance(value, str) else torch.equal(torch.as_tensor(value), torch.as_tensor(other))
        )
        assert equal, name


class Pays(gymnasium.Env[np.ndarray, np.int64]):
    """Pays 1 for the action that the observation shows; ends after eight steps, each of which takes its time."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.observation_space = spaces.Box(0, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._step_s, self._steps, self._shown = step_s, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        threading.Event().wait(self._step_s)
        self._steps += 1
        reward = float(action == self._shown)
        return self._observation(), reward, False, self._steps == 8, {}

    def _observation(self) -> np.ndarray:
        self._shown = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._shown]


@dataclasses.dataclass(frozen=True)
class SlowWorker:
    """Parts of workers one of which steps slower environments."""

    parts: CollectorFactory
    slow: int
    step_s: float

    def __call__(self, worker: int) -> ActingParts:
        env = self.parts.env
        if worker == self.slow:
            env = dataclasses.replace(env, kwargs={"step_s": self.step_s})
        return dataclasses.replace(self.parts, env=env)(worker)


def fake_time(runtime: Any, silent_s: float) -> list[float]:
    """A runtime's clock: seconds that a test adds, and so many for each wait in which nothing comes."""
    clock, poll = [0.0], runtime.poll

    def waited(timeout_s: float) -> list[Any]:
        found = poll(timeout_s)
        clock[0] += silent_s if timeout_s and not found else 0.0
        return found

    runtime.poll, runtime.clock.now = waited, lambda: clock[0]
    return clock


class HoldBack:
    """Keeps the answers of some workers of a local runtime until they are let through."""

    def __init__(self, runtime: Any) -> None:
        self.held: set[str] = set()
        """Ids of workers."""
        self.asked = Counter[str]()
        """How often workers were asked, by method."""
        self._kept: deque[Any] = deque()
        self._poll, self._submit = runtime.poll, runtime.submit
        runtime.poll, runtime.submit = self.poll, self.submit
        runtime.works_here = False  # as workers elsewhere, they can be waited for too long

    def submit(self, worker: Any, call: Call, request: Any) -> None:
        self.asked[call.method] += 1
        self._submit(worker, call, request)

    def poll(self, timeout_s: float) -> list[Any]:
        ready = [arrival for arrival in self._kept if arrival.worker not in self.held]
        self._kept = deque(arrival for arrival in self._kept if arrival.worker in self.held)
        for arrival in self._poll(0.0 if ready else min(timeout_s, 0.02)):
            (self._kept if arrival.worker in self.held else ready).append(arrival)
        return ready


def worker_of(manager, number):
    return manager.group.workers[number].id


def kill(runtime, worker):
    """Ends a worker as a death of its process would: the runtime tells so, and its calls fail."""
    runtime._bury(runtime._workers[worker], WorkerDiedError(f"{worker} was killed by signal 9 (SIGKILL)"))


def unrolls(manager, count):
    return [manager.unroll(5) for _ in range(count)]


def copied(state):
    """A state as a checkpoint brings it back."""
    values, arrays = split_state(state)
    return join_state(values, {name: copy.deepcopy(array) for name, array in arrays.items()})
