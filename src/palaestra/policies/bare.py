"""What policies are called with outside any training: observations of any kind, bare or with leading dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, NonFiniteError, ShapeError, SpecTree, TensorSpec, numpy_dtype, spec_leaves

__all__ = ["as_rows", "leading_shape", "to_numpy"]


def leading_shape(observation: Any, spec: SpecTree) -> tuple[int, ...]:
    """The leading dimensions of a nest, read off its first leaf.

    Args:
        observation: of any kind that a policy can be called with.
        spec: of one observation.

    Raises:
        ShapeError: it lacks a part.
    """
    path, leaf_spec = next(iter(spec_leaves(spec).items()))
    leaf = observation
    for key in path.split(".") if path else ():
        leaf = _child(leaf, key, path)
    shape = tuple(np.shape(leaf))
    return shape[: len(shape) - len(leaf_spec.shape)]


def _child(node: Any, key: str, path: str) -> Any:
    try:
        return node[int(key)] if isinstance(node, tuple | list) else node[key]
    except (KeyError, IndexError, TypeError):
        raise ShapeError(f"the observation is a {type(node).__name__} without the entry {path!r} of its spec") from None


def as_rows(value: Any, spec: SpecTree, device: torch.device, leading: tuple[int, ...], path: str = "") -> Any:
    """A nest as tensors and batches of leading shape [N].

    Args:
        value: of any kind that a policy can be called with.
        spec: of one observation.
        device: where the tensors are to be.
        leading: dimensions that become N.
        path: of the nest, for messages.

    Raises:
        ShapeError: it does not fit the spec, or holds no numbers.
        NonFiniteError: an element is NaN or infinite.
    """
    if not isinstance(spec, TensorSpec):
        items = spec.items() if isinstance(spec, dict) else ((str(i), child) for i, child in enumerate(spec))
        paths = {key: (child, f"{path}.{key}" if path else key) for key, child in items}
        return Batch.of(
            {
                key: as_rows(_child(value, key, inner), child, device, leading, inner)
                for key, (child, inner) in paths.items()
            }
        )
    name = f"the observation{f' {path!r}' if path else ''}"
    array = value if isinstance(value, Tensor) else np.array(value)
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "biuf":
            raise ShapeError(f"{name} is {value!r}; numbers of shape {spec.shape} are needed")
        array = torch.as_tensor(array)
    if tuple(array.shape) != (*leading, *spec.shape):
        raise ShapeError(
            f"{name} has shape {tuple(array.shape)}; its spec needs "
            f"{(*leading, *spec.shape)}, with or without leading dimensions, the same for every entry"
        )
    if array.dtype.is_floating_point and not array.isfinite().all():
        raise NonFiniteError(f"{name} is {array.tolist()}; a policy needs finite numbers")
    return array.to(device, spec.dtype).reshape((-1, *spec.shape))


def to_numpy(action: Any, spec: SpecTree, leading: tuple[int, ...]) -> Any:
    """Actions as their spec says, in numpy.

    Args:
        action: leaves [N, ...].
        spec: of one action.
        leading: dimensions that N stands for.
    """
    if isinstance(spec, dict):
        return {key: to_numpy(action[key], child, leading) for key, child in spec.items()}
    if isinstance(spec, tuple):
        return tuple(to_numpy(action[str(index)], child, leading) for index, child in enumerate(spec))
    array = action.detach().cpu().numpy().astype(numpy_dtype(spec.dtype), copy=False)
    return array.reshape((*leading, *spec.shape))[()]
