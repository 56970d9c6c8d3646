"""A fixed share of the draws are transitions that end their episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import torch

from palaestra.buffers.samplers.sampler import Sampler
from palaestra.core import ConfigError

if TYPE_CHECKING:
    from palaestra.buffers.replay import ReplayBuffer

__all__ = ["BalancedSampler"]


@final
class BalancedSampler(Sampler):
    """Draws ends of episodes, which are rare and often carry all of the reward, as often as is asked for.

    Inside both groups, transitions that end their episode and those that do not, all are equally likely. As long as one
    group is empty the other is drawn from.

    Args:
        share: probability of an end, in [0, 1].

    Raises:
        ConfigError: the share is no probability.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"BalancedSampler(share={share}): give a probability in [0, 1]")
        self.share = share
        self._stamp: tuple[int, ...] = ()
        self._ends = self._others = np.empty(0, np.int64)

    def starts(self, buffer: ReplayBuffer, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Draws a group for every row, then a row of it.

        Args:
            buffer: what is drawn from.
            count: how many are wanted.
            length: so many rows must follow each in its lane.
            generator: source of the choice.

        Raises:
            ShapeError: there is nothing to choose from.
        """
        stamp = (*buffer.heads.stamp, length)
        if stamp != self._stamp:
            starts = buffer.starts(length)
            ends = buffer.ends_with_next(starts)
            self._ends, self._others, self._stamp = starts[ends], starts[~ends], stamp
        uniform = torch.rand(2, count, generator=generator, dtype=torch.float64).numpy()
        chosen = uniform[0] < self.share if len(self._others) else np.ones(count, bool)
        chosen &= len(self._ends) > 0
        number = (uniform[1] * np.where(chosen, len(self._ends), len(self._others))).astype(np.int64)
        rows = np.empty(count, np.int64)
        rows[chosen], rows[~chosen] = self._ends[number[chosen]], self._others[number[~chosen]]
        return rows
