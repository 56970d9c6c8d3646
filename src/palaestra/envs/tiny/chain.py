"""`Chain`: a corridor whose values are known."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Chain"]


@final
class Chain(gymnasium.Env[np.ndarray, np.int64]):
    """States 0 ... n - 1 in a row; going right from the last one pays 1 and terminates.

    Action 1 goes right, 0 goes left (and stays in state 0). The best policy always goes right:

        V(s) = gamma^(n - 1 - s),   Q(s, right) = V(s),   Q(s, left) = gamma V(max(s - 1, 0))

    Going left for ever earns nothing, so give it a time limit.

    Args:
        num_states: n, at least 1.

    Examples:
        >>> env = Chain(2)
        >>> env.reset(seed=0)[0], env.step(np.int64(1))[1:3], env.step(np.int64(1))[1:3]
        (array([1., 0.], dtype=float32), (0.0, False), (1.0, True))
    """

    def __init__(self, num_states: int = 5) -> None:
        self.observation_space = spaces.Box(0, 1, (num_states,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._num_states = num_states
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts in state 0.

        Args:
            seed: nothing is random.
            options: none exist.
        """
        super().reset(seed=seed)
        self._state = 0
        return self._one_hot(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Goes one state to the left or right.

        Args:
            action: 0 or 1.
        """
        if action == 1 and self._state == self._num_states - 1:
            return self._one_hot(), 1.0, True, False, {}
        self._state = self._state + 1 if action == 1 else max(self._state - 1, 0)
        return self._one_hot(), 0.0, False, False, {}

    def _one_hot(self) -> np.ndarray:
        observation = np.zeros(self._num_states, np.float32)
        observation[self._state] = 1
        return observation
