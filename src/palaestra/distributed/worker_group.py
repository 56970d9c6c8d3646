"""`WorkerGroup`: workers of one kind on a runtime. Those that die are replaced; with too few of them the run stops."""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from palaestra.core import PalaestraError
from palaestra.distributed.config import DistributedConfig
from palaestra.envs import EventLog
from palaestra.runtime import Call, RemoteError, Result, Runtime, WorkerDiedError

__all__ = ["Dropped", "Worker", "WorkerFault", "WorkerGroup", "WorkersLostError"]

_log = logging.getLogger(__name__)
_SLICE_S = 0.2  # how soon a pause is noticed
_DONE = {"restart": "another takes its place", "drop": "the run goes on with what is left", "raise": "the run ends"}


class WorkersLostError(PalaestraError):
    """Too few workers are left; the message has the first cause."""

    exit_code = 3


@dataclass(frozen=True)
class WorkerFault:
    """A worker that ended, or did not answer."""

    worker: str
    """Which, for people."""
    incarnation: int
    """Which of its incarnations."""
    what: str
    """Who it was and what happened, and which work that concerns."""
    handled: Literal["restart", "drop", "raise"]
    """It is restarted; the run continues without it; the run stops."""

    @property
    def kind(self) -> str:
        """By which it is counted: what was done."""
        return self.handled

    def error(self) -> PalaestraError:
        """The error that would stop a run."""
        return WorkersLostError(str(self))

    def __str__(self) -> str:
        return f"{self.what}; {_DONE[self.handled]}"


class Dropped(NamedTuple):
    """A fragment that is not learned from, or not by all policies. The first three fields name it."""

    worker: str
    incarnation: int
    sequence: int
    reason: str
    """Why."""
    kind: Literal["lost", "old"] = "lost"
    """Who collected it ended, or it is too old."""
    policies: tuple[str, ...] = ()
    """That do not learn from it, where others do."""


@dataclass
class Worker:
    """A worker as its group knows it."""

    number: int
    id: str
    state: Literal["joining", "idle", "busy", "lost"] = "joining"
    call: Call | None = None
    """That was not answered yet."""
    asked_s: float = 0.0
    """When it was made, in seconds in which the group listened."""
    waited_s: float = 0.0
    """When it was last seen to wait for room."""
    incarnation: int = 0
    """That the newest call was made to."""
    position: Any = None
    """What its next incarnation begins with."""


class WorkerGroup:
    """Starts workers, gives them work, takes their answers, and replaces those that end.

    Args:
        runtime: where they live.
        make: makes the object of a worker from its number; the object has a method `begin(position)`.
        config: how many, how long to wait, how often to restart.
        name: of the workers, for people.
        joined: called with a worker and what its `begin` returned.
        parcels: that an answer may have; see `Runtime.start`.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], Any],
        config: DistributedConfig,
        *,
        name: str,
        joined: Callable[[Worker, Any], None] = lambda worker, answer: None,
        parcels: int = 0,
    ) -> None:
        self.runtime, self._config, self._joined, self._name = runtime, config, joined, name
        self.workers: list[Worker] = []
        self.dropped = EventLog()
        """Work that was lost, in order."""
        self.faults = EventLog()
        """Ends of workers, and whatever else is noted here, in order."""
        self._first: WorkerFault | None = None
        self._make, self._parcels, self._looked_s = make, parcels, 0.0
        self._any_joined, self._enough_s = False, 0.0
        self._heard_s, self._deaf_s = runtime.now(), 0.0
        self.limit_s = math.inf
        """When all waiting ends, in seconds of `Runtime.now`."""

    # -- workers

    def start(self, positions: Sequence[Any] | None = None) -> None:
        """Starts all workers, and waits until those are there that the runtime has room for, `min_workers` at least.

        The others join when there is more room.

        Args:
            positions: what each begins with.

        Raises:
            WorkersLostError: too few of them could be started.
        """
        wishes = {"GPU": self._config.num_gpus}
        if self._config.num_cpus is not None:
            wishes["CPU"] = self._config.num_cpus
        wanted, room = self._config.num_workers, self.runtime.room(wishes)
        later = wanted - int(min(wanted, max(room, self._config.min_workers)))
        if later:
            _log.warning("there is room for %d of %d workers; the others join when there is more", room, wanted)
        for number in range(wanted):
            factory = functools.partial(self._make, number)
            name = f"{self._name}-{number}"
            id_ = self.runtime.start(factory, name=name, resources=wishes, parcels=self._parcels)
            worker = Worker(number, id_, position=positions[number] if positions else None)
            self.workers.append(worker)
            self._call(worker, "joining", "begin", worker.position)
        deadline = self.runtime.now() + self._config.timeout_s
        while len(self._of("joining")) > later and self.runtime.now() < min(deadline, self.limit_s):
            self.admit(_SLICE_S, at_least=wanted)

    def admit(self, timeout_s: float = 0.0, *, at_least: int = 1) -> None:
        """Lets workers join that were started or restarted.

        Args:
            timeout_s: how long to wait for them.

        Raises:
            WorkersLostError: there are too few workers.
        """
        joining = self._of("joining")
        for worker, result in self._ended(joining, at_least=at_least, timeout_s=timeout_s):
            if result.error is None:
                worker.state, self._any_joined = "idle", True
                self._joined(worker, result.value)
            elif isinstance(result.error, RemoteError) and not self._any_joined:
                raise result.error  # the first of all workers cannot even be made
            else:
                self._replace(worker, str(result.error))
        self._look()
        for worker in self._of("joining"):
            if self._overdue(worker):
                self._replace(worker, f"{worker.id} was not there after {self._config.timeout_s:g} s")
        self._require_enough()

    def _look(self) -> None:
        """Now and then: who pauses before a restart, or waits for room, does not hang."""
        now = self._now()
        if now - self._looked_s > self._config.timeout_s / 4:
            self._looked_s = now
            for worker in self._of("joining"):
                if self.runtime.waits(worker.id):
                    worker.waited_s = now

    def _require_enough(self) -> None:
        needed, now = self._config.min_workers, self._now()
        there, possible = len(self._of("idle", "busy")), len(self._of("idle", "busy", "joining"))
        if there >= needed:
            self._enough_s = now
        patience_s = self._config.recover_timeout_s if self._enough_s else self._config.timeout_s
        missing_s = now - (self._enough_s or self.workers[0].asked_s)
        if possible < needed or missing_s > patience_s:
            why = "it did not start" if self._first is None else self._first.what
            raise WorkersLostError(
                f"{there} of {len(self.workers)} workers are there and {needed} are needed (min_workers); the first "
                f"one was lost because: {why}"
            )

    @property
    def idle(self) -> list[Worker]:
        """Workers without work."""
        return self._of("idle")

    @property
    def busy(self) -> list[Worker]:
        """Workers at work."""
        return self._of("busy")

    # -- work

    def give(self, worker: Worker, method: str, *args: Any, **kwargs: Any) -> None:
        """Gives work to one worker.

        Args:
            worker: that has none.
            method: of its object.
            args: of the method.
            kwargs: of the method.
        """
        self._call(worker, "busy", method, *args, **kwargs)

    def take(
        self, *, at_least: int, timeout_s: float, of: Sequence[Worker] | None = None
    ) -> list[tuple[Worker, Call, Any]]:
        """Answers, once there are so many, or no worker is busy, or the time is over.

        A worker that ended is replaced, and what it was at is dropped; so is one that takes too long.

        Args:
            of: whose answers; those of all workers if left out.

        Returns:
            Who answered, to which call, and what.

        Raises:
            RemoteError: a worker's method raised.
            WorkersLostError: there are too few workers.
        """
        deadline, taken = self.runtime.now() + timeout_s, list[tuple[Worker, Call, Any]]()
        while busy := [worker for worker in (self.workers if of is None else of) if worker.state == "busy"]:
            left = min(deadline, self.limit_s) - self.runtime.now()
            need = min(max(at_least - len(taken), 0), len(busy))
            for worker, result in self._ended(busy, at_least=need, timeout_s=max(0.0, min(left, _SLICE_S))):
                if isinstance(result.error, RemoteError):
                    raise result.error
                if result.error is not None:
                    self.drop(result.call, str(result.error))
                    self._replace(worker, str(result.error))
                    continue
                worker.state = "idle"
                taken.append((worker, result.call, result.value))
            for worker in self.busy:
                if self._overdue(worker):
                    assert worker.call is not None
                    what = f"did not answer within {self._config.timeout_s:g} s"
                    self.drop(worker.call, what)
                    self._replace(worker, f"{worker.id} {what}")
            if self._of("joining"):
                self.admit()  # else who is back would not count before the work is done
            else:
                self._require_enough()
            if len(taken) >= at_least or left <= 0:
                break
        return taken

    def drop(
        self, call: Call, reason: str, kind: Literal["lost", "old"] = "lost", policies: Sequence[str] = ()
    ) -> None:
        """Notes that work is lost; an answer to a question is none.

        Args:
            call: that it was asked for by.
            reason: why.
            kind: of reason.
            policies: for which it is, if it is not for others.
        """
        if call.method not in ("state", "opponents"):
            self.dropped.append(Dropped(call.worker, call.incarnation, call.sequence, reason, kind, tuple(policies)))

    def _call(self, worker: Worker, state: Literal["joining", "busy"], method: str, *args: Any, **kwargs: Any) -> None:
        self._is_back()
        worker.state, worker.asked_s = state, self._now()
        worker.call = self.runtime.call(worker.id, method, *args, **kwargs)
        worker.incarnation = worker.call.incarnation

    def _ended(self, workers: Sequence[Worker], *, at_least: int, timeout_s: float) -> list[tuple[Worker, Result]]:
        by_call = {worker.call: worker for worker in workers if worker.call is not None}
        self._is_back()
        results = self.runtime.wait(by_call, at_least=at_least, timeout_s=timeout_s)
        self._heard_s = self.runtime.now()
        for result in results:
            by_call[result.call].call = None
        return [(by_call[result.call], result) for result in results]

    def _is_back(self) -> None:
        now = self.runtime.now()
        longest_s = min(self._config.timeout_s, self._config.recover_timeout_s) / 4  # that is not taken for silence
        self._deaf_s += max(0.0, now - self._heard_s - longest_s)
        self._heard_s = now

    def _now(self) -> float:
        """Seconds, without those of long updates in which nobody listened: workers can begin only between them."""
        return self.runtime.now() - self._deaf_s

    def _overdue(self, worker: Worker) -> bool:
        silent_s = self._now() - max(worker.asked_s, worker.waited_s)
        return not self.runtime.works_here and silent_s > self._config.timeout_s

    def _of(self, *states: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.state in states]

    def _replace(self, worker: Worker, what: str) -> None:
        """Restarts a worker, or gives it up."""
        incarnation = worker.incarnation
        try:
            self.runtime.restart(worker.id, what.removeprefix(f"{worker.id} "))
        except WorkerDiedError as error:
            worker.state, worker.call = "lost", None
            fault = WorkerFault(worker.id, incarnation, str(error), "drop")
        else:
            fault = WorkerFault(worker.id, incarnation, what, "restart")
            if worker.call is not None:  # it hung: the answer is the end of its incarnation
                self.runtime.wait([worker.call], timeout_s=0.0)
            self._call(worker, "joining", "begin", worker.position)
        self._first = self._first or fault
        self.faults.append(fault)
        _log.warning("%s", fault)
