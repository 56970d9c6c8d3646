"""Ctrl-C, SIGTERM and SIGHUP: once to finish and save, twice to stop at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from palaestra.runtime import STOP_SIGNALS, Repeats, stop_signals

__all__ = ["STOP_CODES", "StopSignals", "StoppedError"]

STOP_CODES = tuple(128 + number for number in STOP_SIGNALS)
"""Exit codes of what a signal has ended: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
_LONGEST_GRACE_S = 1e8  # a timer of the system takes no longer


class StoppedError(KeyboardInterrupt):
    """A signal ended what was under way: at once after a second one, or when no time was left after the first.

    Args:
        why: for people.
        exit_code: 128 + the signal's number.
    """

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class StopSignals:
    """While entered, notes the first SIGINT, SIGTERM or SIGHUP; a second one raises `StoppedError` where it strikes.

    A SIGTERM within half a second of another is no second one: `timeout` sends both. SIGHUP, which comes several times
    when a terminal closes, is neither a second one nor the first of two; where it was ignored (`nohup`) it still is.
    Outside the main thread, where Python delivers no signals, nothing is noted; nor is it in a fork, which ends by what
    it is sent. Entered inside another one, it continues from what that one has noted.

    Args:
        on_stop: called at the first signal, inside the handler.
        grace_s: seconds from the first signal to a `StoppedError`; `None`, or more than three years, waits for ever.
        second_ends: whether a second signal raises. Without it, here or in those that this one is inside of, it does
            nothing: for a process whose parent passes on signals that it may have had as well.
    """

    def __init__(
        self, on_stop: Callable[[], None] | None = None, *, grace_s: float | None = None, second_ends: bool = True
    ) -> None:
        self.received: int | None = None
        """The signal's number, once there was one."""
        self._on_stop, self._second_ends = on_stop, second_ends
        self._grace_s = grace_s if grace_s is None or grace_s < _LONGEST_GRACE_S else None
        self._before: dict[int, object] = {}
        self._repeats = Repeats()
        self._own = os.getpid()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._before[number] = before = signal.signal(number, self._handle)
                outer = getattr(before, "__self__", None)
                if isinstance(outer, StopSignals):
                    self.received = self.received or outer.received
                    self._second_ends = self._second_ends and outer._second_ends
                    self._repeats = outer._repeats
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._own:  # a fork, of an environment say
            signal.signal(number, self._before[number])  # pyright: ignore[reportArgumentType]
            signal.raise_signal(number)
            return
        if number == signal.SIGALRM:
            raise StoppedError(f"at once, {self._grace_s} s after the signal", self.exit_code)
        first, repeated = self.received is None, self._repeats(number)
        if not first and (repeated or not self._second_ends):
            return
        if not first and self.received != signal.SIGHUP:
            raise StoppedError("at once, by a second signal", 128 + number)
        self.received = number
        if first and self._grace_s is not None:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle)
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        if first and self._on_stop is not None:
            self._on_stop()

    @property
    def exit_code(self) -> int:
        """One of `STOP_CODES`, or 0 after no signal."""
        return 0 if self.received is None else 128 + self.received
