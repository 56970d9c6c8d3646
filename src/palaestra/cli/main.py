"""Verbs, exit codes and error messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]

_USAGE = """\
usage: palaestra VERB ...

  train ALGORITHM ENVIRONMENT   train an agent            palaestra train ppo CartPole-v1 --seeds 5
  resume RUN                    go on with a run          palaestra resume last
  eval RUN...                   evaluate its policy       palaestra eval last --episodes 100
  play RUN                      watch it, or film it      palaestra play last
  plot RUN...                   learning curves           palaestra plot last --output curve.svg
  report RUN...                 all of it as one page     palaestra report last
  compare RUN RUN               settings and curves       palaestra compare first second
  data WHAT                     data to learn from        palaestra data collect random Pendulum-v1 FOLDER
  list [WHAT]                   algorithms, envs, presets, runs
  show-code ALGORITHM           the file that is the algorithm
  bench [ALGORITHM] ENVIRONMENT env steps per second      palaestra bench CartPole-v1
  check-env ENVIRONMENT         check an environment      palaestra check-env my_package:MyEnvironment
  doctor                        check this installation

`palaestra VERB --help` has each verb's options; `palaestra --version` is this version.
exit codes: 0 done, 2 configuration, 3 environment, 4 non-finite numbers, 5 checkpoint or storage, 130 Ctrl-C (saved),
143 SIGTERM (saved)
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its code.

    Args:
        arguments: what was typed after `palaestra`; by default `sys.argv`.
    """
    sys.exit(_main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without these letters shows others in their place
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s  %(message)s")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(importlib.metadata.version("palaestra"))
        return 0
    verb, *rest = arguments
    try:
        code = _call(verb, rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has what it wants; at the exit there is nothing to say about the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as stopped:
        saved = "; the last checkpoint, if there is one, is intact" if verb in ("train", "resume") else ""
        _print("stopped", f"at once{saved}")
        return getattr(stopped, "exit_code", 130)


def _call(verb: str, arguments: list[str]) -> int:
    from palaestra.core import CheckpointError, ConfigError, PalaestraError, did_you_mean

    if verb not in _VERBS:
        _complain(ConfigError(f"unknown verb {verb!r}{did_you_mean(verb, _VERBS)}"))
        return ConfigError.exit_code
    module, _, function = _VERBS[verb].partition(":")
    _import_from_here()
    try:
        return getattr(importlib.import_module(module), function)(arguments)
    except PalaestraError as error:
        _complain(error)
        return error.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, or no permission, outside the checkpoints
        _complain(error)
        return CheckpointError.exit_code


_VERBS = {
    "train": "palaestra.cli.train:train",
    "resume": "palaestra.cli.train:resume",
    "eval": "palaestra.cli.results:evaluate",
    "play": "palaestra.cli.play:play",
    "plot": "palaestra.cli.results:plot",
    "report": "palaestra.cli.results:report",
    "compare": "palaestra.cli.results:compare",
    "data": "palaestra.cli.data:data",
    "list": "palaestra.cli.catalogue:list_all",
    "show-code": "palaestra.cli.catalogue:show_code",
    "bench": "palaestra.cli.inspect:bench",
    "check-env": "palaestra.cli.inspect:check_env",
    "doctor": "palaestra.cli.inspect:doctor",
}
"""The function of each verb; only the one that is called is imported."""


def _import_from_here() -> None:
    """Makes code in the current folder importable, as `python -m` does; but never code in a run directory."""
    if os.getcwd() not in sys.path and not os.path.exists("run.json"):
        sys.path.insert(0, os.getcwd())


def _complain(error: Exception) -> None:
    _print(type(error).__name__, str(error), getattr(error, "__notes__", ()))


def _print(kind: str, message: str, notes: Sequence[str] = ()) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    for line in message.splitlines():
        console.print(f"[bold red]{kind}[/]  ", end="")
        console.print(line, markup=False, soft_wrap=True)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
