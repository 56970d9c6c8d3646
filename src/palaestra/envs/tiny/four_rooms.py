"""`FourRooms`: a point that should find its way through doors to a goal, and is told nothing before it is there."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["FourRooms"]

_SIZE = 64  # of the picture, pixels
_GAP = 1e-3  # between a point and the wall that stopped it


@final
class FourRooms(gymnasium.Env[Any, np.ndarray]):
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

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Puts point and goal into their rooms.

        Args:
            seed: of both places.
            options: none exist.
        """
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-0.9, -0.1, 2).astype(np.float32)
        self._goal = self.np_random.uniform(0.1, 0.9, 2).astype(np.float32)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Moves the point, first along x, then along y.

        Args:
            action: [2] in [-1, 1].
        """
        place = self._place.astype(np.float64)
        for axis, move in enumerate(self._speed * np.clip(action, -1, 1)):
            place[axis] = self._stopped(place[axis], place[axis] + move, place[1 - axis])
        self._place = place.astype(np.float32)
        there = bool(self.compute_reward(self._place, self._goal, {}))
        return self._observation(), float(there), there, False, {}

    def _stopped(self, before: float, after: float, across: float) -> float:
        """Where a move along one axis ends."""
        after = min(max(after, -1.0), 1.0)
        through_door = abs(abs(across) - 0.5) < self._door / 2
        if before * after < 0 and not through_door:
            return _GAP * np.sign(before)
        return after if after else _GAP * np.sign(before)

    def _observation(self) -> dict[str, np.ndarray]:
        return {
            "observation": self._place,
            "achieved_goal": self._place.copy(),
            "desired_goal": self._goal.copy(),
        }

    def render(self) -> np.ndarray:
        """A picture from above: walls grey, the goal green, the point blue."""
        picture = np.full((_SIZE, _SIZE, 3), 255, np.uint8)
        middle, rows = _SIZE // 2, np.linspace(1, -1, _SIZE)
        wall = np.abs(np.abs(rows) - 0.5) >= self._door / 2
        picture[wall, middle - 1 : middle + 1] = picture[middle - 1 : middle + 1, wall] = 128
        for where, colour in ((self._goal, (40, 160, 60)), (self._place, (30, 80, 220))):
            column, row = (
                int((1 + side * value) / 2 * (_SIZE - 1)) for side, value in zip((1, -1), where, strict=True)
            )
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
