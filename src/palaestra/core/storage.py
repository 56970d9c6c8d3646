"""Named arrays in one safetensors file: the only file format for tensors, and one that cannot run code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from palaestra.core.errors import CheckpointError

__all__ = ["load_tensors", "save_tensors"]


def save_tensors(path: str | Path, tensors: Mapping[str, Any]) -> None:
    """Writes arrays, numbers and text under names, and waits until they are on the disk.

    Args:
        path: of the file.
        tensors: torch tensors, numpy arrays, numbers, booleans, strings or `None` by name.

    Raises:
        TypeError: a value is of none of these kinds (for example an array of objects).
    """
    arrays: dict[str, torch.Tensor] = {}
    kinds: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        if not isinstance(value, np.generic) and (value is None or isinstance(value, str | bool | int | float)):
            kinds[name] = ["value", value]
            continue
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind not in "fiub":
                raise TypeError(f"{name!r} has dtype {value.dtype}; only numbers and booleans can be saved")
            kinds[name] = ["numpy", None]
            value = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name!r} is a {type(value).__name__}; tensors, arrays, numbers and text can be saved")
        array = value.detach().cpu().contiguous()
        memory = array.untyped_storage().data_ptr()
        arrays[name] = array.clone() if memory in seen else array  # the format wants memory of its own for each name
        seen.add(memory)
    save_file(arrays, path, metadata={"palaestra": json.dumps(kinds)})
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def load_tensors(path: str | Path) -> dict[str, Any]:
    """What `save_tensors` wrote, with every value of the kind it had.

    Args:
        path: of the file.

    Raises:
        CheckpointError: the file is missing, damaged, or not of this format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            kinds = json.loads((file.metadata() or {}).get("palaestra", "{}"))
            loaded: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, (kind, value) in kinds.items():
            loaded[name] = loaded[name].numpy() if kind == "numpy" else value
    except (AttributeError, KeyError, OSError, SafetensorError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as a safetensors file: {error}") from error
    return loaded
