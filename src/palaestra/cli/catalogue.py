"""`palaestra list` and `show-code`: what there is."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from palaestra.cli.options import parse, positional
from palaestra.core import ConfigError, did_you_mean
from palaestra.envs.suites.registered import registered_environments
from palaestra.experiments import PRESETS, RunDirectory, algorithm_catalogue, algorithm_source, list_groups, list_runs

__all__ = ["list_all", "show_code"]

_NEWEST = 20  # runs that are shown
_NO_LIMIT = 10_000  # in a pipe, a row is a line, however long
_WHAT = ("algorithms", "envs", "presets", "runs")


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Options of `palaestra list`."""

    json: bool = False
    """Print JSON."""
    root: str = "runs"
    """Where runs are."""


def list_all(arguments: list[str]) -> int:
    """Lists algorithms with what they support, environments, presets, and runs.

    Args:
        arguments: what was typed after the verb.
    """
    what, rest = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    options = parse(ListOptions, rest, prog=f"palaestra list [{'|'.join(_WHAT)}]")
    if what and what not in _WHAT:
        raise ConfigError(f"there is no list of {what!r}{did_you_mean(what, _WHAT)}")
    chosen = (what,) if what else ("algorithms", "presets", "runs")
    if options.json:
        sys.stdout.write(json.dumps({name: _json(name, options.root) for name in chosen}) + "\n")
        return 0
    console = Console(width=None if sys.stdout.isatty() else _NO_LIMIT)
    for name in chosen:
        _show(name, options.root, console)
    return 0


def _json(what: str, root: str) -> list[Any]:
    if what == "algorithms":
        return [entry.to_json() for entry in algorithm_catalogue()]
    if what == "envs":
        return [env._asdict() for env in registered_environments()]
    if what == "presets":
        return [list(key) for key in PRESETS]
    groups = {path: json.loads((path / "group.json").read_text()).get("seeds") for path in list_groups(root)}
    runs = [{"path": str(path), "status": RunDirectory(path).status} for path in list_runs(root)]
    return runs + [{"path": str(path), "seeds": seeds} for path, seeds in groups.items()]


def _show(what: str, root: str, console: Console) -> None:
    if what == "algorithms":
        table = Table(Column("algorithm", no_wrap=True), "what it does", "data", "actions", "features", box=None)
        for entry in algorithm_catalogue():
            actions, features = ", ".join(entry.actions), ", ".join(entry.features)
            table.add_row(entry.name, entry.summary, entry.data, actions, features)
    elif what == "envs":
        table = Table(Column("environment", no_wrap=True), "suite", "time limit", "native vector", box=None)
        for env in registered_environments():
            table.add_row(env.name, env.suite, str(env.max_episode_steps or ""), "yes" if env.native else "")
    elif what == "presets":
        table = Table(Column("algorithm", no_wrap=True), "tuned for", box=None)
        for algorithm in dict.fromkeys(key[0] for key in PRESETS):
            table.add_row(algorithm, ", ".join(env for name, env in PRESETS if name == algorithm))
    else:
        _show_runs(root, console)
        return
    console.print(table)


def _show_runs(root: str, console: Console) -> None:
    runs = list_runs(root)
    if not runs:
        console.print("no runs yet; start one with `palaestra train ppo CartPole-v1`")
        return
    table = Table(Column("run", overflow="fold"), "status", "env steps", "best return", box=None)
    for path in runs[-_NEWEST:]:
        run = RunDirectory(path)
        best = run.info.get("best_return")
        table.add_row(
            escape(str(path)), run.status, str(run.info.get("env_steps", "")), "" if best is None else f"{best:.1f}"
        )
    console.print(table)
    if len(runs) > _NEWEST:
        console.print(f"the newest {_NEWEST} of {len(runs)}; --json has all", highlight=False)
    for path in list_groups(root)[-_NEWEST:]:
        states = [RunDirectory(child.parent).status for child in sorted(path.glob("*/run.json"))]
        line = f"{path}  {states.count('done')} of {len(states)} seeds done"
        console.print(line, highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options of `palaestra show-code`."""

    flat: bool = False
    """Print the algorithm as one script on torch, numpy and Gymnasium alone, which learns the same (ppo, dqn, sac)."""
    json: bool = False
    """Print JSON: the path and the text."""


def show_code(arguments: list[str]) -> int:
    """Prints the one file that is an algorithm.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the algorithm",), "palaestra show-code ppo")
    options = parse(ShowOptions, rest, prog="palaestra show-code ALGORITHM")
    path = _single_file(name) if options.flat else algorithm_source(name)
    text = path.read_text(encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps({"path": str(path), "code": text}) + "\n")
    elif sys.stdout.isatty():
        from rich.syntax import Syntax

        Console().print(Syntax(text, "python"))
    else:
        sys.stdout.write(text)
    return 0


def _single_file(name: str) -> Path:
    """Where the single-file script of an algorithm is: in an installed package, or in a checkout's examples."""
    algorithm_source(name)
    package = Path(__file__).resolve().parents[1]
    folders = (package / "single_file", package.parents[1] / "examples" / "single_file")
    scripts = {path.stem: path for folder in folders for path in sorted(folder.glob("*.py"))}
    if name not in scripts:
        raise ConfigError(f"{name} has no single-file script; those that have one are {', '.join(scripts) or 'none'}")
    return scripts[name]
