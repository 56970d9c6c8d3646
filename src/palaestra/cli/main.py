"""Verbs, exit codes and error messages."""

import contextlib
import importlib
import importlib.metadata
import io
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["main"]

_USAGE = """\
usage: palaestra VERB ...

  train ALGORITHM ENVIRONMENT   train an agent            palaestra train ppo CartPole-v1 --seeds 5
  resume RUN                    continue a run            palaestra resume last
  eval RUN...                   evaluate its policy       palaestra eval last --episodes 100
  rate RUN[@STEPS]...           Elo of those that play    palaestra rate first second --baseline
  play RUN                      watch it, or film it      palaestra play last
  serve RUN                     answer over HTTP          palaestra serve last --port 8000
  plot RUN...                   learning curves           palaestra plot last --output curve.svg
  report RUN...                 all of it as one page     palaestra report last
  compare RUN RUN               settings and curves       palaestra compare first second
  stats [NAME=]LOGS...          what seeds say            palaestra stats ours=last theirs=sb3_logs --env CartPole-v1
  share RUN                     a folder for others       palaestra share last --push me/my-agent
  pull MODEL|FOLDER             a policy of others        palaestra pull someone/their-agent
  verify ROW                    train a published result  palaestra verify ppo_CartPole-v1
  diagnose RUN                  why does it not learn     palaestra diagnose last
  tune ALGORITHM ENVIRONMENT    search for settings       palaestra tune dqn CartPole-v1 --trials 20
  export RUN                    its policy as ONNX        palaestra export last --format onnx
  data WHAT                     data to learn from        palaestra data collect random Pendulum-v1 FOLDER
  list [WHAT]                   algorithms, envs, presets, runs
  show-code ALGORITHM           the file that is the algorithm
  bench [ALGORITHM] ENVIRONMENT env steps per second      palaestra bench CartPole-v1
  check-env ENVIRONMENT         check an environment      palaestra check-env my_package:MyEnvironment
  doctor                        check this installation
  completion bash|zsh|fish      a script that lets a shell complete verbs and options

`palaestra VERB --help` has each verb's options (of `train` those that are set most; `--help-all` has all);
`palaestra --version` is this version. `--trust` opens runs of others that name code of their own.
exit codes: 0 done, 2 configuration, 3 environment, 4 non-finite numbers, 5 checkpoint or storage, 130 Ctrl-C (saved),
143 SIGTERM (saved; `serve` answers what it has accepted and ends with 0)
"""


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
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(levelname)s  %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        if verb in ("", "-h", "--help", "help"):
            print(_USAGE, end="")
            code = 0 if verb else 2
        elif verb == "--version":
            print(importlib.metadata.version("palaestra"))
            code = 0
        else:
            code = _function(verb, rest)(rest)
        sys.stdout.flush()
    except KeyboardInterrupt as stopped:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # one more, while this is said or the process ends
        saved = "; the last checkpoint, if there is one, is intact" if verb in ("train", "resume") else ""
        _print("stopped", f"{str(stopped) or 'at once'}{saved}")
        code = getattr(stopped, "exit_code", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():  # `| head` has what it wants
            from palaestra.training.console import silence_stdout

            silence_stdout()
            sys.exit(128 + signal.SIGPIPE)
        code = _exit_code(error)
        _print(type(error).__name__, str(error), getattr(error, "__notes__", ()))
    sys.exit(code)


def _nobody_reads() -> bool:
    """Whether stdout is a pipe that has no reader any more."""
    poll = select.poll()
    with contextlib.suppress(OSError):  # it is no file
        poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _function(verb: str, rest: list[str]) -> Callable[[list[str]], int]:
    """What a verb does; code in the current folder can be imported then, but never code in a run directory."""
    from palaestra.core import ConfigError, did_you_mean, trust
    from palaestra.core.importing import in_run

    if verb not in _VERBS:
        raise ConfigError(f"unknown verb {verb!r}{did_you_mean(verb, _VERBS)}")
    folder = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", folder)]
    if not in_run(Path(folder)):
        sys.path.insert(0, folder)  # as `python -m` does
    if "--trust" in rest:
        rest.remove("--trust")
        trust("/")
    module, _, function = _VERBS[verb].partition(":")
    return getattr(importlib.import_module(module), function)


def _exit_code(error: Exception) -> int:
    """The code of a failure; a mistake in the program is raised again."""
    from palaestra.core import CheckpointError, PalaestraError

    if isinstance(error, PalaestraError):
        return error.exit_code
    if isinstance(error, OSError):  # a full disk, or no permission, outside the checkpoints
        return CheckpointError.exit_code
    raise error


_VERBS = {
    "train": "palaestra.cli.train:train",
    "resume": "palaestra.cli.train:resume",
    "eval": "palaestra.cli.results:evaluate",
    "rate": "palaestra.cli.results:rate",
    "play": "palaestra.cli.results:play",
    "serve": "palaestra.cli.deploy:serve",
    "plot": "palaestra.cli.results:plot",
    "report": "palaestra.cli.results:report",
    "compare": "palaestra.cli.results:compare",
    "stats": "palaestra.cli.stats:stats",
    "share": "palaestra.cli.deploy:share",
    "pull": "palaestra.cli.deploy:pull",
    "verify": "palaestra.cli.verify:verify",
    "diagnose": "palaestra.cli.diagnose:diagnose",
    "tune": "palaestra.cli.tune:tune",
    "export": "palaestra.cli.deploy:export",
    "data": "palaestra.cli.data:data",
    "list": "palaestra.cli.inspect:list_all",
    "show-code": "palaestra.cli.inspect:show_code",
    "bench": "palaestra.cli.inspect:bench",
    "check-env": "palaestra.cli.inspect:check_env",
    "doctor": "palaestra.cli.inspect:doctor",
    "completion": "palaestra.cli.completion:completion",
}
"""The function of each verb; only the one that is called is imported."""


def _print(kind: str, message: str, notes: Sequence[str] = ()) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False)
    for line in message.splitlines():
        console.print(f"[bold red]{kind}[/]  ", end="")
        console.print(_plain(line), markup=False, soft_wrap=True)
    for note in notes:
        console.print(_plain(note), markup=False, soft_wrap=True)


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _plain(super().format(record))


def _plain(line: str) -> str:
    """The line with control characters shown, not obeyed; what others wrote may stand in a message."""
    return "".join(letter if letter.isprintable() or letter in "\t\n" else ascii(letter)[1:-1] for letter in line)
