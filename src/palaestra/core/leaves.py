"""Leaves of a `Batch`: arrays, tensors, numbers and text, and how one kind becomes another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palaestra.core.errors import ShapeError

__all__ = ["array_of", "as_array", "as_tensor"]


def array_of(key: str, values: Any) -> np.ndarray:
    """A list or tuple as a numpy array; text becomes objects, so that its parts keep their length.

    Args:
        key: name of the field, for the error message.
        values: what the list holds.

    Raises:
        ShapeError: its parts differ in length.
        TypeError: numbers stand beside something that is neither a number nor text: an array of objects would do, and
            every later computation would be wrong or slow without a word.
    """
    try:
        array = np.asanyarray(values)
    except ValueError as error:
        raise ShapeError(f"field {key!r} is ragged: {error}; pad it, or keep its parts in separate fields") from None
    if array.dtype == object:
        kinds = {type(part).__name__: isinstance(part, int | float | np.generic) for part in array.reshape(-1)}
        if len(set(kinds.values())) > 1:
            raise TypeError(f"field {key!r} mixes {sorted(kinds)}; give numbers alone (NaN for one that is missing)")
    return array.astype(object) if array.dtype.kind in "US" else array


def as_tensor(leaf: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> torch.Tensor:
    """A leaf as a tensor, which shares its memory where it can.

    Args:
        leaf: an array, tensor or number.
        dtype: cast floating-point numbers to this.
        device: move there.

    Raises:
        TypeError: it holds objects or text.
    """
    if not isinstance(leaf, torch.Tensor):
        array = np.asarray(leaf)
        if array.dtype.kind not in "fiubc":
            sample = array.reshape(-1)[:3]
            raise TypeError(f"a leaf of dtype {array.dtype} ({sample} ...) cannot become a tensor")
        if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))  # a copy: torch can share none of these
        leaf = torch.from_numpy(array)
    return leaf.to(device=device, dtype=dtype if dtype is not None and leaf.is_floating_point() else None)


def as_array(leaf: Any) -> Any:
    """A tensor as a numpy array, which shares its memory on a CPU; anything else as it is.

    Args:
        leaf: of any kind. bfloat16, which numpy does not have, becomes float32.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
