"""What happens when an environment fails: a policy, a record of every fault, and a budget of restarts."""

import dataclasses
import signal
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from palaestra.core import Duration, EnvError, NonFiniteError, NotNegative, PalaestraError, Range, require_ranges
from palaestra.core.errors import no_screen
from palaestra.runtime import Leak

__all__ = ["EventLog", "Fault", "FaultKind", "FaultPolicy", "Hang", "RestartBudget", "describe", "is_own", "leaks_of"]

OnFault = Literal["raise", "restart", "drop"]
Handled = Literal["raise", "restart", "drop", "warn"]
FaultKind = Literal["raised", "died", "timeout", "non-finite", "malformed", "leak"]
"""Kind of a fault."""

_HOUR_S = 3600.0
_LONGEST_WAIT_S = 30.0

Timeout: TypeAlias = Annotated[float, Range(gt=0, le=1_000_000, note=" seconds (11 days), which is as good as none")]
"""How long something may take."""


@dataclass(frozen=True, kw_only=True)
class FaultPolicy:
    """What to do about an environment that raises, dies, hangs, or emits what cannot be learned from."""

    on_fault: OnFault = "raise"
    """Stop the run; make the environment again and start its next episode; or continue without it."""
    max_restarts: NotNegative[int] = 10
    """Restarts of one environment within an hour; one more fault stops the run."""
    backoff_s: Duration[float] = 0.1
    """Wait before the second restart of an environment within an hour; doubles with every further one."""
    timeout_s: Timeout = 60.0
    """For one step."""
    reset_timeout_s: Timeout = 180.0
    """For a step in which an episode starts, for making environments, and for replaying."""
    strict: bool = False
    """Whether an observation outside its bounds is a fault; else it is logged once, with counts."""

    def __post_init__(self) -> None:
        require_ranges(self, "")


ANY_FAULT = FaultPolicy()
"""Every fault is raised."""


class Hang(BaseException):
    """Raised where an environment hangs, past its `except Exception`; the text is what it was doing."""


class Failure(NamedTuple):
    """A failure of a lane, as text that any process can read."""

    lane: int
    """Which."""
    kind: FaultKind
    """Kind of fault."""
    what: str
    """For example "raised KeyError"."""
    detail: str
    """Traceback, stack or explanation."""


class Incident(NamedTuple):
    """A failure, and the other lanes that it cost their episode."""

    failure: Failure
    """The failure, with the lane of the batch."""
    also: tuple[int, ...] = ()
    """Other lanes of the worker that is gone."""
    memory_bytes: int | None = None
    """Peak memory of that worker."""
    fatal: bool = False
    """Whether the worker is gone, so that nothing of it can be stepped any more."""

    def moved(self, first: int) -> Self:
        """The same, of lanes that begin elsewhere.

        Args:
            first: the number of the first lane, instead of 0.
        """
        failure, also = self.failure, tuple(first + lane for lane in self.also)
        return self._replace(failure=failure._replace(lane=first + failure.lane), also=also)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what failed, where in its stream, and what was done about it."""

    env_id: int
    """The environment."""
    kind: FaultKind
    """Kind of fault."""
    what: str
    """What happened, for example "raised KeyError"."""
    detail: str
    """The environment's traceback, the stack of a hanging worker, or how its process ended."""
    episode: int
    """Number of the episode in this environment, from 0; -1 before the first."""
    seed: int | None
    """Seed of that episode's reset."""
    step: int
    """Env steps in the episode, the failing one included; 0 in a reset."""
    action: str
    """The last action."""
    handled: Handled
    """What was done; a leak is only warned of."""
    also: tuple[int, ...] = ()
    """Environments that lost their episode with it, because they shared its worker; or that share what leaks."""
    memory_bytes: int | None = None
    """Peak memory of the worker as it last reported it; `None` in this process."""
    time_s: float = 0.0
    """When, in seconds since 1970."""

    def __str__(self) -> str:
        place = f"environment {self.env_id} {self.what}"
        if self.kind == "leak":
            others = f" (or {', '.join(map(str, self.also))}, in the same process)" if self.also else ""
            return f"environment {self.env_id}{others} {self.what}: {self.detail}"
        if self.episode < 0:
            return f"{place} before its first episode: {self.detail}"
        doing = f"step {self.step} with action {self.action}" if self.step else "its reset"
        memory = f" (its worker had used {self.memory_bytes >> 20} MiB)" if self.memory_bytes else ""
        return f"{place} in episode {self.episode} (seed {self.seed}), at {doing}{memory}: {self.detail}"

    def error(self) -> PalaestraError:
        """The error that stops a run."""
        error = (NonFiniteError if self.kind == "non-finite" else EnvError)(str(self))
        error.facts = self.to_json()
        return error

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dataclasses.asdict(self) | {"also": list(self.also)}

    @classmethod
    def of(
        cls, incident: Incident, place: tuple[int, int | None, int, Any], *, handled: Handled, first_id: int
    ) -> Self:
        """The record of an incident.

        Args:
            incident: what went wrong.
            place: where in its stream the lane was, from `EpisodeLog.place`.
            handled: what is done about it.
            first_id: number of the environment in lane 0.
        """
        lane, kind, what, detail = incident.failure
        episode, seed, step, action = place
        return cls(
            env_id=first_id + lane,
            kind=kind,
            what=what,
            detail=detail,
            episode=episode,
            seed=seed,
            step=step,
            action=_summary(action) if step else "",
            handled=handled,
            also=tuple(first_id + other for other in incident.also),
            memory_bytes=incident.memory_bytes,
            time_s=time.time(),
        )


class EventLog(list[Any]):
    """The newest events of a run, such as faults, and exact counts of all of them: it does not grow with the run.

    Args:
        most: events that are kept.

    Examples:
        >>> log = EventLog(most=2)
        >>> for episode in range(5):
        ...     place = {"episode": episode, "seed": 1, "step": 1, "action": "0"}
        ...     log.append(Fault(env_id=0, kind="died", what="died", detail="", handled="restart", **place))
        >>> [one.episode for one in log], log.total, dict(log.counts)
        ([3, 4], 5, {('died', 'environment 0'): 5})
        >>> [one.episode for one in log.since(4)]
        [4]
    """

    def __init__(self, most: int = 100) -> None:
        super().__init__()
        self._most = most
        self.total = 0
        """Events so far."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by kind, and by worker or environment."""

    def append(self, event: Any) -> None:
        """Adds one, and forgets the oldest.

        Args:
            event: has a `kind`, and a `worker` or an `env_id`.
        """
        super().append(event)
        self.total += 1
        self.counts[event.kind, event.worker if hasattr(event, "worker") else f"environment {event.env_id}"] += 1
        if len(self) > self._most:
            del self[0]

    def since(self, number: int) -> list[Any]:
        """The events after the first so many, as far as they are kept.

        Args:
            number: a `total` that was.
        """
        return self[max(0, len(self) - (self.total - number)) :]


class RestartBudget:
    """Counts the restarts of every environment within the last hour.

    Args:
        policy: how many are allowed.

    Examples:
        >>> budget = RestartBudget(FaultPolicy(on_fault="restart", max_restarts=2, backoff_s=0.5))
        >>> fault = Fault(env_id=0, kind="raised", what="raised", detail="", episode=0, seed=1, step=1, action="0",
        ...               handled="restart")
        >>> [budget.spend(0, fault) for _ in range(2)]
        [0.0, 0.5]
    """

    def __init__(self, policy: FaultPolicy) -> None:
        self._policy = policy
        self._spent: dict[int, list[tuple[float, Any]]] = defaultdict(list)

    def spend(self, lane: int, fault: Any) -> float:
        """Takes one restart.

        Args:
            lane: of the environment.
            fault: that makes it necessary: has an `env_id`, and says as text what happened.

        Returns:
            Seconds to wait before it.

        Raises:
            EnvError: none is left; the message has the first cause, which is the likely one.
        """
        now = time.monotonic()
        spent = [(when, earlier) for when, earlier in self._spent[lane] if now - when <= _HOUR_S] + [(now, fault)]
        self._spent[lane] = spent
        if len(spent) > self._policy.max_restarts:
            raise EnvError(
                f"environment {fault.env_id} failed {len(spent)} times within an hour and may be restarted "
                f"{self._policy.max_restarts} times (max_restarts). The first time {spent[0][1]}"
            )
        return 0.0 if len(spent) == 1 else min(self._policy.backoff_s * 2 ** (len(spent) - 2), _LONGEST_WAIT_S)


def describe(error: BaseException) -> tuple[str, str]:
    """An exception as text that any process can read: its class, and its message or what to do, and its traceback.

    Args:
        error: raised by an environment.
    """
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException as another:
        text = f"(its message cannot be read: {type(another).__name__})"
    if isinstance(error, PalaestraError):
        return kind, text
    try:
        text = no_screen(error) or text
        return kind, f"{text}\n\n{''.join(traceback.format_exception(error))}"
    except BaseException:  # other parts of an exception can fail as well
        return kind, f"{text}\n\n{''.join(traceback.format_tb(error.__traceback__))}"


def no_pictures(render_mode: str | None) -> str:
    """What to do where an environment that was made with this `render_mode` drew no picture; empty if it should have.

    Args:
        render_mode: of an environment, or of a pool.
    """
    return "" if render_mode == "rgb_array" else '; make it with render_mode="rgb_array"'


def is_own(error: BaseException) -> bool:
    """Whether an environment is to blame for an exception, and not a signal such as Ctrl-C that came meanwhile.

    Args:
        error: raised while the environment was doing something.
    """
    if not isinstance(error, KeyboardInterrupt):
        return True
    if type(error) is not KeyboardInterrupt:  # of a handler of signals
        return False
    by_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return not (by_ctrl_c and threading.current_thread() is threading.main_thread())


def leaks_of(found: Sequence[Leak], lanes: Sequence[int]) -> list[Incident]:
    """Leaks in the process that steps some lanes.

    Args:
        found: by a `LeakWatch`.
        lanes: whose environments may be to blame.
    """
    advice = "Whoever opens it in `step`, `reset` or `__init__` has to close it again"
    texts = [(f"leaks {what}", detail if what == "memory" else f"{detail}. {advice}") for what, detail in found]
    return [Incident(Failure(lanes[0], "leak", *text), also=tuple(lanes[1:])) for text in texts]


def failure_of(lane: int, error: BaseException) -> Failure:
    """The failure of a lane that an exception tells of.

    Args:
        lane: whose environment raised it.
        error: raised by it.
    """
    if isinstance(error, Hang):
        return Failure(lane, "timeout", "did not answer in time and was interrupted", f"It was doing:\n{error}")
    kind, detail = describe(error)
    return Failure(lane, "raised", f"raised {kind}", detail)


def _summary(action: Any) -> str:
    with np.printoptions(threshold=20, edgeitems=5, precision=4):
        return repr(action.item() if isinstance(action, np.generic) else action).replace("\n", " ")
