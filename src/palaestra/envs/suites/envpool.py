"""EnvPool's C++ environments: names such as `envpool:Pong-v5` and `envpool:HalfCheetah-v5`.

They are stepped by threads and exist as pools only, so `vectorization` is native.
"""

import importlib
import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from palaestra.core import ConfigError, EnvError, did_you_mean, import_extra
from palaestra.envs.suites.gym import RegisteredEnvironment, with_limit
from palaestra.envs.suites.suite import Native

PREFIX = "envpool:"
"""Names that this suite is for."""

# What EnvPool says again in its info.
_REPEATED = ("env_id", "players", "reward", "terminated", "elapsed_step", "ram")


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool as a Gymnasium vector environment that can be seeded.

    EnvPool takes a seed only when a pool is made, so `reset(seed=...)` makes a new one.

    Args:
        name: `envpool:` and EnvPool's id.
        num_envs: how many.
        kwargs: for `envpool.make`.

    Raises:
        ConfigError: no such task, or EnvPool refuses the arguments.
        MissingExtraError: EnvPool is not installed.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium's own attribute

    def __init__(self, name: str, num_envs: int, kwargs: dict[str, Any]) -> None:
        task = name.removeprefix(PREFIX)
        self._make = lambda seed: _make(task, {**kwargs, "num_envs": num_envs, "seed": seed})
        self._pool = self._make(0)
        self._task, self.render_mode = task, kwargs.get("render_mode")
        self.num_envs = num_envs
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes everywhere.

        Args:
            seed: of a new pool; `None` keeps this one.
        """
        if seed is not None:
            self._pool.close()
            self._pool = self._make(int(seed))
        observation, info = self._pool.reset()
        self._show()
        return observation, _own(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all of them.

        Args:
            actions: one for each.
        """
        observation, reward, terminated, truncated, info = self._pool.step(np.asarray(actions))
        self._show()
        return observation, reward, terminated, truncated, _own(info)

    def render(self) -> Any:
        """A picture of lane 0, uint8 [1, H, W, 3]; of `render_mode="human"` a window instead.

        Raises:
            EnvError: EnvPool cannot draw this task, or the pool was made without `render_mode`.
        """
        try:
            return self._pool.render()
        except RuntimeError as error:
            raise EnvError(f"EnvPool cannot draw {self._task!r}: {error}") from None

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the pool.

        Args:
            kwargs: none exist.
        """
        self._pool.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()


def native(name: str, num_envs: int, kwargs: dict[str, Any], limit: int | None) -> Native:
    """A pool of EnvPool."""
    return Native(EnvPoolVectorEnv(name, num_envs, with_limit(kwargs, limit)))


def pools() -> list[RegisteredEnvironment]:
    """EnvPool's tasks, by their names here; none where it is not installed."""
    try:
        envpool: Any = importlib.import_module("envpool")
    except ImportError:
        return []
    return [RegisteredEnvironment(f"{PREFIX}{task}", "envpool", None, True) for task in sorted(envpool.list_all_envs())]


def _make(task: str, kwargs: dict[str, Any]) -> Any:
    envpool = import_extra("envpool", "envpool", f"the environment {PREFIX + task!r}")
    known = envpool.list_all_envs()
    if task not in known:
        raise ConfigError(f"EnvPool has no {task!r}{did_you_mean(task, known)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its bounds are float64 and its spaces float32
        try:
            made = envpool.make(task, env_type="gymnasium", **kwargs)
            _ = made.observation_space, made.action_space  # made when first asked for
            return made
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigError(f"EnvPool cannot make {task!r} with {kwargs}: {error}") from error


def _own(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in _REPEATED}
