"""`palaestra bench`, `check-env` and `doctor`: environments and the installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import torch
from rich.console import Console

from palaestra.cli.options import parse, several
from palaestra.core import ConfigError, available_devices
from palaestra.envs import CheckReport, EnvConfig
from palaestra.envs.check import check
from palaestra.experiments import ExperimentConfig, bench_environment, dry_run, preset
from palaestra.multiagent import check_world, is_world, load_world

__all__ = ["bench", "check_env", "doctor"]

_EXTRAS = {
    "atari": "ale_py",
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "plot": "matplotlib",
    "video": "imageio",
    "envpool": "envpool",
    "multiagent": "pettingzoo",
    "offline": "minari",
    "ray": "ray",
}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `palaestra bench`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment."""
    duration_s: float = 1.0
    """Seconds of one repetition."""
    repetitions: int = 3
    """How often to measure."""
    json: bool = False
    """Print JSON."""


def bench(arguments: list[str]) -> int:
    """Measures env steps per second: of an environment under random actions, or of an algorithm that learns in it.

    Args:
        arguments: what was typed after the verb.
    """
    usage = "palaestra bench ENVIRONMENT, or palaestra bench ALGORITHM ENVIRONMENT"
    names, rest = several(arguments, "the environment", usage)
    if len(names) > 2:
        raise ConfigError(f"unexpected {names[2]!r}: {usage}")
    if len(names) == 2:
        base = preset(*names)
        config = parse(ExperimentConfig, [a for a in rest if a != "--json"], prog=usage, default=base)
        estimate = dry_run(config)
        print(estimate.to_json() if "--json" in rest else str(estimate).split("\n")[0])
        return 0
    default = BenchOptions(env=EnvConfig(name=names[0] if names else "CartPole-v1"))
    options = parse(BenchOptions, rest, prog="palaestra bench ENVIRONMENT", default=default)
    speed = bench_environment(options.env, duration_s=options.duration_s, repetitions=options.repetitions)
    print(json.dumps(speed.to_json()) if options.json else str(speed))
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `palaestra check-env`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment; one of it is checked, with all its wrappers."""
    json: bool = False
    """Print JSON."""


def check_env(arguments: list[str]) -> int:
    """Checks an environment against the whole contract.

    Args:
        arguments: what was typed after the verb.
    """
    usage = "palaestra check-env my_package:MyEnvironment"
    names, rest = several(arguments, "the environment", usage)
    if len(names) > 1:
        raise ConfigError(f"unexpected {names[1]!r}: {usage}")
    default = CheckOptions(env=EnvConfig(name=names[0] if names else "CartPole-v1"))
    options = parse(CheckOptions, rest, prog="palaestra check-env ENVIRONMENT", default=default)
    report = _world_report(options.env) if is_world(options.env.name) else check(options.env)
    print(json.dumps(asdict(report) | {"ok": report.ok}) if options.json else str(report))
    return 0 if report.ok else 3


def _world_report(env: EnvConfig) -> CheckReport:
    if env != EnvConfig(name=env.name, kwargs=env.kwargs):
        raise ConfigError(f"{env.name} has many agents; of env, only env.kwargs means something for its check")
    return replace(check_world(partial(load_world, env.name, env.kwargs)), name=env.name)


def _device(name: str) -> str:
    return name if name == "cpu" else f"{name} ({torch.cuda.get_device_name(name)})"


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
        ("devices for --device", True, ", ".join(map(_device, available_devices()))),
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
