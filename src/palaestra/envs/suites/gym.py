"""Environments of Gymnasium's registry."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from palaestra.core import ConfigError, MissingExtraError, did_you_mean
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.wrappers.time_limit import TimeLimit

__all__ = ["find_spec", "load", "missing_extra", "wrap"]

# Packages that register environments when they are imported: (namespace, package, extra).
_NAMESPACES = {"ALE": ("ale_py", "atari"), "dm_control": ("shimmy", "dm-control")}
# What an entry point needs: (part of its module's name, package, extra).
_ENTRY_POINTS = (("box2d", "Box2D", "box2d"), ("mujoco", "mujoco", "mujoco"))


def load(
    name: str,
    *,
    env_id: int = 0,
    max_episode_steps: int | None = None,
    gym_wrappers: Sequence[Callable[..., Any]] = (),
    wrappers: Sequence[Callable[..., Any]] = (),
    kwargs: dict[str, Any] | None = None,
) -> SingleEnvironment:
    """One environment of the registry with all its layers.

    From the inside to the outside: the environment, `gym_wrappers` in list order, `GymEnvironment`, `TimeLimit`,
    `wrappers` in list order. Gymnasium's own time limit, order check and environment check are left out.

    Args:
        name: an id such as `"CartPole-v1"`.
        env_id: which environment of a batch this is.
        max_episode_steps: the time limit; `None` for the registered one, 0 for none.
        gym_wrappers: each takes and returns a Gymnasium environment.
        wrappers: each takes and returns a `SingleEnvironment`.
        kwargs: for the environment's constructor.

    Raises:
        ConfigError: no such id, or its constructor refuses the arguments.
        MissingExtraError: it needs an optional package.

    Examples:
        >>> load("CartPole-v1").duration
        500
    """
    spec = find_spec(name)
    bare = copy.deepcopy(spec)
    bare.order_enforce = False
    try:
        gym_env = gymnasium.make(bare, max_episode_steps=-1, disable_env_checker=True, **(kwargs or {}))
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise missing_extra(spec, error) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(f"{name} cannot be made with the arguments {kwargs or {}}: {error}") from error
    if max_episode_steps is None:
        max_episode_steps = spec.max_episode_steps or 0
    return wrap(gym_env, env_id=env_id, duration=max_episode_steps, gym_wrappers=gym_wrappers, wrappers=wrappers)


def wrap(
    gym_env: gymnasium.Env[Any, Any],
    *,
    env_id: int = 0,
    duration: int = 0,
    gym_wrappers: Sequence[Callable[..., Any]] = (),
    wrappers: Sequence[Callable[..., Any]] = (),
) -> SingleEnvironment:
    """The layers of `load` around an environment that exists.

    Args:
        gym_env: the innermost layer.
        env_id: which environment of a batch this is.
        duration: the time limit in env steps; 0 for none.
        gym_wrappers: each takes and returns a Gymnasium environment.
        wrappers: each takes and returns a `SingleEnvironment`.
    """
    for gym_wrapper in gym_wrappers:
        gym_env = gym_wrapper(gym_env)
    env: SingleEnvironment = GymEnvironment(gym_env, env_id)
    if duration > 0:
        env = TimeLimit(env, duration)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def find_spec(name: str) -> EnvSpec:
    """What the registry knows about an id; packages of known namespaces are imported for it.

    Args:
        name: of the environment.

    Raises:
        ConfigError: no such id.
        MissingExtraError: its namespace belongs to a package that is not installed.
    """
    namespace = name.split("/")[0] if "/" in name else ""
    if namespace in _NAMESPACES:
        package, extra = _NAMESPACES[namespace]
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra, f"the environment {name!r}")
        importlib.import_module(package)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        known = did_you_mean(name, gymnasium.registry) if "mean" not in str(error) else ""
        known = known if known.startswith(" ") else ""
        raise ConfigError(
            f"no environment {name!r} in Gymnasium's registry: {error}{known} "
            'An environment of your own is named "my_package:MyEnvironment"'
        ) from error


def missing_extra(spec: EnvSpec, error: Exception) -> ConfigError:
    """The error that says what to install.

    Args:
        spec: of the environment.
        error: raised when it was made.
    """
    for part, package, extra in _ENTRY_POINTS:
        if part in str(spec.entry_point):
            return MissingExtraError(package, extra, f"the environment {spec.id!r}")
    return ConfigError(f"the environment {spec.id!r} needs a package that is not installed: {error}")
