"""`Catch`: a falling ball and a paddle, seen as pixels."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Catch"]


@final
class Catch(gymnasium.Env[np.ndarray, np.int64]):
    """A ball falls one row a step from a random column; the paddle in the last row catches it for +1, else -1.

    Actions are left, stay, right. An episode takes `num_rows` - 1 steps. The paddle starts in the middle, and reaches
    every column in time when there are at least as many rows as columns, so the best return is 1, and with m steps
    left the best value is gamma^(m - 1). Not moving at all catches one ball in `num_columns`.

    After Osband et al. 2020, "Behaviour suite for reinforcement learning", https://arxiv.org/abs/1908.03568.

    Args:
        num_rows: of the board.
        num_columns: of the board.

    Examples:
        >>> env = Catch()
        >>> observation, _ = env.reset(seed=0)
        >>> observation.shape, float(observation.sum())
        ((50,), 2.0)
    """

    def __init__(self, num_rows: int = 10, num_columns: int = 5) -> None:
        self.observation_space = spaces.Box(0, 1, (num_rows * num_columns,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._num_rows, self._num_columns = num_rows, num_columns
        self._row = self._column = self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Drops a ball.

        Args:
            seed: of the ball's column.
            options: none exist.
        """
        super().reset(seed=seed)
        self._row = 0
        self._column = int(self.np_random.integers(self._num_columns))
        self._paddle = self._num_columns // 2
        return self._board(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Moves the paddle, then the ball.

        Args:
            action: 0 left, 1 stay, 2 right.
        """
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._num_columns - 1)
        self._row += 1
        landed = self._row == self._num_rows - 1
        reward = 0.0 if not landed else 1.0 if self._paddle == self._column else -1.0
        return self._board(), reward, landed, False, {}

    def _board(self) -> np.ndarray:
        board = np.zeros((self._num_rows, self._num_columns), np.float32)
        board[self._row, self._column] = 1
        board[-1, self._paddle] = 1
        return board.reshape(-1)
