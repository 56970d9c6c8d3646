"""`ScaleReward`: rewards in other units."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import BoundedSpec, ConfigError, TensorSpec
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import RewardMap

__all__ = ["ScaleReward"]


@final
class ScaleReward(RewardMap):
    """Multiplies rewards by a number, which changes no optimal policy.

    For tasks whose returns are in the thousands, where a value network would have to grow its weights first.

    Args:
        env: the layer inside.
        scale: factor, above 0.

    Raises:
        ConfigError: the scale is not a positive number.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ScaleReward(load("CartPole-v1"), scale=0.25)
        >>> env.reset().reward, env.step(np.int64(0)).reward
        (0.0, 0.25)
    """

    def __init__(self, env: SingleEnvironment, scale: float) -> None:
        super().__init__(env)
        if not 0 < scale < np.inf:
            raise ConfigError(f"ScaleReward(scale={scale}); it must be a finite number above 0")
        self._scale = scale

    @property
    def reward_spec(self) -> TensorSpec:
        """With scaled bounds, where there are any."""
        spec = self.env.reward_spec
        if not isinstance(spec, BoundedSpec):
            return spec
        return self._bounded(spec.minimum * self._scale, spec.maximum * self._scale)

    def map(self, reward: Any) -> Any:
        """The scaled reward.

        Args:
            reward: of the inner layer.
        """
        return reward * self._scale
