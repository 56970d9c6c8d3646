"""Specs: what an observation, action or reward looks like, without a leading dimension.

A spec tree is one spec, or a dict or tuple of spec trees. `envs.spaces` converts from and to Gymnasium spaces; networks
are built from specs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from palaestra.core.errors import SpecError

__all__ = [
    "BoundedSpec",
    "DiscreteSpec",
    "MultiBinarySpec",
    "MultiDiscreteSpec",
    "SpecTree",
    "TensorSpec",
    "numpy_dtype",
    "spec_from_json",
    "spec_leaves",
    "spec_to_json",
    "torch_dtype",
    "zeros_of",
]


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of a torch dtype.

    Args:
        dtype: a dtype that numpy has as well.
    """
    return torch.empty(0, dtype=dtype).numpy().dtype


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of anything numpy takes for a dtype.

    Args:
        dtype: for example `np.float32` or `"uint8"`.

    Raises:
        SpecError: torch has no such dtype (strings, objects).
    """
    try:
        return torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    except TypeError:
        raise SpecError(f"dtype {dtype} has no torch counterpart; numbers and booleans have") from None


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of fixed shape and dtype without bounds."""

    shape: tuple[int, ...]
    """Shape without leading dimensions."""
    dtype: torch.dtype = torch.float32
    """Data type."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def encoded_size(self) -> int:
        """Number of inputs that a network sees: elements, or categories of a one-hot code."""
        return self.size

    def zeros(self, *leading: int) -> torch.Tensor:
        """Zeros of this spec.

        Args:
            leading: leading dimensions, for example T, B.
        """
        return torch.zeros(*leading, *self.shape, dtype=self.dtype)

    def problem(self, value: Any) -> str | None:
        """What is wrong with one value (no leading dimension); `None` if nothing.

        Args:
            value: an array, tensor or number.
        """
        array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.shape != self.shape:
            return f"shape {array.shape}, expected {self.shape}"
        if array.dtype != numpy_dtype(self.dtype):
            return f"dtype {array.dtype}, expected {numpy_dtype(self.dtype)}"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"value {array[~np.isfinite(array)].flat[0]}, expected finite numbers"
        return self._out_of_bounds(array)

    def _out_of_bounds(self, array: np.ndarray) -> str | None:
        return None


@dataclass(frozen=True)
class BoundedSpec(TensorSpec):
    """A tensor whose elements lie in [minimum, maximum]; either may be infinite."""

    minimum: np.ndarray = field(default_factory=lambda: np.array(-np.inf), compare=False)
    """Lower bounds, of the spec's shape."""
    maximum: np.ndarray = field(default_factory=lambda: np.array(np.inf), compare=False)
    """Upper bounds, of the spec's shape."""

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            bound = np.broadcast_to(np.asarray(getattr(self, name), dtype=numpy_dtype(self.dtype)), self.shape)
            object.__setattr__(self, name, bound)

    @property
    def bounded(self) -> bool:
        """Whether every element has two finite bounds."""
        return bool(np.isfinite(self.minimum).all() and np.isfinite(self.maximum).all())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BoundedSpec)
            and (self.shape, self.dtype) == (other.shape, other.dtype)
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def _out_of_bounds(self, array: np.ndarray) -> str | None:
        outside = (array < self.minimum) | (array > self.maximum)
        if not outside.any():
            return None
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        return f"value {array[index]} at index {index}, expected [{self.minimum[index]}, {self.maximum[index]}]"


@dataclass(frozen=True)
class DiscreteSpec(TensorSpec):
    """One of `num` categories: an integer in [start, start + num)."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    num: int = 1
    """Number of categories, at least 1."""
    start: int = 0
    """The smallest value."""

    @property
    def encoded_size(self) -> int:
        """Length of the one-hot code."""
        return self.num

    def _out_of_bounds(self, array: np.ndarray) -> str | None:
        value = int(array)
        inside = self.start <= value < self.start + self.num
        return None if inside else f"value {value}, expected an integer in [{self.start}, {self.start + self.num})"


@dataclass(frozen=True)
class MultiDiscreteSpec(TensorSpec):
    """Several categorical choices: element i is an integer in [0, nvec[i])."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    nvec: tuple[int, ...] = ()
    """Number of categories of each choice."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", (len(self.nvec),))

    @property
    def encoded_size(self) -> int:
        """Total length of the one-hot codes."""
        return sum(self.nvec)

    def _out_of_bounds(self, array: np.ndarray) -> str | None:
        bad = np.flatnonzero((array < 0) | (array >= np.asarray(self.nvec)))
        return f"value {array[bad[0]]} at index {bad[0]}, expected [0, {self.nvec[bad[0]]})" if len(bad) else None


@dataclass(frozen=True)
class MultiBinarySpec(TensorSpec):
    """Elements that are 0 or 1."""

    dtype: torch.dtype = torch.int8

    def _out_of_bounds(self, array: np.ndarray) -> str | None:
        bad = array[(array != 0) & (array != 1)]
        return f"value {bad.flat[0]}, expected 0 or 1" if bad.size else None


SpecTree: TypeAlias = Any
"""One spec, or a dict or tuple of spec trees (a recursive type that checkers cannot follow through optree)."""

_KINDS = {kind.__name__: kind for kind in (TensorSpec, BoundedSpec, DiscreteSpec, MultiDiscreteSpec, MultiBinarySpec)}


def spec_leaves(spec: SpecTree, prefix: str = "") -> dict[str, TensorSpec]:
    """The specs of a tree by their path, in the tree's order.

    Args:
        spec: the tree.
        prefix: path of the tree itself.

    Example:
        >>> list(spec_leaves({"camera": TensorSpec((3,)), "body": (TensorSpec(()), TensorSpec(()))}))
        ['camera', 'body.0', 'body.1']
    """
    if isinstance(spec, TensorSpec):
        return {prefix: spec}
    items = spec.items() if isinstance(spec, dict) else enumerate(spec)
    leaves: dict[str, TensorSpec] = {}
    for key, child in items:
        leaves |= spec_leaves(child, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def zeros_of(spec: SpecTree, *leading: int) -> Any:
    """Zeros of a spec tree, in the same structure.

    Args:
        spec: the tree.
        leading: leading dimensions, for example T, B.
    """
    if isinstance(spec, TensorSpec):
        return spec.zeros(*leading)
    if isinstance(spec, dict):
        return {key: zeros_of(child, *leading) for key, child in spec.items()}
    return tuple(zeros_of(child, *leading) for child in spec)


def spec_to_json(spec: SpecTree) -> Any:
    """A spec tree as JSON values; `spec_from_json` is the inverse.

    Args:
        spec: the tree.
    """
    if isinstance(spec, dict):
        return {"kind": "dict", "items": {key: spec_to_json(child) for key, child in spec.items()}}
    if isinstance(spec, tuple):
        return {"kind": "tuple", "items": [spec_to_json(child) for child in spec]}
    out: dict[str, Any] = {"kind": type(spec).__name__, "shape": list(spec.shape)}
    out["dtype"] = str(spec.dtype).removeprefix("torch.")
    if isinstance(spec, BoundedSpec):
        # repr of a float is exact, and JSON has no infinity
        out["minimum"] = [repr(float(x)) for x in spec.minimum.reshape(-1)]
        out["maximum"] = [repr(float(x)) for x in spec.maximum.reshape(-1)]
    if isinstance(spec, DiscreteSpec):
        out |= {"num": spec.num, "start": spec.start}
    if isinstance(spec, MultiDiscreteSpec):
        out["nvec"] = list(spec.nvec)
    return out


def spec_from_json(data: Any) -> SpecTree:
    """The spec tree that `spec_to_json` wrote.

    Args:
        data: JSON values.

    Example:
        >>> spec = {"x": BoundedSpec((2,), minimum=np.array([-1, 0])), "n": DiscreteSpec(num=3)}
        >>> spec_from_json(spec_to_json(spec)) == spec
        True
    """
    if data["kind"] == "dict":
        return {key: spec_from_json(child) for key, child in data["items"].items()}
    if data["kind"] == "tuple":
        return tuple(spec_from_json(child) for child in data["items"])
    arguments = {key: value for key, value in data.items() if key != "kind"}
    arguments["shape"] = tuple(data["shape"])
    arguments["dtype"] = getattr(torch, data["dtype"])
    for bound in ("minimum", "maximum"):
        if bound in arguments:
            arguments[bound] = np.array([float(x) for x in arguments[bound]]).reshape(arguments["shape"])
    if "nvec" in arguments:
        arguments["nvec"] = tuple(arguments["nvec"])
    return _KINDS[data["kind"]](**arguments)
