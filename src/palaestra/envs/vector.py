"""What the batched environments share: checking actions, and building batched time steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from palaestra.envs.lanes import Infos, Rows
from palaestra.envs.nest import flatten, leaf_dtypes, to_batched, unflatten

# Larger sets of discrete actions are not kept as scalars.
_MOST_SCALARS = 4096

_tensor = torch.from_numpy

__all__ = ["ActionReader", "batched_info", "batched_time_step", "check_all_lanes", "check_seeds", "fresh_seeds"]


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
        self._expected = [(path, (batch_size, *leaf.shape), dtype) for (path, leaf), dtype in leaves]

    def read(self, action: Any) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of a batched action, cast to the spec's dtypes, in memory of their own.

        Args:
            action: tensor, array, or a nest shaped like the spec.

        Raises:
            ShapeError: a shape differs from the spec.
            SpecError: the action does not have the spec's structure.
        """
        if self._plain:
            return [_array(action, *self._expected[0])]
        leaves = flatten(action, self._spec)
        return [_array(leaf, *expected) for leaf, expected in zip(leaves, self._expected, strict=True)]

    def zeros(self) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of zeros."""
        return [np.zeros(shape, dtype) for _, shape, dtype in self._expected]

    def per_lane(self, arrays: list[np.ndarray]) -> Iterable[Any]:
        """One action for every lane, as its bare environment takes it.

        Args:
            arrays: from `read`.

        Raises:
            SpecError: a discrete action does not exist.
        """
        if self._scalars is not None:
            try:
                return [self._scalars[value] for value in arrays[0].tolist()]
            except KeyError:
                self.check(arrays)
        if self._plain:
            return arrays[0]
        return [unflatten((array[lane] for array in arrays), self._spec) for lane in range(len(arrays[0]))]

    def check(self, arrays: list[np.ndarray]) -> None:
        """Refuses a discrete action that does not exist.

        Args:
            arrays: from `read`.

        Raises:
            SpecError: the message names the environment.
        """
        if self._scalars is None or self._scalars.keys() >= set(arrays[0].tolist()):
            return
        for lane, value in enumerate(arrays[0]):
            wrong = self._spec.problem(value)
            if wrong:
                raise SpecError(f"the action for environment {lane} has {wrong}")


def _array(leaf: Any, path: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
    if array.shape != shape:
        where = f" at {path!r}" if path else ""
        raise ShapeError(f"the action{where} has shape {array.shape}, expected {shape}")
    return array.astype(dtype)


def batched_time_step(
    rows: Rows, prev_action: Any, env_id: torch.Tensor, infos: Infos | None, observation_spec: SpecTree
) -> TimeStep:
    """A time step of tensors that share the rows' memory.

    Args:
        rows: that nobody writes to any more.
        prev_action: a tensor or a `Batch`.
        env_id: [B].
        infos: numeric info by lane.
        observation_spec: of one bare environment.
    """
    step_type, reward, discount, arrays = rows
    plain = isinstance(observation_spec, TensorSpec)
    observation = _tensor(arrays[0]) if plain else to_batched(arrays, observation_spec)
    info = () if infos is None else batched_info(infos, len(step_type))
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


def check_all_lanes(env_id: torch.Tensor | None, batch_size: int, kind: str) -> None:
    """Refuses actions for some of the environments where all are stepped together.

    Args:
        env_id: as given to `send`.
        batch_size: B.
        kind: of environment; for the error message.

    Raises:
        SpecError: it is not `None` and not 0 ... B - 1.
    """
    if env_id is not None and env_id.tolist() != list(range(batch_size)):
        raise SpecError(
            f"{kind} steps its {batch_size} environments together, and was sent actions for {env_id.tolist()}; "
            "leave env_id out"
        )
