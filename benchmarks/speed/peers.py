"""Virtual environments of the peers, outside the tree, with the torch and Gymnasium that we run on."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.record import versions

PEER = "stable-baselines3"
PEER_VERSION = "2.9.2"
CONTRIB = "sb3-contrib"
"""QR-DQN is in a package beside it, of the same version."""
SHARED = ("torch", "gymnasium", "numpy", "mujoco")


def default_directory() -> Path:
    """`palaestra/peers` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palaestra" / "peers"


def peer_python(directory: Path) -> tuple[Path, dict[str, str]]:
    """The interpreter in `DIRECTORY/sb3`, which is made where it is missing, and the versions it has."""
    home = directory / "sb3"
    python = home / "bin" / "python"
    wanted = {
        PEER: PEER_VERSION,
        CONTRIB: PEER_VERSION,
        **{name: public(version) for name, version in versions(SHARED).items()},
    }
    if not python.exists():
        print(f"installing {PEER} {PEER_VERSION} into {home} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        packages = [f"{name}=={version}" for name, version in wanted.items()]
        subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *packages], check=True)
    found = installed(python)
    different = [
        f"{name} {found.get(name)} instead of {v}" for name, v in wanted.items() if public(found.get(name)) != v
    ]
    if different:
        raise SystemExit(f"{home} has {', '.join(different)}; delete it or choose another --peer-dir")
    return python, found


def installed(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, PEER, CONTRIB, *SHARED], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def public(version: str | None) -> str | None:
    """2.13.0 for 2.13.0+cpu: builds of one release."""
    return version and version.split("+")[0]
