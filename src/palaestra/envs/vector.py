"""What the batched environments share: checking actions, and building batched time steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from palaestra.core import (
    Batch,
    DiscreteSpec,
    ShapeError,
    SpecError,
    SpecTree,
    TensorSpec,
    TimeStep,
    numpy_dtype,
    spec_leaves,
)
from palaestra.envs.boundary import leaf_bounds
from palaestra.envs.nest import flatten, leaf_dtypes, neutral, to_batched, unflatten
from palaestra.envs.rows import Infos, Rows

# Larger sets of discrete actions are not kept as scalars.
_MOST_SCALARS = 4096

_tensor = torch.from_numpy

__all__ = ["ActionReader", "batched_info", "batched_time_step", "check_seeds", "fresh_seeds", "tolerant"]


class ActionReader:
    """Reads batched actions into numpy.

    Args:
        spec: of one bare action.
        batch_size: B.
    """

    def __init__(self, spec: SpecTree, batch_size: int) -> None:
        self._spec = spec
        self._plain = isinstance(spec, TensorSpec)
        leaves = zip(spec_leaves(spec).items(), leaf_dtypes(spec), strict=True)
        # Making a numpy scalar takes longer than finding one, and environments want numpy scalars.
        self._scalars: dict[int, Any] | None = None
        if isinstance(spec, DiscreteSpec) and spec.num <= _MOST_SCALARS:
            kind = numpy_dtype(spec.dtype).type
            self._scalars = {value: kind(value) for value in range(spec.start, spec.start + spec.num)}
        self._given: tuple[Any, list[Any]] = None, []
        self._expected = [(path, (batch_size, *leaf.shape), dtype) for (path, leaf), dtype in leaves]
        self._bounds = [bounds and tolerant(bounds) for bounds in map(leaf_bounds, spec_leaves(spec).values())]
        self._zeros = [np.zeros(int(np.prod(shape)), dtype) for _, shape, dtype in self._expected]

    def read(self, action: Any) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of a batched action, cast to the spec's dtypes, in memory of their own.

        Args:
            action: tensor, array, or a nest shaped like the spec.

        Raises:
            ShapeError: a shape differs from the spec.
            SpecError: the action does not have the spec's structure, or an integer is needed and one is NaN, a
                fraction, or more than the spec's dtype can hold.
        """
        if self._plain:
            path, shape, dtype = self._expected[0]
            if type(action) is torch.Tensor:
                try:
                    array = action.numpy()
                    if array.shape == shape and array.dtype == dtype:
                        return [array.copy()]
                except (RuntimeError, TypeError):  # on another device, with a gradient, or of no dtype of numpy's
                    pass
            return [_array(action, path, shape, dtype, self._bounds[0])]
        leaves = zip(flatten(action, self._spec), self._expected, self._bounds, strict=True)
        return [_array(leaf, *expected, bounds) for leaf, expected, bounds in leaves]

    def zeros(self) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of zeros."""
        return [np.zeros(shape, dtype) for _, shape, dtype in self._expected]

    def neutral(self) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of zeros, or of what the spec allows next to them."""
        leaves = flatten(neutral(self._spec), self._spec)
        pairs = zip(leaves, self._expected, strict=True)
        return [np.broadcast_to(leaf, shape).astype(dtype) for leaf, (_, shape, dtype) in pairs]

    def per_lane(self, arrays: list[np.ndarray]) -> Any:
        """One action for every lane, as its bare environment takes it.

        Args:
            arrays: from `read`, with nothing `wrong`.
        """
        scalars = self._scalars
        if scalars is not None:
            array, given = self._given
            return given if array is arrays[0] else [scalars[value] for value in arrays[0].tolist()]
        if self._plain:
            return arrays[0]
        return [unflatten((array[lane] for array in arrays), self._spec) for lane in range(len(arrays[0]))]

    def wrong(self, arrays: list[np.ndarray]) -> tuple[int, str] | None:
        """The first action that no environment may see: NaN, infinite, or outside the bounds of its space.

        Args:
            arrays: from `read`.

        Returns:
            The lane and what is wrong with its action; `None` if all are well.
        """
        scalars = self._scalars
        if scalars is not None:
            try:
                self._given = arrays[0], [scalars[value] for value in arrays[0].tolist()]
            except KeyError:
                return self._named(arrays)
            return None
        for array, bounds, zeros in zip(arrays, self._bounds, self._zeros, strict=True):
            if zeros.dtype.kind == "f" and np.vdot(array, zeros) != 0.0:
                return self._named(arrays)
            if bounds is not None and ((array < bounds[0]).any() or (array > bounds[1]).any()):
                return self._named(arrays)
        return None

    def _named(self, arrays: list[np.ndarray]) -> tuple[int, str]:
        for (path, _, dtype), bounds, array in zip(self._expected, self._bounds, arrays, strict=True):
            bad = ~np.isfinite(array) if dtype.kind == "f" else np.zeros(array.shape, np.bool_)
            if bounds is not None:
                bad |= (array < bounds[0]) | (array > bounds[1])
            if bad.any():
                lane, *index = np.argwhere(bad)[0].tolist()
                low, high = (
                    np.broadcast_to(bound, array.shape[1:])[tuple(index)] for bound in bounds or (-np.inf, np.inf)
                )
                where = (f" at {path!r}" if path else "") + (f" at index {index}" if index else "")
                return lane, f"value {array[(lane, *index)]}{where}, expected a number in [{low}, {high}]"
        raise SpecError(f"the actions {arrays} do not fit {self._spec}")


def tolerant(bounds: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that forgive the rounding of an action that was scaled to them.

    Args:
        bounds: the smallest and the largest action.
    """
    if bounds[0].dtype.kind != "f":
        return bounds
    low, high = bounds
    with np.errstate(invalid="ignore"):
        slack = np.nan_to_num(1e-5 * np.maximum(np.abs(low), np.abs(high)), nan=0.0, posinf=0.0).astype(low.dtype)
    return low - slack, high + slack


def _array(leaf: Any, path: str, shape: tuple[int, ...], dtype: np.dtype, bounds: Any) -> np.ndarray:
    array = leaf
    if not isinstance(leaf, np.ndarray):
        array = np.asarray(leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf)
    if array.shape != shape:
        where = f" at {path!r}" if path else ""
        raise ShapeError(f"the action{where} has shape {array.shape}, expected {shape}")
    if array.dtype == dtype:
        return array.copy()
    if dtype.kind not in "iub" or array.dtype.kind not in "iuf":
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    changed = cast != array
    if changed.any():
        lane, *index = np.argwhere(changed)[0].tolist()
        where = f" at {path!r}" if path else ""
        low, high = (np.broadcast_to(bound, shape[1:])[tuple(index)] for bound in bounds or _limits(dtype))
        raise SpecError(
            f"the action for environment {lane} has value {array[changed][0]}{where}, expected an integer in "
            f"[{low}, {high}]"
        )
    return cast


def _limits(dtype: np.dtype) -> tuple[int, int]:
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def batched_time_step(
    rows: Rows, prev_action: Any, env_id: torch.Tensor, info: Any, observation_spec: SpecTree
) -> TimeStep:
    """A time step of tensors that share the rows' memory.

    Args:
        rows: that nobody writes to any more.
        prev_action: a tensor or a `Batch`.
        env_id: [B].
        info: a `Batch` of numeric entries, or `()`.
        observation_spec: of one bare environment.
    """
    step_type, reward, discount, arrays = rows
    plain = isinstance(observation_spec, TensorSpec)
    observation = _tensor(arrays[0]) if plain else to_batched(arrays, observation_spec)
    # a NamedTuple's own constructor takes twice as long
    fields = (_tensor(step_type), _tensor(reward), _tensor(discount), observation, prev_action, env_id, (), info)
    return tuple.__new__(TimeStep, fields)


def batched_info(infos: Infos, batch_size: int) -> Batch:
    """Info entries as float64 tensors [B], NaN where a lane did not report one.

    Args:
        infos: numeric info by lane.
        batch_size: B.
    """
    columns: dict[str, np.ndarray] = {}
    for lane, entries in infos.items():
        for key, value in entries.items():
            column = columns.get(key)
            if column is None:
                column = columns[key] = np.full(batch_size, np.nan)
            column[lane] = value
    return Batch.of({key: torch.from_numpy(column) for key, column in columns.items()})


def fresh_seeds(count: int) -> list[int]:
    """Different 63-bit lane seeds that nobody chose.

    Args:
        count: how many.
    """
    return [int(seed) >> 1 for seed in np.random.SeedSequence().generate_state(count, np.uint64)]


def check_seeds(lane_seeds: Sequence[int], count: int) -> None:
    """Refuses seeds that do not give every environment one of its own.

    Args:
        lane_seeds: as given.
        count: number of environments.

    Raises:
        SpecError: their number is wrong, or two are equal.
    """
    if len(lane_seeds) != count or len(set(lane_seeds)) != count:
        raise SpecError(f"{count} environments were given the lane seeds {list(lane_seeds)}; each needs one of its own")
