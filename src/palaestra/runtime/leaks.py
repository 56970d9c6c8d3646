"""What grows in a process without end: open files, threads, child processes, memory."""

import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["LOOK_PERIOD_S", "Leak", "LeakWatch", "Usage", "usage"]

LOOK_PERIOD_S = 1.0
"""The shortest time between two looks that are made by the clock."""
_SELF = Path("/proc/self")
_RISES = 4  # a thing that is made once, or at every start, rises less often
_SHOWN = 3


class Usage(NamedTuple):
    """What a process has."""

    files: int
    """Open files, sockets and pipes included."""
    threads: int
    """Threads, also those of native libraries."""
    processes: int
    """Child processes, also those that have ended and were not waited for."""
    memory_bytes: int
    """Main memory that it has touched and not given back."""


class Leak(NamedTuple):
    """Something that grows."""

    what: str
    """For example "open files"."""
    detail: str
    """Counts before and now, and which ones are new."""


_NAMES = ("open files", "threads", "child processes", "memory")
_LIMITS = Usage(files=64, threads=32, processes=16, memory_bytes=256 << 20)


def usage() -> Usage | None:
    """What this process has; `None` where the system does not say, which only Linux does.

    Examples:
        >>> found = usage()
        >>> found is None or found.threads >= 1
        True
    """
    try:
        pages = int((_SELF / "statm").read_text().split()[1])
        files, threads = len(os.listdir(_SELF / "fd")) - 1, len(os.listdir(_SELF / "task"))  # one to list with
        return Usage(files, threads, len(children()), pages * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        return None


class LeakWatch:
    """Looks at this process from time to time, and says once of each thing that it grows without end.

    Something grows where it has risen four times by a quarter of its limit, and never fell by as much: what is made at
    the start, or made and given back, does not.

    Args:
        memory_bytes: how much more memory than at the first look is a leak.
    """

    def __init__(self, *, memory_bytes: int = _LIMITS.memory_bytes) -> None:
        self._limits = _LIMITS._replace(memory_bytes=memory_bytes)
        self._first: Usage | None = None
        self._highest: list[int] = []
        self._rises = [0] * len(_LIMITS)

    def look(self, allowed_bytes: int = 0) -> list[Leak]:
        """Looks now, which takes less than a millisecond.

        Args:
            allowed_bytes: memory that the process may come to use besides, as buffers do while they fill up.
        """
        now = usage()
        if now is None:
            return []
        if self._first is None:
            self._first, self._highest = now, [*now[:-1], now.memory_bytes + allowed_bytes]
            return []
        found: list[Leak] = []
        for kind, (count, limit) in enumerate(zip(now, self._limits, strict=True)):
            if abs(count - self._highest[kind]) < limit // _RISES:
                continue
            if count > self._highest[kind]:
                self._rises[kind], self._highest[kind] = self._rises[kind] + 1, count
                if self._rises[kind] == _RISES:
                    found.append(Leak(_NAMES[kind], self._detail(kind, count)))
            elif self._rises[kind]:
                self._rises[kind], self._highest[kind] = 0, count
        return found

    def _detail(self, kind: int, count: int) -> str:
        assert self._first is not None
        before = self._first[kind]
        if kind == len(_LIMITS) - 1:
            return f"{before >> 20:,} MiB at first, {count >> 20:,} MiB now"
        most = Counter(_WHICH[kind]()).most_common(_SHOWN)
        return f"{before} at first, {count} now: {', '.join(f'{number} times {name}' for name, number in most)}"


def children(process: Path = _SELF) -> list[str]:
    """Process ids of children, of every thread that made some.

    Args:
        process: its folder in `/proc`.
    """
    found: list[str] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in (process / "task").iterdir():
            with contextlib.suppress(OSError):  # one of its threads has, or a kernel that does not tell
                found += (task / "children").read_text().split()
    return found


def _files() -> Iterator[str]:
    for number in os.listdir(_SELF / "fd"):
        with contextlib.suppress(OSError):
            yield re.sub(r"\[\d+\]|#\d+", "", os.readlink(_SELF / "fd" / number))


def _threads() -> Iterator[str]:
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    for number in os.listdir(_SELF / "task"):
        with contextlib.suppress(OSError):
            name = python.get(int(number)) or (_SELF / "task" / number / "comm").read_text().strip()
            yield re.sub(r"-?\d+\b", "", name)


def _processes() -> Iterator[str]:
    for number in children():
        with contextlib.suppress(OSError):
            yield Path("/proc", number, "comm").read_text().strip()


_WHICH: tuple[Callable[[], Iterator[str]], ...] = (_files, _threads, _processes)
