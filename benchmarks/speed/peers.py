"""Virtual environments of the peers, outside the tree, with the torch and Gymnasium that we run on."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import versions

SHARED = ("torch", "gymnasium", "numpy", "mujoco", "imageio", "packaging")
"""Packages that a peer has in our versions, unless it says itself which ones it shares."""


@dataclass(frozen=True)
class Peer:
    """A library that is measured beside ours."""

    title: str
    packages: Mapping[str, str]
    """Versions of what is installed for it, besides ours of `SHARED`."""
    clone: str = ""
    """The repository that its scripts are run from, cloned to `DIRECTORY/NAME/repository`; empty for a package."""
    prefix: tuple[str, ...] = ()
    """What its command begins with, to keep it to one core."""
    shared: tuple[str, ...] = SHARED


_ONE_CORE = ("taskset", "-c", str(max(os.sched_getaffinity(0))))
_SB3 = {"stable-baselines3": "2.9.2", "sb3-contrib": "2.9.2"}  # QR-DQN is in the second
_ATARI = {"ale-py": "0.12.1", "opencv-python-headless": "5.0.0.93"}
_POOLS = {"envpool": "1.2.5", "gym": "0.23.1"}
PEERS = {
    "sb3": Peer("Stable-Baselines3", {**_SB3, **_ATARI}),
    "sbx": Peer("SBX (JAX)", {"sbx-rl": "0.28.0", **_SB3, "jax": "0.10.2"}, prefix=_ONE_CORE),
    "cleanrl": Peer(
        "CleanRL", {"tyro": "1.0.17", "tensorboard": "2.21.0", **_POOLS}, clone="https://github.com/vwxyzjn/cleanrl"
    ),
    "torchrl": Peer("TorchRL", {"torchrl": "0.14.1", "tensordict": "0.14.3"}),
    "tianshou": Peer("Tianshou", {"tianshou": "2.0.1"}),
    "leanrl": Peer(
        "LeanRL, compiled",
        {"torch": "2.5.1", "torchrl": "0.6.0", "tensordict": "0.6.2", "gymnasium": "0.29.1", "numpy": "1.26.4"}
        | {"tyro": "1.0.17", "tqdm": "4.67.1"},  # of the time that its scripts are of: newer ones break them
        clone="https://github.com/meta-pytorch/LeanRL",
        shared=("mujoco", "imageio", "packaging"),
    ),
    "d3rlpy": Peer("d3rlpy", {"d3rlpy": "2.8.1"}, shared=("torch",)),  # it asks for another Gymnasium
    "sample_factory": Peer("Sample Factory", {"sample-factory": "2.1.1"}, shared=("torch",)),  # so does it
}


def default_directory() -> Path:
    """`palaestra/peers` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palaestra" / "peers"


def installed_peer(directory: Path, name: str) -> tuple[Path, dict[str, str]]:
    """The interpreter in `DIRECTORY/NAME`, which is made where it is missing, and the versions it has."""
    peer = PEERS[name]
    python, found = environment(directory, name, peer.packages, peer.shared)
    if peer.clone:
        repository = directory / name / "repository"
        if not repository.exists():
            subprocess.run(["git", "clone", "-q", peer.clone, repository], check=True)
        head = ["git", "-C", str(repository), "rev-parse", "--short=12", "HEAD"]
        found[name] = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    return python, found


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
