"""Environments of Gymnasium's registry."""

import copy
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from palaestra.core import ConfigError, EnvError, MissingExtraError, did_you_mean, import_module
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.faults import describe
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.suites.mujoco import log_warnings
from palaestra.envs.wrappers.episode_ends import TimeLimit

__all__ = ["RegisteredEnvironment", "find_spec", "load", "pool", "registered_environments", "wrap"]

# Shells around environments of Gymnasium's predecessors; they cannot be made by their name alone.
_ADAPTERS = ("GymV21Environment", "GymV26Environment")
# Packages that register environments when they are imported, by how the ids begin: (package, extra).
_REGISTERED_BY = {
    "ALE/": ("ale_py", "atari"),
    "dm_control/": ("shimmy", "dm-control"),
    "bsuite/": ("shimmy", "bsuite"),
    **dict.fromkeys(
        ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "PointMaze", "AntMaze", "FrankaKitchen"),
        ("gymnasium_robotics", "robotics"),
    ),
}
# What an entry point needs: (part of its name, package, extra).
_ENTRY_POINTS = (
    ("dm_control", "dm_control", "dm-control"),
    ("bsuite", "bsuite", "bsuite"),
    ("robotics", "mujoco", "robotics"),
    ("box2d", "Box2D", "box2d"),
    ("mujoco", "mujoco", "mujoco"),
)


class RegisteredEnvironment(NamedTuple):
    """An environment that can be named."""

    name: str
    """Its id."""
    suite: str
    """Which family it is of, for example `classic_control`."""
    max_episode_steps: int | None
    """Its registered time limit."""
    native: bool
    """Whether it has a vectorised version of its own."""


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
    gym_env = _made(
        spec, kwargs, lambda: gymnasium.make(bare, max_episode_steps=-1, disable_env_checker=True, **kwargs or {})
    )
    if max_episode_steps is None:
        max_episode_steps = spec.max_episode_steps or 0
    return wrap(gym_env, env_id=env_id, duration=max_episode_steps, gym_wrappers=gym_wrappers, wrappers=wrappers)


def pool(name: str, num_envs: int, *, kwargs: dict[str, Any] | None = None) -> VectorEnv[Any, Any, Any]:
    """The vectorised version that an id is registered with.

    Args:
        name: an id such as `"CartPole-v1"`.
        num_envs: how many.
        kwargs: for its constructor.

    Raises:
        ConfigError: no such id, it has no such version, or its constructor refuses the arguments.
        MissingExtraError: it needs an optional package.
    """
    spec = find_spec(name)
    if spec.vector_entry_point is None:
        raise ConfigError(f"{name!r} has no vectorised version of its own; use vectorization=serial or process")
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    return _made(spec, kwargs, lambda: gymnasium.make_vec(spec, num_envs, vectorization_mode=mode, **kwargs or {}))


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
    if duration > 0:  # for wrappers that look the limit up; it is not Gymnasium that applies it
        bare = gym_env.unwrapped
        bare.spec = copy.copy(bare.spec) if bare.spec else EnvSpec(type(bare).__name__)
        bare.spec.max_episode_steps = duration
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
    module, colon, rest = name.partition(":")
    if colon:
        _import_quietly(module, name)
        name = rest
    for prefix, (package, extra) in _REGISTERED_BY.items():
        if name.startswith(prefix):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, extra, f"the environment {name!r}")
            _import_quietly(package)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        known = did_you_mean(name, gymnasium.registry) if "mean" not in str(error) else ""
        known = known if known.startswith(" ") else ""
        raise ConfigError(
            f"no environment {name!r} in Gymnasium's registry: {error}{known} "
            'An environment of your own is named "my_package:MyEnvironment"'
        ) from error


def registered_environments() -> list[RegisteredEnvironment]:
    """The newest version of every environment in the registry, by suite and name.

    Examples:
        >>> [env for env in registered_environments() if env.name == "CartPole-v1"][0].suite
        'classic_control'
    """
    newest: dict[tuple[str | None, str], EnvSpec] = {}
    for spec in gymnasium.registry.values():
        if spec.name in _ADAPTERS:
            continue
        key = (spec.namespace, spec.name)
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    found = [
        RegisteredEnvironment(spec.id, _suite(spec), spec.max_episode_steps, spec.vector_entry_point is not None)
        for spec in newest.values()
    ]
    return sorted(found, key=lambda env: (env.suite, env.name))


def _suite(spec: EnvSpec) -> str:
    """`classic_control` of `gymnasium.envs.classic_control.cartpole:CartPoleEnv`; else the package."""
    if spec.namespace:
        return spec.namespace
    place = spec.entry_point.__module__ if callable(spec.entry_point) else str(spec.entry_point)
    parts = place.split(":")[0].split(".")
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and len(parts) > 2 else parts[0]


def _made(spec: EnvSpec, kwargs: dict[str, Any] | None, make: Callable[[], Any]) -> Any:
    """What `make` makes, or an error that says what to install or to change."""
    needs = [(package, extra) for part, package, extra in _ENTRY_POINTS if part in str(spec.entry_point)]
    for package, extra in needs[:1]:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra, f"the environment {spec.id!r}")
        _import_quietly(package)
    try:
        return make()
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(f"the environment {spec.id!r} needs a package that is not installed: {error}") from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(f"{spec.id!r} cannot be made with the arguments {kwargs or {}}: {error}") from error
    except Exception as error:
        raise EnvError(f"{spec.id!r} raised {': '.join(describe(error))}") from error


def _import_quietly(package: str, name: str = "") -> None:
    """Imports what an environment is made of. Its warnings are not ours, and Box2D crashes where they are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module(package, name or package)
    if package == "mujoco":
        log_warnings(module)
