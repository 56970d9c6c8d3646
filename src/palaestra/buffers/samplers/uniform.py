"""Every row that may be learned from is drawn equally often."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import torch

from palaestra.buffers.samplers.sampler import Sampler
from palaestra.core import ShapeError

if TYPE_CHECKING:
    from palaestra.buffers.replay import ReplayBuffer

__all__ = ["UniformSampler"]


@final
class UniformSampler(Sampler):
    """Draws rows independently of each other, with replacement, all with the same probability."""

    def starts(self, buffer: ReplayBuffer, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Draws among all complete rows and drops those that are no start, so that nothing has to be kept up to date.

        Args:
            buffer: what is drawn from.
            count: how many are wanted.
            length: so many rows must follow each in its lane.
            generator: source of the choice.

        Raises:
            ShapeError: there is nothing to choose from.
        """
        total, pick = buffer.candidates(length)
        found: list[np.ndarray] = []
        missing = count
        for _ in range(100):
            number = torch.randint(total, (missing + missing // 4 + 8,), generator=generator).numpy()
            drawn = pick(number)
            drawn = drawn[buffer.may_begin(drawn, length)][:missing]
            if len(drawn) == count:
                return drawn
            found.append(drawn)
            missing -= len(drawn)
            if not missing:
                return np.concatenate(found)
        raise ShapeError(f"hardly any row can be learned from, for episodes end at once; {buffer.held()}")
