"""`GrayscaleResize`: small gray pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, TensorSpec
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import ObservationMap

__all__ = ["GrayscaleResize"]

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


@final
class GrayscaleResize(ObservationMap):
    """Turns pictures [H, W, 3] (or gray ones, [H, W]) of uint8 into gray ones [height, width] of uint8.

    A 210 x 160 colour picture becomes a fourteenth of its size, and the network that looks at it faster by as much.
    Every pixel is the mean of the area that it covers.

    Args:
        env: the layer inside.
        height: of the new picture in pixels.
        width: the same.
        keys: leaves to change; by default all pictures.

    Raises:
        ConfigError: a size is below 1, or there are no pictures.

    Examples:
        >>> import gymnasium
        >>> from palaestra.envs import GymEnvironment
        >>> class Flag(gymnasium.Env):  # the left half red, the right half green
        ...     observation_space = gymnasium.spaces.Box(0, 255, (2, 4, 3), np.uint8)
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         return np.tile(np.repeat(255 * np.eye(3, dtype=np.uint8)[:2], 2, axis=0), (2, 1, 1)), {}
        >>> GrayscaleResize(GymEnvironment(Flag()), height=1, width=2).reset().observation
        array([[ 76, 150]], dtype=uint8)
    """

    def __init__(
        self, env: SingleEnvironment, height: int = 84, width: int = 84, keys: Sequence[str] | None = None
    ) -> None:
        if not (type(height) is type(width) is int and min(height, width) >= 1):
            raise ConfigError(f"GrayscaleResize(height={height}, width={width}); both must be integers of at least 1")
        self._size = (height, width)
        self._areas: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
        super().__init__(env, keys)

    def fits(self, spec: TensorSpec) -> bool:
        """Whether the leaf is a picture.

        Args:
            spec: of the inner leaf.
        """
        shape = spec.shape
        return spec.dtype == torch.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3))

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Gray, of the new size.

        Args:
            spec: of the inner leaf.
        """
        return BoundedSpec(self._size, torch.uint8, minimum=np.array(0), maximum=np.array(255))

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        """The small gray picture.

        Args:
            value: the large one.
            path: which leaf.
            first: whether an episode begins.
        """
        gray = value.astype(np.float32)
        if gray.ndim == 3:
            gray = gray @ _LUMA
        if gray.shape not in self._areas:
            rows, columns = (_areas(old, new) for old, new in zip(gray.shape, self._size, strict=True))
            self._areas[gray.shape] = rows, columns.T
        rows, columns = self._areas[gray.shape]
        return np.rint(rows @ gray @ columns).clip(0, 255).astype(np.uint8)


def _areas(old: int, new: int) -> np.ndarray:
    """[new, old]: which share of each old pixel goes into each new one; every row sums to 1."""
    edges = np.arange(new + 1) * (old / new)
    pixels = np.arange(old)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (overlap.clip(0) * (new / old)).astype(np.float32)
