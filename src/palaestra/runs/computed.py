"""What computed a run: versions, hardware and threads of each of its sessions, on which every rounded sum depends."""

import functools
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palaestra.core.computing import memory_bytes, num_cores, prefers_onednn

__all__ = ["machine_kind"]

_PACKAGES = ("palaestra", "torch", "numpy", "gymnasium", "optree", "safetensors")
_OF_ENVIRONMENTS = ("ale-py", "mujoco", "envpool", "box2d", "shimmy", "pettingzoo", "minari", "ray", "jax")
_OF_HARDWARE = ("machine", "processor", "instructions", "gpu")
"""Which entries of a session's `hardware` may change a bit; others are for people."""
OF_SESSION = ("versions", "hardware", "threads", "onednn", "population", "resume", "resume_reasons")
"""What `run.json` says of the newest session, and its `sessions` of each before."""


def computed_by(env: str = "", manager: Any = None, device: str = "cpu") -> dict[str, Any]:
    """What the bits of this process's sums depend on, as JSON values.

    Args:
        env: name of the environment, whose package is among the versions.
        manager: of the policies, which may learn in one graph with those of other runs.
        device: where networks are; of a GPU that is there its model and versions of CUDA are said as well.
    """
    at = torch.device(device)
    on_gpu = at.type == "cuda" and (at.index or 0) < torch.cuda.device_count()
    return {
        "versions": versions(env) | (_cuda_versions() if on_gpu else {}),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "processor": processor(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": num_cores(),
            "memory_bytes": memory_bytes(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            **({"gpu": torch.cuda.get_device_name(at)} if on_gpu else {}),
        },
        "threads": torch.get_num_threads(),
        "onednn": prefers_onednn(),
        "population": getattr(manager, "population", 1),
    }


def versions(env: str = "") -> dict[str, str]:
    """Of Python, of what the library needs, and of packages with environments that this process has imported.

    Args:
        env: name of the environment, such as `my_package:MyEnvironment`, whose package is among them.
    """
    known = {name: package_version(name) or "source tree" for name in _PACKAGES}
    loaded = {module.lower() for module in sys.modules}
    others = {name for name in _OF_ENVIRONMENTS if name.replace("-", "_") in loaded}
    others |= {part.partition(".")[0] for part in env.split(":")[:-1]}
    found = {name: version for name in sorted(others - {*known}) if name and (version := package_version(name))}
    return {"python": platform.python_version(), **known, **found}


def _cuda_versions() -> dict[str, str]:
    found = {"cuda": torch.version.cuda, "hip": torch.version.hip, "cudnn": torch.backends.cudnn.version()}
    return {name: str(version) for name, version in found.items() if version is not None}


@functools.cache
def package_version(package: str) -> str | None:
    """The version of an installed package; `None` without it.

    Args:
        package: its name.
    """
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


@functools.cache
def processor() -> str:
    """The model of the processor, as the system names it; of one by ARM on Linux, the numbers that stand for it."""
    try:
        if sys.platform == "darwin":
            return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except (OSError, subprocess.SubprocessError):
        return platform.processor()
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}  # of the first core
    numbers = [f"{name} {said[name]}" for name in ("CPU implementer", "CPU part", "CPU variant") if name in said]
    return said.get("model name") or ", ".join(numbers) or platform.processor()


def machine_kind() -> dict[str, Any]:
    """What the bits of trained weights depend on besides the seed: processor, system, and versions of packages."""
    facts = computed_by()
    kind = {name: facts["hardware"][name] for name in ("processor", "instructions")}
    return {**kind, "system": f"{platform.system()} {platform.machine()}", "versions": facts["versions"]}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What may change a bit and differs, by name: what it was, and what it is; what only one of them names is none.

    Args:
        then: from `computed_by`, or from `machine_kind`, earlier.
        now: the same, today.
    """
    before, after = _flat(then), _flat(now)
    return {name: (was, after[name]) for name, was in before.items() if name in after and after[name] != was}


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    # "system" is of a machine, without the kernel's version
    names = ("threads", "onednn", "population") if "hardware" in facts else ("system",)
    hardware = {name: facts.get("hardware", facts).get(name) for name in _OF_HARDWARE}
    if hardware["processor"] in ("", "arm", "arm64", "aarch64"):  # as older runs have it, which names no model
        del hardware["processor"]
    known = {**hardware, **facts.get("versions", {}), **{name: facts.get(name) for name in names}}
    return {name: value for name, value in known.items() if value is not None}


def sessions(info: Mapping[str, Any], step: int | None = None) -> list[dict[str, Any]]:
    """Those in which a run was computed so far, the newest last: `env_steps` where each began, and what computed it.

    Args:
        info: what `run.json` says, before a new session writes itself down there.
        step: env steps of the checkpoint that is continued from: later sessions have no part in it.
    """
    newest = {name: info[name] for name in OF_SESSION if name in info}
    known = [*info.get("sessions", []), {"env_steps": info.get("resumed_at") or 0, **newest}]
    return [one for one in known if step is None or one["env_steps"] <= step]


def how_exactly(before: Sequence[Mapping[str, Any]], why: Sequence[str], now: Mapping[str, Any]) -> dict[str, Any]:
    """How a run goes on, for `run.json`; what an earlier session was not, the run is not any more.

    `exact` is said of what is restored and computed as before, `continued` of what is restored and may round
    otherwise, `statistical` of what is not restored.

    Args:
        before: from `sessions`.
        why: in what the run is not restored.
        now: from `computed_by`.
    """
    changed = [item for one in before[-1:] for item in differences(one, now).items()]
    rounds = [f"with {name} {new} instead of {old}" for name, (old, new) in changed]
    said = {"statistical" if why else "continued" if rounds else "exact", *(one.get("resume") for one in before)}
    earlier = [reason for one in before for reason in one.get("resume_reasons", [])]
    resume = next((name for name in ("statistical", "continued") if name in said), "exact")
    return {"resume": resume, "resume_reasons": list(dict.fromkeys([*earlier, *why, *rounds]))}
