"""A semaphore of two processes of which nothing is left, however they end."""

from __future__ import annotations

import secrets
import weakref
from _multiprocessing import SemLock, sem_unlink  # pyright: ignore[reportMissingImports]
from typing import Any, Self

__all__ = ["SharedSemaphore"]

_COUNTS = 1  # the kind that counts, and belongs to no thread


class SharedSemaphore:
    """Counts releases by one process that another one waits for, from 0.

    It has a name until `forget_name`, so that the other process can `open` it. From then on the operating system frees
    it with the last process that has it, even if all of them are killed at once.

    Examples:
        >>> ours = SharedSemaphore()
        >>> theirs = SharedSemaphore.open(ours.name)
        >>> ours.forget_name()
        >>> theirs.release()
        >>> ours.acquire(False), ours.acquire(False)
        (True, False)
    """

    def __init__(self) -> None:
        self.name = f"/palaestra-{secrets.token_hex(8)}"
        self._begin(SemLock(_COUNTS, 0, SemLock.SEM_VALUE_MAX, self.name, False))
        self._finalizer = weakref.finalize(self, sem_unlink, self.name)

    def _begin(self, lock: Any) -> None:
        self.acquire = lock.acquire
        """`acquire(block=True, timeout_s=None)`: takes one release; whether there was one."""
        self.release = lock.release
        """Lets one `acquire` through."""

    @classmethod
    def open(cls, name: str) -> Self:
        """The semaphore that another process has made.

        Args:
            name: of it; it must not have been forgotten.

        Raises:
            FileNotFoundError: there is none.
        """
        opened = cls.__new__(cls)
        opened.name = name
        opened._begin(SemLock._rebuild(0, _COUNTS, SemLock.SEM_VALUE_MAX, name))
        return opened

    def forget_name(self) -> None:
        """No other process can open it any more; those that have it keep it."""
        self._finalizer()
