"""What a task's algorithm learns from: unrolls that agents sent, or a replay buffer that they write to meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from palaestra.buffers import ReplayBuffer, Unroll
from palaestra.core import Batch, Plan, StepType

__all__ = ["LockedBuffer", "PackedUnrolls"]


class PackedUnrolls:
    """Unrolls of several agents side by side: a data source. Shorter ones are padded in front, where nothing is valid.

    Args:
        unrolls: of one agent each, [T_i+1, 1, ...].
    """

    def __init__(self, unrolls: Sequence[Unroll]) -> None:
        steps = max(len(unroll.valid) for unroll in unrolls)
        padded = [_padded(unroll, steps - len(unroll.valid)) for unroll in unrolls]
        self._unroll: Unroll = padded[0].map(lambda *leaves: torch.cat(leaves, 1), *padded[1:])

    def draw(self, plan: Plan, generator: torch.Generator) -> Unroll:
        """All of it.

        Args:
            plan: of the algorithm.
            generator: nothing is drawn.
        """
        return self._unroll

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Unrolls have no priorities.

        Args:
            indices: ignored.
            priority: ignored.
        """


def _padded(unroll: Unroll, steps: int) -> Unroll:
    """So many more steps in front, which are copies of the first with `valid` 0 and end what lies before."""
    if not steps:
        return unroll

    def pad(leaf: Tensor) -> Tensor:
        return torch.cat([leaf[:1].expand(steps, *leaf.shape[1:]), leaf])

    longer = unroll.map(pad)
    longer.valid[:steps] = 0
    longer.step_type[:steps] = int(StepType.LAST)
    return longer


class LockedBuffer:
    """A replay buffer that is drawn from while agents write to it.

    Args:
        buffer: what is drawn from.
        lock: held while that happens.
    """

    def __init__(self, buffer: ReplayBuffer, lock: AbstractContextManager[Any]) -> None:
        self._buffer, self._lock = buffer, lock

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """Sequences or windows; see `ReplayBuffer.draw`.

        Args:
            plan: what the algorithm wants.
            generator: source of the choice.
        """
        with self._lock:
            return self._buffer.draw(plan, generator)

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Priorities for the buffer's sampler.

        Args:
            indices: of the batch.
            priority: one for each.
        """
        with self._lock:
            self._buffer.write_back(indices, priority)
