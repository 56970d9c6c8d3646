"""`ReplayBuffer`: the streams of many lanes, stored once, drawn as unrolls, sequences or n-step windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.storage import LaneStorage
from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    OnPolicy,
    Plan,
    ShapeError,
    SpecTree,
    StepType,
    TensorSpec,
    TimeStep,
)
from palaestra.ops import n_step_end, valid_starts

__all__ = ["ReplayBuffer"]

_STEP = ("step_type", "reward", "discount", "observation")
_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
_FIRST_ROWS = 128  # of every lane, where the buffer grows


class ReplayBuffer:
    """Keeps the newest rows of every lane; a lane is one stream in time order.

    Row t holds time step t and the action taken on it. The newest row of each lane is *open*: its time step is known,
    its action is not yet. So a transition is two neighbouring rows, no observation is stored twice, and the newest
    transition is complete as soon as its time step has arrived. When a lane is full its oldest row is overwritten.

    Args:
        capacity: complete rows to keep, over all lanes; with `None` a full lane gets more room instead of losing its
            oldest row (for unrolls of any length).
        num_lanes: environments (or agents) that write.
        observation_spec: of one time step, before any normalisation.
        action_spec: of one action as the policy samples it.
        info_spec: what the policy's `behaviour` returns, by name.
        reward_spec: of one reward.
        complete_episodes_only: whether only rows of episodes that have ended are drawn (Tianshou's rule for several
            environments).

    Raises:
        ConfigError: there is not room for one row in every lane.
    """

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
        rows = (_FIRST_ROWS if capacity is None else capacity // num_lanes) + 1
        self._growing, self._complete_only = capacity is None, complete_episodes_only
        self.info_fields = tuple(info_spec or ())
        self._storage = LaneStorage(
            rows,
            num_lanes,
            {
                "step_type": TensorSpec((), torch.int32),
                "reward": reward_spec or TensorSpec(()),
                "discount": TensorSpec(()),
                "observation": observation_spec,
                "action": action_spec,
                "policy_version": TensorSpec((), torch.int32),
                "policy_info": dict(info_spec or {}),
            },
        )
        self.num_lanes, self.rows_per_lane = num_lanes, rows - 1
        self._head = np.zeros(num_lanes, np.int64)
        self._count = np.zeros(num_lanes, np.int64)
        self._unfinished = np.zeros(num_lanes, np.int64)
        self._used = False
        self._checked = False

    def __len__(self) -> int:
        """Complete rows over all lanes."""
        return int(self._count.sum())

    @property
    def size_bytes(self) -> int:
        """Memory of the storage."""
        return self._storage.size_bytes

    # -- writing

    def open(self, time_step: TimeStep, lanes: np.ndarray | None = None) -> None:
        """Starts or restarts a stream: writes time steps into the open rows without completing any.

        Args:
            time_step: one row per lane written.
            lanes: which lanes; `None` is all.
        """
        self._write_step(self._index(lanes), time_step)

    def append(
        self, action: Any, time_step: TimeStep, *, policy_version: int = 0, lanes: np.ndarray | None = None
    ) -> None:
        """Completes the open row with its action and opens the next one with the time step that followed.

        Args:
            action: what the policy sampled on the open row, one per lane written.
            time_step: what the environment answered.
            policy_version: the version that acted.
            lanes: which lanes; `None` is all.

        Raises:
            ShapeError: on the first rows, where a shape or dtype is not what the buffer was made for.
        """
        if not self._checked:
            count = self.num_lanes if lanes is None else len(lanes)
            for name, value in zip(("action", *_STEP), (action, *(getattr(time_step, n) for n in _STEP)), strict=True):
                self._storage.check(name, value, count)
            self._checked = True
        if self._used:
            self.clear()
        if self._growing and int(self._count.max()) == self.rows_per_lane:
            self._grow()
        storage, index = self._storage, self._index(lanes)
        storage.write("action", index, action)
        storage.write("policy_version", index, policy_version)
        if lanes is None and isinstance(index, int):
            index = 0 if index == self.rows_per_lane else index + 1
            self._head.fill(index)
            self._count.fill(min(int(self._count[0]) + 1, self.rows_per_lane))
        else:
            mine = slice(None) if lanes is None else lanes
            head = self._head[mine] + 1
            head[head > self.rows_per_lane] = 0
            self._head[mine] = head
            self._count[mine] = np.minimum(self._count[mine] + 1, self.rows_per_lane)
            index = self._index(lanes)
        self._write_step(index, time_step)
        if self._complete_only:
            mine = slice(None) if lanes is None else lanes
            last = np.asarray(time_step.step_type) == _LAST
            self._unfinished[mine] = np.where(last, 0, self._unfinished[mine] + 1)

    def write_info(self, info: Batch, rows: int) -> None:
        """Adds what the policy computed about its newest actions, in one batched pass after acting.

        Args:
            info: the fields of `info_spec`, `[rows, lanes, ...]`, of the newest complete rows.
            rows: how many rows of every lane.
        """
        index = (self._newest(rows), np.arange(self.num_lanes))
        for name in self.info_fields:
            self._storage.write(f"policy_info.{name}", index, info[name])

    def clear(self) -> None:
        """Forgets all complete rows; the open rows stay, so streams go on."""
        self._used = False
        self._unfinished[:] = 0
        for head in set(self._head.tolist()):
            if head:
                lanes = np.flatnonzero(self._head == head)
                for tensor in self._storage.tensors.values():
                    tensor[0, lanes] = tensor[head, lanes]
        self._head[:] = 0
        self._count[:] = 0

    def _grow(self) -> None:
        """Doubles the room, with every lane's rows moved to the front in time order."""
        old, rows = self._storage, self.rows_per_lane + 1
        order = (self._head - self._count + np.arange(rows)[:, None]) % rows  # [rows, lanes]
        self._storage = LaneStorage(2 * self.rows_per_lane + 1, self.num_lanes, old.specs)
        for name, tensor in old.tensors.items():
            self._storage.tensors[name][:rows] = tensor[order, np.arange(self.num_lanes)]
        self._head[:] = self._count
        self.rows_per_lane *= 2

    def _index(self, lanes: np.ndarray | None) -> Any:
        if lanes is not None:
            return self._head[lanes], lanes
        head = int(self._head[0])
        return head if self.lockstep else (self._head, np.arange(self.num_lanes))

    @property
    def lockstep(self) -> bool:
        """Whether all lanes are written together, so that a vector step is one contiguous row."""
        head = self._head.tolist()
        return head.count(head[0]) == self.num_lanes

    def _write_step(self, index: Any, time_step: TimeStep) -> None:
        storage = self._storage
        storage.write("step_type", index, time_step.step_type)
        storage.write("reward", index, time_step.reward)
        storage.write("discount", index, time_step.discount)
        storage.write("observation", index, time_step.observation)

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
        if rows > int(self._count.min()):
            raise ShapeError(f"{rows} rows were asked for, but the lanes hold {self._count.tolist()}")
        return self._unroll(self._newest(rows, and_open=True))

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update.

        Args:
            plan: an on-policy plan gets everything as one `Unroll`, which the next `append` discards; a replay plan
                gets random `Windows`, or an `Unroll` of random sequences where `mini_batch_length` is above 1.
            generator: source of the sampled rows.

        Raises:
            ShapeError: the buffer does not hold a single row to learn from.
        """
        if isinstance(plan, OnPolicy):
            self._used = True
            return self._whole()
        count = plan.num_updates * plan.mini_batch_size
        if plan.mini_batch_length == 1:
            return self.windows(self._starts(count, plan.n_step, generator), plan.n_step)
        return self._sequences(count, plan.mini_batch_length, generator)

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Uniform sampling has no priorities: does nothing.

        Args:
            indices: ignored.
            priority: ignored.
        """

    def windows(self, index: np.ndarray, n_step: int) -> Windows:
        """The n-step windows that start at given rows.

        Args:
            index: [N] row numbers whose next `n_step` rows exist.
            n_step: n.
        """
        storage = self._storage
        rows = index + self.num_lanes * np.arange(n_step + 1)[:, None]  # [n+1, N]
        rows[1:] %= (self.rows_per_lane + 1) * self.num_lanes
        step_type = storage.take("step_type", rows)
        last = rows[1] if n_step == 1 else np.take_along_axis(rows, n_step_end(step_type).numpy()[None], 0)[0]
        return Windows.of(
            {
                "observation": storage.take("observation", index),
                "action": storage.take("action", index),
                "next_observation": storage.take("observation", last),
                "reward": storage.take("reward", rows),
                "discount": storage.take("discount", rows),
                "step_type": step_type,
                "policy_info": storage.take("policy_info", index),
                "index": torch.from_numpy(index),
            }
        )

    def recent(self, name: str, rows: int) -> Any:
        """One field of the newest complete rows of every lane, in time order.

        Args:
            name: of the field.
            rows: T.

        Returns:
            [T, B, ...]; a view where the rows lie together.
        """
        start = int(self._head[0]) - rows
        if self.lockstep and start >= 0:
            return self._storage.view(name, slice(start, start + rows))
        return self._storage.take(name, self._newest(rows) * self.num_lanes + np.arange(self.num_lanes))

    def _whole(self) -> Unroll:
        rows = int(self._count.max())
        if rows == 0:
            raise ShapeError("the buffer holds no rows; collect before learning")
        unroll = self._unroll(self._newest(rows, and_open=True))
        short = self._count < rows
        if short.any():  # a shorter lane is padded in front
            held = np.arange(rows)[:, None] >= rows - self._count[None]
            unroll = unroll.replace(valid=unroll.valid * torch.from_numpy(held))
        if self._complete_only:
            ended = np.arange(rows)[:, None] < rows - self._unfinished[None]
            unroll = unroll.replace(valid=unroll.valid * torch.from_numpy(ended))
        return unroll

    def _newest(self, rows: int, *, and_open: bool = False) -> Any:
        """Ring positions of the newest rows: a slice of rows, or [T, B] where they do not lie together."""
        end = rows + 1 if and_open else rows
        if self.lockstep and (start := int(self._head[0]) - rows) >= 0:
            return np.arange(start, start + end)[:, None] if not and_open else slice(start, start + end)
        return (self._head[None] - rows + np.arange(end)[:, None]) % (self.rows_per_lane + 1)

    def _unroll(self, rows: Any) -> Unroll:
        storage = self._storage
        if isinstance(rows, slice):
            inner = slice(rows.start, rows.stop - 1)

            def get(name: str, which: Any) -> Any:
                return storage.view(name, which)
        else:
            rows = rows * self.num_lanes + np.arange(self.num_lanes)
            inner = rows[:-1]

            def get(name: str, which: Any) -> Any:
                return storage.take(name, which)

        fields = {name: get(name, rows) for name in _STEP}
        fields |= {name: get(name, inner) for name in ("action", "policy_info", "policy_version")}
        return Unroll.of({**fields, "valid": valid_starts(fields["step_type"]).to(torch.float32)})

    # -- sampling

    def _starts(self, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Uniform row numbers of valid starts whose next `length` rows exist."""
        found: list[np.ndarray] = []
        missing = count
        for _ in range(100):
            drawn = self._random_rows(missing + missing // 4 + 8, length, generator)
            found.append(drawn[self._valid(drawn)][:missing])
            missing -= len(found[-1])
            if not missing:
                return found[0] if len(found) == 1 else np.concatenate(found)
        raise ShapeError(f"hardly any of the {len(self)} rows can be learned from: episodes end at once; collect more")

    def _random_rows(self, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        rows, lanes = self.rows_per_lane + 1, self.num_lanes
        # the window must not cross the write head
        usable = np.maximum(self._count - np.maximum(length - 1, self._unfinished), 0)
        total = int(usable.sum())
        if total == 0:
            raise ShapeError(f"no row has {length} successors yet; the lanes hold {self._count.tolist()} rows")
        number = torch.randint(total, (count,), generator=generator).numpy()
        if self.lockstep and not self._complete_only:
            first = (int(self._head[0]) - int(self._count[0])) % rows * lanes
            return number + first if first + total <= rows * lanes else (number + first) % (rows * lanes)
        ends = np.cumsum(usable)
        lane = np.searchsorted(ends, number, side="right")
        age = number - (ends - usable)[lane]
        return (self._head[lane] - self._count[lane] + age) % rows * lanes + lane

    def _valid(self, index: np.ndarray) -> np.ndarray:
        """Which rows are valid starts; the rows after them exist."""
        after = (index + self.num_lanes) % ((self.rows_per_lane + 1) * self.num_lanes)
        flat = self._storage.flat("step_type")
        return (flat.take(index) != _LAST) & (flat.take(after) != _FIRST)

    def _sequences(self, count: int, length: int, generator: torch.Generator) -> Unroll:
        index = self._starts(count, length, generator)
        rows = (index[None] + np.arange(length + 1)[:, None] * self.num_lanes) % (
            (self.rows_per_lane + 1) * self.num_lanes
        )
        storage = self._storage
        fields = {name: storage.take(name, rows) for name in _STEP}
        fields |= {name: storage.take(name, rows[:-1]) for name in ("action", "policy_info", "policy_version")}
        # what lies after the end of the first episode is another episode's
        valid = valid_starts(fields["step_type"]).to(torch.float32).cumprod(0)
        return Unroll.of({**fields, "valid": valid})

    # -- checkpoints

    def state_tensors(self) -> dict[str, Any]:
        """Everything the buffer holds, by name."""
        used = self.rows_per_lane + 1 if (self._count == self.rows_per_lane).any() else int(self._head.max()) + 1
        fields = {f"field.{name}": tensor[:used] for name, tensor in self._storage.tensors.items()}
        lanes = {"head": self._head, "count": self._count, "unfinished": self._unfinished}
        return {**fields, **lanes, "used": self._used}

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            tensors: of a buffer with the same specs, lanes and capacity.

        Raises:
            CheckpointError: a field is missing or does not fit.
        """
        for name, tensor in self._storage.tensors.items():
            saved = tensors.get(f"field.{name}")
            if saved is None or saved.shape[1:] != tensor.shape[1:] or len(saved) > len(tensor):
                shape = None if saved is None else tuple(saved.shape)
                raise CheckpointError(f"the saved buffer field {name!r} {shape} does not fit {tuple(tensor.shape)}")
            tensor[: len(saved)] = saved
        for name, mine in (("head", self._head), ("count", self._count), ("unfinished", self._unfinished)):
            mine[:] = tensors[name]
        self._used = bool(tensors["used"])
