"""`Sampler`: who chooses the rows at which windows and sequences begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core import Batch

if TYPE_CHECKING:
    from palaestra.buffers.replay import ReplayBuffer

__all__ = ["Sampler"]


class Sampler(ABC):
    """Chooses rows; everything else about a draw is the buffer's. A sampler of your own defines `starts`.

    Examples:
        >>> class Newest(Sampler):
        ...     def starts(self, buffer, count, length, generator):
        ...         return buffer.starts(length)[-count:]
    """

    @abstractmethod
    def starts(self, buffer: ReplayBuffer, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Row numbers at which what is drawn begins.

        Args:
            buffer: what is drawn from; `buffer.starts(length)` has all rows that may be chosen.
            count: how many are wanted.
            length: so many rows must follow each in its lane; above 1 it may be a sequence, see `may_begin`.
            generator: source of every random choice.

        Returns:
            [count] int64, in random order, or as many as there are where the sampler says so.

        Raises:
            ShapeError: there is nothing to choose from.
        """

    def finish(self, buffer: ReplayBuffer, batch: Batch, generator: torch.Generator) -> Batch:
        """What is handed out, for samplers that add or change fields; by default the batch as it is.

        Args:
            buffer: what was drawn from.
            batch: `Windows`, or an `Unroll` of sequences, with the chosen rows as `index`, which is on the CPU whatever
                device the rows are on.
            generator: source of every random choice.
        """
        return batch

    def write_back(self, index: np.ndarray, priority: np.ndarray) -> None:  # noqa: B027
        """Takes priorities of drawn rows; by default they are ignored.

        Args:
            index: [N] row numbers.
            priority: [N], at least 0.
        """

    def set_progress(self, progress: float) -> None:  # noqa: B027
        """Moves what follows a schedule; by default nothing does.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """

    def state(self) -> dict[str, Any]:
        """What the next draws depend on besides buffer and generator, by name, for a checkpoint; by default nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Puts back what `state` gave.

        Args:
            state: of a sampler with the same settings on a buffer of the same shape.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
