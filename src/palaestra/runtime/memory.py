"""Memory and semaphores that processes share, and the heap that the tensors of a gradient step come from and go to."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import secrets
import socket
import tempfile
import weakref
from _multiprocessing import SemLock, sem_unlink  # pyright: ignore[reportMissingImports]
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

__all__ = ["SharedArrays", "SharedSemaphore", "keep_freed_memory"]

Layout = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of every array."""

_ALIGNMENT = 64


class SharedArrays:
    """Zeroed arrays in one block of memory.

    The block is a file without a name: it is gone when the last process that maps it is, however that one ended.

    Args:
        layout: shape and dtype (as numpy takes it) of every array.

    Examples:
        >>> shared = SharedArrays({"reward": ((2,), "float32")})
        >>> shared["reward"]
        array([0., 0.], dtype=float32)
        >>> shared.close()
    """

    def __init__(self, layout: dict[str, tuple[tuple[int, ...], Any]]) -> None:
        self._layout: Layout = {name: (tuple(shape), np.dtype(dtype).str) for name, (shape, dtype) in layout.items()}
        self._file: int | None = _unnamed_file(_size(self._layout))
        self._arrays = _mapped(self._file, self._layout)

    def __getitem__(self, name: str) -> np.ndarray:
        """One of the arrays.

        Args:
            name: from the layout.
        """
        return self._arrays[name]

    def write(self, at: int, part: Any) -> None:
        """Writes to the beginning of the block, past the mapping: new pages then cost a third.

        Args:
            at: offset in bytes.
            part: bytes, or an array of them.
        """
        if self._file is None:
            raise ValueError("these SharedArrays are sealed or closed; write before")
        view = memoryview(part)
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written

    def send(self, process: Any, deadline: float | None = None) -> None:
        """Lets a worker map the same memory; it calls `receive`.

        Args:
            process: the worker, a `SupervisedProcess`.
            deadline: in seconds of `CLOCK`; a minute from now by default.

        Raises:
            WorkerDiedError: the worker is gone.
            WorkerTimeoutError: it did not read what was sent before in time.
        """
        if self._file is None:
            raise ValueError("these SharedArrays are sealed or closed; send them before")
        process.send(self._layout, deadline)
        process.send_file(self._file, deadline)

    @classmethod
    def receive(cls, connection: Connection) -> Self:
        """The arrays that another process sent.

        Args:
            connection: to that process.

        Raises:
            EOFError: it sent that there are none.
        """
        shared = cls.__new__(cls)
        shared._layout = connection.recv()
        if shared._layout is None:
            raise EOFError
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            _, (file,), _, _ = socket.recv_fds(line, 1, 1)
        shared._file = file
        shared._arrays = _mapped(file, shared._layout)
        shared.seal()
        return shared

    def seal(self) -> None:
        """Closes the file descriptor: the arrays can no longer be sent; processes that have them keep them."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def close(self) -> None:
        """Lets go of the memory. Arrays taken from here before stay valid for as long as they are held."""
        self.seal()
        self._arrays = {}


def _size(layout: Layout) -> int:
    return max(sum(_padded(shape, dtype) for shape, dtype in layout.values()), mmap.PAGESIZE)


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    return aligned(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)


def aligned(size_bytes: int) -> int:
    """Bytes up to where the next array may begin."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _unnamed_file(size_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("palaestra", os.MFD_CLOEXEC)
    else:
        file, path = tempfile.mkstemp(prefix="palaestra-")
        os.unlink(path)
    os.ftruncate(file, size_bytes)
    return file


def _mapped(file: int, layout: Layout) -> dict[str, np.ndarray]:
    block = mmap.mmap(file, _size(layout))
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, (shape, dtype) in layout.items():
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(block, dtype, count, offset).reshape(shape)
        offset += _padded(shape, dtype)
    return arrays


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


# Numbers of `mallopt` in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
_OWN_MAPPING_BYTES = 32 << 20  # the largest that glibc itself would come to


def keep_freed_memory() -> bool:
    """Lets this process use the memory of freed tensors again instead of giving it back to the system.

    Every gradient step frees and allocates the same activations. By default glibc returns free memory at the end of the
    heap at once, and the system hands it out again page by page: up to several hundred faults of a microsecond in a
    step, as it happens to lie. From now on up to 256 MiB stay with the process; single blocks of 32 MiB or more still
    come and go as before. It cannot be undone, and a second call changes nothing.

    Returns:
        Whether the C library took the setting; others than glibc have none.

    Examples:
        >>> import platform
        >>> keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
        True
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _OWN_MAPPING_BYTES))
