"""`ReplayBuffer`: streams of many lanes, drawn as unrolls, sequences or n-step windows."""

from __future__ import annotations

import functools
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.streams import FIRST, LAST, LaneStreams
from palaestra.core import Batch, ConfigError, OnPolicy, Plan, ShapeError

__all__ = ["ReplayBuffer"]


@final
class ReplayBuffer(LaneStreams):
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
        complete_episodes_only: whether only rows of episodes that have ended are learned from (Tianshou's rule for
            several environments). Rows of a stream that breaks off are dropped.

    Raises:
        ConfigError: there is not room for one row in every lane.
    """

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update.

        Args:
            plan: an on-policy plan gets everything as one `Unroll`, which the next `append` discards; a replay plan
                gets random `Windows`, or an `Unroll` of random sequences where `mini_batch_length` is above 1.
            generator: source of the sampled rows.

        Raises:
            ConfigError: a lane has no room for one window or sequence of the plan.
            ShapeError: the buffer does not hold a single row to learn from.
        """
        if isinstance(plan, OnPolicy):
            unroll = self._whole()
            self._used = True
            return unroll
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
        return unroll.replace(valid=unroll.valid * torch.from_numpy(learned))

    # -- sampling

    def _starts(self, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Uniform row numbers of valid starts whose next `length` rows exist."""
        heads = self._heads
        if length > heads.rows and not self._growing:
            raise ConfigError(f"{length} steps in a row do not fit into a lane of {heads.rows}; raise the capacity")
        usable: Any = max(heads.count - length + 1, 0)  # a window must not cross the write head
        total = usable * self.num_lanes
        if not heads.together or self._complete_only:
            usable = np.maximum(heads.counts - np.maximum(length - 1, heads.unfinished), 0)
            total = int(usable.sum())
        if total == 0:
            raise ShapeError(f"no row can be learned from yet: {length} rows must follow it; {self._held()}")
        found: list[np.ndarray] = []
        missing = count
        for _ in range(100):
            number = torch.randint(total, (missing + missing // 4 + 8,), generator=generator).numpy()
            drawn = heads.pick(number, usable)
            drawn = drawn[self._valid(drawn)][:missing]
            if len(drawn) == count:
                return drawn
            found.append(drawn)
            missing -= len(drawn)
            if not missing:
                return np.concatenate(found)
        raise ShapeError(f"hardly any row can be learned from, for episodes end at once; {self._held()}")

    def _sequences(self, count: int, length: int, generator: torch.Generator) -> Unroll:
        take, index = self._storage.take, self._starts(count, length, generator)
        rows = index + _offsets(length, self.num_lanes)  # [L+1, N]
        fields = {name: take(name, rows) for name in self.step_fields}
        fields |= {name: take(name, rows[:-1]) for name in ("action", "policy_info", "policy_version")}
        # what lies after the end of the first episode is another episode's
        valid = _unbroken(fields["step_type"].numpy()).astype(np.float32)
        return Unroll.of({**fields, "valid": torch.from_numpy(valid)})


@functools.cache
def _offsets(steps: int, lanes: int) -> np.ndarray:
    """[steps + 1, 1] from a row number to those of the rows after it; past the end of the ring, `take` wraps."""
    offsets = lanes * np.arange(steps + 1)[:, None]
    offsets.flags.writeable = False
    return offsets


def _unbroken(kinds: np.ndarray) -> np.ndarray:
    """[n, N] whether all rows up to here are valid starts: `ops.valid_starts`, accumulated."""
    return np.logical_and.accumulate((kinds[:-1] != LAST) & (kinds[1:] != FIRST), axis=0)
