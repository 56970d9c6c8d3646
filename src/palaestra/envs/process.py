"""`ProcessEnvironment`: environments in worker processes, several in each, over shared memory."""

from __future__ import annotations

import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any, Literal, NoReturn, final

import numpy as np
import torch

from palaestra.core import ConfigError, EnvError, SpecError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.driving import failure
from palaestra.envs.environment import Environment, SingleEnvironment
from palaestra.envs.episode_log import EpisodeLog
from palaestra.envs.lanes import Infos, Rows, Specs
from palaestra.envs.nest import batched_spec, to_batched
from palaestra.envs.vector import ActionReader, batched_time_step, check_all_lanes, check_seeds, fresh_seeds
from palaestra.envs.worker import FAILED, INFO, MESSAGE, STEP, View, layout, serve
from palaestra.runtime import SharedArrays, SupervisedProcess, WorkerDiedError, WorkerTimeoutError, stop_all

__all__ = ["ProcessEnvironment"]

_PRELOAD = ("palaestra.envs.worker",)
_CLOSE_S = 5.0


@final
class ProcessEnvironment(Environment):
    """Steps environments in worker processes; gives the same stream as `SerialEnvironment`, bit for bit.

    Worth it for environments whose step takes more than about 10 microseconds. Observations, rewards and actions lie
    in shared memory, and a semaphore for every worker says when they are ready. A worker that dies or hangs is noticed,
    and named together with the environment it was stepping, its seed, episode, step and action.

    Args:
        factories: one for every environment; each makes its layers, and can be sent to another process (a function of
            a module, or `functools.partial` of one).
        lane_seeds: one for each, from `RunSeeds.integer("environments", lane)`; fresh ones if left out.
        num_workers: W; as many as there are cores, and at most one for every environment, if left out.
        context: how workers start: `forkserver` imports this library once, `spawn` in every worker.
        timeout_s: for one step of all the environments of a worker.
        reset_timeout_s: the same for a step in which one of them is reset; for making them, and for replaying.

    Raises:
        ConfigError: the factories cannot be sent to another process.
        EnvError: an environment cannot be made.
        SpecError: no environments, or other specs.
    """

    seeding = "per_episode"
    resume = "exact"

    def __init__(
        self,
        factories: Sequence[Callable[[], SingleEnvironment]],
        *,
        lane_seeds: Sequence[int] | None = None,
        num_workers: int | None = None,
        context: Literal["spawn", "forkserver"] = "forkserver" if sys.platform == "linux" else "spawn",
        timeout_s: float = 60.0,
        reset_timeout_s: float = 180.0,
    ) -> None:
        self.batch_size = len(factories)
        seeds = list(lane_seeds) if lane_seeds is not None else fresh_seeds(self.batch_size)
        check_seeds(seeds, self.batch_size)
        self._timeout_s, self._reset_timeout_s = timeout_s, reset_timeout_s
        self._bounds = _bounds(self.batch_size, num_workers)
        self._workers: list[SupervisedProcess] = []
        self._shared: SharedArrays | None = None
        self._closed = ""
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)
        ctx = get_context(context)
        self._go = [ctx.Semaphore(0) for _ in self._bounds]
        self._done = [ctx.Semaphore(0) for _ in self._bounds]
        try:
            self._start(factories, context)
            self._specs = self._meet()
            self._share(self._specs)
        except BaseException:
            self.close()
            raise
        self._log = EpisodeLog(seeds, self._specs.action)
        self._reader = ActionReader(self._specs.action, self.batch_size)
        self._observation_spec = batched_spec(self._specs.observation)
        self._action_spec = batched_spec(self._specs.action)
        self._env_id = torch.arange(self.batch_size)
        self._sent: tuple[list[np.ndarray], dict[int, int], float] | None = None

    @property
    def observation_spec(self) -> SpecTree:
        """Of one observation."""
        return self._observation_spec

    @property
    def action_spec(self) -> SpecTree:
        """Of one action."""
        return self._action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        """Of one reward."""
        return self._specs.reward

    @property
    def env_info_spec(self) -> SpecTree:
        """Of the declared info entries."""
        return self._specs.env_info

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones are abandoned."""
        if self._sent is not None:
            self.recv()
        self._log.abandon()
        self._check_open()
        self._dispatch(self._reader.zeros())
        return self.recv()

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Hands the actions to the workers, which start at once.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received, or the environment is closed.
        """
        self._check_open()
        if env_id is not None:
            check_all_lanes(env_id, self.batch_size, "ProcessEnvironment")
        if self._sent is not None:
            raise EnvError("send was called twice without recv; every send needs its recv")
        actions = self._reader.read(action)
        self._reader.check(actions)
        self._dispatch(actions)

    def recv(self) -> TimeStep:
        """Waits for all workers.

        Raises:
            EnvError: an environment failed, or its worker died or did not answer in time; or nothing was sent.
        """
        if self._sent is None:
            self._check_open()
            raise EnvError("recv was called without send; every recv needs its send")
        actions, seeds, deadline = self._sent
        self._sent = None
        infos = self._collect(deadline)
        step_type, reward, discount, observation = self._view.rows
        rows = Rows(step_type.copy(), reward.copy(), discount.copy(), [array.copy() for array in observation])
        kinds = rows.step_type.tolist()
        self._log.due = [lane for lane, kind in enumerate(kinds) if kind == 2] if 2 in kinds else []
        if seeds:
            self._view.seed[:] = -1
        for array in actions:
            for lane in seeds:
                array[lane] = 0
        prev_action = to_batched(actions, self._specs.action)
        return batched_time_step(rows, prev_action, self._env_id, infos, self._specs.observation)

    def state_dict(self) -> dict[str, Any]:
        """Every lane's episode number, its actions so far, and a digest of its latest observation."""
        if self._sent is not None:
            raise EnvError("state_dict was called between send and recv; receive first")
        digests = self._ask([("digests",)] * len(self._workers))
        return self._log.state_dict([digest for part in digests for digest in part])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replays every lane's running episode, all workers at the same time.

        Args:
            state: from `state_dict`, of a serial or a process environment.

        Raises:
            EnvError: it does not fit, or an environment does not replay.
        """
        episodes = self._log.episodes_of(state)
        if self._sent is not None:
            self.recv()
        self._log.restore(episodes, range(self.batch_size))
        over = self._ask([("load", episodes[lanes]) for lanes in self._bounds])
        firsts = [lanes.start for lanes in self._bounds]
        self._log.due = [first + lane for first, part in zip(firsts, over, strict=True) for lane in part]

    def render(self) -> np.ndarray:
        """A picture of environment 0."""
        return self._ask([("render",)])[0]

    def close(self) -> None:
        """Ends the workers: those that do not end by themselves within five seconds are killed."""
        if self._closed:
            return
        self._closed = "it was closed"
        if self._shared is None:
            # nobody has been stepped yet
            _kill_all(self._workers)
        else:
            for number, worker in enumerate(self._workers):
                if worker.alive:
                    self._post(number, ("close",))
        stop_all(self._workers, _CLOSE_S)
        self._release()

    # -- starting

    def _start(self, factories: Sequence[Callable[[], SingleEnvironment]], context: Any) -> None:
        for number, lanes in enumerate(self._bounds):
            args = (list(factories[lanes]), (number, lanes.start), self._go[number], self._done[number])
            name = f"the worker of environments {lanes.start} to {lanes.stop - 1}"
            self._workers.append(SupervisedProcess(serve, args, context=context, name=name, preload=_PRELOAD))

    def _meet(self) -> Specs:
        """Waits until every worker has made its environments, and compares what they look like."""
        deadline = time.monotonic() + self._reset_timeout_s
        found: list[Specs] = []
        for worker, lanes in zip(self._workers, self._bounds, strict=True):
            try:
                outcome, message = worker.receive(deadline)
            except WorkerDiedError as error:
                raise EnvError(
                    f"{error} while it was making its environments. If its own output shows that it ran your script "
                    'again, put the script\'s code under `if __name__ == "__main__":`'
                ) from error
            except WorkerTimeoutError as error:
                raise EnvError(f"{error} while it was making its environments:\n{worker.stacks()}") from error
            if outcome == FAILED:
                lane, kind, detail = message
                raise EnvError(f"environment {lanes.start + lane} could not be made: {kind}: {detail}")
            found.append(message)
            if found[-1][:3] != found[0][:3]:
                raise SpecError(
                    f"environment {lanes.start} has the specs {found[-1][:3]} and environment 0 {found[0][:3]}; "
                    "environments of one batch need equal ones"
                )
        return found[0]

    def _share(self, specs: Specs) -> None:
        self._shared = SharedArrays(layout(specs, self.batch_size, len(self._workers)))
        for worker in self._workers:
            self._shared.send(worker.connection, worker.pid)
        self._shared.seal()
        self._command, self._status, self._cursor = (self._shared[name] for name in ("command", "status", "cursor"))
        self._view = View.of(self._shared, specs, slice(0, self.batch_size))
        self._view.seed[:] = -1

    # -- talking to workers

    def _dispatch(self, actions: list[np.ndarray]) -> None:
        seeds = self._log.send(actions)
        for target, source in zip(self._view.action, actions, strict=True):
            target[:] = source
        if seeds:
            self._view.seed[list(seeds)] = list(seeds.values())
        self._command[:] = STEP
        for go in self._go:
            go.release()
        timeout_s = self._reset_timeout_s if seeds else self._timeout_s
        self._sent = actions, seeds, time.monotonic() + timeout_s

    def _collect(self, deadline: float) -> Infos | None:
        """Waits for a step of every worker; the first failure is raised when all have answered."""
        infos: Infos = {}
        failed: EnvError | None = None
        for number, worker in enumerate(self._workers):
            self._wait(number, deadline)
            status = self._status[number]
            if status == INFO:
                first = self._bounds[number].start
                for lane, entries in self._hear(worker, number, deadline).items():
                    infos[first + lane] = entries
            elif status == FAILED:
                failed = self._failure(number, self._hear(worker, number, deadline), failed)
        if failed is not None:
            self._view.seed[:] = -1
            self._log.abandon()
            raise failed
        return infos or None

    def _ask(self, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Sends each of the first workers a message and returns their answers."""
        self._check_open()
        deadline = time.monotonic() + self._reset_timeout_s
        for number, message in enumerate(messages):
            self._post(number, message)
        answers: list[Any] = []
        failed: EnvError | None = None
        for number, worker in enumerate(self._workers[: len(messages)]):
            self._wait(number, deadline)
            answers.append(self._hear(worker, number, deadline))
            if self._status[number] == FAILED:
                failed = self._failure(number, answers[-1], failed)
        if failed is not None:
            raise failed
        return answers

    def _post(self, number: int, message: tuple[Any, ...]) -> None:
        self._command[number] = MESSAGE
        try:
            self._workers[number].send(message)
        except WorkerDiedError as error:
            if not self._closed:
                self._lost(number, error)
        self._go[number].release()

    def _wait(self, number: int, deadline: float) -> None:
        try:
            self._workers[number].acquire(self._done[number], deadline)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            self._lost(number, error)

    def _hear(self, worker: SupervisedProcess, number: int, deadline: float) -> Any:
        try:
            return worker.receive(deadline)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            self._lost(number, error)

    def _failure(self, number: int, message: Any, earlier: EnvError | None) -> EnvError:
        lane, kind, detail = message
        return earlier or failure(self._log, self._bounds[number].start + lane, f"raised {kind}", detail)

    def _lost(self, number: int, error: WorkerDiedError | WorkerTimeoutError) -> NoReturn:
        """A worker is gone or silent: ends all of them, and says what it was doing."""
        worker = self._workers[number]
        lane = self._bounds[number].start + int(self._cursor[number])
        if isinstance(error, WorkerDiedError):
            what, detail = "lost its worker process", str(error)
        else:
            what, detail = "did not answer in time and was stopped", f"{error}. It was doing:\n{worker.stacks()}"
        self._closed = f"{worker.name} failed"
        self._sent = None
        _kill_all(self._workers)
        found = failure(self._log, lane, what, detail)
        self._release()
        raise found from error

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(f"this ProcessEnvironment has ended: {self._closed}")

    def _release(self) -> None:
        self._finalizer.detach()
        # a semaphore's name is freed with the object
        self._go, self._done = [], []
        if self._shared is not None:
            self._shared.close()


def _bounds(batch_size: int, num_workers: int | None) -> list[slice]:
    """The lanes of every worker: contiguous, and as even as can be."""
    if num_workers is not None and num_workers < 1:
        raise ConfigError(f"num_workers is {num_workers}; it must be at least 1")
    if not batch_size:
        raise SpecError("no environments were given; at least one is needed")
    count = min(num_workers or _cores(), batch_size)
    edges = [batch_size * number // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kill_all(workers: list[SupervisedProcess]) -> None:
    for worker in workers:
        worker.kill()
