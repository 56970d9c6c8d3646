"""`ReplayBuffer`: streams of many lanes, drawn as unrolls, sequences or n-step windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, Unpack, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.heads import WriteHeads
from palaestra.buffers.joining import StreamJoining, stream_pieces
from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.memory import LoadedTensors, Memory
from palaestra.buffers.samplers import Sampler, UniformSampler
from palaestra.buffers.saving import read_buffer, write_buffer
from palaestra.buffers.streams import FIRST, LAST, RowOptions
from palaestra.core import Batch, ConfigError, OnPolicy, Plan, ShapeError, to_device

__all__ = ["ReplayBuffer"]

_PIECE = 1000  # rows that are copied at once


@final
class ReplayBuffer(StreamJoining):
    """Keeps the newest rows of every lane; a lane is one stream in time order.

    Row t holds time step t and the action taken on it. The newest row of each lane is *open*: its time step is known,
    its action is not yet. So a transition is two neighbouring rows, no observation is stored twice, and the newest
    transition is complete as soon as its time step has arrived. When a lane is full its oldest row is overwritten.

    Args:
        capacity: complete rows to keep, over all lanes; with `None` a full lane gets more room instead of losing its
            oldest row (for unrolls of any length).
        num_lanes: environments (or agents) that write.
        sampler: who chooses the rows of a draw; `UniformSampler()` by default.
        options: what a row consists of, see `RowOptions`; `observation_spec` and `action_spec` are needed.

    Raises:
        ConfigError: there is not room for one row in every lane, or the options do not fit together.
        TypeError: an option is unknown, or a spec is missing.
    """

    def __init__(
        self, capacity: int | None, num_lanes: int, *, sampler: Sampler | None = None, **options: Unpack[RowOptions]
    ) -> None:
        super().__init__(capacity, num_lanes, **options)
        self.sampler = UniformSampler() if sampler is None else sampler

    def save(self, directory: str | Path) -> None:
        """Writes the buffer to a new folder: safetensors, JSON and their hashes. What its sampler knows is left out.

        Args:
            directory: must not exist yet; it appears when it is whole.

        Raises:
            ConfigError: the folder exists.
            CheckpointError: it cannot be written; nothing is left of it.
        """
        tensors = {name: value for name, value in super().state_tensors().items() if name != "segments"}
        shape = {
            "capacity": None if self._growing else self.rows_per_lane * self.num_lanes,
            "num_lanes": self.num_lanes,
        }
        write_buffer(Path(directory), shape, self.options, tensors)

    @classmethod
    def load(cls, directory: str | Path, *, sampler: Sampler | None = None, storage: Memory | None = None) -> Self:
        """A buffer with what `save` wrote, after comparing every hash. No pickle is ever read.

        Args:
            directory: its folder.
            sampler: who chooses the rows of a draw; `UniformSampler()` by default.
            storage: where rows lie, as in `RowOptions`; main memory by default. `MappedFiles` must be new ones; they
                are written piece by piece, and a buffer that grew has the rows it holds as its capacity there.

        Raises:
            CheckpointError: a file is missing, damaged, of another kind or of a newer format; the message names it.
            ConfigError: there is no room for it, or mapped files hold rows already or cannot hold these.
        """
        shape, options, tensors = read_buffer(Path(directory))
        capacity, lanes = shape["capacity"], shape["num_lanes"]
        if capacity is None and storage is not None and storage.mapped:
            capacity = max(1, int(tensors["count"].max())) * lanes
        buffer = cls(capacity, lanes, sampler=sampler, **{**options, "storage": storage})
        if buffer.heads.opened.any():
            raise ConfigError(
                f"mapped files that hold {len(buffer)} rows were given to load {directory} into; give a new folder, or "
                "make a ReplayBuffer with this one to go on with its rows"
            )
        alike = capacity is None or tensors.get("places") == buffer.heads.places
        if capacity == shape["capacity"] and alike:
            StreamJoining.load_state_tensors(buffer, tensors)
            return buffer
        if buffer.state_period > 1:
            raise ConfigError(
                f"the buffer in {directory} keeps a policy's memory with one row in {buffer.state_period}, and these "
                "cannot move to or from mapped files; load it where it was, in main memory or in mapped files"
            )
        saved = cls(shape["capacity"], lanes, **{**options, "storage": LoadedTensors(tensors)})
        saved._heads = WriteHeads.of(tensors)
        for which, rows in stream_pieces(saved, at_most=_PIECE):
            buffer.extend(rows, which)
        return buffer

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update.

        Args:
            plan: an on-policy plan gets everything as one `Unroll`, which the next `append` discards where the plan
                clears; a replay plan gets random `Windows`, or an `Unroll` of random sequences where
                `mini_batch_length` is above 1.
            generator: source of the sampled rows.

        Raises:
            ConfigError: a lane has no room for one window or sequence of the plan, or windows of several steps are
                asked for where only some rows have a memory.
            ShapeError: the buffer does not hold a single row to learn from.
        """
        if isinstance(plan, OnPolicy):
            unroll = self._whole()
            self._used = plan.clear
            return unroll
        count, sampler = plan.gradient_steps * plan.mini_batch_size, self.sampler
        if plan.mini_batch_length == 1:
            self._require_windows(plan.n_step)
            drawn = self.windows(sampler.starts(self, count, plan.window, generator), plan.n_step)
        else:
            drawn = self._sequences(sampler.starts(self, count, plan.window, generator), plan.window, plan.burn_in)
        drawn = sampler.finish(self, drawn, generator)
        return drawn if self._storage.device is None else to_device(drawn, self._storage.device)

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Gives priorities of drawn rows to the sampler; uniform sampling ignores them.

        Args:
            indices: the batch's `index` field.
            priority: non-negative, one for each.

        Raises:
            NonFiniteError: a priority is NaN, infinite or negative.
            ShapeError: there are not as many priorities as rows.
        """
        if indices.shape != priority.shape:
            raise ShapeError(
                f"priorities of shape {list(priority.shape)} were given for rows of shape {list(indices.shape)}; one "
                "for each row is needed"
            )
        self.sampler.write_back(indices.cpu().numpy(), priority.cpu().numpy())

    def sample(self, count: int, generator: torch.Generator) -> tuple[Batch, np.ndarray]:
        """Rows as they were stored; for learning, `draw` gives windows that know how they end.

        Args:
            count: how many the sampler chooses; 0 is every complete row, those of a lane in time order.
            generator: source of the choice.

        Returns:
            The rows, and [N] their row numbers.

        Raises:
            ShapeError: there is nothing to choose from, or the count is negative.
        """
        if count < 0:
            raise ShapeError(f"sample({count}) was asked for; give at least 1 row, or 0 for all")
        if count:
            index = self.sampler.starts(self, count, 1, generator)
        else:
            index = np.concatenate([self.in_time_order(lane)[:-1] for lane in range(self.num_lanes)])
        return self[index], index

    def windows(self, index: np.ndarray, n_step: int) -> Windows:
        """The n-step windows that start at given rows.

        Args:
            index: [N] row numbers whose next `n_step` rows exist.
            n_step: n.
        """
        take, rows = self._storage.take, index + _offsets(n_step, self.num_lanes)  # [n+1, N]
        last = rows[1]
        kinds = self._kinds.take(rows, mode="wrap")
        if n_step > 1:  # `ops.n_step_end`
            last = index + self.num_lanes * np.maximum(_unbroken(kinds).sum(0), 1)
        return Windows.of(
            {
                "observation": take("observation", index),
                "action": take("action", index),
                "next_observation": take("observation", last),
                "reward": take("reward", rows),
                "discount": take("discount", rows),
                "step_type": torch.from_numpy(kinds),
                "policy_info": take("policy_info", index) if self.info_fields else Batch.of({}),
                "index": torch.from_numpy(index),
            }
        )

    def _whole(self) -> Unroll:
        heads = self._heads
        rows = heads.longest
        if rows == 0:
            raise ShapeError("the buffer holds no rows; collect before learning")
        unroll = self._unroll(heads.newest(rows, and_open=True))
        if heads.together and not self._complete_only:
            return unroll
        age = np.arange(rows, 0, -1)[:, None]  # [T, 1] 1 for the newest complete row
        learned = age <= heads.counts  # a shorter lane is padded in front
        if self._complete_only:
            learned &= age > heads.unfinished
        return unroll.replace(valid=unroll.valid * torch.from_numpy(learned).to(unroll.valid.device))

    # -- sampling

    def candidates(self, length: int) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
        """The rows that so many rows follow in their lane, whether they may be learned from or not.

        Args:
            length: rows that follow.

        Returns:
            How many there are, and the function from numbers below that to row numbers; the oldest of a lane come
            first. Where a buffer keeps a policy's memories, only rows with one count.

        Raises:
            ConfigError: a lane has no room for so many rows.
            ShapeError: there is none.
        """
        heads = self._heads
        if length > heads.rows and not self._growing:
            raise ConfigError(f"{length} steps in a row do not fit into a lane of {heads.rows}; raise the capacity")
        usable: Any = max(heads.count - length + 1, 0)  # a window must not cross the write head
        total = usable * self.num_lanes
        if not heads.together or self._complete_only:
            usable = np.maximum(heads.counts - np.maximum(length - 1, heads.unfinished), 0)
            total = int(usable.sum())
        pick = functools.partial(heads.pick, usable=usable)
        if self._states is not None and self.state_period > 1:
            usable = np.broadcast_to(usable, (self.num_lanes,))
            _, before, after = heads.aligned(usable, self.state_period)
            total = int(before.sum() + after.sum())
            pick = functools.partial(heads.pick_aligned, usable=usable, period=self.state_period)
        if total == 0:
            raise ShapeError(f"no row can be learned from yet: {length} rows must follow it; {self.held()}")
        return total, pick

    def starts(self, length: int) -> np.ndarray:
        """All rows that a draw may begin with, those of a lane in time order.

        Args:
            length: so many rows must follow in the lane.

        Returns:
            [N] row numbers.

        Raises:
            ConfigError: a lane has no room for so many rows.
            ShapeError: there is none.
        """
        total, pick = self.candidates(length)
        rows = pick(np.arange(total))
        rows = rows[self.may_begin(rows, length)]
        if not len(rows):
            raise ShapeError(f"no row can be learned from, for episodes end at once; {self.held()}")
        return rows

    def may_begin(self, index: np.ndarray, length: int) -> np.ndarray:
        """Whether draws may begin with rows.

        They begin with rows that may be learned from. Where only every `state_period`-th row has a memory, sequences
        also begin at the end of an episode, and the next one is learned from: episodes of a fixed length may have
        their ends at all of those rows.

        Args:
            index: [N] row numbers of `candidates(length)`.
            length: rows that follow.
        """
        if length > 1 and self._states is not None and self.state_period > 1:
            kinds = self._kinds
            return (kinds.take(index) == LAST) | (kinds.take(index + self.num_lanes, mode="wrap") != FIRST)
        return self.is_start(index)

    def set_progress(self, progress: float) -> None:
        """Moves the schedules of the sampler.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self.sampler.set_progress(progress)

    def state_tensors(self) -> dict[str, Any]:
        """Everything the buffer and its sampler hold, by name; tensors are views of it."""
        sampler = {f"sampler.{name}": value for name, value in self.sampler.state().items()}
        return {**super().state_tensors(), **sampler}

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            tensors: of a buffer with the same specs, lanes, capacity and sampler.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        super().load_state_tensors(tensors)
        prefix = "sampler."
        self.sampler.load_state({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})

    def _require_windows(self, n_step: int) -> None:
        if n_step > 1 and self._states is not None and self.state_period > 1:
            raise ConfigError(
                f"windows of {n_step} steps were asked for, but this buffer keeps a policy's memory with one row in "
                f"{self.state_period}, for sequences; ask for mini_batch_length > 1 or n_step=1, or make a buffer "
                "without state_spec"
            )

    def _sequences(self, index: np.ndarray, length: int, burn_in: int) -> Unroll:
        take = self._storage.take
        rows = index + _offsets(length, self.num_lanes)  # [L+1, N]
        fields = {name: take(name, rows) for name in self.step_fields}
        fields |= {name: take(name, rows[:-1]) for name in ("action", "policy_info", "policy_version")}
        if self._states is not None:
            fields["state"] = self._states.take("state", self._state_slots(index)[1][None])
        # what lies after the end of the first episode that can be learned from is another episode's
        kinds = self._kinds.take(rows, mode="wrap")
        unbroken, after_end = _unbroken(kinds), kinds[0] == LAST
        unbroken[1:, after_end] = _unbroken(kinds[1:, after_end])
        valid = unbroken.astype(np.float32)
        valid[:burn_in] = 0
        return Unroll.of({**fields, "valid": torch.from_numpy(valid), "index": torch.from_numpy(index)})


@functools.cache
def _offsets(steps: int, lanes: int) -> np.ndarray:
    """[steps + 1, 1] from a row number to those of the rows after it; past the end of the ring, `take` wraps."""
    offsets = lanes * np.arange(steps + 1)[:, None]
    offsets.flags.writeable = False
    return offsets


def _unbroken(kinds: np.ndarray) -> np.ndarray:
    """[n, N] whether all rows up to here are valid starts: `ops.valid_starts`, accumulated."""
    return np.logical_and.accumulate((kinds[:-1] != LAST) & (kinds[1:] != FIRST), axis=0)
