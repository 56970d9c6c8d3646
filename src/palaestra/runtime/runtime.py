"""`Runtime`: objects that live somewhere else, and calls of their methods that never block."""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from palaestra.core import ConfigError, PalaestraError, did_you_mean
from palaestra.runtime.calls import Arrival, Call, PlacementGroup, RestartPolicy, Result, WorkerRecord, WorkerStatus
from palaestra.runtime.messages import Factory, Failed, Request
from palaestra.runtime.supervision import StoppableClock, WorkerDiedError, WorkerTimeoutError

__all__ = ["Runtime"]

_log = logging.getLogger(__name__)
_HOUR_S = 3600.0
_STOPPED_S = 5.0  # a wait that takes so much longer was stopped; answers may take a while to arrive


class Runtime(ABC):
    """Workers: objects in this process, in other processes or on other machines.

    A worker does one call after another, in the order in which they were made. Arguments and results travel by value,
    everywhere alike. An answer is taken once; one that comes again, or from an incarnation that is over, is
    dropped and counted. A runtime is used by one thread.

    A subclass defines `launch`, `submit`, `poll`, `dismiss` and `end`, and if need be `reserve`, `vacate` and
    `release`; only this class calls them.

    Args:
        restarts: how often workers may be restarted.

    Examples:
        >>> from palaestra.runtime import LocalRuntime
        >>> with LocalRuntime() as runtime:
        ...     worker = runtime.start(list, name="a list")
        ...     calls = [runtime.call(worker, "append", 7), runtime.call(worker, "index", 7)]
        ...     [result.unwrap() for result in runtime.wait(calls, timeout_s=5.0)]
        [None, 0]
    """

    works_here: ClassVar[bool] = False
    """Whether workers work in this process, one after another while the caller waits: then none of them is silent."""

    def __init__(self, restarts: RestartPolicy | None = None) -> None:
        self.duplicates = 0
        """Answers that were dropped because theirs had been taken, or their worker's incarnation was over."""
        self.restarted = 0
        """Lives that began again, of all workers."""
        self._policy = restarts or RestartPolicy()
        self._workers: dict[str, WorkerRecord] = {}
        self._names = Counter[str]()
        self._groups: list[PlacementGroup] = []  # that hold room
        self._due: dict[str, WorkerRecord] = {}  # that are about to be restarted
        self._open: set[Call] = set()  # whose results were not taken yet
        self._results: dict[Call, Result] = {}
        self.clock = StoppableClock(math.inf if self.works_here else _STOPPED_S)
        """By which it waits."""
        self._awaited: set[Call] = set()  # that the present `wait` has no result of
        self._closed = False

    # -- what a subclass defines

    @abstractmethod
    def launch(self, worker: WorkerRecord) -> Any:
        """Begins an incarnation: the worker makes its object, and answers call 0 when it is made.

        Args:
            worker: whose handle becomes what is returned.
        """

    @abstractmethod
    def submit(self, worker: WorkerRecord, call: Call, request: Request) -> None:
        """Hands a call to a worker that has nothing to do.

        Args:
            call: its name.
            request: what to do; its buffers may change afterwards.

        Raises:
            WorkerDiedError: the worker is gone.
            WorkerTimeoutError: it does not take it.
        """

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Arrival]:
        """What has arrived; waits if nothing has.

        Args:
            timeout_s: so long.
        """

    @abstractmethod
    def dismiss(self, worker: WorkerRecord) -> None:
        """Asks a worker to end by itself once it has nothing to do. Never blocks."""

    @abstractmethod
    def end(self, worker: WorkerRecord, timeout_s: float) -> None:
        """Ends an incarnation, and frees what it held.

        Args:
            worker: whose.
            timeout_s: so long it is waited for; then it is killed.
        """

    @property
    def address(self) -> str:
        """Address of this machine, as its workers reach it."""
        return "127.0.0.1"

    def room(self, resources: Mapping[str, float]) -> float:
        """How many more workers can begin now; any number where the runtime hands out no resources.

        Args:
            resources: that each needs, as `start` takes them.
        """
        return math.inf

    def waits_for_room(self, worker: str) -> bool:
        """Whether a worker has no place yet: it begins when there is room."""
        return False

    def waits(self, worker: str) -> bool:
        """Whether a worker has yet to begin: a restart pauses first, or it waits for room."""
        return self._record(worker).due is not None or self.waits_for_room(worker)

    def reserve(self, group: PlacementGroup, timeout_s: float) -> None:  # noqa: B027 - most have one machine
        """Sets room aside for a group; nothing by default.

        Args:
            group: whose handle it may set.
            timeout_s: how long to wait for room.

        Raises:
            ClusterError: there was none.
        """

    def vacate(self, group: PlacementGroup) -> None:  # noqa: B027 - likewise
        """Gives back what `reserve` has set aside; nothing by default.

        Args:
            group: whose workers have ended.
        """

    def release(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what the runtime itself holds, once its workers have ended. Nothing by default."""

    def tell_closed(self, worker: WorkerRecord, failed: Failed | None) -> None:
        """For subclasses: logs what closing a worker's object raised, which stops nobody.

        Args:
            worker: whose.
            failed: what `Performer.close` returned.
        """
        if failed is not None:
            _log.warning("%s", worker.not_closed(failed))

    # -- for users

    def start(
        self,
        factory: Callable[[], Any],
        *,
        name: str,
        resources: Mapping[str, float] | PlacementGroup | None = None,
        parcels: int = 0,
        role: str = "",
    ) -> str:
        """Makes a worker. Returns at once; an object that cannot be made fails the calls to it.

        Args:
            factory: called without arguments where the worker lives; makes its object.
            name: for people. Workers may share it; ids differ.
            resources: what it needs, for example `{"CPU": 1, "GPU": 0.5}`, where the runtime hands out resources; or a
                placement group, whose next bundle it gets and keeps.
            parcels: so many `Parcel`s of an answer need not come here, where the runtime can keep them elsewhere.
            role: what its process is called, for example "learner 2 of 4"; by default its id.

        Returns:
            The worker's id.

        Raises:
            ConfigError: the factory cannot be sent, the group is full, or the runtime was closed.
        """
        self._require_open()
        number, group, bundle = self._names[name], None, 0
        if isinstance(resources, PlacementGroup):
            group, bundle = resources, resources.take()
            resources = group.bundles[bundle]
        id_, needs = f"{name}-{number}" if number else name, dict(resources or {})
        worker = WorkerRecord(id_, name, Factory(factory), needs, parcels, group, bundle, role)
        self._begin(worker)
        self._workers[worker.id] = worker
        if group is not None:
            group.workers.append(worker)
        self._names[name] += 1
        return worker.id

    def placement_group(
        self, bundles: Sequence[Mapping[str, float]], *, name: str, timeout_s: float = 300.0
    ) -> PlacementGroup:
        """Sets room aside for workers that belong together: all at once, near each other where there is room for it.

        `start` takes it in place of resources. It is given back when all workers that were started in it have been
        stopped, and when the runtime is closed.

        Args:
            bundles: what each worker needs, as `start` takes it.
            name: for people, of all of them: "learners".
            timeout_s: how long to wait for room.

        Raises:
            ClusterError: there was no room in time; says what is missing.
            ConfigError: the runtime was closed.
        """
        self._require_open()
        group = PlacementGroup(name, bundles)
        if group.bundles:
            self.reserve(group, timeout_s)
            self._groups.append(group)
        return group

    def call(self, worker: str, method: str, *args: Any, **kwargs: Any) -> Call:
        """Asks a worker to do something. Never blocks.

        Args:
            method: of its object.
            args: by value; those that are `Shared` are sent once.
            kwargs: likewise.

        Raises:
            ConfigError: an argument cannot be sent, or there is no such worker.
        """
        record = self._record(worker)
        call = Call(record.id, record.incarnation, record.sequence, method)
        request = Request.of(method, args, kwargs)
        record.sequence += 1
        self._open.add(call)
        if record.ended:
            assert record.error is not None
            self._note(Result(call, error=record.error))
        elif record.running is None and record.handle is not None and not record.queue:
            self._hand_over(record, call, request)
        else:
            record.queue.append((call, request.copied()))
        return call

    def wait(self, calls: Iterable[Call], *, at_least: int | None = None, timeout_s: float) -> list[Result]:
        """Results of calls, once so many of them have ended or the time is over.

        Args:
            calls: whose results were not taken yet.
            at_least: how many to wait for; `None` is all.
            timeout_s: how long; 0 takes what is there.

        Returns:
            Of all those calls that have ended, in the order given. There may be fewer than asked for.

        Raises:
            ConfigError: a result was taken before.
        """
        wanted = list(dict.fromkeys(calls))
        if not self._open.issuperset(wanted):
            taken = next(call for call in wanted if call not in self._open)
            raise ConfigError(f"the result of {taken} was taken already, or another runtime was asked for it")
        need = len(wanted) if at_least is None else min(at_least, len(wanted))
        deadline = self.now() + timeout_s
        self._awaited = {call for call in wanted if call not in self._results}
        self._begin_due()
        self._take(self.poll(0.0))
        while len(wanted) - len(self._awaited) < need:
            next_due = self._begin_due()
            if (now := self.now()) >= deadline:
                break
            self._take(self.clock.wait(self.poll, min(deadline, now + next_due)))
        ended = [self._results.pop(call) for call in wanted if call in self._results]
        self._open.difference_update(result.call for result in ended)
        return ended

    def now(self) -> float:
        """`time.monotonic()`, less the seconds for which this process was stopped while it waited here."""
        return self.clock.now()

    def restart(self, worker: str, why: str = "was ended to be restarted") -> None:
        """Ends a worker, if it has not ended, and begins its next incarnation with a new object of its factory.

        Returns at once. The first restart within an hour is immediate, further ones wait; calls made meanwhile wait
        with it. Calls that were not answered fail.

        Args:
            why: said of the calls that it did not answer, if it lives.

        Raises:
            WorkerDiedError: it was restarted too often; with the first cause.
        """
        record = self._record(worker)
        if record.due is not None:
            return
        now = time.monotonic()
        while record.restarts and now - record.restarts[0] > _HOUR_S:
            record.restarts.popleft()
        number, policy = len(record.restarts), self._policy
        if record.handle is not None:
            self._bury(record, WorkerDiedError(f"{record.title} {why}"))
        if number >= policy.max_restarts:
            raise WorkerDiedError(
                f"{record.title} was restarted {number} times within an hour, which is all it may; the first time "
                f"because: {record.first_error}"
            )
        record.restarts.append(now)
        record.due = now + (min(policy.backoff_s * 2 ** (number - 1), policy.max_backoff_s) if number else 0.0)
        self._due[record.id] = record
        record.incarnation, record.sequence = record.incarnation + 1, 1
        self.restarted += 1

    def stop(self, worker: str, *, timeout_s: float = 5.0) -> None:
        """Ends a worker for good. Calls that were not answered fail.

        Args:
            timeout_s: how long it may take to end by itself.
        """
        self._stop([self._record(worker)], "was stopped", timeout_s)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Ends all workers. Nothing of the runtime is left.

        Args:
            timeout_s: how long they may take, together, to end by themselves.
        """
        if self._closed:
            return
        self._closed = True
        self._stop(list(self._workers.values()), "was stopped: its runtime was closed", timeout_s)
        self.release()

    def status(self) -> dict[str, WorkerStatus]:
        """Status of every worker, by id."""
        now = time.monotonic()
        return {record.id: record.status(now) for record in self._workers.values()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- incarnations

    def _stop(self, records: list[WorkerRecord], why: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for record in records:
            if record.handle is not None:
                self.dismiss(record)
        for record in records:
            self._bury(record, WorkerDiedError(f"{record.title} {why}"), max(0.0, deadline - time.monotonic()))
            record.due = None
            self._due.pop(record.id, None)
        for group in list(self._groups):
            if self._closed or (group.workers and all(record.ended for record in group.workers)):
                self.vacate(group)
                self._groups.remove(group)

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigError("this runtime was closed; make a new one")

    def _record(self, worker: str) -> WorkerRecord:
        if worker not in self._workers:
            raise ConfigError(f"there is no worker {worker!r}{did_you_mean(worker, self._workers)}")
        return self._workers[worker]

    def _begin(self, record: WorkerRecord) -> None:
        self._due.pop(record.id, None)
        record.due, record.sequence = None, max(record.sequence, 1)
        record.running = Call(record.id, record.incarnation, 0, "__init__")
        record.since = time.monotonic()
        record.handle = self.launch(record)

    def _begin_due(self) -> float:
        """Begins the incarnations that are due; returns the seconds to the next one."""
        now, soonest = time.monotonic(), float("inf")
        for record in list(self._due.values()):
            assert record.due is not None
            if record.due <= now:
                self._begin(record)
            else:
                soonest = min(soonest, record.due - now)
        return soonest

    def _hand_over(self, record: WorkerRecord, call: Call, request: Request) -> None:
        record.running, record.since = call, time.monotonic()
        try:
            self.submit(record, call, request)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            self._bury(record, error)

    def _note(self, result: Result) -> None:
        self._results[result.call] = result
        self._awaited.discard(result.call)

    def _take(self, arrivals: Iterable[Arrival]) -> None:
        for worker, incarnation, sequence, value, error in arrivals:
            record = self._workers.get(worker)
            if record is None or incarnation != record.incarnation or record.handle is None:
                self.duplicates += sequence is not None
                continue
            call = record.running
            if sequence is None:
                assert error is not None
                self._bury(record, error)
            elif call is None or sequence != call.sequence:
                self.duplicates += 1
            elif sequence == 0 and error is not None:
                self._bury(record, error)
            else:
                record.running = None
                if sequence:
                    record.calls += 1
                    self._note(Result(call, value, error))
                if record.queue:
                    self._hand_over(record, *record.queue.popleft())

    def _bury(self, record: WorkerRecord, error: PalaestraError, timeout_s: float = 0.0) -> None:
        """Ends what is left of an incarnation; calls that it did not answer fail."""
        record.error = error
        record.first_error = record.first_error or error
        asked = [call for call, _ in record.queue]
        if record.running is not None and record.running.sequence:
            asked.insert(0, record.running)
        record.running = None
        record.queue.clear()
        for call in asked:
            self._note(Result(call, error=error))
        if record.handle is not None:
            self.end(record, timeout_s)
            record.handle = None
