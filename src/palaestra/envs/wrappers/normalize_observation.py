"""`NormalizeObservation`: mean 0 and variance 1 for every number of the observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, TensorSpec, spec_leaves
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import ObservationMap, Remembering
from palaestra.envs.wrappers.moments import Moments

__all__ = ["NormalizeObservation"]

_EPSILON = 1e-8


@final
class NormalizeObservation(Remembering, ObservationMap):
    """Subtracts the running mean of what was observed so far and divides by the standard deviation.

    Each environment counts for itself, and evaluation starts from nothing. Where that is not meant, let the policy
    normalise (`normalize_observation=True` of most algorithms): its statistics are shared, saved and deployed with it.

    Args:
        env: the layer inside.
        clip: largest absolute value that comes out.
        keys: leaves to normalise; by default all of floating-point numbers.

    Raises:
        ConfigError: the clip is not positive, or there is nothing to normalise.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeObservation(load("Pendulum-v1"))
        >>> env.reset().observation
        array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, env: SingleEnvironment, clip: float = 10.0, keys: Sequence[str] | None = None) -> None:
        if not clip > 0:
            raise ConfigError(f"NormalizeObservation(clip={clip}); it must be above 0")
        self._clip = clip
        super().__init__(env, keys)
        leaves = spec_leaves(env.observation_spec)
        self._moments = {path: Moments(leaves[path].shape) for path in self._paths if path is not None}

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """float32 in [-clip, clip].

        Args:
            spec: of the inner leaf.
        """
        low, high = np.array(-self._clip), np.array(self._clip)
        return BoundedSpec(spec.shape, torch.float32, minimum=low, maximum=high)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        """The normalised leaf; it is counted first.

        Args:
            value: of the inner layer.
            path: which leaf.
            first: whether an episode begins.
        """
        moments = self._moments[path]
        moments.update(value)
        normal = (value - moments.mean) / np.sqrt(moments.variance + _EPSILON)
        return np.clip(normal, -self._clip, self._clip).astype(np.float32)

    def snapshot(self) -> Any:
        """The statistics."""
        return {path: moments.snapshot() for path, moments in self._moments.items()}

    def restore(self, snapshot: Any) -> None:
        """Takes over statistics.

        Args:
            snapshot: from `snapshot`.
        """
        for path, moments in self._moments.items():
            moments.restore(snapshot[path])
