"""Environments in which what counts has to be seen: pixels, a cue to remember, a place among many sensors."""

from typing import Any, final

import numpy as np
from gymnasium import spaces

from palaestra.core import ConfigError
from palaestra.envs.worlds.tabular import TinyEnv

__all__ = ["Backdrop", "Catch", "Recall"]

_MOST = 10.0  # that a sensor shows; practically never reached
_MOVES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])


@final
class Backdrop(TinyEnv):
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

    def _begin(self) -> None:
        self._behind = self._backdrop * self.np_random.standard_normal(self._behind.shape)
        place = int(self.np_random.integers(self._num_cells**2 - 1))
        place += place >= self._goal @ (self._num_cells, 1)
        self._place = np.array(divmod(place, self._num_cells))

    def _act(self, action: Any) -> tuple[float, bool]:
        self._place = np.clip(self._place + _MOVES[action], 0, self._num_cells - 1)
        there = bool((self._place == self._goal).all())
        return float(there), there

    def _observation(self) -> np.ndarray:
        place = 2 * self._place / (self._num_cells - 1) - 1
        noise = self._noise * self.np_random.standard_normal(self._behind.shape)
        readings = self._scale * (place @ self._mixing + self._behind + noise)
        return readings.clip(-_MOST, _MOST).astype(np.float32)


@final
class Catch(TinyEnv):
    """A ball falls one row a step from a random column; the paddle in the last row catches it for +1, else -1.

    Actions are left, stay, right. An episode takes `num_rows` - 1 steps. The paddle starts in the middle, and reaches
    every column in time when there are at least as many rows as columns, so the best return is 1, and with m steps
    left the best value is gamma^(m - 1). Not moving at all catches one ball in `num_columns`.

    After Osband et al. 2020, "Behaviour suite for reinforcement learning", https://arxiv.org/abs/1908.03568.

    Args:
        num_rows: of the board.
        num_columns: of the board.
        num_pixels: height and width of a grey picture instead of a table of numbers; 0 for the table.

    Raises:
        ConfigError: a picture has fewer pixels than the board cells.

    Examples:
        >>> env = Catch()
        >>> observation, _ = env.reset(seed=0)
        >>> observation.shape, float(observation.sum())
        ((50,), 2.0)
    """

    def __init__(self, num_rows: int = 10, num_columns: int = 5, num_pixels: int = 0) -> None:
        if 0 < num_pixels < max(num_rows, num_columns):
            raise ConfigError(
                f"num_pixels is {num_pixels} for a board of {num_rows} x {num_columns}; every cell needs at least one"
            )
        self.observation_space = spaces.Box(0, 1, (num_rows * num_columns,), np.float32)
        if num_pixels:
            self.observation_space = spaces.Box(0, 255, (num_pixels, num_pixels, 1), np.uint8)
        self._cell_of = [np.arange(num_pixels) * count // max(num_pixels, 1) for count in (num_rows, num_columns)]
        self.action_space = spaces.Discrete(3)
        self._num_rows, self._num_columns = num_rows, num_columns
        self._row = self._column = self._paddle = 0

    def _begin(self) -> None:
        self._row = 0
        self._column = int(self.np_random.integers(self._num_columns))
        self._paddle = self._num_columns // 2

    def _act(self, action: Any) -> tuple[float, bool]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._num_columns - 1)
        self._row += 1
        landed = self._row == self._num_rows - 1
        return (0.0 if not landed else 1.0 if self._paddle == self._column else -1.0), landed

    def _observation(self) -> np.ndarray:
        board = np.zeros((self._num_rows, self._num_columns), np.float32)
        board[self._row, self._column] = 1
        board[-1, self._paddle] = 1
        rows, columns = self._cell_of
        return board[np.ix_(rows, columns)][..., None].astype(np.uint8) * 255 if len(rows) else board.reshape(-1)


@final
class Recall(TinyEnv):
    """The first observation shows one of k cues; `delay` steps later a question is asked, and the cue is the answer.

    Observations have k + 1 numbers: the cue as a one-hot code in the first one only, and a last number that is 1 where
    the question is asked. In between they are zeros, and actions do nothing. The right answer pays 1, any other 0, and
    the episode ends. The best policy's return is 1. All questions look alike, so no policy without memory can do better
    than 1/k.

    With `continuous` there are two cues, and an action is a number x in [-1, 1] that pays 1 - |x - y| / 2 where the
    question is asked, y being -1 or 1: the best return is 1, and without memory it is 1/2.

    Args:
        num_cues: k, at least 2; 2 with `continuous`.
        delay: steps from the cue to the question, at least 1.
        continuous: whether the answer is a number.

    Raises:
        ConfigError: the answer is a number and there are more than two cues.

    Examples:
        >>> env = Recall(num_cues=2, delay=2)
        >>> cue = int(env.reset(seed=0)[0].argmax())
        >>> env.step(np.int64(0))[0], env.step(np.int64(0))[0], env.step(np.int64(cue))[1:3]
        (array([0., 0., 0.], dtype=float32), array([0., 0., 1.], dtype=float32), (1.0, True))
    """

    def __init__(self, num_cues: int = 2, delay: int = 3, continuous: bool = False) -> None:
        if continuous and num_cues != 2:
            raise ConfigError(
                f"Recall was given continuous=True and num_cues={num_cues}; an answer that is a number "
                "stands for one of 2 cues"
            )
        self.observation_space = spaces.Box(0, 1, (num_cues + 1,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(num_cues)
        self._continuous = continuous
        self._num_cues, self._delay = num_cues, delay
        self._cue = self._steps = 0

    def _begin(self) -> None:
        self._cue, self._steps = int(self.np_random.integers(self._num_cues)), 0

    def _act(self, action: Any) -> tuple[float, bool]:
        self._steps += 1
        over = self._steps > self._delay
        if self._continuous:
            return over * (1.0 - abs(float(action[0]) - (2 * self._cue - 1)) / 2), over
        return float(over and action == self._cue), over

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self._num_cues + 1, np.float32)
        observation[self._cue] = self._steps == 0
        observation[-1] = self._steps == self._delay
        return observation
