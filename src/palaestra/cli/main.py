"""Verbs, exit codes and error messages."""

import contextlib
import gc
import io
import itertools
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from palaestra.cli.commands import COMMANDS, ELSEWHERE, usage

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its code.

    Args:
        arguments: what was typed after `palaestra`; by default `sys.argv`.
    """
    verb, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, None where the shell has closed it
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without these letters shows others in their place
            stream.reconfigure(errors="replace")
    handler = _Stderr()
    handler.setFormatter(_PlainFormatter("%(levelname)s  %(message)s"))
    handler.addFilter(_said_here)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    with _interrupts() as interrupted:
        try:
            if verb in ("", "-h", "--help", "help"):
                print(usage(), end="")
                code = 0 if verb else 2
            elif verb == "--version":
                print(sys.modules["palaestra"].__version__)  # of the code, whatever is installed
                code = 0
            else:
                code = _read_quickly([verb, *rest], own_process=arguments is None)()
            sys.stdout.flush()
        except KeyboardInterrupt as stopped:
            code = _stopped(verb, stopped, interrupted)
        except Exception as error:
            last = next(reversed(interrupted), None)  # a signal that a library swallowed
            code = _failed(error) if last is None else _stopped(verb, _InterruptedError(last), interrupted)
        sys.exit(code)


def _failed(error: Exception) -> int:
    """Says what failed, and gives the exit code."""
    if isinstance(error, BrokenPipeError) and _nobody_reads():  # `| head` has what it wants
        from palaestra.training.console import silence_stdout

        silence_stdout()
        return 128 + signal.SIGPIPE
    code = _exit_code(error)
    kind = next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
    _print(kind, str(error), getattr(error, "__notes__", ()))
    return code


class _InterruptedError(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP, and not an interrupt that an environment raises."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


@contextlib.contextmanager
def _interrupts() -> Iterator[dict[int, float]]:
    """Notes the signals that would have ended this process, and when, as libraries may swallow what is raised."""
    received, before, own = dict[int, float](), dict[int, Any](), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a fork, of an environment say
            signal.signal(number, before[number])
            signal.raise_signal(number)
        elif not (received and _is_repeated(number, received)):
            received.setdefault(number, time.monotonic())
            raise _InterruptedError(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # `STOP_SIGNALS`, which takes a second to import
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, handle)
    try:
        yield received
    except SystemExit as end:
        if signal.SIGHUP in before and end.code in (129, 130, 143):  # while the interpreter ends, it may come again
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


def _is_repeated(number: int, received: Mapping[int, float]) -> bool:
    """`runtime.Repeats`, which takes a second to import."""
    return number == signal.SIGHUP or (number == signal.SIGTERM and time.monotonic() - received.get(number, -1.0) < 0.5)


def _stopped(verb: str, stopped: KeyboardInterrupt, received: Mapping[int, float]) -> int:
    """Says that a command was stopped, and gives its exit code."""

    def end(number: int, frame: FrameType | None) -> None:
        if not _is_repeated(number, received):
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)  # one more, while this is said or all ends
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which comes several times when a terminal closes
    trains = sys.modules.get("palaestra.cli.train")  # which is imported when it is asked for
    begun = verb == "resume" or bool(trains and trains.begun)
    saved = "; the last checkpoint, if there is one, is intact" if begun and verb in ("train", "resume") else ""
    when = "at once" if begun or verb != "train" else "before the run began"
    _print("stopped", f"{str(stopped) or when}{saved}")
    return getattr(stopped, "exit_code", 130)


def _nobody_reads() -> bool:
    """Whether stdout is a pipe that has no reader any more."""
    poll = select.poll()
    with contextlib.suppress(OSError):  # it is no file
        poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _read_quickly(typed: list[str], *, own_process: bool) -> Callable[[], int]:
    """`_read` without passes over what imports make, all of which lives on: they take a sixth of the time."""
    if not own_process:
        return _read(typed)
    gc.disable()
    command = _read(typed)
    gc.freeze()
    gc.enable()
    return command


def _read(typed: list[str]) -> Callable[[], int]:
    """Reads what was typed. Code in the current folder can be imported then, but never code in a run directory."""
    from palaestra.core import ConfigError, did_you_mean, trust
    from palaestra.core.importing import in_run

    known = [n for n in range(len(typed), 0, -1) if " ".join(typed[:n]) in COMMANDS]
    if not known and (meant := COMMANDS.get(ELSEWHERE.get(typed[0], ""))):
        words = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), typed[1:])) or meant.example
        raise ConfigError(f"unknown verb {typed[0]!r}; it is `palaestra {meant.name} {words}` here")
    if not known:
        verbs = [name for name in COMMANDS if " " not in name]
        raise ConfigError(f"unknown verb {typed[0]!r}{did_you_mean(typed[0], verbs)}")
    command, rest = COMMANDS[" ".join(typed[: known[0]])], typed[known[0] :]
    if members := command.members if not command.function else []:
        if rest and rest[0] not in ("-h", "--help"):
            what = did_you_mean(rest[0], [member.name.rpartition(" ")[2] for member in members])
            raise ConfigError(f"`palaestra {command.name}` has no {rest[0]!r}{what}")
        print(usage(command.name), end="")
        return lambda: 0 if rest else 2
    folder = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", folder)]
    if not in_run(Path(folder)):
        sys.path.insert(0, folder)  # as `python -m` does
    if "--trust" in rest:
        rest.remove("--trust")
        trust("/")
    from palaestra.cli.options import read

    return read(command, rest)


def _exit_code(error: Exception) -> int:
    """The code of a failure; a mistake in the program is raised again."""
    from palaestra.core import CheckpointError, PalaestraError

    if isinstance(error, PalaestraError):
        return error.exit_code
    if isinstance(error, OSError):  # a full disk, or no permission, outside the checkpoints
        return CheckpointError.exit_code
    raise error


def _print(kind: str, message: str, notes: Sequence[str] = ()) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False)
    with contextlib.suppress(OSError):  # a log on a full disk; the exit code says it still
        for line in message.splitlines():
            console.print(f"[bold red]{kind}[/]  ", end="")
            console.print(_plain(line), markup=False, soft_wrap=True)
        for note in notes:
            console.print(_plain(note), markup=False, soft_wrap=True)


def _said_here(record: logging.LogRecord) -> bool:
    """Whether to say what a logger has to say: not where a library's own handler does, as that of huggingface_hub."""
    logger = logging.getLogger(record.name)
    while logger.parent is not None and not logger.handlers:
        logger = logger.parent
    return logger.parent is None or all(isinstance(one, logging.NullHandler) for one in logger.handlers)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: where a panel is drawn in place, it comes above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)
        super().emit(record)


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _plain(super().format(record))


def _plain(line: str) -> str:
    """The line with control characters shown, not obeyed; what others wrote may stand in a message."""
    return "".join(letter if letter.isprintable() or letter in "\t\n" else ascii(letter)[1:-1] for letter in line)
