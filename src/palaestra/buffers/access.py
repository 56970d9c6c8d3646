"""`StreamAccess`: reading streams by age, by row number and in time order, and putting them into checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.layouts import Unroll
from palaestra.buffers.segments import SegmentKeys
from palaestra.buffers.storage import LaneStorage
from palaestra.buffers.streams import FIRST, LAST, LaneStreams
from palaestra.core import Batch, CheckpointError, ShapeError, as_array, describe_segments, did_you_mean
from palaestra.ops import valid_starts

__all__ = ["StreamAccess"]


_STRIDE = 64  # rows that `_walk` looks ahead at once


class Field:
    """One field of all rows: `field[i]` takes rows by row number, `field.camera` is a part of a nest.

    Args:
        storage: of the buffer.
        name: path of the field.
        require_rows: raises where a row number is that of no row.
    """

    __slots__ = ("_name", "_require_rows", "_storage")

    def __init__(self, storage: LaneStorage, name: str, require_rows: Callable[[np.ndarray], None]) -> None:
        self._storage, self._name, self._require_rows = storage, name, require_rows

    def __getitem__(self, index: Any) -> Any:
        rows = np.asarray(as_array(index))
        self._require_rows(rows)
        return _taken(self._storage, self._name, rows)

    def __getattr__(self, key: str) -> Field:
        if key not in self._storage.parts(self._name):
            raise AttributeError(
                f"{self._name} has no part {key!r}{did_you_mean(key, self._storage.parts(self._name))}"
            )
        return Field(self._storage, f"{self._name}.{key}", self._require_rows)


def _taken(storage: LaneStorage, name: str, rows: np.ndarray) -> Any:
    """A field at row numbers of any shape, none included."""
    taken = storage.take(name, np.atleast_1d(rows))
    return taken if rows.ndim else taken[0]


def _like(given: Any, rows: np.ndarray) -> Any:
    """Row numbers as what was given: a tensor, an array or a number."""
    if isinstance(given, Tensor):
        return torch.from_numpy(np.asarray(rows)).to(given.device)
    return rows if isinstance(given, np.ndarray) else int(rows)


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
        return self._storage.take(name, np.asarray(as_array(index)))

    def __getitem__(self, index: Any) -> Batch:
        """Rows by row number: every field of them, as it was stored.

        Args:
            index: a row number, or [N] of them; `episodes`, `starts` and the `index` of what is drawn give them.

        Raises:
            IndexError: no row is there.
        """
        rows = np.asarray(as_array(index))
        self._require_rows(rows)
        return Batch.of({name: _taken(self._storage, name, rows) for name in self._storage.specs})

    def __getattr__(self, name: str) -> Field:
        storage = self.__dict__.get("_storage")
        if storage is None or name not in storage.specs:
            raise AttributeError(f"{type(self).__name__} has no attribute and no field {name!r}")
        return Field(storage, name, self._require_rows)

    def field(self, name: str) -> Field:
        """One field of all rows: `buffer.observation[i]` is `buffer[i].observation`, and nothing else is read.

        Args:
            name: of the field; `buffer.reward` is short for `buffer.field("reward")`. It takes the same numbers as
                `buffer[...]`, and raises the same `IndexError`.
        """
        return Field(self._storage, name, self._require_rows)

    def next(self, index: Any) -> Any:
        """The rows one step later; a row that no step of its own episode follows stays where it is.

        Args:
            index: [N] row numbers, or one.

        Returns:
            [N] row numbers, of the type given.

        Raises:
            IndexError: no row is there.
        """
        rows = np.asarray(as_array(index))
        self._require_rows(rows)
        stays = (rows == self._heads.numbers(rows % self.num_lanes)) | ~self.is_start(rows)
        return _like(index, np.where(stays, rows, self.after(rows, 1)))

    def prev(self, index: Any) -> Any:
        """The rows one step earlier; the first row of an episode, or of what is left of it, stays where it is.

        Args:
            index: [N] row numbers, or one.

        Returns:
            [N] row numbers, of the type given.

        Raises:
            IndexError: no row is there.
        """
        rows = np.asarray(as_array(index))
        self._require_rows(rows)
        before = self.after(rows, -1)
        stays = (self.ages(rows) == 0) | ~self.is_start(before)
        return _like(index, np.where(stays, rows, before))

    def after(self, index: np.ndarray, steps: np.ndarray | int) -> np.ndarray:
        """Row numbers so many steps later in the lanes, whatever lies between.

        Args:
            index: [N] row numbers.
            steps: of a shape that fits; negative ones lie before.
        """
        return (index + self.num_lanes * np.asarray(steps)) % (self._heads.places * self.num_lanes)

    def ages(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its lane are older than a row.

        Args:
            index: [N] row numbers.
        """
        lane = index % self.num_lanes
        oldest = self._heads.heads[lane] - self._heads.counts[lane]
        return (index // self.num_lanes - oldest) % self._heads.places

    def in_time_order(self, lane: int) -> np.ndarray:
        """Row numbers of all rows of a lane, the oldest first and the open one last.

        Args:
            lane: its number.
        """
        heads = self._heads
        rows = np.arange(heads.counts[lane] + 1) if heads.opened[lane] else np.arange(0)
        return (heads.heads[lane] - heads.counts[lane] + rows) % heads.places * self.num_lanes + lane

    def episodes(self) -> list[np.ndarray]:
        """Row numbers of the complete episodes, from FIRST to LAST; those of lane 0 come first, in time order."""
        found: list[np.ndarray] = []
        for lane in range(self.num_lanes):
            rows = self.in_time_order(lane)
            kinds = self._kinds[rows]
            ends, firsts = np.flatnonzero(kinds == LAST), np.flatnonzero(kinds == FIRST)
            begins = np.searchsorted(firsts, ends) - 1
            for end, begin, before in zip(ends, begins, [-1, *ends], strict=False):
                if begin >= 0 and firsts[begin] > before:
                    found.append(rows[firsts[begin] : end + 1])
        return found

    @property
    def unfinished(self) -> np.ndarray:
        """Row numbers of the open rows whose episodes are still running: at most one of each lane."""
        rows = self._heads.numbers(np.arange(self.num_lanes))
        return rows[self._heads.opened & (self._kinds[rows] != LAST)]

    def steps_to_end(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its episode follow a row, up to the newest one.

        Args:
            index: [N] row numbers.
        """
        most = self._heads.counts[index % self.num_lanes] - self.ages(index)
        return self._walk(index, most, +1)

    def steps_from_begin(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its episode come before a row, from the oldest one on.

        Args:
            index: [N] row numbers.
        """
        return self._walk(index, self.ages(index), -1)

    def _walk(self, index: np.ndarray, most: np.ndarray, direction: int) -> np.ndarray:
        """How far one gets without leaving the episode, at most so far."""
        steps, going = np.zeros_like(index), np.arange(len(index))
        while len(going):
            ahead = np.arange(_STRIDE)[:, None] + steps[going] + (direction < 0)
            between = self.is_start(self.after(index[going], direction * ahead))  # [stride, N] row and its successor
            far = np.where(between.all(0), _STRIDE, between.argmin(0))
            steps[going] = np.minimum(steps[going] + far, most[going])
            going = going[(far == _STRIDE) & (steps[going] < most[going])]
        return steps

    def ends_with_next(self, index: np.ndarray) -> np.ndarray:
        """Whether the action of a row ended its episode.

        Args:
            index: [N] of rows that others follow.
        """
        return self._kinds.take(index + self.num_lanes, mode="wrap") == LAST

    def _require_rows(self, rows: np.ndarray) -> None:
        size = self._heads.places * self.num_lanes
        if rows.dtype.kind not in "iu" or (rows.size and not 0 <= rows.min() <= rows.max() < size):
            raise IndexError(f"row numbers are integers from 0 to {size - 1}; given was {rows}")
        lane = rows % self.num_lanes
        missing = ~self._heads.opened[lane] | (self.ages(rows) > self._heads.counts[lane])
        if missing.any():
            raise IndexError(f"no row has the number {rows[missing].flat[0]}; {self.held()}")

    def held(self) -> str:
        """How many rows the lanes hold, in words."""
        return f"the lanes hold {self._heads.counts.tolist()} rows"

    def _get(self, name: str, places: slice | np.ndarray) -> Any:
        if name == "state":
            return self._take_states(places)
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
        wrapped = bool((heads.heads < heads.counts + heads.spare).any())
        rows = heads.places if wrapped else int(heads.heads.max()) + 1
        fields: dict[str, Any] = {f"field.{name}": tensor[:rows] for name, tensor in self._storage.tensors.items()}
        if self._states is not None:
            slots = -(-rows // self.state_period)
            fields |= {f"field.{name}": tensor[:slots] for name, tensor in self._states.tensors.items()}
        if not self._growing:
            fields["segments"] = self._segments(rows)
        return {**fields, **heads.state(), "rows_per_lane": heads.rows, "used": self._used}

    def _segments(self, rows: int) -> str:
        """How a checkpoint cuts the fields, so that it writes only what is new since the one before."""
        if self._keys is None:
            self._keys = SegmentKeys(self._heads, self.state_period, self.size_bytes)
        keys, self._info_rows = self._keys.keys(rows, self._info_rows), 0
        places = {f"field.{name}": self._keys.places for name in self._storage.tensors}
        if self._states is not None:
            places |= {f"field.{name}": self._keys.places // self.state_period for name in self._states.tensors}
        return describe_segments(keys, places)

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
        if self._log is not None:
            self._heads.write_to(self._log)
        self._used = bool(tensors["used"])
