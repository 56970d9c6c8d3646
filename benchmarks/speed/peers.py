"""Virtual environments of the peers, outside the tree, with the torch and Gymnasium that we run on."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.record import versions

PEER = "stable-baselines3"
PEER_VERSION = "2.9.2"
SBX_VERSION = "0.28.0"
CONTRIB = "sb3-contrib"
"""QR-DQN is in a package beside it, of the same version."""
SHARED = ("torch", "gymnasium", "numpy", "mujoco", "imageio", "packaging")


def default_directory() -> Path:
    """`palaestra/peers` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palaestra" / "peers"


def peer_python(directory: Path) -> tuple[Path, dict[str, str]]:
    """The interpreter in `DIRECTORY/sb3`, which is made where it is missing, and the versions it has."""
    return environment(directory, "sb3", {PEER: PEER_VERSION, CONTRIB: PEER_VERSION}, SHARED)


def sbx_python(directory: Path) -> tuple[Path, dict[str, str]]:
    """The interpreter in `DIRECTORY/sbx`, as `peer_python`."""
    packages = {"sbx-rl": SBX_VERSION, PEER: PEER_VERSION, CONTRIB: PEER_VERSION, "jax": "0.10.2"}
    return environment(directory, "sbx", packages, SHARED)


def environment(
    directory: Path, name: str, packages: Mapping[str, str], shared: Sequence[str]
) -> tuple[Path, dict[str, str]]:
    """The interpreter in `DIRECTORY/NAME` with packages (and extras) of given versions and ours of the shared ones."""
    home = directory / name
    python = home / "bin" / "python"
    wanted = {**packages, **{name: public(version) for name, version in versions(shared).items()}}
    if not python.exists():
        print(f"installing {wanted} into {home} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pinned = [f"{name}=={version}" for name, version in wanted.items()]
        subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *pinned], check=True)
    wanted = {name.partition("[")[0]: version for name, version in wanted.items()}
    found = installed(python, list(wanted))
    different = [
        f"{name} {found.get(name)} instead of {v}" for name, v in wanted.items() if public(found.get(name)) != v
    ]
    if different:
        raise SystemExit(f"{home} has {', '.join(different)}; delete it or choose another --peer-dir")
    return python, found


def installed(python: Path, packages: Sequence[str]) -> dict[str, str]:
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def public(version: str | None) -> str | None:
    """2.13.0 for 2.13.0+cpu: builds of one release."""
    return version and version.split("+")[0]
