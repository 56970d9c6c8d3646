"""Nested observations and actions: flat lists of leaf arrays, in the order of the spec."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optree
import torch

from palaestra.core import ACTION_MASK, Batch, SpecError, SpecTree, TensorSpec, map_spec, numpy_dtype, spec_leaves


def batched_spec(spec: SpecTree) -> SpecTree:
    """The spec of the same data in a batched environment, where a tuple is a `Batch` with the keys "0", "1", ...

    Args:
        spec: of one bare environment.

    Examples:
        >>> list(batched_spec((TensorSpec((2,)), TensorSpec(()))))
        ['0', '1']
    """
    if isinstance(spec, TensorSpec):
        return spec
    return {str(key): batched_spec(child) for key, child in _children(spec)}


def copied(value: Any) -> Any:
    """A nest with copies of its arrays.

    Args:
        value: dicts, tuples and named tuples of arrays and anything else.
    """
    return optree.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, value)


def leaf_dtypes(spec: SpecTree) -> list[np.dtype]:
    """The numpy dtype of every leaf."""
    return [numpy_dtype(leaf.dtype) for leaf in spec_leaves(spec).values()]


def flatten(value: Any, spec: SpecTree) -> list[Any]:
    """The leaves of a nest, in the order of its spec.

    Args:
        value: dict, tuple or `Batch` shaped like the spec; a tuple may also be a `Batch` with the keys "0", "1", ...

    Raises:
        SpecError: a key is missing.
    """
    if isinstance(spec, TensorSpec):
        return [value]
    out: list[Any] = []
    for key, child in _children(spec):
        out += flatten(_get(value, key), child)
    return out


def leaf_arrays(value: Any, spec: SpecTree) -> list[np.ndarray]:
    """Copies of the leaves, cast to the spec's dtypes.

    Args:
        value: as for `flatten`.
    """
    return [np.array(leaf, dtype) for leaf, dtype in zip(flatten(value, spec), leaf_dtypes(spec), strict=True)]


def unflatten(leaves: Iterator[Any], spec: SpecTree) -> Any:
    """The nest of a bare environment from its leaves.

    Args:
        leaves: in the order of `spec`.
        spec: the tree; dicts become dicts and tuples tuples.
    """
    if isinstance(spec, TensorSpec):
        return next(leaves)
    if isinstance(spec, dict):
        return {key: unflatten(leaves, child) for key, child in spec.items()}
    return tuple(unflatten(leaves, child) for child in spec)


def unstacked(spec: SpecTree) -> SpecTree:
    """The spec of the same data where the frames of a stack are not those of the steps before."""
    leaves = spec_leaves(spec).values()
    if all(leaf.stacked == 1 for leaf in leaves):
        return spec
    return unflatten((dataclasses.replace(leaf, stacked=1) for leaf in leaves), spec)


def batched_leaves(spec: SpecTree, batch_size: int) -> list[tuple[str, tuple[int, ...], np.dtype]]:
    """Path, shape [B, ...] and dtype of the arrays that a simulator of B environments observes.

    Args:
        spec: of one bare environment.
    """
    leaves = spec_leaves(spec).items()
    return [(path, (batch_size, *leaf.shape), numpy_dtype(leaf.dtype)) for path, leaf in leaves]


def batched_arrays(
    leaves: Sequence[Any],
    expected: Sequence[tuple[str, tuple[int, ...], np.dtype]],
    what: str,
    *,
    copy: bool | None = True,
) -> list[np.ndarray]:
    """What a simulator of many environments observes, as contiguous arrays.

    Args:
        leaves: [B, ...], in the order of the spec.
        expected: from `batched_leaves`.
        what: gave them, for the message.
        copy: as numpy takes it; `None` copies what has to be cast alone.

    Raises:
        SpecError: a leaf has another shape, or cannot be cast without loss.
    """
    arrays: list[np.ndarray] = []
    for leaf, (path, shape, dtype) in zip(leaves, expected, strict=True):
        array = np.asarray(leaf)
        if array.shape != shape or not fits(array, dtype):
            raise SpecError(
                f"{what} shape {array.shape} and dtype {array.dtype}{f' at {path!r}' if path else ''}, "
                f"expected {shape} and values of {dtype}"
            )
        arrays.append(np.array(array, dtype, copy=copy, order="C"))
    return arrays


def to_batched(arrays: Sequence[np.ndarray], spec: SpecTree) -> Any:
    """Leaf arrays [B, ...] as a tensor, or a `Batch` of tensors that share their memory.

    Args:
        arrays: in the order of `spec`.
        spec: of one bare environment.
    """
    return to_rows(map(torch.from_numpy, arrays), spec)


def batched_nest(nests: Sequence[Any], spec: SpecTree) -> Any:
    """The nests of bare environments as one of a batched environment.

    Args:
        nests: one for each lane.
        spec: of one bare environment.
    """
    columns = zip(*(flatten(nest, spec) for nest in nests), strict=True)
    return to_batched([np.stack(column) for column in columns], spec)


def row_of(nest: Any, row: int, spec: SpecTree) -> Any:
    """One row of a batched nest, as a nest of arrays.

    Args:
        nest: tensors [B, ...].
        row: its number.
        spec: of one row.
    """
    return unflatten((np.asarray(leaf[row].cpu()) for leaf in flatten(nest, spec)), spec)


def to_rows(leaves: Iterator[torch.Tensor], spec: SpecTree) -> Any:
    """Tensors [B, ...] as one, or a `Batch` of them.

    Args:
        leaves: in the order of `spec`.
        spec: of one bare environment.
    """
    return map_spec(lambda _: next(leaves), spec)


def zeros(spec: SpecTree) -> Any:
    """Zeros for one bare environment: numpy arrays, and scalars where the shape is ()."""
    leaves = [np.zeros(leaf.shape, numpy_dtype(leaf.dtype))[()] for leaf in spec_leaves(spec).values()]
    return unflatten(iter(leaves), spec)


def neutral(spec: SpecTree) -> Any:
    """Zeros, or the values next to them that the spec allows, for an observation that no environment made.

    Args:
        spec: of one bare environment; every action of an `action_mask` is allowed.
    """
    return unflatten((rows[0] for rows in neutral_rows(spec, 1)), spec)


def neutral_rows(spec: SpecTree, batch_size: int) -> list[np.ndarray]:
    """The leaves of `neutral` for several lanes: arrays [B, ...].

    Args:
        spec: of one bare environment.
        batch_size: B.
    """
    arrays: list[np.ndarray] = []
    for path, leaf in spec_leaves(spec).items():
        value = np.zeros((batch_size, *leaf.shape), numpy_dtype(leaf.dtype))
        if leaf.bounds is not None:
            value = np.clip(value, *leaf.bounds)
        arrays.append((value + (path.rpartition(".")[2] == ACTION_MASK)).astype(numpy_dtype(leaf.dtype)))
    return arrays


def problem(value: Any, spec: SpecTree) -> str | None:
    """Why a nest cannot be stored in arrays of its spec; `None` if it can.

    Args:
        value: from one bare environment.
        spec: what it should look like.
    """
    if isinstance(value, np.ndarray) and isinstance(spec, TensorSpec) and value.dtype == numpy_dtype(spec.dtype):
        return None if value.shape == spec.shape else f"shape {value.shape}, expected {spec.shape}"
    try:
        leaves = flatten(value, spec)
    except SpecError as error:
        return str(error)
    surplus = _surplus(value, spec)
    if surplus:
        return f"the keys {surplus}, which its space has not"
    for (path, leaf), given in zip(spec_leaves(spec).items(), leaves, strict=True):
        array = np.asarray(given)
        where = f"at {path!r}: " if path else ""
        if array.shape != leaf.shape:
            return f"{where}shape {array.shape}, expected {leaf.shape}"
        dtype = numpy_dtype(leaf.dtype)
        if not fits(array, dtype):
            return f"{where}dtype {array.dtype}, expected {dtype}"
    return None


def fits(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an array can be cast without loss; rounding a float to a smaller float does not count as one.

    Args:
        array: of any dtype.
        dtype: that it is cast to.
    """
    if array.dtype == dtype or (array.dtype.kind == "f" and dtype.kind == "f"):
        return True
    if array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        return False
    with np.errstate(invalid="ignore"):
        return np.can_cast(array.dtype, dtype, "safe") or np.array_equal(array.astype(dtype), array)


def _children(spec: SpecTree) -> Any:
    return spec.items() if isinstance(spec, dict) else enumerate(spec)


def _surplus(value: Any, spec: SpecTree) -> list[Any]:
    if isinstance(spec, TensorSpec):
        return []
    known = {str(key) for key, _ in _children(spec)}
    held = value.keys() if isinstance(value, dict | Batch) else range(len(value))
    found = [key for key in held if str(key) not in known]
    return found + [key for name, child in _children(spec) for key in _surplus(_get(value, name), child)]


def _get(value: Any, key: Any) -> Any:
    try:
        return value[str(key) if isinstance(value, Batch) or (isinstance(value, dict) and key not in value) else key]
    except (KeyError, IndexError, TypeError):
        held = list(value.keys()) if isinstance(value, dict | Batch) else type(value).__name__
        raise SpecError(f"the entry {key!r} is missing; given: {held}") from None


def like(mask: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """A mask of rows as a leaf needs it: [B, 1, ..., 1].

    Args:
        mask: [B].
        leaf: [B, ...].
    """
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))
