"""Where a run comes from: command, versions, hardware, source revision."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["memory_bytes", "now", "num_cores", "process_info", "provenance"]

_PACKAGES = ("palaestra", "torch", "numpy", "gymnasium", "optree", "safetensors")
_OF_ENVIRONMENTS = ("ale-py", "mujoco", "envpool", "box2d", "shimmy", "pettingzoo", "minari", "ray")


def now() -> str:
    """The local time as ISO 8601 with its offset, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_info() -> dict[str, Any]:
    """This process: number, machine and folder."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "folder": os.getcwd()}


def provenance() -> dict[str, Any]:
    """What `run.json` says about a run's origin, as JSON values."""
    versions = {name: _version(name) or "source tree" for name in _PACKAGES}
    versions |= {name: version for name in _OF_ENVIRONMENTS if (version := _version(name))}
    return {
        "command": sys.argv,
        "started": now(),
        "process": process_info(),
        "versions": {"python": platform.python_version(), **versions},
        "hardware": _hardware(),
        "git": _git_revision(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _hardware() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": num_cores(),
        "memory_bytes": memory_bytes(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor()


def memory_bytes() -> int | None:
    """Memory of this machine; `None` where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _git_revision() -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
