"""Titles of processes: what `ps`, `top` and others call each process of a run, so that a person finds the right one."""

import contextlib
import os
from collections.abc import Iterator

__all__ = ["entitle", "entitled", "title"]

_RUN = "PALAESTRA_RUN"
"""The run that this process belongs to; its workers inherit it."""
_found: list[list[str | None]] = []
"""Title and run of before, for each time that `entitled` is entered."""


def title(role: str) -> str:
    """What the process of a role is called.

    Args:
        role: for people, such as `rollout-0`.

    Examples:
        >>> title("rollout-0")
        'palaestra: rollout-0'
    """
    return ", ".join(filter(None, [f"palaestra: {role}", os.environ.get(_RUN)]))


def entitle(role: str) -> None:
    """Calls this process by its role and its run from now on; where `setproctitle` is missing nothing happens.

    Args:
        role: for people.
    """
    _change(title(role))


@contextlib.contextmanager
def entitled(role: str, run: str | os.PathLike[str]) -> Iterator[None]:
    """While entered, this process and those that it starts are called by a run; then it has its title of before.

    Args:
        role: of this process.
        run: for people, its directory.
    """
    found = [_change(""), os.environ.get(_RUN)]
    _found.append(found)
    os.environ[_RUN] = os.fspath(run)
    entitle(role)
    try:
        yield
    finally:
        number = next(i for i, other in enumerate(_found) if other is found)
        del _found[number]
        if _found[number:]:  # entered meanwhile by another thread, which leaves later and puts this back
            _found[number][:] = found
        else:
            _change(found[0] or "")
            os.environ.pop(_RUN) if found[1] is None else os.environ.update({_RUN: found[1]})


def _change(text: str) -> str:
    """Gives this process another title, if any; returns that of before."""
    try:
        import setproctitle
    except ModuleNotFoundError:
        return ""
    before = setproctitle.getproctitle()
    if text:
        setproctitle.setproctitle(text)
    return before
