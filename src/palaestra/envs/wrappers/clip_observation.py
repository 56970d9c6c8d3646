"""`ClipObservation`: keeps outliers away from a learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from palaestra.core import BoundedSpec, ConfigError, TensorSpec
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import ObservationMap

__all__ = ["ClipObservation"]


@final
class ClipObservation(ObservationMap):
    """Clips every number of the observation, nested ones as well.

    For simulators that return a huge velocity once in a million steps, which would ruin running statistics.

    Args:
        env: the layer inside.
        minimum: smallest value let through.
        maximum: largest value let through.
        keys: leaves to clip; by default all of floating-point numbers.

    Raises:
        ConfigError: the minimum is not below the maximum, or there is nothing to clip.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ClipObservation(load("Pendulum-v1"), maximum=0.5, minimum=-0.5)
        >>> env.observation_spec.maximum
        array([0.5, 0.5, 0.5], dtype=float32)
    """

    def __init__(
        self,
        env: SingleEnvironment,
        minimum: float = -200.0,
        maximum: float = 200.0,
        keys: Sequence[str] | None = None,
    ) -> None:
        if not minimum < maximum:
            raise ConfigError(f"ClipObservation(minimum={minimum}, maximum={maximum}); the minimum must be below")
        self._minimum, self._maximum = minimum, maximum
        super().__init__(env, keys)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """The same with the tighter of both bounds.

        Args:
            spec: of the inner leaf.
        """
        low, high = (spec.minimum, spec.maximum) if isinstance(spec, BoundedSpec) else (-np.inf, np.inf)
        low, high = (np.clip(bound, self._minimum, self._maximum) for bound in (low, high))
        # the zeros of a stack that stand for frames before the episode have to stay zeros
        stacked = spec.stacked if self._minimum <= 0 <= self._maximum else 1
        return BoundedSpec(spec.shape, spec.dtype, minimum=low, maximum=high, stacked=stacked)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        """The clipped leaf.

        Args:
            value: of the inner layer.
            path: which leaf.
            first: whether an episode begins.
        """
        return np.clip(value, self._minimum, self._maximum)
