"""`ClipReward`: one step size for tasks whose rewards differ by orders of magnitude."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import ConfigError, TensorSpec
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import RewardMap

__all__ = ["ClipReward"]


@final
class ClipReward(RewardMap):
    """Clips rewards; with the defaults, to the signs that the Atari experiments learn from.

    What is learned is then how often something is earned, not how much. Episode returns in logs and evaluations are
    those of clipped rewards; `EpisodeStatistics` inside keeps the raw ones.

    Args:
        env: the layer inside.
        minimum: smallest reward let through.
        maximum: largest reward let through.

    Raises:
        ConfigError: the minimum is not below the maximum.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ClipReward(load("Pendulum-v1"), minimum=-0.5)
        >>> env.reward_spec.minimum, env.reward_spec.maximum
        (array(-0.5, dtype=float32), array(1., dtype=float32))
    """

    def __init__(self, env: SingleEnvironment, minimum: float = -1.0, maximum: float = 1.0) -> None:
        super().__init__(env)
        if not minimum < maximum:
            raise ConfigError(f"ClipReward(minimum={minimum}, maximum={maximum}); the minimum must be below")
        self._minimum, self._maximum = minimum, maximum

    @property
    def reward_spec(self) -> TensorSpec:
        """With these bounds, widened by the 0 of FIRST steps."""
        return self._bounded(min(self._minimum, 0.0), max(self._maximum, 0.0))

    def map(self, reward: Any) -> Any:
        """The clipped reward.

        Args:
            reward: of the inner layer.
        """
        return np.clip(reward, self._minimum, self._maximum)
