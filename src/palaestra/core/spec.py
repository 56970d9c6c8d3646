"""Specs: what an observation, action or reward looks like, without a leading dimension.

A spec tree is one spec, or a dict or tuple of spec trees. `envs.spaces` converts from and to Gymnasium spaces; networks
are built from specs.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from palaestra.core.batch import Batch
from palaestra.core.errors import SpecError

__all__ = [
    "ACTION_MASK",
    "BoundedSpec",
    "DiscreteSpec",
    "MultiBinarySpec",
    "MultiDiscreteSpec",
    "SpecTree",
    "TensorSpec",
    "children_of",
    "dtype_limits",
    "map_spec",
    "numpy_dtype",
    "spec_from_json",
    "spec_layout",
    "spec_leaves",
    "spec_to_json",
    "torch_dtype",
]

ACTION_MASK = "action_mask"
"""The key of a dict observation that says which actions are allowed; no network sees it."""


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of a torch dtype.

    Args:
        dtype: a dtype that numpy has as well.

    Raises:
        SpecError: numpy has no such dtype (bfloat16).
    """
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        raise SpecError(f"{dtype} has no numpy counterpart; environments and buffers exchange numpy arrays") from None


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


def dtype_limits(dtype: np.dtype) -> tuple[float, float]:
    """The smallest and the largest value of a dtype.

    Args:
        dtype: of integers, booleans (0 and 1) or floats (the infinities).
    """
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of fixed shape and dtype without bounds."""

    shape: tuple[int, ...]
    """Shape without leading dimensions."""
    dtype: torch.dtype = torch.float32
    """Data type."""
    stacked: int = field(default=1, kw_only=True, repr=False)
    """K above 1: the first axis holds the K newest frames, the newest last; a buffer then stores each frame once."""

    def __post_init__(self) -> None:
        if self.stacked != 1 and (self.stacked < 1 or self.shape[:1] != (self.stacked,)):
            raise SpecError(
                f"{type(self).__name__} was given stacked={self.stacked} and shape {self.shape}; "
                "the first axis holds the stacked frames, so its length is that number"
            )
        if not isinstance(self.shape, tuple) or not all(isinstance(n, int | np.integer) and n >= 0 for n in self.shape):
            raise SpecError(
                f"{type(self).__name__} was given shape {self.shape!r}; give a tuple of lengths, such as (3,)"
            )
        if not isinstance(self.dtype, torch.dtype):
            raise SpecError(f"{type(self).__name__} was given dtype {self.dtype!r}; give a torch dtype")

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def encoded_size(self) -> int:
        """Number of inputs that a network sees: elements, or categories of a one-hot code."""
        return self.size

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The smallest and the largest value, of the spec's shape or (); `None` where the dtype allows no others."""
        return None

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
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.shape != self.shape:
            return f"shape {array.shape}, expected {self.shape}"
        if array.dtype != numpy_dtype(self.dtype):
            return f"dtype {array.dtype}, expected {numpy_dtype(self.dtype)}"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"value {array[~np.isfinite(array)].flat[0]}, expected finite numbers"
        if self.bounds is not None:
            low, high = (np.broadcast_to(bound, self.shape) for bound in self.bounds)
            for index in np.argwhere((array < low) | (array > high)):
                at = tuple(index.tolist())
                return f"value {array[at]}{f' at index {at}' if at else ''}, expected {low[at]} to {high[at]}"
        return None


@dataclass(frozen=True)
class BoundedSpec(TensorSpec):
    """A tensor whose elements lie in [minimum, maximum]; either may be infinite.

    Raises:
        SpecError: a bound has another shape, or a minimum is not below its maximum.
    """

    minimum: np.ndarray = field(default_factory=lambda: np.array(-np.inf), compare=False)
    """Lower bounds, of the spec's shape."""
    maximum: np.ndarray = field(default_factory=lambda: np.array(np.inf), compare=False)
    """Upper bounds, of the spec's shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dtype = numpy_dtype(self.dtype)
        for name in ("minimum", "maximum"):
            bound = np.array(getattr(self, name))
            if dtype.kind in "iu" and bound.dtype.kind == "f":
                limit = np.array(dtype_limits(dtype)[name == "maximum"], dtype)
                bound = np.where(np.isinf(bound), limit, np.where(np.isinf(bound), 0, bound).astype(dtype))
            try:
                object.__setattr__(self, name, np.broadcast_to(bound.astype(dtype), self.shape))
            except ValueError:
                shapes = f"of shape {self.shape} was given a {name} of shape {bound.shape}"
                raise SpecError(f"a BoundedSpec {shapes}; give one number, or one for each element") from None
        if np.isnan(self.minimum).any() or np.isnan(self.maximum).any():
            raise SpecError(f"a BoundedSpec was given minimum {self.minimum} and maximum {self.maximum}: not numbers")
        if not (self.minimum <= self.maximum).all():
            raise SpecError(f"a BoundedSpec was given minimum {self.minimum} and maximum {self.maximum}; exchange them")

    def __repr__(self) -> str:
        """One line, with one number where all bounds are one: a message about a picture was pages of them."""
        texts = [
            str(one.flat[0]) if one.size and (one == one.flat[0]).all()
            else np.array2string(one.ravel(), threshold=10, separator=", ", max_line_width=999)
            for one in (self.minimum, self.maximum)
        ]  # fmt: skip
        return f"BoundedSpec(shape={self.shape}, dtype={self.dtype}, minimum={texts[0]}, maximum={texts[1]})"

    @property
    def bounded(self) -> bool:
        """Whether every element has two finite bounds."""
        return bool(np.isfinite(self.minimum).all() and np.isfinite(self.maximum).all())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BoundedSpec)
            and (self.shape, self.dtype, self.stacked) == (other.shape, other.dtype, other.stacked)
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The smallest and the largest value, of the spec's shape; `None` where the dtype allows no others."""
        low, high = dtype_limits(numpy_dtype(self.dtype))
        free = (self.minimum == low).all() and (self.maximum == high).all()
        return None if free else (self.minimum, self.maximum)


@dataclass(frozen=True)
class DiscreteSpec(TensorSpec):
    """One of `num` categories: an integer in [start, start + num)."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    num: int = 1
    """Number of categories, at least 1."""
    start: int = 0
    """The smallest value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape or not isinstance(self.num, int | np.integer) or self.num < 1:
            given = f"shape {self.shape} and num {self.num}"
            raise SpecError(f"a DiscreteSpec was given {given}; its shape is (), and it needs at least one category")

    @property
    def encoded_size(self) -> int:
        """Length of the one-hot code."""
        return self.num

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest value.

        Examples:
            >>> [int(bound) for bound in DiscreteSpec(num=3, start=1).bounds]
            [1, 3]
        """
        return np.array(self.start), np.array(self.start + self.num - 1)


@dataclass(frozen=True)
class MultiDiscreteSpec(TensorSpec):
    """Several categorical choices: element i is an integer in [0, nvec[i])."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    nvec: tuple[int, ...] = ()
    """Number of categories of each choice."""

    def __post_init__(self) -> None:
        if min(self.nvec, default=0) < 1:
            raise SpecError(f"a MultiDiscreteSpec was given nvec {self.nvec}; every choice needs at least one category")
        object.__setattr__(self, "nvec", tuple(map(int, self.nvec)))
        object.__setattr__(self, "shape", (len(self.nvec),))
        super().__post_init__()

    @property
    def encoded_size(self) -> int:
        """Total length of the one-hot codes."""
        return sum(self.nvec)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest value of every choice."""
        return np.array(0), np.array(self.nvec) - 1


@dataclass(frozen=True)
class MultiBinarySpec(TensorSpec):
    """Elements that are 0 or 1."""

    dtype: torch.dtype = torch.int8

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """0 and 1."""
        return np.array(0), np.array(1)


SpecTree: TypeAlias = Any
"""One spec, or a dict or tuple of spec trees (a recursive type that checkers cannot follow through optree)."""

_KINDS = {kind.__name__: kind for kind in (TensorSpec, BoundedSpec, DiscreteSpec, MultiDiscreteSpec, MultiBinarySpec)}


def children_of(spec: SpecTree) -> dict[str, SpecTree]:
    """The children of a dict or tuple by the names that they have in a `Batch`.

    Args:
        spec: of a dict or tuple.
    """
    return {str(key): child for key, child in (spec.items() if isinstance(spec, dict) else enumerate(spec))}


def map_spec(function: Callable[[TensorSpec], Any], spec: SpecTree) -> Any:
    """What a function makes of every leaf, as a `Batch`; of one spec alone, its result.

    Args:
        function: of one leaf; called in the tree's order.
        spec: the tree.

    Examples:
        >>> map_spec(lambda leaf: leaf.zeros(2), {"body": TensorSpec((3,)), "doors": (DiscreteSpec(num=4),)}).doors["0"]
        tensor([0, 0])
    """
    if isinstance(spec, TensorSpec):
        return function(spec)
    return Batch.of({key: map_spec(function, child) for key, child in children_of(spec).items()})


def spec_layout(spec: SpecTree) -> dict[str, str]:
    """Dtype, shape and number of choices of every leaf by its path: what must agree; bounds of numbers need not.

    Examples:
        >>> spec_layout({"pixels": TensorSpec((3,)), "key": DiscreteSpec(num=5)})
        {'pixels': 'float32 (3,)', 'key': 'int64 () of 5'}
    """

    def text(leaf: TensorSpec) -> str:
        choices = getattr(leaf, "nvec", getattr(leaf, "num", None))
        own = "" if choices is None else f" of {choices}"
        return f"{str(leaf.dtype).removeprefix('torch.')} {leaf.shape}{own}"

    return {path: text(leaf) for path, leaf in spec_leaves(spec).items()}


def spec_leaves(spec: SpecTree, prefix: str = "") -> dict[str, TensorSpec]:
    """The specs of a tree by their path, in the tree's order.

    Raises:
        SpecError: two leaves have the same path, because a key contains a dot.

    Examples:
        >>> list(spec_leaves({"camera": TensorSpec((3,)), "body": (TensorSpec(()), TensorSpec(()))}))
        ['camera', 'body.0', 'body.1']
    """
    if isinstance(spec, TensorSpec):
        return {prefix: spec}
    items = spec.items() if isinstance(spec, dict) else enumerate(spec)
    leaves: dict[str, TensorSpec] = {}
    for key, child in items:
        found = spec_leaves(child, f"{prefix}.{key}" if prefix else str(key))
        if twice := sorted(leaves.keys() & found):
            raise SpecError(f"two leaves have the path {twice[0]!r}; rename the key that contains a dot")
        leaves |= found
    return leaves


def first_leaf(spec: SpecTree) -> tuple[tuple[str, ...], TensorSpec]:
    """The keys that lead to the first leaf of a tree, and its spec.

    Args:
        spec: with a leaf or more.

    Raises:
        SpecError: it has no leaf.

    Examples:
        >>> first_leaf({"nothing": {}, "body.x": (TensorSpec((3,)), TensorSpec(()))})[0]
        ('body.x', '0')
    """
    if isinstance(spec, TensorSpec):
        return (), spec
    for key, child in children_of(spec).items():
        if spec_leaves(child):
            keys, leaf = first_leaf(child)
            return (key, *keys), leaf
    raise SpecError(f"{spec} has no leaf")


def spec_to_json(spec: SpecTree) -> Any:
    """A spec tree as JSON values; `spec_from_json` is the inverse."""
    if isinstance(spec, dict):
        return {"kind": "dict", "items": {key: spec_to_json(child) for key, child in spec.items()}}
    if isinstance(spec, tuple):
        return {"kind": "tuple", "items": [spec_to_json(child) for child in spec]}
    out: dict[str, Any] = {"kind": type(spec).__name__, "shape": list(spec.shape)}
    if spec.stacked > 1:
        out["stacked"] = spec.stacked
    out["dtype"] = str(spec.dtype).removeprefix("torch.")
    if isinstance(spec, BoundedSpec):
        # the text of a number is exact, and JSON has no infinity
        number = float if spec.dtype.is_floating_point else int
        out["minimum"] = [str(number(x)) for x in spec.minimum.reshape(-1)]
        out["maximum"] = [str(number(x)) for x in spec.maximum.reshape(-1)]
    if isinstance(spec, DiscreteSpec):
        out |= {"num": spec.num, "start": spec.start}
    if isinstance(spec, MultiDiscreteSpec):
        out["nvec"] = list(spec.nvec)
    return out


def spec_from_json(data: Any) -> SpecTree:
    """The spec tree that `spec_to_json` wrote.

    Raises:
        SpecError: they describe no spec.

    Examples:
        >>> spec = {"x": BoundedSpec((2,), minimum=np.array([-1, 0])), "n": DiscreteSpec(num=3)}
        >>> spec_from_json(spec_to_json(spec)) == spec
        True
    """
    try:
        if data["kind"] == "dict":
            return {key: spec_from_json(child) for key, child in data["items"].items()}
        if data["kind"] == "tuple":
            return tuple(spec_from_json(child) for child in data["items"])
        arguments = {key: value for key, value in data.items() if key != "kind"}
        arguments["shape"] = tuple(data["shape"])
        arguments["dtype"] = getattr(torch, data["dtype"])
        for bound in ("minimum", "maximum"):
            if bound in arguments:
                number = float if arguments["dtype"].is_floating_point else int
                array = np.array([number(x) for x in arguments[bound]], numpy_dtype(arguments["dtype"]))
                arguments[bound] = array.reshape(arguments["shape"])
        if "nvec" in arguments:
            arguments["nvec"] = tuple(arguments["nvec"])
        return _KINDS[data["kind"]](**arguments)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{data!r} describes no spec: {error!r}") from None
