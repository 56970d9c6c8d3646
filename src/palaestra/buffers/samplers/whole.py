"""Every row once, in a new order each time round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from palaestra.buffers.samplers.sampler import Sampler
from palaestra.core import CheckpointError, ConfigError

if TYPE_CHECKING:
    from palaestra.buffers.replay import ReplayBuffer

__all__ = ["WholeSampler"]


@final
class WholeSampler(Sampler):
    """Goes through the whole buffer without repetition, then shuffles again: epochs over data that stay.

    A pass begins anew when rows are written. Time order inside a sequence is kept.

    Args:
        stride: rows between two starts of a lane; with the length of a sequence each row is in exactly one of them.

    Raises:
        ConfigError: the stride is less than 1.
    """

    def __init__(self, stride: int = 1) -> None:
        if stride < 1:
            raise ConfigError(f"WholeSampler(stride={stride}): give at least 1 row")
        self.stride = stride
        self._left = np.empty(0, np.int64)  # of the present pass
        self._stamp: tuple[int, ...] = ()

    def starts(self, buffer: ReplayBuffer, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """The next rows of this pass, and where it ends the first ones of the next.

        Args:
            buffer: what is drawn from.
            count: how many are wanted.
            length: so many rows must follow each in its lane.
            generator: source of the order.

        Raises:
            ConfigError: a lane has no room for so many rows.
            ShapeError: there is nothing to choose from.
        """
        stamp = (*buffer.heads.stamp, length)
        if stamp != self._stamp:
            self._stamp, self._left = stamp, self._pass(buffer, length, generator)
        parts, missing = [], count
        while missing > len(self._left):
            parts.append(self._left)
            missing -= len(self._left)
            self._left = self._pass(buffer, length, generator)
        parts.append(self._left[:missing])
        self._left = self._left[missing:]
        return np.concatenate(parts)

    def _pass(self, buffer: ReplayBuffer, length: int, generator: torch.Generator) -> np.ndarray:
        starts = buffer.starts(length)
        if self.stride > 1:
            starts = starts[buffer.ages(starts) % self.stride == 0]
        return starts[torch.randperm(len(starts), generator=generator).numpy()]

    def state(self) -> dict[str, Any]:
        """What is left of the present pass."""
        return {"left": self._left, "stamp": np.array(self._stamp, np.int64)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a sampler of a buffer of the same shape.

        Raises:
            CheckpointError: something is missing.
        """
        try:
            self._left, self._stamp = np.array(state["left"]), tuple(int(part) for part in state["stamp"])
        except KeyError as error:
            raise CheckpointError(f"the saved sampler has no {error}") from None
