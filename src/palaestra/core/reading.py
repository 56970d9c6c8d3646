"""The one way to read a file that somebody else may have made: of a run, a data folder, a shared policy, a log.

It opens regular files alone and waits for nobody; size, depth and numbers are bounded before anything is made of what
a file holds. What the files mean is not known here.
"""

import contextlib
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from palaestra.core.errors import CheckpointError, printable

__all__ = []

MOST_BYTES = 1 << 26
LONGEST_LINE = 1 << 20
_DEEPEST = 100
_PIECE = 1 << 20
_TAIL_BYTES = 1 << 14
MOST_DIGITS = 40  # a state of 128 bits, as random generators have, takes 39


def opened(path: str | Path, most_bytes: int | None = None) -> io.BufferedReader:
    """Opens a regular file for reading; links are followed, and no pipe or device is waited for.

    Args:
        most_bytes: that it may have.

    Raises:
        CheckpointError: it cannot be opened, is no regular file, or is too large; names it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or error) from error
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and (most_bytes is None or state.st_size <= most_bytes):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISREG(state.st_mode):
        raise _unreadable(path, f"it has {state.st_size:,} bytes, and at most {most_bytes:,} are read")
    kind = "folder" if stat.S_ISDIR(state.st_mode) else "pipe or a device"
    raise _unreadable(path, f"it is a {kind}, and a regular file is needed")


def _unreadable(path: str | Path, why: object) -> CheckpointError:
    return CheckpointError(f"{printable(str(path))} cannot be read: {why}")


@contextlib.contextmanager
def opened_text(path: str | Path, most_bytes: int | None = None, *, errors: str = "strict") -> Iterator[TextIO]:
    """The same as text in UTF-8, with ends of lines as they are.

    Args:
        most_bytes: that it may have.
        errors: what to do with bytes that are no UTF-8; `replace` shows them as a question mark.

    Raises:
        CheckpointError: see `opened`; or the text is none.
    """
    try:
        with io.TextIOWrapper(opened(path, most_bytes), encoding="utf-8-sig", errors=errors, newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"it is no text in UTF-8: {error}") from error


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """All that a regular file holds.

    Args:
        most_bytes: that it may have.

    Raises:
        CheckpointError: see `opened`.
    """
    with opened(path, most_bytes) as file:
        data = bytearray()
        while len(data) <= most_bytes and (piece := file.read(_PIECE)):  # files of the kernel say that they are empty
            data += piece
    if len(data) > most_bytes:
        raise _unreadable(path, f"it has more than {most_bytes:,} bytes")
    return bytes(data)


def read_text(path: str | Path, most_bytes: int = MOST_BYTES, *, errors: str = "strict") -> str:
    """All that a text file in UTF-8 holds.

    Args:
        most_bytes: that it may have.
        errors: see `opened_text`.

    Raises:
        CheckpointError: see `opened_text`.
    """
    try:
        return read_bytes(path, most_bytes).decode(errors=errors)
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"it is no text in UTF-8: {error}") from error


class NewLines:
    """The lines that a file gets, such as what a process writes into it meanwhile; there may be no file yet.

    Args:
        path: where the file is; what it has by now is not new.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.is_file() else 0

    def read(self) -> list[str]:
        """Those that are whole and were not read before, a MiB of them at most; a MiB without an end is passed over."""
        piece = b""
        with contextlib.suppress(CheckpointError), opened(self._path) as file:
            file.seek(self._read)
            piece = file.read(_PIECE)
        text = piece[: piece.rfind(b"\n") + 1]
        self._read += len(text) or len(piece) // _PIECE * _PIECE
        return text.decode(errors="replace").splitlines()


def read_json(path: str | Path, most_bytes: int = MOST_BYTES) -> Any:
    """The value that a JSON file holds.

    Args:
        most_bytes: that it may have.

    Raises:
        CheckpointError: see `read_text`; or it is not JSON, is nested too deep, or has a number that is too long.
    """
    text = read_text(path, most_bytes)
    try:
        return parse_json(text)
    except ValueError as error:
        raise _unreadable(path, f"it is no JSON: {error}") from error


def read_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a file of any size, with their ends.

    Raises:
        CheckpointError: see `opened`; or a line is longer than any of ours.
    """
    with opened(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise _unreadable(path, f"it has a line of more than {LONGEST_LINE:,} bytes")
            yield line


def last_line(path: str | Path) -> bytes:
    """The last line of a file that has an end, without it; nothing where there is none.

    Raises:
        CheckpointError: see `opened`.
    """
    lines, last_bytes = list[bytes](), _TAIL_BYTES
    with opened(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        while len(lines) < 3 and last_bytes <= 2 * LONGEST_LINE:  # whole, with what is around it
            file.seek(max(0, size_bytes - last_bytes))
            lines, last_bytes = file.read(last_bytes).split(b"\n"), 2 * last_bytes
    return lines[-2] if len(lines) > 1 else b""


def parse_json(text: str | bytes) -> Any:
    """The value of a text in JSON.

    Raises:
        ValueError: it is none, is nested deeper than 100 levels, or has an integer of more than 40 digits.

    Examples:
        >>> parse_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels") from None
    require_shallow(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits; at most {MOST_DIGITS} are read")
    return int(digits)


def require_shallow(value: Any) -> None:
    """Refuses JSON values that could not be read back.

    Raises:
        ValueError: they are nested deeper than 100 levels.
    """
    level, depth = [value], 0
    while level := [
        child
        for parent in level
        if isinstance(parent, list | dict)
        for child in (parent.values() if isinstance(parent, dict) else parent)
        if isinstance(child, list | dict)
    ]:
        depth += 1
        if depth >= _DEEPEST:
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
