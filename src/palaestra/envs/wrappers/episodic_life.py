"""`EpisodicLife`: losing a life is an end to learn from."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import ConfigError, EnvError, TensorSpec, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.nest import neutral, zeros
from palaestra.envs.wrappers.base import Remembering, as_first

__all__ = ["EpisodicLife"]


@final
class EpisodicLife(Remembering):
    """Ends an episode, with discount 0, when a life is lost; the next one goes on with the same game.

    A life is worth something, and this says so at once. For training only: in evaluation an episode should be a whole
    game. The next life begins with one action that does nothing.

    Args:
        env: the layer inside; it reports `lives` in its `info`.

    Raises:
        ConfigError: actions are nested.
        EnvError: raised while stepping: `info` has no `lives`.

    Examples:
        >>> import gymnasium
        >>> from palaestra.envs import GymEnvironment
        >>> class Game(gymnasium.Env):  # loses one of 3 lives with every step
        ...     observation_space = action_space = gymnasium.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         self.lives = 3
        ...         return 0, {"lives": 3}
        ...     def step(self, action):
        ...         self.lives -= int(action)
        ...         return 0, 1.0, self.lives == 0, False, {"lives": self.lives}
        >>> env = EpisodicLife(GymEnvironment(Game()))
        >>> [(time_step.step_type, time_step.env_info["lives"]) for time_step in (env.step(1) for _ in range(4))]
        [(0, 3), (2, 2), (0, 2), (2, 1)]
    """

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        if not isinstance(env.action_spec, TensorSpec):
            raise ConfigError(f"EpisodicLife needs one array as the action: {env.action_spec}")
        self._lives = 0
        self._seed: int | None = None  # of the running game; None where it is over
        self._actions: list[Any] = []
        self._first = TimeStep()

    def begin_episode(self, seed: int) -> TimeStep:
        """Goes on with the game, or starts the next one.

        Args:
            seed: of the game, if one starts.
        """
        self._begun = self.snapshot()
        noop = neutral(self.env.action_spec)
        if self._seed is None:
            return self._begin_game(seed)
        time_step = self._play(noop)
        return self._begin_game(seed) if time_step.step_type == 2 else as_first(time_step, self._first)

    def advance(self, action: Any) -> TimeStep:
        """Executes one action, and looks at the lives.

        Args:
            action: passed on.
        """
        before = self._lives
        time_step = self._play(action)
        lost = time_step.step_type != 2 and self._lives < before
        return time_step._replace(step_type=2, discount=0.0) if lost else time_step

    def snapshot(self) -> Any:
        """The running game: its seed and all its actions."""
        return [self._seed, [np.asarray(action).tolist() for action in self._actions]]

    def restore(self, snapshot: Any) -> None:
        """Plays the running game again.

        Args:
            snapshot: from `snapshot`.
        """
        seed, actions = snapshot
        self._seed = None
        if seed is not None:
            self._begin_game(seed)
            like = zeros(self.env.action_spec)
            for action in actions:
                self._play(np.asarray(action, like.dtype)[()])

    def _begin_game(self, seed: int) -> TimeStep:
        self._first = self.env.begin_episode(seed)
        self._seed, self._actions, self._lives = seed, [], self._read(self._first)
        return self._first

    def _play(self, action: Any) -> TimeStep:
        self._actions.append(np.array(action))
        time_step = self.env.advance(action)
        self._lives = self._read(time_step)
        if time_step.step_type == 2:
            self._seed, self._actions = None, []
        return time_step

    def _read(self, time_step: TimeStep) -> int:
        info = time_step.env_info or {}
        if "lives" not in info:
            raise EnvError(f"EpisodicLife needs the number of lives in info['lives']; there is {list(info)}")
        return int(info["lives"])
