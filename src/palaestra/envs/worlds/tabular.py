"""Environments of a few states, whose best values are known in closed form."""

from abc import abstractmethod
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Bandit", "Chain", "Endless", "FourRooms"]


class TinyEnv(gymnasium.Env[Any, Any]):
    """What the small environments share: an episode begins, actions are executed, and what there is to see is shown."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: of all that is random.
        """
        super().reset(seed=seed)
        self._begin()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Executes an action.

        Args:
            action: one of the action space.
        """
        reward, terminated = self._act(action)
        return self._observation(), reward, terminated, False, {}

    def _begin(self) -> None:
        """Draws what an episode begins with."""

    @abstractmethod
    def _act(self, action: Any) -> tuple[float, bool]:
        """The reward, and whether the task is over."""

    @abstractmethod
    def _observation(self) -> Any:
        """The observation now."""


@final
class Bandit(TinyEnv):
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

    def _act(self, action: Any) -> tuple[float, bool]:
        reward = float(action) / (self._num_arms - 1)
        if self._noise:
            reward += self._noise * float(self.np_random.standard_normal())
        return reward, True

    def _observation(self) -> np.ndarray:
        return np.ones(1, np.float32)


@final
class Chain(TinyEnv):
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

    def _begin(self) -> None:
        self._state = 0

    def _act(self, action: Any) -> tuple[float, bool]:
        if action == 1 and self._state == self._num_states - 1:
            return 1.0, True
        self._state = self._state + 1 if action == 1 else max(self._state - 1, 0)
        return 0.0, False

    def _observation(self) -> np.ndarray:
        return np.eye(self._num_states, dtype=np.float32)[self._state]


@final
class Endless(TinyEnv):
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

    def _act(self, action: Any) -> tuple[float, bool]:
        return 1.0, False

    def _observation(self) -> np.ndarray:
        return self.np_random.random(self._size, np.float32) if self._random else np.ones(self._size, np.float32)


_SIZE = 64  # of the picture, pixels
_GAP = 1e-3  # between a point and the wall that stopped it


@final
class FourRooms(TinyEnv):
    """The square [-1, 1]² in four rooms, joined by four doors in the middle of their walls.

    An action moves the point by at most `speed` along each axis; walls stop it. It begins somewhere in the lower left
    room, its goal lies somewhere in the upper right one. Standing within `radius` of the goal pays 1 and terminates;
    everything else pays 0. So the return is 1 or 0, the shortest way leads through two doors and takes about
    1.2 / `speed` steps, and chance practically never finds it within some hundred. Give it a time limit.

    Observations are those of a goal environment: `observation` (the place), `achieved_goal` (the place again) and
    `desired_goal`.

    Args:
        speed: most that one action moves along an axis.
        radius: how near to the goal is there.
        door: width of the doors.
        render_mode: `rgb_array` or `None`; both draw the same picture.

    Examples:
        >>> env = FourRooms()
        >>> observation, _ = env.reset(seed=0)
        >>> bool((observation["observation"] < 0).all()), bool((observation["desired_goal"] > 0).all())
        (True, True)
        >>> env.step(np.zeros(2, np.float32))[1:3]
        (0.0, False)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's convention

    def __init__(
        self, speed: float = 0.05, radius: float = 0.1, door: float = 0.25, render_mode: str | None = "rgb_array"
    ) -> None:
        place = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), place))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.render_mode = render_mode
        self._speed, self._radius, self._door = speed, radius, door
        self._place = self._goal = np.zeros(2, np.float32)

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """1 near the goal, else 0; for any number of rows at once.

        Args:
            achieved_goal: [..., 2].
            desired_goal: [..., 2].
            info: not needed.
        """
        return reached(achieved_goal, desired_goal, self._radius)

    def _begin(self) -> None:
        self._place = self.np_random.uniform(-0.9, -0.1, 2).astype(np.float32)
        self._goal = self.np_random.uniform(0.1, 0.9, 2).astype(np.float32)

    def _act(self, action: Any) -> tuple[float, bool]:
        place = self._place.astype(np.float64)
        for axis, move in enumerate(self._speed * np.clip(action, -1, 1)):
            place[axis] = self._stopped(place[axis], place[axis] + move, place[1 - axis])
        self._place = place.astype(np.float32)
        there = bool(self.compute_reward(self._place, self._goal, {}))
        return float(there), there

    def _stopped(self, before: float, after: float, across: float) -> float:
        """Position after a move along one axis."""
        after = min(max(after, -1.0), 1.0)
        through_door = abs(abs(across) - 0.5) < self._door / 2
        if before * after < 0 and not through_door:
            return _GAP * np.sign(before)
        return after if after else _GAP * np.sign(before)

    def _observation(self) -> dict[str, np.ndarray]:
        return {"observation": self._place, "achieved_goal": self._place.copy(), "desired_goal": self._goal.copy()}

    def render(self) -> np.ndarray:
        """A picture from above: walls grey, the goal green, the point blue."""
        picture = np.full((_SIZE, _SIZE, 3), 255, np.uint8)
        middle, rows = _SIZE // 2, np.linspace(1, -1, _SIZE)
        wall = np.abs(np.abs(rows) - 0.5) >= self._door / 2
        picture[wall, middle - 1 : middle + 1] = picture[middle - 1 : middle + 1, wall] = 128
        for where, colour in ((self._goal, (40, 160, 60)), (self._place, (30, 80, 220))):
            column, row = ((1 + where * np.array([1, -1], np.float32)) / 2 * (_SIZE - 1)).astype(int)
            picture[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3] = colour
        return picture.repeat(4, 0).repeat(4, 1)


def reached(achieved_goal: np.ndarray, desired_goal: np.ndarray, radius: float) -> np.ndarray:
    """1 where goals lie within the radius, else 0.

    Args:
        achieved_goal: [..., 2].
        desired_goal: [..., 2].
        radius: in units of the places.
    """
    return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= radius).astype(np.float32)
