"""`SparseReward`: pays for success alone."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import TensorSpec
from palaestra.envs.wrappers.base import RewardMap

__all__ = ["SparseReward"]


@final
class SparseReward(RewardMap):
    """Turns a reward above 0 into 1, and any other into 0.

    Shows what an algorithm does without the hints of a shaped reward.

    Args:
        env: the layer inside.

    Examples:
        >>> from palaestra.envs import load
        >>> env = SparseReward(load("Pendulum-v1"))  # rewards are costs
        >>> env.reset().reward, env.step(np.zeros(1, np.float32)).reward
        (0.0, 0.0)
    """

    @property
    def reward_spec(self) -> TensorSpec:
        """In [0, 1]."""
        return self._bounded(0.0, 1.0)

    def map(self, reward: Any) -> Any:
        """1 for a success.

        Args:
            reward: of the inner layer.
        """
        return np.greater(reward, 0).astype(np.float32)
