"""Environments by name: `load` for one, `create_environment` for a batch of them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium

from palaestra.core import ConfigError, RunSeeds, SpecTree, TensorSpec
from palaestra.envs.environment import Environment, SingleEnvironment
from palaestra.envs.importing import import_object
from palaestra.envs.native_vector import NativeVectorEnvironment
from palaestra.envs.process import ProcessEnvironment
from palaestra.envs.serial import SerialEnvironment
from palaestra.envs.suites import gym
from palaestra.envs.wrap import GYM_WRAPPERS, STEP_WRAPPERS, as_values
from palaestra.envs.wrappers.time_limit import TimeLimit

# A time limit that is never reached, for pools that cannot be without one and count in 32 bits.
_NO_LIMIT = 1 << 30

__all__ = ["EnvConfig", "create_environment", "load", "probe_specs"]


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment, how many of them, and how they are stepped."""

    name: str = "CartPole-v1"
    """An id of Gymnasium's registry, or `my_package:MyEnvironment` for a class or function of your own."""
    num_envs: int = 1
    """Environments stepped together, B."""
    vectorization: Literal["auto", "serial", "process", "native"] = "auto"
    """In this process, in worker processes, or the environment's own vectorised version. `auto` is `serial`."""
    num_workers: int | None = None
    """Worker processes of `process`; as many as there are cores if left out."""
    max_episode_steps: int | None = None
    """Time limit in env steps; the registered one if left out, 0 for none."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """For the environment's constructor."""
    gym_wrappers: tuple[Any, ...] = ()
    """Gymnasium wrappers, the innermost first: `Wrap` values, their text such as `ClipReward`, or callables."""
    wrappers: tuple[Any, ...] = ()
    """Time step wrappers, the innermost first: `Wrap` values, their text (`FrameStack(num_frames=4)`), or callables."""

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ConfigError(f"env.num_envs is {self.num_envs}; it must be at least 1")
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigError(f"env.num_workers is {self.num_workers}; it must be at least 1")
        object.__setattr__(self, "gym_wrappers", as_values(self.gym_wrappers, GYM_WRAPPERS))
        object.__setattr__(self, "wrappers", as_values(self.wrappers, STEP_WRAPPERS))


def load(
    name: str,
    *,
    env_id: int = 0,
    max_episode_steps: int | None = None,
    gym_wrappers: Sequence[Any] = (),
    wrappers: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> SingleEnvironment:
    """One environment with all its layers; see `suites.gym.load` for their order.

    Args:
        name: an id of the registry, or `my_package:MyEnvironment`.
        env_id: which environment of a batch this is.
        max_episode_steps: the time limit; `None` for the registered one, 0 for none.
        gym_wrappers: as in `EnvConfig`; not for a `SingleEnvironment`.
        wrappers: as in `EnvConfig`.
        kwargs: for the constructor.

    Raises:
        ConfigError: no such environment or wrapper, or the arguments do not fit.
        MissingExtraError: it needs an optional package.

    Examples:
        >>> load("palaestra.envs.tiny:Chain", kwargs={"num_states": 3}).observation_spec.shape
        (3,)
    """
    if max_episode_steps is not None and max_episode_steps < 0:
        raise ConfigError(f"max_episode_steps is {max_episode_steps}; it must be at least 0 (0: no time limit)")
    inner, outer = as_values(gym_wrappers, GYM_WRAPPERS), as_values(wrappers, STEP_WRAPPERS)
    maker = _maker(name)
    if maker is None:
        return gym.load(
            name,
            env_id=env_id,
            max_episode_steps=max_episode_steps,
            gym_wrappers=inner,
            wrappers=outer,
            kwargs=kwargs,
        )
    env = _made(name, maker, kwargs or {})
    if isinstance(env, gymnasium.Env):
        registered = env.spec.max_episode_steps if env.spec else None
        duration = max_episode_steps if max_episode_steps is not None else registered or 0
        return gym.wrap(env, env_id=env_id, duration=duration, gym_wrappers=inner, wrappers=outer)
    if not isinstance(env, SingleEnvironment):
        raise ConfigError(
            f"{name!r} made a {type(env).__name__}; load needs a gymnasium.Env or a SingleEnvironment "
            "(a batched environment says so by the attribute `batched = True`, and is made by create_environment)"
        )
    if inner:
        raise ConfigError(f"{name!r} is a SingleEnvironment, which gym_wrappers cannot be put around; use wrappers")
    env.env_id = env_id
    if max_episode_steps:
        env = TimeLimit(env, max_episode_steps)
    for wrapper in outer:
        env = wrapper(env)
    return env


def create_environment(config: EnvConfig, *, seed: int = 0, lane_seeds: Sequence[int] | None = None) -> Environment:
    """A batch of environments.

    Args:
        config: which, how many and how.
        seed: the run seed that the environments' seeds are derived from.
        lane_seeds: one for each instead, for example from `RunSeeds.integer("evaluation", lane)`.

    Raises:
        ConfigError: the settings do not fit together, or name something that does not exist.

    Examples:
        >>> create_environment(EnvConfig(num_envs=2), seed=3).batch_size
        2
    """
    if lane_seeds is None:
        lane_seeds = [RunSeeds(seed).integer("environments", lane) for lane in range(config.num_envs)]
    if len(lane_seeds) != config.num_envs:
        raise ConfigError(f"num_envs is {config.num_envs} and there are {len(lane_seeds)} lane seeds; they must agree")
    maker = _maker(config.name)
    if maker is not None and getattr(maker, "batched", False):
        return _batched(config, maker, lane_seeds)
    if config.vectorization == "native":
        return _native(config, lane_seeds)
    factories = [
        functools.partial(
            load,
            config.name,
            env_id=lane,
            max_episode_steps=config.max_episode_steps,
            gym_wrappers=config.gym_wrappers,
            wrappers=config.wrappers,
            kwargs=config.kwargs,
        )
        for lane in range(config.num_envs)
    ]
    if config.vectorization == "process":
        return ProcessEnvironment(factories, lane_seeds=lane_seeds, num_workers=config.num_workers)
    return SerialEnvironment([factory() for factory in factories], lane_seeds=lane_seeds)


def probe_specs(config: EnvConfig) -> tuple[SpecTree, SpecTree, TensorSpec]:
    """The observation, action and reward spec of a batch, without keeping an environment open.

    Args:
        config: which environment.

    Raises:
        ConfigError: as for `create_environment`.
    """
    vectorization = "native" if config.vectorization == "native" else "serial"
    one = EnvConfig(**{**vars(config), "num_envs": 1, "vectorization": vectorization})
    with create_environment(one, lane_seeds=[0]) as env:
        return env.observation_spec, env.action_spec, env.reward_spec


def _maker(name: str) -> Callable[..., Any] | None:
    """The class or function that a name with a colon means; `None` for an id of the registry."""
    module, _, rest = name.partition(":")
    if not rest:
        return None
    if rest in gymnasium.registry or not rest.isidentifier():
        importlib.import_module(module)
        return None
    maker = import_object(name)
    if not callable(maker):
        raise ConfigError(
            f"{name!r} is a {type(maker).__name__}; a class or function that makes an environment is needed"
        )
    return maker


def _made(name: str, maker: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{name!r} cannot be called with {kwargs}: {error}") from None
    except ValueError:
        pass
    return maker(**kwargs)


def _native(config: EnvConfig, lane_seeds: Sequence[int]) -> Environment:
    if config.gym_wrappers or config.wrappers:
        raise ConfigError("vectorization=native steps all environments as one, which wrappers cannot be put around")
    spec = gym.find_spec(config.name)
    if spec.vector_entry_point is None:
        raise ConfigError(f"{config.name!r} has no vectorised version of its own; use vectorization=serial or process")
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps or _NO_LIMIT
    try:
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        pool = gymnasium.make_vec(spec, config.num_envs, vectorization_mode=mode, **kwargs)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise gym.missing_extra(spec, error) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(f"{config.name!r} cannot be made with {kwargs}: {error}") from error
    return NativeVectorEnvironment(pool, lane_seeds=lane_seeds)


def _batched(config: EnvConfig, maker: Callable[..., Any], lane_seeds: Sequence[int]) -> Environment:
    if config.gym_wrappers or config.wrappers or config.max_episode_steps:
        raise ConfigError(f"{config.name!r} is batched: it brings its own wrappers and time limit")
    if config.vectorization not in ("auto", "native"):
        raise ConfigError(f"{config.name!r} is batched, so its vectorization is native, not {config.vectorization}")
    kwargs: dict[str, Any] = {**config.kwargs, "batch_size": config.num_envs}
    if "lane_seeds" in inspect.signature(maker).parameters:
        kwargs["lane_seeds"] = list(lane_seeds)
    env = _made(config.name, maker, kwargs)
    if not isinstance(env, Environment):
        raise ConfigError(f"{config.name!r} has `batched = True` and made a {type(env).__name__}, not an Environment")
    return env
