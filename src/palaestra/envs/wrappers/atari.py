"""Layers for Atari games, and for what is like them."""

import functools
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, EnvError, TensorSpec, TimeStep, episode_seed, numpy_dtype
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.gym_environment import gym_env_of
from palaestra.envs.contract.nest import neutral, zeros
from palaestra.envs.wrappers.base import ObservationMap, StatefulWrapper, as_first

__all__ = ["EpisodicLife", "FireReset", "GrayscaleResize", "RandomNoop"]


@final
class RandomNoop(EnvironmentWrapper):
    """Executes a random number of actions that do nothing before the agent sees the episode.

    For deterministic environments (the Atari games), where a policy could otherwise learn one sequence by heart. The
    action is zeros, or what the action space allows next to them; the number of steps comes from the episode's seed.
    What these steps earn does not count.

    Args:
        maximum: of such actions, at least 1; the number is uniform in 1 ... maximum.

    Raises:
        ConfigError: the maximum is no integer, or below 1.

    Examples:
        >>> from palaestra.envs import load
        >>> env = RandomNoop(load("CartPole-v1"), maximum=3)
        >>> env.reset().first
        True
    """

    def __init__(self, env: SingleEnvironment, maximum: int = 30) -> None:
        super().__init__(env)
        if type(maximum) is not int or maximum < 1:
            raise ConfigError(f"RandomNoop(maximum={maximum!r}); it must be an integer of at least 1")
        self._maximum = maximum

    def begin_episode(self, seed: int) -> TimeStep:
        time_step = first = self.env.begin_episode(seed)
        for number in range(int(np.random.default_rng(seed).integers(1, self._maximum + 1))):
            time_step = self.env.advance(neutral(self.env.action_spec))
            if time_step.step_type == 2:
                time_step = first = self.env.begin_episode(episode_seed(seed, number))
        return as_first(time_step, first)


@final
class FireReset(EnvironmentWrapper):
    """Presses FIRE once at the start of every episode.

    Some Atari games stand still until then, and an agent that has not learned to press it collects nothing. What the
    step earns does not count.

    Args:
        env: the layer inside; its innermost environment names its actions by `get_action_meanings`.

    Raises:
        ConfigError: there is no action FIRE.

    Examples:
        >>> from palaestra.envs import load
        >>> FireReset(load("CartPole-v1"))
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: FireReset needs an action named FIRE; the actions are []
    """

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        meanings = action_meanings(env)
        if "FIRE" not in meanings:
            raise ConfigError(f"FireReset needs an action named FIRE; the actions are {meanings}")
        spec = env.action_spec
        self._fire = numpy_dtype(spec.dtype).type(spec.start + meanings.index("FIRE"))

    def begin_episode(self, seed: int) -> TimeStep:
        first = self.env.begin_episode(seed)
        time_step = self.env.advance(self._fire)
        if time_step.step_type == 2:
            time_step = self.env.begin_episode(episode_seed(seed, 0))
        return as_first(time_step, first)


def action_meanings(env: SingleEnvironment) -> list[str]:
    """The names that an environment gives its discrete actions; none where it gives none.

    Args:
        env: the outermost layer.
    """
    gym_env = gym_env_of(env)
    meanings = getattr(gym_env.unwrapped, "get_action_meanings", None) if gym_env is not None else None
    return list(meanings()) if meanings is not None else []


@final
class EpisodicLife(StatefulWrapper):
    """Ends an episode, with discount 0, when a life is lost; the next one continues the same game.

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
        self._inner: dict[str, Any] = {}  # what was carried into the running game; its actions are played again

    def begin_episode(self, seed: int) -> TimeStep:
        if self._seed is None:
            return self._begin_game(seed)
        time_step = self._play(neutral(self.env.action_spec))
        return self._begin_game(seed) if time_step.step_type == 2 else as_first(time_step, self._first)

    def advance(self, action: Any) -> TimeStep:
        before = self._lives
        time_step = self._play(action)
        lost = time_step.step_type != 2 and self._lives < before
        return time_step._replace(step_type=2, discount=0.0) if lost else time_step

    def carried_state(self) -> dict[str, Any]:
        return self._with_snapshot(self.env.carried_state() if self._seed is None else self._inner)

    def snapshot(self) -> Any:
        return [self._seed, [np.asarray(action).tolist() for action in self._actions]]

    def restore(self, snapshot: Any) -> None:
        seed, actions = snapshot
        self._seed = None
        if seed is not None:
            self._begin_game(seed)
            like = zeros(self.env.action_spec)
            for action in actions:
                self._play(np.asarray(action, like.dtype)[()])

    def _begin_game(self, seed: int) -> TimeStep:
        self._inner = self.env.carried_state()
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


_LUMA, _LUMA_SUM = np.array([299, 587, 114], np.float32), 1000  # ITU-R BT.601


@final
class GrayscaleResize(ObservationMap):
    """Turns pictures [H, W, 3] (or gray ones, [H, W]) of uint8 into gray ones [height, width] of uint8.

    A 210 x 160 colour picture becomes a fourteenth of its size, and the network that looks at it faster by as much.
    Every pixel is the mean of the area that it covers, rounded: sums are of integers, and exact, for those of products
    of matrices depend on how many threads there are.

    Args:
        height: of the new picture in pixels.
        width: the same.
        keys: leaves to change; by default all pictures.

    Raises:
        ConfigError: a size is below 1, or there are no pictures.

    Examples:
        >>> import gymnasium
        >>> from palaestra.envs import GymEnvironment
        >>> class Flag(gymnasium.Env):  # the left half red, the right half green
        ...     observation_space = gymnasium.spaces.Box(0, 255, (2, 4, 3), np.uint8)
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         return np.tile(np.repeat(255 * np.eye(3, dtype=np.uint8)[:2], 2, axis=0), (2, 1, 1)), {}
        >>> GrayscaleResize(GymEnvironment(Flag()), height=1, width=2).reset().observation
        array([[ 76, 150]], dtype=uint8)
    """

    def __init__(
        self, env: SingleEnvironment, height: int = 84, width: int = 84, keys: Sequence[str] | None = None
    ) -> None:
        if not (type(height) is type(width) is int and min(height, width) >= 1):
            raise ConfigError(f"GrayscaleResize(height={height}, width={width}); both must be integers of at least 1")
        self._size = (height, width)
        super().__init__(env, keys)

    def fits(self, spec: TensorSpec) -> bool:
        shape = spec.shape
        return spec.dtype == torch.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3))

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        return BoundedSpec(self._size, torch.uint8, minimum=np.array(0), maximum=np.array(255))

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        height, width = value.shape[:2]
        whole = height * width * (1 if value.ndim == 2 else _LUMA_SUM)
        dtype = np.float32 if 255 * whole < 2**24 else np.float64  # both hold integers so large
        gray = value.astype(np.float32) if value.ndim == 2 else value.astype(np.float32) @ _LUMA
        gray = gray.astype(dtype, copy=False)
        rows, columns = (_areas(old, new, dtype) for old, new in zip((height, width), self._size, strict=True))
        return np.rint(rows @ gray @ columns.T / whole).astype(np.uint8)


@functools.cache
def _areas(old: int, new: int, dtype: type[np.floating]) -> np.ndarray:
    """[new, old]: how many of a new pixel's `old` parts lie in each old one."""
    edges, pixels = np.arange(new + 1) * old, np.arange(old) * new
    overlap = np.minimum(edges[1:, None], pixels + new) - np.maximum(edges[:-1, None], pixels)
    return overlap.clip(0).astype(dtype)
