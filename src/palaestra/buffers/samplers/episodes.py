"""Rows of episodes that lie in the buffer from their first to their last step."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import torch

from palaestra.buffers.samplers.sampler import Sampler
from palaestra.core import ShapeError

if TYPE_CHECKING:
    from palaestra.buffers.replay import ReplayBuffer

__all__ = ["EpisodeSampler"]


@final
class EpisodeSampler(Sampler):
    """Draws with equal probability among the rows of complete episodes; running and overwritten ones stay out.

    After rows were written the whole buffer is looked through again, some milliseconds for a million rows.
    """

    def __init__(self) -> None:
        self._stamp: tuple[int, ...] = ()
        self._rows = np.empty(0, np.int64)

    def starts(self, buffer: ReplayBuffer, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Draws rows of complete episodes.

        Args:
            buffer: what is drawn from.
            count: how many are wanted.
            length: so many rows must follow each in its lane.
            generator: source of the choice.

        Raises:
            ShapeError: no episode is complete.
        """
        stamp = (*buffer.heads.stamp, length)
        if stamp != self._stamp:
            complete = np.zeros(buffer.heads.places * buffer.num_lanes, bool)
            for episode in buffer.episodes():
                complete[episode] = True
            starts = buffer.starts(length)
            follows = buffer.after(starts, 1)  # a sequence that begins at the end of an episode is of the next one
            self._rows, self._stamp = starts[complete[starts] & complete[follows]], stamp
        if not len(self._rows):
            raise ShapeError(f"no episode lies in the buffer from its first to its last step; {buffer.held()}")
        return self._rows[torch.randint(len(self._rows), (count,), generator=generator).numpy()]
