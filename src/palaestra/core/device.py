"""Devices: which there are, and nests of tensors on their way from one to another."""

from __future__ import annotations

from typing import Any

import torch

from palaestra.core.errors import ConfigError
from palaestra.core.node import Node

__all__ = ["available_devices", "device_of", "require_device", "to_device"]


def available_devices() -> list[str]:
    """The devices that this process can compute on, as `run.device` takes them."""
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def require_device(name: str, setting: str = "device") -> torch.device:
    """The device of a name.

    Args:
        name: `cpu`, `cuda` (the first GPU) or `cuda:1`.
        setting: what it was given for, for the message.

    Raises:
        ConfigError: there is no such device; the message says which there are.

    Examples:
        >>> require_device("cpu")
        device(type='cpu')
        >>> require_device("cuda:99")
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: device is 'cuda:99', but this process can compute on cpu...
    """
    there = available_devices()
    if name in there or f"{name}:0" in there:
        return torch.device(name if name in there else f"{name}:0")
    why = ""
    if name.split(":")[0] == "cuda" and len(there) == 1:
        why = (
            "torch was installed without CUDA; install a build with it (https://pytorch.org/get-started), or "
            if torch.version.cuda is None
            else "torch finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or "
        )
    found = ", ".join(there)
    raise ConfigError(f"{setting} is {name!r}, but this process can compute on {found}; {why}give one of them")


def to_device(nest: Any, device: torch.device | str) -> Any:
    """A nest with its tensors on a device; those that are there already are not copied.

    A copy to a GPU does not wait: what is computed there next finds it. What a tensor in pinned memory held may only be
    overwritten after something computed from the copy has been read. A copy to the CPU is there on return.

    Args:
        nest: tensors in batches, dicts and tuples; anything else in it stays as it is.
        device: where to.

    Examples:
        >>> to_device({"x": torch.zeros(2), "name": "a"}, "cpu")
        {'x': tensor([0., 0.]), 'name': 'a'}
    """
    target = torch.device(device)
    return _moved(nest, target, target.type != "cpu")


def _moved(nest: Any, device: torch.device, ahead: bool) -> Any:
    if isinstance(nest, torch.Tensor):
        return nest.to(device, non_blocking=ahead)
    if isinstance(nest, Node):
        return type(nest).of({key: _moved(value, device, ahead) for key, value in nest.__dict__.items()})
    if isinstance(nest, dict):
        return {key: _moved(value, device, ahead) for key, value in nest.items()}
    if isinstance(nest, tuple):
        parts = [_moved(part, device, ahead) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return nest


def device_of(nest: Any) -> torch.device:
    """Where the tensors of a nest are: the device of its first one, the CPU where it has none.

    Args:
        nest: tensors in batches, dicts and tuples.
    """
    found = _first(nest)
    return torch.device("cpu") if found is None else found.device


def _first(nest: Any) -> torch.Tensor | None:
    if isinstance(nest, torch.Tensor):
        return nest
    parts = nest.__dict__ if isinstance(nest, Node) else nest
    parts = parts.values() if isinstance(parts, dict) else parts if isinstance(parts, tuple) else ()
    return next((found for part in parts if (found := _first(part)) is not None), None)
