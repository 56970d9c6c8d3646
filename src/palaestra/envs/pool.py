"""`WorkerPool`: the processes behind a `ProcessEnvironment`, and every wait for one of them."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, EnvError, SpecError
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.faults import Failure, FaultPolicy
from palaestra.envs.lane_environment import Incident
from palaestra.envs.rows import Specs
from palaestra.envs.worker import BUSY, DONE, MESSAGE, NEWS, STEP, View, layout, serve
from palaestra.runtime import SharedArrays, SupervisedProcess, WorkerDiedError, WorkerTimeoutError, stop_all

__all__ = ["WorkerPool", "cores"]

_PRELOAD = ("palaestra.envs.worker",)
_CLOSE_S = 5.0


@dataclass
class _Seat:
    """One place for a worker; another one may take it when the first is gone."""

    number: int
    lanes: slice
    process: SupervisedProcess
    go: Semaphore
    done: Semaphore
    keys: list[str] = field(default_factory=list)
    """Names of the info columns that the worker uses."""

    @property
    def everyone(self) -> range:
        return range(self.lanes.start, self.lanes.stop)


class WorkerPool:
    """Workers that step environments in shared memory.

    Args:
        factories: one for every environment.
        num_workers: W; as many as there are cores, and at most one for every environment, if `None`.
        context: how workers start.
        faults: its timeouts, whether workers may be replaced, and whether bounds are strict.
        first_id: number of the first environment, for messages.

    Raises:
        ConfigError: the factories cannot be sent to another process.
        EnvError: an environment cannot be made.
        SpecError: no environments, or other specs.

    Attributes:
        specs: of the environments.
        view: their rows in shared memory.
        processes: that run or ran.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], SingleEnvironment]],
        num_workers: int | None,
        context: Any,
        faults: FaultPolicy,
        first_id: int = 0,
    ) -> None:
        self._first_id = first_id
        bounds = _bounds(len(factories), num_workers)
        self._factories, self._context, self._faults = list(factories), context, faults
        self.processes: list[SupervisedProcess] = []
        self._seats: dict[int, _Seat] = {}
        self._shared: SharedArrays | None = None
        self._finalizer = weakref.finalize(self, _kill_all, self.processes)
        try:
            for number, lanes in enumerate(bounds):
                self._seats[number] = self._seat(number, lanes)
            self.specs = self._meet()
            self._share(len(bounds))
        except BaseException:
            self.close()
            raise

    # -- starting

    def _seat(self, number: int, lanes: slice) -> _Seat:
        ctx = get_context(self._context)
        go, done = ctx.Semaphore(0), ctx.Semaphore(0)
        place = (number, lanes.start, self._first_id, self._faults.strict)
        args = (self._factories[lanes], place, go, done)
        name = f"the worker of environments {self._first_id + lanes.start} to {self._first_id + lanes.stop - 1}"
        process = SupervisedProcess(serve, args, context=self._context, name=name, preload=_PRELOAD)
        self.processes.append(process)
        return _Seat(number, lanes, process, go, done)

    def _met(self, seat: _Seat, deadline: float) -> Specs | Incident:
        """Waits until a worker has made its environments."""
        message = self._hear(seat, deadline)
        if isinstance(message, Failure):
            what = message.what.replace("raised", "could not be made:", 1)
            return Incident(message._replace(what=what, lane=seat.lanes.start + message.lane), fatal=True)
        return message

    def _meet(self) -> Specs:
        deadline = time.monotonic() + self._faults.reset_timeout_s
        found: list[Specs] = []
        for seat in self._seats.values():
            met = self._met(seat, deadline)
            if isinstance(met, Incident):
                lane, _, what, detail = met.failure
                if "could not be made" in what:
                    raise EnvError(f"environment {self._first_id + lane} {what}: {detail}")
                raise EnvError(
                    f"{seat.process.name} {what} while it was making its environments: {detail} If its own output "
                    'shows that it ran your script again, put the script\'s code under `if __name__ == "__main__":`'
                )
            found.append(met)
            if met[:3] != found[0][:3]:
                raise SpecError(
                    f"environment {self._first_id + seat.lanes.start} has the specs {met[:3]} and environment "
                    f"{self._first_id} {found[0][:3]}; "
                    "environments of one batch need equal ones"
                )
        return found[0]

    def _share(self, num_workers: int) -> None:
        size = len(self._factories)
        self._shared = SharedArrays(layout(self.specs, size, num_workers))
        for seat in self._seats.values():
            self._shared.send(seat.process.connection, seat.process.pid)
        if self._faults.on_fault != "restart":
            self._shared.seal()
        names = ("command", "status", "cursor", "memory", "reported")
        self._command, self._status, self._cursor, self._memory, self._reported = (self._shared[name] for name in names)
        self._status[:] = DONE
        self.view = View.of(self._shared, self.specs, slice(0, size))
        self.view.seed[:] = -1

    # -- commands

    @property
    def workers(self) -> dict[int, range]:
        """The lanes of every worker that has not been given up."""
        return {number: seat.everyone for number, seat in self._seats.items()}

    def step(self) -> None:
        """Starts a step of all lanes, with the actions and seeds in `view`."""
        self._command[:] = STEP
        for number, seat in self._seats.items():
            self._status[number] = BUSY
            seat.go.release()

    def poll(self) -> bool:
        """Whether a step is over, or will never be."""
        busy = [seat for number, seat in self._seats.items() if self._status[number] == BUSY]
        return not busy or not all(seat.process.alive for seat in busy)

    def collect(self, deadline: float) -> tuple[Any, list[Incident]]:
        """Waits for that step.

        Args:
            deadline: in `time.monotonic()` seconds.

        Returns:
            Numeric info as a `Batch` or `()`, and what went wrong.
        """
        incidents: list[Incident] = []
        columns: dict[str, np.ndarray] = {}
        for number, seat in list(self._seats.items()):
            lost = self._wait(seat, deadline)
            if lost is not None:
                incidents.append(lost)
                continue
            status = self._status[number]
            if status == DONE:
                continue
            surplus: Any = {}
            if status == NEWS:
                message = self._hear(seat, deadline)
                if isinstance(message, Incident):
                    incidents.append(message)
                    continue
                failures, names, surplus = message
                seat.keys += names
                first = seat.lanes.start
                incidents += [Incident(failure._replace(lane=first + failure.lane)) for failure in failures]
                if not (names or surplus or self._reported[number].any()):
                    continue
            self._gather(seat, surplus, columns)
        self._reported[:] = False
        info = Batch.of({key: torch.from_numpy(column) for key, column in columns.items()}) if columns else ()
        return info, incidents

    def _gather(self, seat: _Seat, surplus: Mapping[int, Mapping[str, float]], columns: dict[str, np.ndarray]) -> None:
        size, first = len(self._factories), seat.lanes.start
        values, reported = self.view.info[seat.lanes].T, self._reported[seat.number].tolist()
        for column, key in enumerate(seat.keys):
            if reported[column]:
                if key not in columns:
                    columns[key] = np.full(size, np.nan)
                columns[key][seat.lanes] = values[column]
        for lane, entries in surplus.items():
            for key, value in entries.items():
                if key not in columns:
                    columns[key] = np.full(size, np.nan)
                columns[key][first + lane] = value

    def ask(self, messages: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Sends workers a message each and returns their answers, or the incident that kept one from answering.

        Args:
            messages: by number of the worker: the name of a method of its, and arguments.
        """
        deadline = time.monotonic() + self._faults.reset_timeout_s
        answers: dict[int, Any] = {}
        for number, message in messages.items():
            lost = self._post(self._seats[number], message)
            if lost is not None:
                answers[number] = lost
        for number in messages.keys() - answers.keys():
            seat = self._seats[number]
            answer = self._wait(seat, deadline) or self._hear(seat, deadline)
            if isinstance(answer, Failure):
                answer = Incident(answer._replace(lane=seat.lanes.start + answer.lane))
            answers[number] = answer
        return answers

    def replace(self, number: int) -> Incident | None:
        """Puts a new worker into the place of one that is gone.

        Args:
            number: of the worker.

        Returns:
            What went wrong, if anything.
        """
        assert self._shared is not None
        self.processes.remove(self._seats[number].process)
        seat = self._seats[number] = self._seat(number, self._seats[number].lanes)
        met = self._met(seat, time.monotonic() + self._faults.reset_timeout_s)
        if isinstance(met, Incident):
            return met
        if met[:3] != self.specs[:3]:
            return Incident(
                Failure(seat.lanes.start, "malformed", "has other specs than before", str(met[:3])), fatal=True
            )
        self._cursor[number], self._status[number], self._memory[number] = 0, DONE, 0
        self._shared.send(seat.process.connection, seat.process.pid)
        return None

    def retire(self, number: int) -> None:
        """Goes on without a worker that is gone; its lanes show FIRST rows from now on.

        Args:
            number: of the worker.
        """
        seat = self._seats.pop(number)
        rows = self.view.rows
        rows.step_type[seat.lanes], rows.reward[seat.lanes], rows.discount[seat.lanes] = 0, 0.0, 1.0
        self.processes.remove(seat.process)

    def close(self) -> None:
        """Ends the workers: those that do not end by themselves within five seconds are killed."""
        if self._shared is None:
            # nobody has been stepped yet
            _kill_all(self.processes)
        else:
            for seat in self._seats.values():
                if seat.process.alive:
                    self._post(seat, ("close",))
        stop_all(self.processes, _CLOSE_S)
        self.release()

    def kill(self) -> None:
        """Ends the workers now."""
        _kill_all(self.processes)
        self.release()

    def release(self) -> None:
        """Frees what the pool held when its workers have ended."""
        self._finalizer.detach()
        # a semaphore's name is freed with the object
        self._seats = {}
        if self._shared is not None:
            self._shared.close()

    # -- one worker

    def _post(self, seat: _Seat, message: tuple[Any, ...]) -> Incident | None:
        self._command[seat.number], self._status[seat.number] = MESSAGE, BUSY
        try:
            seat.process.send(message)
        except WorkerDiedError as error:
            return self._lost(seat, error)
        seat.go.release()
        return None

    def _wait(self, seat: _Seat, deadline: float) -> Incident | None:
        try:
            seat.process.acquire(seat.done, deadline)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            return self._lost(seat, error)
        return None

    def _hear(self, seat: _Seat, deadline: float) -> Any:
        try:
            return seat.process.receive(deadline)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            return self._lost(seat, error)

    def _lost(self, seat: _Seat, error: WorkerDiedError | WorkerTimeoutError) -> Incident:
        """A worker is gone or silent: makes sure that it has ended, and says what it was doing."""
        shared = self._shared is not None
        lane = seat.lanes.start + (int(self._cursor[seat.number]) if shared else 0)
        if isinstance(error, WorkerDiedError):
            failure = Failure(lane, "died", "lost its worker process", str(error))
        else:
            detail = f"{error}. It was doing:\n{seat.process.stacks()}"
            failure = Failure(lane, "timeout", "did not answer in time and was stopped", detail)
        seat.process.kill()
        memory_bytes = int(self._memory[seat.number]) if shared else 0
        also = tuple(other for other in seat.everyone if other != lane)
        return Incident(failure, also, memory_bytes or None, fatal=True)


def _bounds(batch_size: int, num_workers: int | None) -> list[slice]:
    """The lanes of every worker: contiguous, and as even as can be."""
    if num_workers is not None and num_workers < 1:
        raise ConfigError(f"num_workers is {num_workers}; it must be at least 1")
    if not batch_size:
        raise SpecError("no environments were given; at least one is needed")
    count = min(num_workers or cores(), batch_size)
    edges = [batch_size * number // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kill_all(workers: Iterable[SupervisedProcess]) -> None:
    for worker in workers:
        worker.kill()
