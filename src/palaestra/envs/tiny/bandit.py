"""`Bandit`: one decision, one reward."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Bandit"]


@final
class Bandit(gymnasium.Env[np.ndarray, np.int64]):
    """One step per episode; arm i of k pays i / (k - 1) on average.

    The best policy always pulls the last arm: its return is 1, for every gamma. A uniform policy's is 1/2.

    Args:
        num_arms: k, at least 2.
        noise: standard deviation of the Gaussian noise on the reward.

    Examples:
        >>> env = Bandit(3)
        >>> _ = env.reset(seed=0)
        >>> env.step(np.int64(1))[1:3]
        (0.5, True)
    """

    def __init__(self, num_arms: int = 3, noise: float = 0.0) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(num_arms)
        self._num_arms = num_arms
        self._noise = noise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Shows the only state.

        Args:
            seed: of the noise.
            options: none exist.
        """
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pulls an arm.

        Args:
            action: which.
        """
        reward = float(action) / (self._num_arms - 1)
        if self._noise:
            reward += self._noise * float(self.np_random.standard_normal())
        return np.ones(1, np.float32), reward, True, False, {}
