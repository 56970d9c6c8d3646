"""Signals that ask a run to stop, and which of its processes hear them."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

__all__ = ["STOP_SIGNALS", "Repeats", "end_group", "ignore_stop_signals", "signals_blocked", "stop_signals"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a run to stop: Ctrl-C, a scheduler, and the end of its terminal."""
_MOMENT_S = 0.5


class Repeats:
    """Tells which signals only say again what has been said.

    SIGHUP comes several times when a terminal closes; `timeout` sends SIGTERM to its child and at once to its group.
    """

    def __init__(self) -> None:
        self._terminated_s = -_MOMENT_S

    def __call__(self, number: int) -> bool:
        """Whether a signal is one of them; called for the first one, too.

        Args:
            number: of the signal.
        """
        if number != signal.SIGTERM:
            return number == signal.SIGHUP
        now_s = time.monotonic()
        repeated = now_s - self._terminated_s < _MOMENT_S
        self._terminated_s = self._terminated_s if repeated else now_s
        return repeated


def stop_signals() -> list[signal.Signals]:
    """`STOP_SIGNALS` that this process may take: under `nohup` a closed terminal is none of its business."""
    return [one for one in STOP_SIGNALS if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]


def ignore_stop_signals() -> None:
    """All but Ctrl-C, from now on; programs that this process starts hear them again."""
    for number in {*stop_signals()} - {signal.SIGINT}:
        signal.signal(number, lambda *_: None)  # no `SIG_IGN`, which they would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def end_group(leader: subprocess.Popen[bytes], tidy_s: float = 5.0) -> None:
    """Ends a process and all others of the group that it leads; those that hear SIGTERM may tidy up.

    Args:
        leader: its process id is the group's.
        tidy_s: how long they may.
    """
    end = time.monotonic() + tidy_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
        while time.monotonic() < end:
            leader.poll()
            os.killpg(leader.pid, 0)
            time.sleep(0.01)
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


@contextlib.contextmanager
def signals_blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Signals wait meanwhile, and processes that are started inherit this: they outlive them until their parent ends.

    So does a fork server, without which all workers count as dead, and which a Ctrl-C would end while it imports. What
    it forks for others hears them.

    Args:
        numbers: which.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
