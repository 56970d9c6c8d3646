"""`palaestra completion`: scripts that let a shell complete verbs and options; tyro writes them."""

import functools
import importlib
import operator
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from palaestra.cli.options import REGISTRY
from palaestra.core import ConfigError, did_you_mean

__all__ = ["completion"]

_SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/palaestra",
    "zsh": "a file _palaestra in a folder of $fpath",
    "fish": "~/.config/fish/completions/palaestra.fish",
}
_USAGE = f"""\
usage: palaestra completion bash|zsh|fish

prints a script; write it to
{"".join(f"{chr(10)}  {shell:<6}{place}" for shell, place in _SHELLS.items())}

  -h, --help   this text
"""
_OPTIONS = {
    "train": "train:TrainCommand",
    "resume": "train:ResumeOptions",
    "eval": "results:EvalOptions",
    "rate": "results:RateOptions",
    "play": "results:PlayOptions",
    "serve": "deploy:ServeOptions",
    "plot": "results:PlotOptions",
    "report": "results:ReportOptions",
    "compare": "results:CurveOptions",
    "stats": "stats:StatsOptions",
    "share": "deploy:ShareOptions",
    "pull": "deploy:PullOptions",
    "tune": "tune:TuneCommand",
    "verify": "verify:VerifyOptions",
    "diagnose": "diagnose:DiagnoseOptions",
    "export": "deploy:ExportOptions",
    "data": "data:CollectOptions",
    "list": "options:RunOptions",
    "show-code": "inspect:ShowOptions",
    "bench": "inspect:BenchOptions",
    "check-env": "inspect:CheckOptions",
    "doctor": "options:JsonOptions",
    "completion": "completion:NoOptions",
}
"""The options of each verb."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a verb that has none."""


def completion(arguments: list[str]) -> int:
    """Prints a completion script.

    Args:
        arguments: the name of a shell.
    """
    if {"-h", "--help"} & set(arguments):
        print(_USAGE, end="")
        return 0
    (shell,) = arguments if len(arguments) == 1 else ("",)
    if shell not in _SHELLS:
        raise ConfigError(
            f"completion was given {' '.join(arguments)!r}{did_you_mean(shell, _SHELLS)}; give one of "
            f"{', '.join(_SHELLS)}"
        )
    verbs = [Annotated[_kind(verb), tyro.conf.subcommand(name=verb)] for verb in _OPTIONS]
    program: Any = functools.reduce(operator.or_, verbs)
    tyro.cli(program, prog="palaestra", args=["--tyro-print-completion", shell], registry=REGISTRY)
    return 0


def _kind(verb: str) -> Any:
    """The dataclass of a verb's options."""
    module, _, name = _OPTIONS[verb].partition(":")
    return getattr(importlib.import_module(f"palaestra.cli.{module}"), name)
