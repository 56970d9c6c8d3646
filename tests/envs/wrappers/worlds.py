"""Environments for the tests of wrappers: what they emit is known by hand."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from palaestra.envs import GymEnvironment, SingleEnvironment


class Script(gymnasium.Env):
    """Emits given observations and rewards, one after another, and ends after the last of them as `end` says."""

    def __init__(
        self,
        rewards: tuple[Any, ...],
        observations: Any = None,
        space: spaces.Space[Any] | None = None,
        end: str = "terminated",
        infos: tuple[dict[str, Any], ...] | None = None,
    ):
        self.observation_space = space or spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        if np.shape(rewards[0]):
            self.reward_space = spaces.Box(-np.inf, np.inf, np.shape(rewards[0]), np.float32)
        self._rewards, self._end, self._infos = rewards, end, infos
        numbers = [np.array([number], np.float32) for number in range(len(rewards) + 1)]
        self._observations = numbers if observations is None else observations
        self.actions: list[Any] = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.seeds.append(seed)
        return self._observations[0], self._infos[0] if self._infos else {}

    def step(self, action):
        self.actions.append(action)
        self.steps += 1
        over = self.steps == len(self._rewards)
        reward = self._rewards[self.steps - 1]
        flags = over and self._end == "terminated", over and self._end == "truncated"
        return self._observations[self.steps], reward, *flags, self._infos[self.steps] if self._infos else {}


class Motor(gymnasium.Env):
    """Takes continuous actions of different units beside a discrete one, and keeps what it was given."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        bounds = np.array([0, -4], np.float32), np.array([10, 4], np.float32)
        self.action_space = spaces.Dict({"gear": spaces.Discrete(3), "power": spaces.Box(*bounds, dtype=np.float32)})
        self.actions: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.actions.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Game(gymnasium.Env):
    """A game of three lives: action 2 loses one. Its state is noise from its seed, and depends on every action."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.begun = 0

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "LOSE"]

    def _seen(self):
        return np.array([self.state, self.lives])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begun += 1
        self.lives, self.state = 3, float(self.np_random.random())
        return self._seen(), {"lives": self.lives}

    def step(self, action):
        self.state += (1 + int(action)) * float(self.np_random.random())
        self.lives -= int(action == 2)
        return self._seen(), 1.0, self.lives == 0, False, {"lives": self.lives}


class Luck(Game):
    """A game whose lives are lost by chance, one or all."""

    def step(self, action):
        observation, reward, *_ = super().step(action % 2)
        self.lives -= min(self.lives, int(self.np_random.choice([0, 1, 3], p=[0.7, 0.2, 0.1])))
        return observation, reward * self.state, self.lives == 0, False, {"lives": self.lives}


class Masked(gymnasium.Env):
    """Three actions, of which the one taken last is forbidden next."""

    def __init__(self, length: int = 3):
        self.observation_space = spaces.Box(0, 9, (1,), np.float32)
        self.action_space = spaces.Discrete(3, start=1)
        self._length = length

    def _info(self, taken):
        return {"allowed": [number != taken for number in range(1, 1 + self._length)]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), self._info(None)

    def step(self, action):
        return np.ones(1, np.float32), 0.0, False, False, self._info(int(action))


class Camera(gymnasium.Env):
    """Colour noise of 12 x 8 pixels beside a number."""

    def __init__(self):
        picture = spaces.Box(0, 255, (12, 8, 3), np.uint8)
        self.observation_space = spaces.Dict({"picture": picture, "speed": spaces.Box(-9, 9, (), np.float32)})
        self.action_space = spaces.Discrete(2)

    def _seen(self):
        picture = self.np_random.integers(0, 256, (12, 8, 3)).astype(np.uint8)
        return {"picture": picture, "speed": np.float32(self.np_random.uniform(-9, 9))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), float(self.np_random.normal()), bool(self.np_random.random() < 0.1), False, {}


def script(*rewards: Any, **kwargs: Any) -> SingleEnvironment:
    """A `Script` with its converter."""
    return GymEnvironment(Script(rewards, **kwargs))


def gym_of(env: Any) -> Any:
    """The Gymnasium environment inside of all layers."""
    while not isinstance(env, GymEnvironment):
        env = env.env
    return env.gym_env


def episode(env: SingleEnvironment, count: int, action: Any = 0) -> list[Any]:
    """The first time steps."""
    return [env.reset(), *(env.step(action) for _ in range(count))]


class Unmasked(Masked):
    """Allows every action, so that random ones can be played."""

    def _info(self, taken):
        return {"allowed": [True] * 3}


class Drawn(Camera):
    """Can be drawn; episodes of 6 steps."""

    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.steps += 1
        observation, reward, *_ = super().step(action)
        return observation, reward, False, self.steps == 6, {}

    def render(self):
        return np.full((16, 16, 3), 10 * self.steps, np.uint8)
