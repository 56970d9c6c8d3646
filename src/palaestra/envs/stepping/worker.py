"""One worker of a `ProcessDriver`, from both ends: `Seat` in the parent, `serve` in a process of its own."""

import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from palaestra.core import SpecTree, spec_leaves
from palaestra.envs.contract.environment import SingleEnvironment, common_specs
from palaestra.envs.contract.nest import leaf_dtypes
from palaestra.envs.contract.rows import Infos, Rows, Specs, put
from palaestra.envs.stepping.serial import SerialDriver
from palaestra.envs.supervision.faults import Failure, FaultPolicy, Incident, failure_of, leaks_of
from palaestra.envs.supervision.watchdog import BESIDE, Watched
from palaestra.runtime import LeakWatch, SharedArrays, SharedSemaphore
from palaestra.runtime.supervision import SupervisedProcess, WorkerDiedError, WorkerTimeoutError, spin_acquire

# What a worker is told to do, and how it went, in one number of shared memory each. INFO: there are numbers in the info
# block; NEWS: there is a message in the pipe.
STEP, MESSAGE = 0, 1
BUSY, DONE, INFO, NEWS = 0, 1, 2, 3

# Info entries that have a column in shared memory; further ones go through the pipe.
_INFO_COLUMNS = 32
# Steps between two looks at the worker's memory, which is also looked at whenever an episode starts.
_MEMORY_PERIOD = 64
# Steps between two looks for leaks: at first of every doubling, then so many.
_FIRST_LOOK, _LOOK_PERIOD = 64, 1024
_NOT_BEGUN = (
    "It has not begun its work, so it is only slow to start: use fewer workers (`--env.num-workers`), or wait "
    "for longer (`--env.reset-timeout-s`)"
)
_PRELOAD = ("palaestra.envs.stepping.worker",)


def layout(specs: Specs, batch_size: int, num_workers: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The arrays that parent and workers share.

    Args:
        specs: of the environments.
        batch_size: B.
        num_workers: W.
    """
    arrays: dict[str, tuple[tuple[int, ...], Any]] = {
        "command": ((num_workers,), np.int64),
        "status": ((num_workers,), np.int64),
        "cursor": ((num_workers,), np.int64),
        "memory": ((num_workers,), np.int64),
        "reported": ((num_workers, _INFO_COLUMNS), np.bool_),
        "info": ((batch_size, _INFO_COLUMNS), np.float64),
        "seed": ((batch_size,), np.int64),
        "step_type": ((batch_size,), np.int32),
        "reward": ((batch_size, *specs.reward.shape), np.float32),
        "discount": ((batch_size,), np.float32),
    }
    for kind, spec in (("observation", specs.observation), ("action", specs.action)):
        for number, (leaf, dtype) in enumerate(_leaves(spec)):
            arrays[f"{kind}.{number}"] = ((batch_size, *leaf.shape), dtype)
    return arrays


class View(NamedTuple):
    """The rows of some lanes in shared memory."""

    seed: np.ndarray
    """int64 [n]; at least 0 where the lane starts an episode."""
    rows: Rows
    """Results of the latest step."""
    action: list[np.ndarray]
    """Leaf arrays [n, ...]."""
    info: np.ndarray
    """float64 [n, columns]; NaN where nothing was reported."""

    @classmethod
    def of(cls, shared: SharedArrays, specs: Specs, lanes: slice) -> Self:
        """The view of some lanes.

        Args:
            shared: with the arrays of `layout`.
            specs: of the environments.
            lanes: which.
        """
        observation, action = (
            [shared[f"{kind}.{number}"][lanes] for number in range(len(spec_leaves(spec)))]
            for kind, spec in (("observation", specs.observation), ("action", specs.action))
        )
        rows = Rows(shared["step_type"][lanes], shared["reward"][lanes], shared["discount"][lanes], observation)
        return cls(shared["seed"][lanes], rows, action, shared["info"][lanes])


class Seat:
    """The place of one worker, in the parent; another one may take it when the first is gone.

    Args:
        number: of the place.
        lanes: whose environments it steps.
        factories: that make them.
        context: how the process starts.
        faults: timeouts, and whether bounds are strict.
        first_id: number of the batch's first environment, for messages.
    """

    def __init__(
        self,
        number: int,
        lanes: range,
        factories: Sequence[Callable[[], SingleEnvironment]],
        context: Any,
        faults: FaultPolicy,
        first_id: int,
    ) -> None:
        self.number, self.lanes = number, lanes
        self.go: SharedSemaphore
        """Released by `begin` for every command; there from `share` on."""
        self.done: SharedSemaphore
        """Released by the worker when it was carried out."""
        self.keys: list[str] = []
        """Names of the info columns that the worker uses."""
        self.owes = False
        """Whether the answer to a command was not taken yet: it is running, or whoever gave it was interrupted."""
        self._running = False
        self._shared: SharedArrays | None = None
        name = f"the worker of environments {first_id + lanes.start} to {first_id + lanes.stop - 1}"
        args = (factories, (number, lanes.start, first_id), faults)
        self.process = SupervisedProcess(serve, args, context=context, name=name, preload=_PRELOAD)

    def meet(self, deadline: float) -> Specs | Incident:
        """Waits until the worker has made its environments.

        Args:
            deadline: in seconds of `CLOCK`.
        """
        message = self.hear(deadline)
        if isinstance(message, Failure):
            what = message.what.replace("raised", "could not be made:", 1)
            return Incident(message._replace(what=what, lane=self.lanes.start + message.lane), fatal=True)
        return message

    def share(self, shared: SharedArrays, deadline: float) -> Incident | None:
        """Gives the worker the arrays of `layout` and its semaphores, and waits until it has them.

        Args:
            shared: these arrays.
            deadline: for all of it, in seconds of `CLOCK`.
        """
        self._shared = shared
        shared["cursor"][self.number], shared["status"][self.number], shared["memory"][self.number] = 0, DONE, 0
        self.go, self.done = SharedSemaphore(), SharedSemaphore()
        names = self.go.name, self.done.name
        lost = self._of_process(shared.send, self.process, deadline)
        lost = lost or self._of_process(self.process.send, names, deadline) or self.hear(deadline)
        for semaphore in (self.go, self.done):
            semaphore.forget_name()  # as soon as it can: who is killed before leaves it behind
        return lost

    def post(self, message: tuple[str, dict[str, Any]], deadline: float) -> Incident | None:
        """Sends a message, whose answer `answer` waits for.

        Args:
            message: the name of a method of `SerialDriver`, and its arguments by name.
            deadline: in seconds of `CLOCK`.
        """
        assert self._shared is not None
        self._shared["command"][self.number], self._shared["status"][self.number] = MESSAGE, BUSY
        self.begin()  # before the message: a pipe holds only so much, and the worker has to read it meanwhile
        return self._of_process(self.process.send, message, deadline)

    def begin(self) -> None:
        """Lets the worker carry out the command that it was given."""
        self.owes = self._running = True
        self.go.release()

    def settle(self, deadline: float) -> None:
        """Takes an answer that is owed and forgets it, so that the next one belongs to the next command.

        Args:
            deadline: for that, in seconds of `CLOCK`.
        """
        if self._running:
            self.wait(deadline)
        if self.owes:
            self.hear(deadline)

    def wait(self, deadline: float) -> Incident | None:
        """Waits until the worker has done what it was told.

        Args:
            deadline: in seconds of `CLOCK`.
        """
        lost = self._of_process(self.process.acquire, self.done, deadline)
        if lost is None and self._shared is not None:
            self._running, self.owes = False, bool(self._shared["status"][self.number] == NEWS)
        return lost

    def hear(self, deadline: float) -> Any:
        """Reads the worker's next message.

        Args:
            deadline: in seconds of `CLOCK`.
        """
        message = self._of_process(self.process.receive, deadline)
        self.owes = False
        return message

    def answer(self, deadline: float) -> Any:
        """Waits for the answer to a message; one that failed is an incident.

        Args:
            deadline: in seconds of `CLOCK`.
        """
        answer = self.wait(deadline) or self.hear(deadline)
        if isinstance(answer, Failure):
            return Incident(answer._replace(lane=self.lanes.start + answer.lane))
        return answer

    def _of_process(self, call: Callable[..., Any], *args: Any) -> Any:
        """What a method of the process returns; an incident if that is gone or silent."""
        try:
            return call(*args)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            return self._lost(error)

    def _lost(self, error: WorkerDiedError | WorkerTimeoutError) -> Incident:
        """The worker is gone or silent: makes sure that it has ended, and says what it was doing."""
        shared = self._shared
        lane = self.lanes.start + (int(shared["cursor"][self.number]) if shared else 0)
        if isinstance(error, WorkerDiedError):
            failure = Failure(lane, "died", "lost its worker process", str(error))
        else:
            stacks = self.process.stacks()
            detail = f"{error}. It was doing:\n{stacks}" if stacks else f"{error}. {_NOT_BEGUN}"
            failure = Failure(lane, "timeout", "did not answer in time and was stopped", detail)
        self.process.kill()
        self.owes = self._running = False
        memory_bytes = int(shared["memory"][self.number]) if shared else 0
        also = tuple(other for other in self.lanes if other != lane)
        return Incident(failure, also, memory_bytes or None, fatal=True)


def serve(
    connection: Connection,
    factories: Sequence[Callable[[], SingleEnvironment]],
    place: tuple[int, int, int],
    faults: FaultPolicy,
) -> None:
    """Makes environments, then steps them whenever the parent releases a semaphore, until told to stop.

    Args:
        connection: to the parent.
        factories: of this worker's environments.
        place: number of the worker, of its first lane, and of the batch's first environment, for messages.
        faults: whether observations out of bounds are failures.
    """
    torch.set_num_threads(1)
    envs: list[SingleEnvironment] = []
    try:
        for factory in factories:
            envs.append(factory())
        specs = common_specs(envs)
    except BaseException as error:
        failure = failure_of(min(len(envs), len(factories) - 1), error)
        connection.send(failure._replace(detail=failure.detail + (BESIDE.format(*Watched.elsewhere) if envs else "")))
        return
    connection.send(specs)
    shared = SharedArrays.receive(connection)
    go, done = map(SharedSemaphore.open, connection.recv())
    connection.send(None)
    number, first, first_id = place
    cursor = shared["cursor"][number : number + 1]
    rules: dict[str, Any] = {"faults": faults, "factories": factories, "first_id": first_id + first}
    driver = SerialDriver(envs, cursor=cursor, watched=False, **rules)
    _Worker(connection, driver, shared, number, first).run(go, done)


class _Worker:
    """What a worker process does."""

    def __init__(
        self, connection: Connection, driver: SerialDriver, shared: SharedArrays, number: int, first: int
    ) -> None:
        self._connection, self._driver = connection, driver
        one = slice(number, number + 1)
        self._command, self._status, self._memory = (shared[name][one] for name in ("command", "status", "memory"))
        self._reported = shared["reported"][number]
        self._view = View.of(shared, driver.specs, slice(first, first + driver.batch_size))
        self._columns: dict[str, int] = {}
        self._clock, self._look_at, self._leaks = 0, _FIRST_LOOK, LeakWatch()

    def run(self, go: SharedSemaphore, done: SharedSemaphore) -> None:
        command, status = self._command, self._status
        while True:
            if not spin_acquire(go):
                go.acquire(True)  # without a timeout, for which macOS would poll; the parent's death ends the process
            if command[0] == STEP:
                what, (outcome, message) = "step", self._step()
            else:
                what, arguments = self._connection.recv()
                outcome, message = NEWS, self._obey(what, arguments)
            status[0] = outcome
            done.release()
            if outcome == NEWS:
                # after `done`: a pipe holds only so much, and the parent reads it when it knows that there is something
                self._connection.send(message)
                if what == "close":
                    return

    def _step(self) -> tuple[int, Any]:
        view = self._view
        seeds = view.seed.tolist()
        started = {lane: seed for lane, seed in enumerate(seeds) if seed >= 0} if max(seeds) >= 0 else {}
        if started or self._clock % _MEMORY_PERIOD == 0:
            self._memory[0] = _peak_memory_bytes()
        self._clock += 1
        actions = self._driver.reader.per_lane([array.copy() for array in view.action])
        rows, infos, failures = self._driver.step(actions, started)
        target = view.rows
        target.step_type[:] = rows.step_type
        target.reward[:] = rows.reward
        target.discount[:] = rows.discount
        for array, values in zip(target.observation, rows.observation, strict=True):
            array[:] = values
        names, surplus = self._report(infos) if infos else ([], {})
        leaks: list[Incident] = []
        if self._clock >= self._look_at:
            self._look_at += min(self._look_at, _LOOK_PERIOD)
            leaks = leaks_of(self._leaks.look(), range(len(seeds)))
        if failures or names or surplus or leaks:
            return NEWS, ([*map(Incident, failures), *leaks], names, surplus)
        return INFO if infos else DONE, None

    def _report(self, infos: Infos) -> tuple[list[str], Infos]:
        """Writes info entries to their columns; returns the names of new columns, and what has none."""
        columns, new = self._columns, []
        surplus: Infos = {}
        self._view.info[:] = np.nan
        self._reported[:] = False
        for lane, entries in infos.items():
            row = self._view.info[lane]
            for key, value in entries.items():
                column = columns.get(key)
                if column is None and len(columns) < _INFO_COLUMNS:
                    column = columns[key] = len(columns)
                    new.append(key)
                if column is None:
                    surplus.setdefault(lane, {})[key] = value
                else:
                    row[column] = value
                    self._reported[column] = True
        return new, surplus

    def _obey(self, what: str, arguments: dict[str, Any]) -> Any:
        """What a method of the driver returns, or its failure; first observations go to shared memory."""
        try:
            answer: Any = getattr(self._driver, what)(**arguments)
        except BaseException as error:
            return failure_of(0, error)
        if isinstance(answer, Incident):
            return answer.failure
        if what == "close":
            return answer[0].failure if answer else None
        if what != "restart":
            return answer
        observations, lost = answer
        for lane, leaves in observations.items():
            put(self._view.rows.observation, lane, leaves)
        return lost


def _leaves(spec: SpecTree) -> Any:
    return zip(spec_leaves(spec).values(), leaf_dtypes(spec), strict=True)


def _peak_memory_bytes() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
