"""Verbs, exit codes and error messages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

__all__ = ["main"]

_USAGE = """\
usage: palaestra VERB ...

  train ALGORITHM ENVIRONMENT   train an agent            palaestra train ppo CartPole-v1
  resume RUN                    go on with a run          palaestra resume last
  eval RUN                      evaluate its policy       palaestra eval last --episodes 100
  play RUN                      watch it, or film it      palaestra play last
  list                          algorithms, presets, runs
  check-env ENVIRONMENT         check an environment      palaestra check-env my_package:MyEnvironment
  doctor                        check this installation

`palaestra VERB --help` has each verb's options. Exit codes: 0 done, 2 configuration, 3 environment, 4 non-finite numbers,
5 checkpoint or storage, 130 Ctrl-C (saved), 143 SIGTERM (saved).
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its code.

    Args:
        arguments: what was typed after `palaestra`; by default `sys.argv`.
    """
    sys.exit(_main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s  %(message)s")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    from palaestra.core import PalaestraError, did_you_mean

    verb, *rest = arguments
    verbs = _verbs()
    if verb not in verbs:
        _complain("ConfigError", f"unknown verb {verb!r}{did_you_mean(verb, verbs)}")
        return 2
    try:
        return verbs[verb](rest)
    except PalaestraError as error:
        _complain(type(error).__name__, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("stopped", "at once; the last checkpoint is intact")
        return 130


def _verbs() -> dict[str, Callable[[list[str]], int]]:
    from palaestra.cli import inspect, play, train

    return {
        "train": train.train,
        "resume": train.resume,
        "eval": train.evaluate,
        "play": play.play,
        "list": inspect.list_all,
        "check-env": inspect.check_env,
        "doctor": inspect.doctor,
    }


def _complain(kind: str, message: str) -> None:
    console = Console(stderr=True, highlight=False)
    for line in message.splitlines():
        console.print(f"[bold red]{kind}[/]  ", end="")
        console.print(line, markup=False, soft_wrap=True)
