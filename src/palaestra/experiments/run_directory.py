"""The directory that holds everything of one run."""

from __future__ import annotations

import datetime
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments.config import ExperimentConfig, file_name, load_config, save_config

__all__ = ["RunDirectory", "find_run", "list_runs"]

_log = logging.getLogger(__name__)


class RunDirectory:
    """`config.yaml`, `run.json`, metrics, checkpoints, evaluations and the policy of one run.

    Args:
        path: an existing run directory; use `create` for a new one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None

    @classmethod
    def create(cls, config: ExperimentConfig) -> RunDirectory:
        """Makes a new directory and writes `config.yaml` and `run.json`.

        Args:
            config: of the run.

        Raises:
            ConfigError: the directory exists already, or cannot be made.
        """
        root = Path(config.run.directory)
        stem = config.run.name or "_".join(
            [
                datetime.datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S"),
                config.algorithm_name,
                file_name(config.env.name),
                f"s{config.run.seed}",
            ]
        )
        path, number = root / stem, 1
        while True:
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                if config.run.name:
                    raise ConfigError(
                        f"the run directory {path} exists already; choose another --run.name, or continue it with "
                        f"`palaestra resume {path}`"
                    ) from None
                number += 1
                path = root / f"{stem}_{number}"
            except OSError as error:
                raise ConfigError(f"the run directory {path} cannot be made: {error}") from error
        run = cls(path)
        for name in ("checkpoints", "evals", "policy", "videos", "plots", "faults"):
            (path / name).mkdir()
        save_config(config, path / "config.yaml")
        run.write_info({"command": sys.argv, "seed": config.run.seed, **environment_info()})
        return run

    @property
    def config(self) -> ExperimentConfig:
        """What `config.yaml` says.

        Raises:
            ConfigError: there is none, or it holds mistakes.
        """
        return load_config(self.path / "config.yaml")

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` says; nothing where it is damaged, since nothing depends on it."""
        file = self.path / "run.json"
        try:
            return dict(json.loads(file.read_text())) if file.is_file() else {}
        except (ValueError, TypeError) as error:
            _log.warning("%s is damaged (%r) and is begun anew", file, error)
            return {}

    def write_info(self, values: dict[str, Any]) -> None:
        """Adds entries to `run.json`.

        Args:
            values: JSON values by name.
        """
        temporary = self.path / ".run.json"
        temporary.write_text(json.dumps({**self.info, **values}, indent=2) + "\n")
        temporary.replace(self.path / "run.json")

    def lock(self) -> None:
        """Claims the run for this process; the operating system lets go when the process ends, however it ends.

        Raises:
            ConfigError: another process has it.
        """
        file = (self.path / "run.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ConfigError(f"the run {self.path} is in use by {holder}; wait for it or stop it") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._lock = file

    def unlock(self) -> None:
        """Lets the run go."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def environment_info() -> dict[str, Any]:
    """Versions, hardware and source revision, for `run.json`."""
    versions = {}
    for package in ("palaestra", "torch", "numpy", "gymnasium"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "source tree"
    return {
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions},
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.platform()},
        "git": _git_revision(),
    }


def _git_revision() -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def list_runs(root: str | Path = "runs") -> list[Path]:
    """The run directories below a folder, the newest last.

    Args:
        root: the folder.
    """
    runs = [path.parent for path in Path(root).glob("*/run.json")]
    return sorted(runs, key=lambda path: (path / "run.json").stat().st_ctime_ns)


def find_run(name: str, root: str | Path = "runs") -> RunDirectory:
    """A run by its path, its name below `root`, or `last`.

    Args:
        name: what the user typed.
        root: where runs are.

    Raises:
        CheckpointError: there is no such run; the message says which there are.
    """
    runs = list_runs(root)
    if name == "last" and runs:
        return RunDirectory(max(runs, key=lambda path: (path / "config.yaml").stat().st_ctime_ns))
    for path in (Path(name), Path(root) / name):
        if (path / "config.yaml").is_file():
            return RunDirectory(path)
    known = ", ".join(path.name for path in runs[-5:]) or "none yet; start one with `palaestra train ppo CartPole-v1`"
    raise CheckpointError(f"there is no run {name!r}; runs in {root}: {known}")
