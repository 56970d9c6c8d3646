"""`NormalizeReward`: rewards of a size that suits a learner, whatever the task's."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import ConfigError, SpecError, TensorSpec, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import Remembering, RewardMap
from palaestra.envs.wrappers.moments import Moments

__all__ = ["NormalizeReward"]

_EPSILON = 1e-8


@final
class NormalizeReward(Remembering, RewardMap):
    """Divides rewards by the standard deviation of the discounted return, so that returns get a variance near 1.

    The mean is not subtracted: that would change which policies are good. Each environment counts for itself. Episode
    returns in logs and evaluations are those of the divided rewards; `EpisodeStatistics` inside keeps the raw ones.

    Args:
        env: the layer inside.
        gamma: discount per env step, as the learner's.
        clip: largest absolute value that comes out.

    Raises:
        ConfigError: gamma is not in [0, 1], or the clip not positive.
        SpecError: the reward is a vector.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeReward(load("Pendulum-v1"))
        >>> _ = env.reset()
        >>> -10 <= env.step(np.zeros(1, np.float32)).reward <= 10
        True
    """

    def __init__(self, env: SingleEnvironment, gamma: float = 0.99, clip: float = 10.0) -> None:
        super().__init__(env)
        if not (0 <= gamma <= 1 and clip > 0):
            raise ConfigError(f"NormalizeReward(gamma={gamma}, clip={clip}); gamma is in [0, 1] and the clip above 0")
        if env.reward_spec.shape:
            raise SpecError(f"NormalizeReward needs a scalar reward, and this one has shape {env.reward_spec.shape}")
        self._gamma, self._clip = gamma, clip
        self._return = 0.0
        self._moments = Moments(())

    @property
    def reward_spec(self) -> TensorSpec:
        """In [-clip, clip]."""
        return self._bounded(-self._clip, self._clip)

    def begin_episode(self, seed: int) -> TimeStep:
        """Starts the discounted return from 0.

        Args:
            seed: passed on.
        """
        self._return = 0.0
        return super().begin_episode(seed)

    def map(self, reward: Any) -> Any:
        """The divided reward; it is counted first.

        Args:
            reward: of the inner layer.
        """
        self._return = self._gamma * self._return + float(reward)
        self._moments.update(np.array(self._return))
        return np.clip(reward / np.sqrt(self._moments.variance + _EPSILON), -self._clip, self._clip)

    def snapshot(self) -> Any:
        """The statistics."""
        return self._moments.snapshot()

    def restore(self, snapshot: Any) -> None:
        """Takes over statistics.

        Args:
            snapshot: from `snapshot`.
        """
        self._moments.restore(snapshot)
