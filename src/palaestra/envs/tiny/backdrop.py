"""`Backdrop`: a walker whose place is hidden among many sensors, before a backdrop that every episode has anew."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Backdrop"]

_MOST = 10.0  # that a sensor shows; practically never reached
_MOVES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])


@final
class Backdrop(gymnasium.Env[np.ndarray, np.int64]):
    """A square field of `num_cells`² places; standing on one of them, always the same, pays 1 and terminates.

    Every other step pays 0, so the return is 1 or 0. The walker begins anywhere else. Actions go right, left, up or
    down, and nothing happens at a wall. Give it a time limit.

    No sensor shows where the walker is: the place, two numbers in [-1, 1], is mixed into `num_sensors` readings by a
    matrix that never changes, then a backdrop is added, normal numbers that are drawn at the beginning of an episode
    and stay until its end, then noise, normal numbers in every step. So a reading depends mostly on the backdrop, but
    how it *changes* from step to step depends on what the walker did. Readings have variance of about 1.

    Args:
        num_cells: places along an edge, at least 4.
        num_sensors: readings in an observation.
        backdrop: standard deviation of the backdrop; the place's share in a reading has about 1.
        noise: standard deviation of the noise.

    Examples:
        >>> env = Backdrop()
        >>> env.reset(seed=0)[0].shape
        (1000,)
        >>> env.step(np.int64(0))[1:3]
        (0.0, False)
    """

    def __init__(self, num_cells: int = 10, num_sensors: int = 1000, backdrop: float = 3.0, noise: float = 0.3) -> None:
        self.observation_space = spaces.Box(-_MOST, _MOST, (num_sensors,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._num_cells, self._backdrop, self._noise = num_cells, backdrop, noise
        self._mixing = np.random.default_rng(0).standard_normal((2, num_sensors))
        self._scale = 1 / np.sqrt(1 + backdrop**2 + noise**2)
        self._goal = np.array([num_cells // 3, 2 * num_cells // 3])
        self._place, self._behind = self._goal, np.zeros(num_sensors)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draws a backdrop and a place.

        Args:
            seed: of both, and of the noise.
            options: none exist.
        """
        super().reset(seed=seed)
        self._behind = self._backdrop * self.np_random.standard_normal(self._behind.shape)
        place = int(self.np_random.integers(self._num_cells**2 - 1))
        place += place >= self._goal @ (self._num_cells, 1)
        self._place = np.array(divmod(place, self._num_cells))
        return self._readings(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Moves the walker.

        Args:
            action: 0 right, 1 left, 2 up, 3 down.
        """
        self._place = np.clip(self._place + _MOVES[action], 0, self._num_cells - 1)
        there = bool((self._place == self._goal).all())
        return self._readings(), float(there), there, False, {}

    def _readings(self) -> np.ndarray:
        place = 2 * self._place / (self._num_cells - 1) - 1
        noise = self._noise * self.np_random.standard_normal(self._behind.shape)
        readings = self._scale * (place @ self._mixing + self._behind + noise)
        return readings.clip(-_MOST, _MOST).astype(np.float32)
