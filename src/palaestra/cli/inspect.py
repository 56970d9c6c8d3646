"""`palaestra list`, `check-env` and `doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from palaestra.algorithms import ALGORITHMS
from palaestra.cli.options import parse, positional
from palaestra.envs.check import check
from palaestra.experiments import PRESETS, RunDirectory, list_runs

__all__ = ["check_env", "doctor", "list_all"]

_EXTRAS = {
    "atari": "ale_py",
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "video": "imageio",
    "envpool": "envpool",
    "multiagent": "pettingzoo",
    "offline": "minari",
    "ray": "ray",
}


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Options of `palaestra list`."""

    json: bool = False
    """Print JSON."""
    root: str = "runs"
    """Where runs are."""


def list_all(arguments: list[str]) -> int:
    """Lists algorithms, presets and runs.

    Args:
        arguments: what was typed after the verb.
    """
    options = parse(ListOptions, arguments, prog="palaestra list")
    runs = [(path, RunDirectory(path).info) for path in list_runs(options.root)]
    if options.json:
        listing = {
            "algorithms": sorted(ALGORITHMS),
            "presets": [list(key) for key in PRESETS],
            "runs": [{"path": str(path), "status": info.get("status")} for path, info in runs],
        }
        print(json.dumps(listing))
        return 0
    console = Console()
    table = Table("algorithm", "what it does", "tuned for", box=None)
    for name, kind in ALGORITHMS.items():
        tuned = ", ".join(env for algorithm, env in PRESETS if algorithm == name)
        table.add_row(name, (kind.__doc__ or "").splitlines()[0], tuned)
    console.print(table)
    table = Table("run", "status", "env steps", box=None)
    for path, info in runs[-20:]:
        table.add_row(str(path), str(info.get("status", "?")), str(info.get("env_steps", "")))
    console.print(table if runs else "no runs yet; start one with `palaestra train ppo CartPole-v1`")
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `palaestra check-env`."""

    json: bool = False
    """Print JSON."""


def check_env(arguments: list[str]) -> int:
    """Checks an environment against the whole contract.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the environment",), "palaestra check-env my_package:MyEnvironment")
    options = parse(CheckOptions, rest, prog="palaestra check-env ENVIRONMENT")
    report = check(name)
    print(json.dumps(asdict(report) | {"ok": report.ok}) if options.json else str(report))
    return 0 if report.ok else 3


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `palaestra doctor`."""

    json: bool = False
    """Print JSON."""


def doctor(arguments: list[str]) -> int:
    """Says what this installation has, and what is missing for what.

    Args:
        arguments: what was typed after the verb.
    """
    options = parse(DoctorOptions, arguments, prog="palaestra doctor")
    findings: list[tuple[str, bool | None, str]] = [
        ("python", sys.version_info >= (3, 11), platform.python_version()),
        *((name, *_package(name)) for name in ("torch", "gymnasium", "numpy", "safetensors", "tensorboard")),
        ("device", True, f"cuda: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "cpu"),
        ("cores", True, f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"),
        ("C++ compiler for --compile", *_compiler()),
        ("this folder can be written", *_writable(".")),
        ("temporary folder can be written", *_writable(tempfile.gettempdir())),
    ]
    for extra, module in _EXTRAS.items():
        present = importlib.util.find_spec(module) is not None
        findings.append((f"extra {extra}", present or None, "" if present else f"pip install 'palaestra[{extra}]'"))
    if options.json:
        print(json.dumps([{"what": what, "ok": ok is not False, "note": note} for what, ok, note in findings]))
    else:
        console = Console(highlight=False)
        for what, ok, note in findings:
            mark = "[green]ok  [/]" if ok else "[yellow]none[/]" if ok is None else "[red]no  [/]"
            console.print(f"{mark} {what}", end="  ")
            console.print(note, markup=False)
    return 0 if all(ok is not False for _, ok, _ in findings) else 2


def _package(name: str) -> tuple[bool, str]:
    try:
        return True, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False, f"pip install {name}"


def _compiler() -> tuple[bool | None, str]:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    return (True, found) if found else (None, "install g++ or clang; training works without, only slower")


def _writable(folder: str) -> tuple[bool, str]:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True, os.path.abspath(folder)
    except OSError as error:
        return False, str(error)
