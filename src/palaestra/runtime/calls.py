"""The records of a runtime: calls and their results, workers and how they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from palaestra.core import ConfigError, PalaestraError
from palaestra.runtime.messages import Failed, Request

__all__ = ["Call", "PlacementGroup", "RemoteError", "RestartPolicy", "Result", "WorkerStatus"]


class RemoteError(PalaestraError):
    """A method of a worker raised; the message has its traceback.

    Args:
        what: the worker and the method.
        kind: name of the exception's class.
        detail: the traceback there, as text.
        exit_code: of the exception, where it has one.
        facts: of the exception, see `PalaestraError.facts`.
    """

    def __init__(
        self, what: str, kind: str, detail: str, exit_code: int = 1, facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"{what} raised {kind}:\n{detail}")
        self.kind = kind
        """Name of the exception's class, for example "NonFiniteError"."""
        self.exit_code, self.facts = exit_code, facts or {}


class Call(NamedTuple):
    """One call of a method. The first three fields are never the same for two calls."""

    worker: str
    """The worker that was asked."""
    incarnation: int
    """Which incarnation of that worker, from 0."""
    sequence: int
    """Number of the call in that incarnation; 0 makes the object."""
    method: str
    """What was asked."""


@dataclass(frozen=True)
class Result:
    """Result of a call."""

    call: Call
    """Which."""
    value: Any = None
    """What the method returned."""
    error: PalaestraError | None = None
    """A `RemoteError` if it raised, a `WorkerDiedError` if the worker is gone."""

    def unwrap(self) -> Any:
        """The value.

        Raises:
            PalaestraError: the call failed.
        """
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """Limit of restarts of a worker, and the pauses between them."""

    max_restarts: int = 10
    """Restarts of one worker within an hour."""
    backoff_s: float = 0.5
    """Wait before the second restart of a worker within an hour; doubles with every further one."""
    max_backoff_s: float = 30.0
    """The longest wait."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or not 0 <= self.backoff_s <= self.max_backoff_s:
            raise ConfigError(f"{self}: give at least 0 restarts, and 0 <= backoff_s <= max_backoff_s")


@dataclass(frozen=True)
class WorkerStatus:
    """Status of a worker."""

    name: str
    """For people."""
    state: Literal["starting", "idle", "busy", "waiting", "dead"]
    """`waiting`: dead, and about to be restarted."""
    incarnation: int
    """Number of its restarts."""
    calls: int
    """Calls that were answered, over all incarnations."""
    busy_s: float
    """Seconds at its current call; 0 without one."""
    cause: str
    """Reason why its last incarnation ended; empty in the first."""


class PlacementGroup:
    """Room that is set aside for workers who belong together; `Runtime.placement_group` makes it.

    Args:
        name: for people.
        bundles: resources that each worker needs, in the order in which they are started.
    """

    def __init__(self, name: str, bundles: Sequence[Mapping[str, float]]) -> None:
        self.name = name
        """For people."""
        self.bundles = [dict(one) for one in bundles]
        """What each worker needs."""
        self.workers: list[WorkerRecord] = []
        """Those that were started, in order: the first has the first bundle, and its restarts have it, too."""
        self.handle: Any = None
        """What a runtime knows it by."""

    def take(self) -> int:
        """Number of the first bundle that no worker has.

        Raises:
            ConfigError: there is none.
        """
        if len(self.workers) == len(self.bundles):
            raise ConfigError(
                f"the placement group {self.name!r} has room for {len(self.bundles)} workers, who are there"
            )
        return len(self.workers)


@dataclass
class WorkerRecord:
    """What a runtime knows of one of its workers."""

    id: str
    name: str
    factory: Callable[[], Any]
    resources: Mapping[str, float]
    parcels: int = 0
    """That an answer may have, where the runtime keeps them elsewhere."""
    group: PlacementGroup | None = None
    """That it belongs to."""
    bundle: int = 0
    """Its own of the group."""
    role: str = ""
    """What its process is called."""
    incarnation: int = 0
    handle: Any = None
    """What the runtime knows it by; `None` while there is none."""
    due: float | None = None
    """When it is restarted, in `time.monotonic()` seconds."""
    queue: deque[tuple[Call, Request]] = field(default_factory=deque)
    running: Call | None = None
    since: float = 0.0
    sequence: int = 0
    calls: int = 0
    restarts: deque[float] = field(default_factory=deque)
    error: PalaestraError | None = None
    """Reason why its newest incarnation ended."""
    first_error: PalaestraError | None = None
    """Reason why its first incarnation ended."""

    @property
    def title(self) -> str:
        """What its process is called, and errors call it."""
        return self.role or self.id

    @property
    def ended(self) -> bool:
        """Whether it lives no more, and is not about to be restarted."""
        return self.handle is None and self.due is None

    def not_closed(self, failed: Failed) -> RemoteError:
        """The error of an object that raised as it was closed.

        Args:
            failed: what it raised.
        """
        return RemoteError(f"{self.name}: close", failed.kind, failed.detail)

    def status(self, now: float) -> WorkerStatus:
        """How it is.

        Args:
            now: in `time.monotonic()` seconds.
        """
        busy_s = now - self.since if self.running is not None else 0.0
        if self.due is not None:
            state = "waiting"
        elif self.handle is None:
            state = "dead"
        elif self.running is None:
            state = "idle"
        else:
            state = "busy" if self.running.sequence else "starting"
        cause = "" if self.error is None else str(self.error)
        return WorkerStatus(self.title, state, self.incarnation, self.calls, busy_s, cause)


class Arrival(NamedTuple):
    """What a runtime hears of a worker: an answer, or its death."""

    worker: str
    """Whose."""
    incarnation: int
    """Its incarnation."""
    sequence: int | None
    """Number of the call that is answered; `None` for a death."""
    value: Any = None
    """The answer."""
    error: PalaestraError | None = None
    """Why there is none."""


def arrival(worker: WorkerRecord, call: Call, answer: Any) -> Arrival:
    """The answer to a call, as `Runtime.poll` returns it.

    Args:
        worker: who answered.
        call: what it was asked.
        answer: what the method returned, or `Failed`.
    """
    if not isinstance(answer, Failed):
        return Arrival(call.worker, call.incarnation, call.sequence, answer)
    what = f"{worker.name}: {call.method}" if call.sequence else f"{worker.name} could not be made: {worker.factory!r}"
    error = RemoteError(what, answer.kind, answer.detail, answer.exit_code, answer.facts)
    return Arrival(call.worker, call.incarnation, call.sequence, None, error)
