"""`StreamAccess`: reading streams by age, by row number and in time order, and putting them into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.layouts import Unroll
from palaestra.buffers.streams import FIRST, LAST, LaneStreams
from palaestra.core import CheckpointError, ShapeError
from palaestra.ops import valid_starts

__all__ = ["StreamAccess"]


class StreamAccess(LaneStreams):
    """Everything that reads rows without choosing among them."""

    def __len__(self) -> int:
        """Complete rows over all lanes."""
        return self._heads.total

    def newest(self, rows: int) -> Unroll:
        """The newest complete rows of every lane in time order, and the open row after them.

        Args:
            rows: T, at most the rows that every lane has.

        Returns:
            An `Unroll` of `[T+1, B]`; views of the storage where the rows lie together.

        Raises:
            ShapeError: a lane has fewer rows.
        """
        if not 0 < rows <= self._heads.shortest:
            raise ShapeError(f"{rows} rows were asked for, but {self.held()}")
        return self._unroll(self._heads.newest(rows, and_open=True))

    def recent(self, name: str, rows: int) -> Any:
        """One field of the newest complete rows of every lane, in time order.

        Args:
            name: of the field.
            rows: T; a lane that holds fewer repeats its oldest one in front.

        Returns:
            [T, B, ...]; a view where the rows lie together.
        """
        return self._get(name, self._heads.newest(rows, and_open=False))

    def take(self, name: str, index: np.ndarray | Tensor) -> Any:
        """A copy of one field at row numbers.

        Args:
            name: of the field.
            index: row numbers such as those of `Windows.index`, of any shape.

        Returns:
            [*index.shape, ...].
        """
        return self._storage.take(name, np.asarray(index))

    def next(self, index: Tensor) -> Tensor:
        """The rows one step later; a row that no step of its own episode follows stays where it is.

        Args:
            index: [N] row numbers.

        Returns:
            [N] row numbers.
        """
        rows = index.numpy()
        heads = self._heads.numbers(rows % self.num_lanes)
        after = (rows + self.num_lanes) % (self._heads.places * self.num_lanes)
        return torch.from_numpy(np.where((rows != heads) & self.is_start(rows), after, rows))

    def held(self) -> str:
        """How many rows the lanes hold, in words."""
        return f"the lanes hold {self._heads.counts.tolist()} rows"

    def _get(self, name: str, places: slice | np.ndarray) -> Any:
        if isinstance(places, slice):
            return self._storage.view(name, places)
        return self._storage.take(name, self._heads.numbers_at(places))

    def _unroll(self, places: slice | np.ndarray) -> Unroll:
        complete = slice(places.start, places.stop - 1) if isinstance(places, slice) else places[:-1]
        fields = {name: self._get(name, places) for name in self.step_fields}
        fields |= {name: self._get(name, complete) for name in ("action", "policy_info", "policy_version")}
        if self._states is not None and self.state_period == 1:
            fields["state"] = self._take_states(complete)
        return Unroll.of({**fields, "valid": valid_starts(fields["step_type"]).to(torch.float32)})

    def _take_states(self, places: slice | np.ndarray) -> Any:
        """The memories of rows at places of all lanes, where every row keeps one."""
        assert self._states is not None
        if isinstance(places, slice):
            return self._states.view("state", places)
        return self._states.take("state", self._heads.numbers_at(places))

    def is_start(self, index: np.ndarray) -> np.ndarray:
        """Whether rows may be learned from: `ops.valid_starts` at row numbers.

        Args:
            index: [N] of rows that others follow.
        """
        kinds = self._kinds
        return (kinds.take(index) != LAST) & (kinds.take(index + self.num_lanes, mode="wrap") != FIRST)

    # -- checkpoints

    def state_tensors(self) -> dict[str, Any]:
        """Everything the buffer holds, by name; tensors are views of it."""
        heads = self._heads
        wrapped = bool((heads.heads < heads.counts).any())
        rows = heads.places if wrapped else int(heads.heads.max()) + 1
        fields = {f"field.{name}": tensor[:rows] for name, tensor in self._storage.tensors.items()}
        if self._states is not None:
            slots = -(-rows // self.state_period)
            fields |= {f"field.{name}": tensor[:slots] for name, tensor in self._states.tensors.items()}
        return {**fields, **heads.state(), "rows_per_lane": heads.rows, "used": self._used}

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            tensors: of a buffer with the same specs, lanes and capacity.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        rows = tensors.get("rows_per_lane", 0)
        if rows != self._heads.rows:
            if not self._growing:
                raise CheckpointError(f"the saved buffer has {rows} rows per lane, but this one has {self._heads.rows}")
            self._resize(rows, np.empty((0, self.num_lanes), np.int64))
            self._heads.restart(0, rows)
        tensors_here = self._storage.tensors | (self._states.tensors if self._states is not None else {})
        for name, tensor in tensors_here.items():
            saved = tensors.get(f"field.{name}")
            given = None if saved is None else (tuple(saved.shape[1:]), saved.dtype)
            if saved is None or given != (tuple(tensor.shape[1:]), tensor.dtype) or len(saved) > len(tensor):
                needed = (tuple(tensor.shape[1:]), tensor.dtype)
                raise CheckpointError(f"the saved buffer field {name!r} has rows of {given}, but this one of {needed}")
            tensor[: len(saved)] = saved
        self._heads.load_state(tensors)
        self._used = bool(tensors["used"])
