"""`LaneStreams`: the streams of many lanes, stored once; what every buffer does before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.heads import WriteHeads
from palaestra.buffers.layouts import Unroll
from palaestra.buffers.storage import LaneStorage
from palaestra.core import CheckpointError, ConfigError, ShapeError, SpecTree, StepType, TensorSpec, TimeStep
from palaestra.ops import valid_starts

__all__ = ["LaneStreams"]

FIRST, LAST = int(StepType.FIRST), int(StepType.LAST)
_FIRST_ROWS = 128  # of every lane, where the buffer grows


class LaneStreams:
    """The streams themselves: writing, the newest rows, and checkpoints. `ReplayBuffer` adds what is drawn.

    Args:
        capacity: see `ReplayBuffer`.
        num_lanes: streams side by side.
        observation_spec: of one time step.
        action_spec: of one action.
        info_spec: of what the policy adds to a row, by name.
        reward_spec: of one reward.
        complete_episodes_only: see `ReplayBuffer`.

    Raises:
        ConfigError: there is not room for one row in every lane.
    """

    step_fields: ClassVar[tuple[str, ...]] = ("step_type", "reward", "discount", "observation")
    """What a row keeps of its time step."""

    def __init__(
        self,
        capacity: int | None,
        num_lanes: int,
        *,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        info_spec: Mapping[str, TensorSpec] | None = None,
        reward_spec: TensorSpec | None = None,
        complete_episodes_only: bool = False,
    ) -> None:
        if num_lanes < 1 or (capacity is not None and capacity < num_lanes):
            raise ConfigError(f"capacity {capacity} has no room for one row in each of {num_lanes} lanes")
        self._growing, self._complete_only = capacity is None, complete_episodes_only
        self.num_lanes, self.info_fields = num_lanes, tuple(info_spec or ())
        self._heads = WriteHeads(num_lanes, _FIRST_ROWS if capacity is None else capacity // num_lanes)
        specs = {
            "step_type": TensorSpec((), torch.int32),
            "reward": reward_spec or TensorSpec(()),
            "discount": TensorSpec(()),
            "observation": observation_spec,
            "action": action_spec,
            "policy_version": TensorSpec((), torch.int32),
            "policy_info": dict(info_spec or {}),
        }
        self._set_storage(LaneStorage(self._heads.places, num_lanes, specs))
        self._used = False

    def __len__(self) -> int:
        """Complete rows over all lanes."""
        return self._heads.total

    @property
    def rows_per_lane(self) -> int:
        """Complete rows that one lane can hold at present."""
        return self._heads.rows

    @property
    def size_bytes(self) -> int:
        """Memory of the storage."""
        return self._storage.size_bytes

    @property
    def lockstep(self) -> bool:
        """Whether all lanes are written together, so that a vector step is one contiguous row."""
        return self._heads.together

    # -- writing

    def open(self, time_step: TimeStep, lanes: np.ndarray | None = None) -> None:
        """Starts or restarts streams: their open rows become these time steps, and no row is completed by an action.

        Args:
            time_step: one row per lane written.
            lanes: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for.
        """
        heads, which = self._heads, self._which(lanes)
        arrived = self._checked_step(time_step, len(which))
        going = which[heads.opened[which]]
        ended = going[self._kinds[heads.numbers(going)] == LAST]
        if ended.size:  # the last step of an episode stays, as a row whose action does not count
            self._make_room(ended)
            self._storage.zero(("action", "policy_version", "policy_info"), heads.numbers(ended))
            heads.advance_lanes(ended)
        if self._complete_only and going.size:
            heads.rewind(going, heads.unfinished[going])
            heads.unfinished[going] = 0
        heads.open(which)
        self._storage.write(arrived, heads.numbers(which))

    def append(
        self, action: Any, time_step: TimeStep, *, policy_version: int = 0, lanes: np.ndarray | None = None
    ) -> None:
        """Completes the open row with its action and opens the next one with the time step that followed.

        A row that is refused leaves the buffer as it was.

        Args:
            action: what the policy sampled on the open row, one per lane written.
            time_step: what the environment answered.
            policy_version: the version that acted.
            lanes: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for, or a lane was never opened.
        """
        heads = self._heads
        which = None if lanes is None else self._which(lanes)
        if which is not None and which.tolist() == list(range(self.num_lanes)):
            which = None
        if which is not None or not heads.together or not heads.all_open or self._complete_only:
            which = self._which(None) if which is None else which
            self._append_to(which, action, time_step, policy_version)
            return
        if self._used:
            self._discard()
        if self._growing and heads.count == heads.rows:
            self._grow()
        head = heads.head
        after = 0 if head == heads.rows else head + 1
        self._storage.write_rows(
            (
                ("action", action, head),
                ("step_type", time_step.step_type, after),
                ("reward", time_step.reward, after),
                ("discount", time_step.discount, after),
                ("observation", time_step.observation, after),
            )
        )
        self._versions[head * self.num_lanes : (head + 1) * self.num_lanes] = policy_version
        heads.advance()

    def _append_to(self, lanes: np.ndarray, action: Any, time_step: TimeStep, policy_version: int) -> None:
        heads = self._heads
        if not heads.all_open and not heads.opened[lanes].all():
            closed = lanes[~heads.opened[lanes]].tolist()
            raise ShapeError(f"the lanes {closed} have no open row to complete; call open(time_step, lanes) first")
        taken = self._storage.checked("action", action, len(lanes))
        arrived = self._checked_step(time_step, len(lanes))
        if self._used:
            self._discard()
        self._make_room(lanes)
        completed = heads.numbers(lanes)
        self._storage.write(taken, completed)
        self._versions[completed] = policy_version
        heads.advance_lanes(lanes)
        self._storage.write(arrived, heads.numbers(lanes))
        if self._complete_only:
            self._note_ends(lanes, completed)

    def _note_ends(self, lanes: np.ndarray, completed: np.ndarray) -> None:
        """Counts the rows of running episodes, and drops those of episodes that broke off."""
        heads = self._heads
        opened = heads.numbers(lanes)
        left, arrived = self._kinds[completed], self._kinds[opened]
        running = np.where((left == LAST) | (arrived == LAST), 0, heads.unfinished[lanes] + 1)
        broken = (arrived == FIRST) & (left != LAST)
        if broken.any():
            heads.rewind(lanes[broken], running[broken])
            self._storage.move(opened[broken], heads.numbers(lanes[broken]))
            running[broken] = 0
        heads.unfinished[lanes] = running

    def write_info(self, info: Any, rows: int) -> None:
        """Adds what the policy computed about its newest actions, in one batched pass after acting.

        Args:
            info: the fields of `info_spec`, `[rows, lanes, ...]`, of the rows that `recent` gives.
            rows: how many rows of every lane.

        Raises:
            ShapeError: the info is not what the buffer was made for.
        """
        checked = self._storage.checked("policy_info", info, rows, self.num_lanes)
        places = self._heads.newest(rows, and_open=False)
        if isinstance(places, slice):
            places = np.arange(places.start, places.stop)[:, None]
        self._storage.write(checked, self._heads.numbers_at(places))

    def clear(self) -> None:
        """Forgets all complete rows; the open rows stay, so streams go on."""
        heads, lanes = self._heads, np.arange(self.num_lanes)
        self._storage.move(heads.numbers(lanes), lanes)
        heads.restart(0)
        heads.unfinished[:] = 0
        self._used = False

    def _discard(self) -> None:
        """Forgets what an unroll has handed out; where only ended episodes count, the others wait for their end."""
        if self._complete_only and self._heads.unfinished.any():
            self._heads.keep(self._heads.unfinished)
            self._used = False
        else:
            self.clear()

    def _make_room(self, lanes: np.ndarray) -> None:
        if self._growing and (self._heads.counts[lanes] == self._heads.rows).any():
            self._grow()

    def _grow(self) -> None:
        """Doubles the room, with every lane's rows moved to the front in time order."""
        heads = self._heads
        order = (heads.heads - heads.counts + np.arange(heads.places)[:, None]) % heads.places  # [places, lanes]
        self._resize(2 * heads.rows, order)
        heads.restart(heads.counts, 2 * heads.rows)

    def _resize(self, rows: int, order: np.ndarray) -> None:
        self._set_storage(self._storage.resized(rows + 1, order))

    def _set_storage(self, storage: LaneStorage) -> None:
        self._storage = storage
        self._kinds, self._versions = storage.flat("step_type"), storage.flat("policy_version")

    def _checked_step(self, time_step: TimeStep, *leading: int) -> list[tuple[str, np.ndarray]]:
        checked = self._storage.checked
        return [
            *checked("step_type", time_step.step_type, *leading),
            *checked("reward", time_step.reward, *leading),
            *checked("discount", time_step.discount, *leading),
            *checked("observation", time_step.observation, *leading),
        ]

    def _which(self, lanes: Any) -> np.ndarray:
        if lanes is None:
            return np.arange(self.num_lanes)
        which = np.asarray(lanes)
        numbers = set(which.tolist()) if which.ndim == 1 and which.dtype.kind in "iu" else ()
        if len(numbers) != which.size or (numbers and not 0 <= min(numbers) <= max(numbers) < self.num_lanes):
            raise ShapeError(
                f"lanes is {which.tolist()}; give each lane once, as numbers from 0 to {self.num_lanes - 1}"
            )
        return which

    # -- reading

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
            raise ShapeError(f"{rows} rows were asked for, but {self._held()}")
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
        return torch.from_numpy(np.where((rows != heads) & self._valid(rows), after, rows))

    def _held(self) -> str:
        return f"the lanes hold {self._heads.counts.tolist()} rows"

    def _get(self, name: str, places: slice | np.ndarray) -> Any:
        if isinstance(places, slice):
            return self._storage.view(name, places)
        return self._storage.take(name, self._heads.numbers_at(places))

    def _unroll(self, places: slice | np.ndarray) -> Unroll:
        complete = slice(places.start, places.stop - 1) if isinstance(places, slice) else places[:-1]
        fields = {name: self._get(name, places) for name in self.step_fields}
        fields |= {name: self._get(name, complete) for name in ("action", "policy_info", "policy_version")}
        return Unroll.of({**fields, "valid": valid_starts(fields["step_type"]).to(torch.float32)})

    def _valid(self, index: np.ndarray) -> np.ndarray:
        """`ops.valid_starts` at row numbers; the rows after them exist."""
        kinds = self._kinds
        return (kinds.take(index) != LAST) & (kinds.take(index + self.num_lanes, mode="wrap") != FIRST)

    # -- checkpoints

    def state_tensors(self) -> dict[str, Any]:
        """Everything the buffer holds, by name; tensors are views of it."""
        heads = self._heads
        wrapped = bool((heads.heads < heads.counts).any())
        rows = heads.places if wrapped else int(heads.heads.max()) + 1
        fields = {f"field.{name}": tensor[:rows] for name, tensor in self._storage.tensors.items()}
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
        for name, tensor in self._storage.tensors.items():
            saved = tensors.get(f"field.{name}")
            given = None if saved is None else (tuple(saved.shape[1:]), saved.dtype)
            if saved is None or given != (tuple(tensor.shape[1:]), tensor.dtype) or len(saved) > len(tensor):
                needed = (tuple(tensor.shape[1:]), tensor.dtype)
                raise CheckpointError(f"the saved buffer field {name!r} has rows of {given}, but this one of {needed}")
            tensor[: len(saved)] = saved
        self._heads.load_state(tensors)
        self._used = bool(tensors["used"])
