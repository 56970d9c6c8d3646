"""`ReplayBuffer`: streams of many lanes, drawn as unrolls, sequences or n-step windows."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.streams import LaneStreams
from palaestra.core import Batch, ConfigError, OnPolicy, Plan, ShapeError
from palaestra.ops import n_step_end, valid_starts

__all__ = ["ReplayBuffer"]


@final
class ReplayBuffer(LaneStreams):
    """Draws what a plan asks for, uniformly, from the streams it keeps: see `LaneStreams`.

    On-policy algorithms use it as off-policy ones do; with capacity `None` it holds unrolls of any length.
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
        take = self._storage.take
        rows = index + self.num_lanes * np.arange(n_step + 1)[:, None]  # [n+1, N]
        step_type = take("step_type", rows)
        # rows of the observations before and after
        ends = rows if n_step == 1 else np.stack((index, index + self.num_lanes * n_step_end(step_type).numpy()))
        observation = take("observation", ends)
        return Windows.of(
            {
                "observation": observation[0],
                "action": take("action", index),
                "next_observation": observation[1],
                "reward": take("reward", rows),
                "discount": take("discount", rows),
                "step_type": step_type,
                "policy_info": take("policy_info", index),
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
            found.append(drawn[self._valid(drawn)][:missing])
            missing -= len(found[-1])
            if not missing:
                return found[0] if len(found) == 1 else np.concatenate(found)
        raise ShapeError(f"hardly any row can be learned from, for episodes end at once; {self._held()}")

    def _held(self) -> str:
        return f"the lanes hold {self._heads.counts.tolist()} rows"

    def _sequences(self, count: int, length: int, generator: torch.Generator) -> Unroll:
        take, index = self._storage.take, self._starts(count, length, generator)
        rows = index + self.num_lanes * np.arange(length + 1)[:, None]  # [L+1, N]
        fields = {name: take(name, rows) for name in self.step_fields}
        fields |= {name: take(name, rows[:-1]) for name in ("action", "policy_info", "policy_version")}
        # what lies after the end of the first episode is another episode's
        return Unroll.of({**fields, "valid": valid_starts(fields["step_type"]).to(torch.float32).cumprod(0)})
