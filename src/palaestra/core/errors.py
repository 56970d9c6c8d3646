"""Errors that say what was given, what is needed and what to do; and what is said once alone.

Every class carries the exit code that the command line ends with.
"""

import difflib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ParamSpec

__all__ = [
    "CheckpointError",
    "ConfigError",
    "EnvError",
    "MissingExtraError",
    "NonFiniteError",
    "PalaestraError",
    "RowsLostError",
    "RunLostError",
    "ShapeError",
    "SpecError",
    "did_you_mean",
    "readable",
    "refuses",
]

_P = ParamSpec("_P")


class PalaestraError(Exception):
    """Base of every error that this library raises on purpose."""

    exit_code = 1
    facts: Mapping[str, Any] = MappingProxyType({})
    """What else is known, as JSON values: of an environment's fault its number, seed, episode, step and action."""


class ConfigError(PalaestraError, ValueError):
    """A setting is unknown, of the wrong type, or does not fit another one."""

    exit_code = 2


class MissingExtraError(ConfigError):
    """An optional dependency is needed that is not installed.

    Args:
        package: the import that failed, for example `"ale_py"`.
        extra: the extra of this project that brings it, for example `"atari"`.
        purpose: what it is needed for.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'palaestra[{extra}]'")


class ShapeError(PalaestraError, ValueError):
    """Arrays whose shapes do not fit together."""

    exit_code = 2


class RowsLostError(ShapeError):
    """A part of a replay buffer is gone, and what is left of it cannot be learned from yet."""

    exit_code = 3


class SpecError(PalaestraError, ValueError):
    """Data that does not match its spec, or a space that has none."""

    exit_code = 2


class EnvError(PalaestraError, RuntimeError):
    """An environment failed; the message names it, its seed, episode, step and action."""

    exit_code = 3


class RunLostError(PalaestraError, RuntimeError):
    """The directory of a run is gone while the run goes on, so nothing more can be saved."""

    exit_code = 5


class NonFiniteError(PalaestraError, ArithmeticError):
    """A loss, gradient, observation or reward is NaN or infinite."""

    exit_code = 4
    state: Any = None
    """A copy of the algorithm's `state_tensors` of then, where it learns on before this is looked at."""

    def __init__(self, *what: object, batch: Any = None) -> None:
        super().__init__(*what)
        self.batch = batch
        """The minibatch whose gradient it was, where there is one."""


class CheckpointError(PalaestraError, RuntimeError):
    """A checkpoint is missing, damaged, or of a format that cannot be read."""

    exit_code = 5


def refuses(error: type[Exception]) -> Callable[[Callable[_P, Iterator[str]]], Callable[_P, None]]:
    """Makes a check of a function that yields what is wrong: it raises the first, and looks no further.

    Args:
        error: what the check raises.

    Examples:
        >>> @refuses(ConfigError)
        ... def require_sizes(rows: int, columns: int):
        ...     if rows < 1:
        ...         yield f"rows is {rows}; give at least 1"
        ...     if columns < 1:
        ...         yield f"columns is {columns}; give at least 1"
        >>> require_sizes(3, 0)
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: columns is 0; give at least 1
    """

    def checking(wrong: Callable[_P, Iterator[str]]) -> Callable[_P, None]:
        @functools.wraps(wrong)
        def check(*args: _P.args, **kwargs: _P.kwargs) -> None:
            for problem in wrong(*args, **kwargs):
                raise error(problem)

        return check

    return checking


def require_kind(value: Any, kind: type | UnionType, called: str, instead: str) -> None:
    """Refuses an object of another kind.

    Args:
        called: what it was given to or as, for the message.

    Raises:
        ConfigError: it is of another kind.
    """
    if not isinstance(value, kind):
        text = f": {value!r}" if isinstance(value, str | int | float) else ""
        raise ConfigError(f"{called} was given a {type(value).__name__}{text}; give {instead}")


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""A text of unknown origin, whose control characters a terminal shows and does not obey.

    Args:
        text: any; ends of lines and tabs stay.

    Examples:
        >>> printable("\x1b[31mred")
        '\\x1b[31mred'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


_WHOLE = re.compile(r"""\A((?:[\w.-]+=)?(?:d4rl:)?)/.+/(?=[^/]+\Z)|(?<=(['"]))/[^'"/\n][^'"\n]*/(?=[^'"/\n]+\2)""")
"""Folders of what is an absolute path as a whole: a text, the value of an option, what is in quotes."""
_BEGIN = r"(?:(?<![\w.:/-])|(?<=\bd4rl:))"
_FOLDERS = re.compile(rf"{_BEGIN}(?:/[\w.~+-]+)+/(?=[\w.~+-])")
"""Of absolute paths, in a text that may have more."""


def placeless(value: Any) -> Any:
    """A setting without the folders of this machine: of absolute paths, their names; `~` is the user's own folder.

    Args:
        value: text, or a nest with texts.
    """
    if isinstance(value, Mapping):
        return {key: placeless(one) for key, one in value.items()}
    if isinstance(value, list):
        return [placeless(one) for one in value]
    return _without_folders(value) if isinstance(value, str) else value


def _without_folders(text: str) -> str:
    try:
        home = str(Path.home())
    except RuntimeError:  # there is none
        home = "~"
    text = re.sub(rf"{_BEGIN}{re.escape(home)}/?(?![\w.~+/-])", "~", text) if home != "/" else text
    return _FOLDERS.sub("", _WHOLE.sub(lambda found: found[1] or "", text))


def readable(number: float) -> str:
    """A return for people: with one decimal, or three digits where that says too little.

    Examples:
        >>> readable(475.31), readable(1.0), readable(0.9642)
        ('475.3', '1.0', '0.964')
    """
    return f"{number:.1f}" if abs(number) >= 10 or number == round(number, 1) else f"{number:.3g}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of an error message about an unknown name.

    Args:
        otherwise: what to say when nothing is close; by default the list of what exists.

    Returns:
        `" — did you mean 'x'?"` when something is close.

    Examples:
        >>> did_you_mean("learnin_rate", ["learning_rate", "gamma"])
        " — did you mean 'learning_rate'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    otherwise = f"; known: {', '.join(names) or 'none'}" if otherwise is None else otherwise
    return f" — did you mean {close[0]!r}?" if close else otherwise


def no_screen(error: BaseException) -> str:
    """What to do where nothing can be drawn for want of a screen; empty where something else is wrong.

    Args:
        error: raised by what draws, or by a module that is imported for it.
    """
    if type(error).__name__ == "NoSuchDisplayException":
        advice = "PYGLET_HEADLESS=true before the program starts, or run it under xvfb-run"
    elif {"OpenGL", "EGL"} & {*re.findall(r"\w+", str(error))}:
        advice = "MUJOCO_GL=egl, or MUJOCO_GL=osmesa, before the program starts"
    else:
        return ""
    return f"found no screen to draw on ({error}); set the environment variable {advice}"


TOLD = "PALAESTRA_TOLD"
"""The variable of the environment that names the folder of what a run has said (`told_once`)."""
said = set[str]()
"""What this process has said since its last run."""


def is_news(text: str) -> bool:
    """Whether no process of this run has said so, nor this one since the run before; outside a run always.

    Args:
        text: what is said, without what differs from time to time.
    """
    folder = os.environ.get(TOLD)
    if not folder:
        said.add(text)
        return True
    try:
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        os.mkdir(f"{folder}/{name}")
    except OSError as error:  # the folder is gone, say, with the run
        return not isinstance(error, FileExistsError)
    return True


def names_what_lacks(load: Callable[_P, None]) -> Callable[_P, None]:
    """Makes a method that puts state back say what is missing, and what to do."""

    @functools.wraps(load)
    def put_back(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            load(*args, **kwargs)
        except KeyError as error:
            raise CheckpointError(
                f"the checkpoint has no {error}, since an older version made it, and this one cannot go on with it; "
                "`palaestra train ALGORITHM ENV --from RUN` begins a new run with its policies"
            ) from error

    return put_back
