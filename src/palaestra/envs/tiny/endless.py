"""`Endless`: an infinite horizon, where being cut off must not look like an end."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Endless"]


@final
class Endless(gymnasium.Env[np.ndarray, np.int64]):
    """Pays 1 every step, whatever is done, and never terminates.

    The value of every state and action is 1 / (1 - gamma), with any time limit around it: a learner that takes
    truncation for termination finds less.

    Args:
        random: whether observations are uniform noise in [0, 1] rather than ones.
        size: numbers in an observation.

    Examples:
        >>> env = Endless()
        >>> env.reset(seed=0)[0], env.step(np.int64(0))[1:4]
        (array([1.], dtype=float32), (1.0, False, False))
    """

    def __init__(self, random: bool = False, size: int = 1) -> None:
        self.observation_space = spaces.Box(0, 1, (size,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._random = random
        self._size = size

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: of the observations.
            options: none exist.
        """
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pays 1.

        Args:
            action: does nothing.
        """
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.random(self._size, np.float32) if self._random else np.ones(self._size, np.float32)
