"""Running mean and variance in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Moments"]


class Moments:
    """Mean and variance of all arrays seen so far, element by element (Welford 1962).

    Args:
        shape: of each array.

    Examples:
        >>> moments = Moments(())
        >>> for value in (1.0, 3.0):
        ...     moments.update(np.array(value))
        >>> float(moments.mean), float(moments.variance)
        (2.0, 1.0)
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self._square = np.zeros(shape)

    @property
    def variance(self) -> np.ndarray:
        """Population variance; zeros before the first array."""
        return self._square / max(self.count, 1)

    def update(self, value: np.ndarray) -> None:
        """Counts one array.

        Args:
            value: of the shape.
        """
        self.count += 1
        before = value - self.mean
        self.mean = self.mean + before / self.count
        self._square = self._square + before * (value - self.mean)

    def snapshot(self) -> list[Any]:
        """As JSON values."""
        return [self.count, self.mean.tolist(), self._square.tolist()]

    def restore(self, snapshot: list[Any]) -> None:
        """Takes over what `snapshot` gave.

        Args:
            snapshot: of equal shape.
        """
        self.count, mean, square = snapshot
        self.mean, self._square = np.array(mean), np.array(square)
