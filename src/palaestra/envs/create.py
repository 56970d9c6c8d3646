"""Environments by name: `load` for one, `create_environment` for a batch of them."""

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from palaestra.core import Batch, PalaestraError, RunSeeds, SpecTree, TensorSpec, import_maker, import_module, refuses
from palaestra.core.computing import num_cores
from palaestra.core.errors import ConfigError, EnvError, require_kind
from palaestra.core.importing import GIVEN
from palaestra.envs.contract.attributes import limit_of_layers, require_known_layers
from palaestra.envs.contract.batch import BatchEnvironment
from palaestra.envs.contract.environment import Environment, SingleEnvironment
from palaestra.envs.contract.gym_environment import LOOK_STEPS, GymEnvironment
from palaestra.envs.contract.nest import neutral_rows, to_batched
from palaestra.envs.contract.rows import chosen_entries, require_small
from palaestra.envs.contract.spaces import OLD_GYM
from palaestra.envs.env_config import EnvConfig, is_environment
from palaestra.envs.simulators.mujoco_tasks import TASKS, gymnasium_mujoco
from palaestra.envs.stepping.driver import Driver
from palaestra.envs.stepping.first_ready import FirstReadyEnvironment
from palaestra.envs.stepping.lane_environment import LaneEnvironment
from palaestra.envs.stepping.native_vector import NativeVectorEnvironment
from palaestra.envs.stepping.process import ProcessDriver
from palaestra.envs.stepping.serial import SerialDriver
from palaestra.envs.stepping.thread import ThreadDriver
from palaestra.envs.suites.suite import Native, batch, native, pools_only, single, suite_of
from palaestra.envs.supervision.faults import FaultPolicy, Hang, describe, is_own
from palaestra.envs.wrappers.batched import InputEnvironment, RawRows, UntransformedRows
from palaestra.envs.wrappers.chaos import ChaosEnv, chaos_of
from palaestra.envs.wrappers.episode_ends import TimeLimit
from palaestra.envs.wrappers.untransformed import Untransformed
from palaestra.envs.wrappers.wrap import GYM_WRAPPERS, STEP_WRAPPERS, Wrap, as_values

__all__ = ["create_environment", "decided", "load", "load_lane", "probe_specs", "row_specs"]


def load(
    name: str,
    *,
    env_id: int = 0,
    max_episode_steps: int | None = None,
    gym_wrappers: Sequence[Any] = (),
    wrappers: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    discount: float = 1.0,
) -> SingleEnvironment:
    """One environment with all its layers.

    From the inside to the outside: the environment, `gym_wrappers` in list order, `GymEnvironment`, `TimeLimit`,
    `wrappers` in list order. Gymnasium's own time limit, order check and environment check are left out.

    Args:
        name: an id of the registry such as `CartPole-v1`, or `my_package:MyEnvironment`.
        env_id: which environment of a batch this is.
        max_episode_steps: the time limit; `None` for the registered one, 0 for none.
        gym_wrappers: as in `EnvConfig`; not for a `SingleEnvironment`.
        wrappers: as in `EnvConfig`.
        kwargs: for the constructor.
        discount: of every step that does not terminate, as in `GymEnvironment`; 1 for a `SingleEnvironment`.

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
        env, duration, layers = single(name, kwargs or {}, max_episode_steps)
        outer = (*layers, *outer)
    else:
        env, duration = _made(name, maker, kwargs or {}), max_episode_steps
        require_known_layers(name, env, duration)
        if duration is None:
            duration = (isinstance(env, gymnasium.Env) and env.spec and env.spec.max_episode_steps) or 0
    if isinstance(env, gymnasium.Env):
        env = GymEnvironment(_gym_wrapped(env, duration, inner), discount=discount)
    elif isinstance(env, VectorEnv):
        raise ConfigError(f"{name!r} made a VectorEnv, all environments as one; use env.vectorization=native")
    elif not isinstance(env, SingleEnvironment) and is_environment(type(env)) and hasattr(env, "action_space"):
        raise ConfigError(f"{name!r} made a {type(env).__name__} that is no gymnasium.Env. {OLD_GYM}")
    elif not isinstance(env, SingleEnvironment):
        raise ConfigError(
            f"{name!r} made a {type(env).__name__}; load needs a gymnasium.Env or a SingleEnvironment "
            "(a batched environment says so by the attribute `batched = True`, and is made by create_environment; a "
            "function that makes one of many agents by its annotation, `-> MultiAgentEnv` or `-> ParallelEnv`)"
        )
    elif discount != 1:
        raise ConfigError(f"{name!r} is a SingleEnvironment, which says its discount itself; leave env.discount out")
    elif inner:
        raise ConfigError(f"{name!r} is a SingleEnvironment, which gym_wrappers cannot be put around; use wrappers")
    env.env_id = env_id
    if duration:
        env = TimeLimit(env, duration)
    return functools.reduce(lambda layer, wrapper: wrapper(layer), outer, env)


def _gym_wrapped(env: gymnasium.Env[Any, Any], duration: int, wrappers: Sequence[Any]) -> gymnasium.Env[Any, Any]:
    if duration:  # for wrappers that look the limit up; it is not Gymnasium that applies it
        bare = env.unwrapped
        bare.spec = copy.copy(bare.spec) if bare.spec else EnvSpec(type(bare).__name__)
        bare.spec.max_episode_steps = duration
    return functools.reduce(lambda layer, wrapper: wrapper(layer), wrappers, env)


def load_lane(config: EnvConfig, lane: int, *, first_id: int = 0) -> SingleEnvironment:
    """One environment of a batch by itself, with all its layers.

    Args:
        config: of the batch.
        first_id: number of the batch's first environment, where this is a part of a larger one.

    Raises:
        ConfigError: as for `load`.

    Examples:
        >>> load_lane(EnvConfig(name="CartPole-v1", num_envs=4), 2).env_id
        2
    """
    rules = chaos_of(config.chaos, range(lane, lane + 1)).replace("#0", "")
    chaos = (functools.partial(ChaosEnv, rules=rules),) if rules else ()
    config, last = config.of_lane(lane), (Untransformed,) if config.untransformed else ()
    return load(
        config.name,
        env_id=first_id + lane,
        max_episode_steps=config.max_episode_steps,
        gym_wrappers=config.gym_wrappers,
        wrappers=(*config.wrappers, *config.train_wrappers, *chaos, *last),
        kwargs=config.all_kwargs,
        discount=config.discount,
    )


def create_environment(
    config: EnvConfig, *, seed: int = 0, lane_seeds: Sequence[int] | None = None, first_id: int = 0
) -> Environment:
    """A batch of environments.

    Args:
        config: which, how many and how.
        seed: the run seed that the environments' seeds are derived from.
        lane_seeds: one for each instead, for example from `RunSeeds.integer("evaluation", lane)`.
        first_id: number of the first environment in messages, where this is a part of a larger batch.

    Raises:
        ConfigError: the settings do not fit together, or name something that does not exist.

    Examples:
        >>> create_environment(EnvConfig(num_envs=2), seed=3).batch_size
        2
    """
    require_kind(config, EnvConfig, "create_environment", "EnvConfig(name=...)")
    made = _created(config, seed, lane_seeds, first_id)
    env = InputEnvironment(made, config.inputs) if config.inputs else made
    env.step_limit = env.step_limit or config.limit or limit_of_layers(made)
    env.find_info = functools.cache(functools.partial(_found, config))
    return env


def _created(config: EnvConfig, seed: int, lane_seeds: Sequence[int] | None, first_id: int) -> Environment:
    if lane_seeds is None:
        lane_seeds = [RunSeeds(seed).integer("environments", lane) for lane in range(config.num_envs)]
    if len(lane_seeds) != config.num_envs:
        raise ConfigError(f"num_envs is {config.num_envs} and there are {len(lane_seeds)} lane seeds; they must agree")
    if (pool := _pool(config)) is not None:
        return pool(lane_seeds)
    factories = [functools.partial(load_lane, config, lane, first_id=first_id) for lane in range(config.num_envs)]
    options = {"info": config.info, "untransformed": config.untransformed, "auto_reset": config.auto_reset}
    options["found"] = _found(config) if config.info else ()
    if config.num_ready is not None:
        return _first_ready(config, factories, lane_seeds, options)
    return LaneEnvironment(_driver(config, factories, first_id), lane_seeds=lane_seeds, **options)


def probe_specs(config: EnvConfig) -> tuple[SpecTree, SpecTree, TensorSpec]:
    """The observation, action and reward spec of a batch, without keeping an environment open.

    Args:
        config: which environment.

    Raises:
        ConfigError: as for `create_environment`.
    """
    num_envs = max(1, len(config.variants))
    with create_environment(config.alone(num_envs), lane_seeds=range(num_envs)) as env:
        return env.observation_spec, env.action_spec, env.reward_spec


def row_specs(config: EnvConfig) -> dict[str, Any]:
    """What rows of a buffer keep of a time step, without keeping an environment open; see `Environment.row_specs`.

    Args:
        config: which environment.

    Raises:
        ConfigError: as for `create_environment`.
    """
    with create_environment(config.alone(1), lane_seeds=[0]) as env:
        return env.row_specs


def _found(config: EnvConfig) -> tuple[str, ...]:
    """The numeric entries of `info`, elements of small arrays too, that a first look at an environment finds."""
    alone = dataclasses.replace(config.alone(1), info=(), inputs=(), untransformed=False)
    if is_pool(alone):
        with create_environment(alone, lane_seeds=[0]) as env:
            return _reported(env)
    with LaneEnvironment(SerialDriver([functools.partial(load_lane, alone, 0)]), lane_seeds=[0], info=["*"]) as env:
        return tuple(env.info)


def _reported(env: Environment) -> tuple[str, ...]:
    """What an environment that is stepped as a whole reports in an episode, or its first steps."""
    action: Any = to_batched(neutral_rows(env.action_spec, 1), env.action_spec)
    found, rows = dict[str, None](), [env.reset()]
    for _ in range(LOOK_STEPS + 1):  # the rows of each step are looked at before the next
        infos = [row.env_info for row in rows if isinstance(row.env_info, Batch)]
        found |= dict.fromkeys(name for info in infos for name in info.keys())  # noqa: SIM118
        if any((row.step_type == 2).any() for row in rows):
            break
        rows = [env.step(action), *([env.ended] if env.ended is not None else [])]
    return tuple(found)


def is_pool(config: EnvConfig) -> bool:
    """Whether environments are stepped natively, all lanes as one.

    Args:
        config: of the environments.
    """
    return _pool(config) is not None


def decided(config: EnvConfig) -> EnvConfig:
    """What `auto` is in a new run, which records it: MuJoCo's batch, with the same bits, where it can do all it asks.

    Args:
        config: of the environments.

    Raises:
        ConfigError: `info` names an array that is too large to be reported.

    Examples:
        >>> decided(EnvConfig(name="Hopper-v5", num_envs=8)).vectorization
        'batch'
        >>> decided(EnvConfig(name="Hopper-v5", num_envs=8, gym_wrappers=("ClipReward",))).vectorization
        'auto'
    """
    if config.info and not is_pool(config):
        spec, lane = {}, functools.partial(load_lane, config.alone(1), 0)
        with contextlib.suppress(PalaestraError), LaneEnvironment(SerialDriver([lane]), lane_seeds=[0]) as env:
            spec = env.get_attr("env_info_spec")[0]  # what cannot be made says so elsewhere
        require_small(config.info, spec)
    plain = config.faults == FaultPolicy() and "render_mode" not in config.all_kwargs
    if config.vectorization == "auto" and config.num_envs > 1 and config.name in TASKS and plain:
        with contextlib.suppress(PalaestraError):
            found = dataclasses.replace(config, vectorization="batch")
            create_environment(dataclasses.replace(found, num_envs=1), lane_seeds=[0]).close()
            return found
    return config


def _pool(config: EnvConfig) -> Callable[[Sequence[int]], Environment] | None:
    """What makes all lanes as one, given their seeds; `None` where each is stepped by itself."""
    maker: Any = _maker(config.name)
    if maker is None:
        maker = batch(config.name) or (gymnasium_mujoco(config.name) if config.vectorization == "batch" else None)
    if isinstance(maker, functools.partial) or getattr(maker, "batched", False):  # a suite's, or a class that says so
        return functools.partial(_batched, config, maker)
    own = isinstance(maker, type) and issubclass(maker, VectorEnv)
    if own or pools_only(config.name) or config.vectorization == "native":
        return functools.partial(_native, config, maker)
    return None


def _maker(name: str) -> Callable[..., Any] | None:
    """The class or function that a name with a colon means; `None` for an id of the registry."""
    module, colon, rest = name.partition(":")
    if not name or (colon and not (module and rest)):
        raise ConfigError(
            f"the environment's name is {name!r}; give an id of Gymnasium's registry, such as CartPole-v1, or "
            "my_package:MyEnvironment for one of your own"
        )
    if not colon or suite_of(name).PREFIX:
        return None
    if rest in gymnasium.registry or not rest.isidentifier():
        import_module(module, name)
        return None
    return import_maker(name, "an environment", is_environment)


def _made(name: str, maker: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    name = name.removeprefix(f"{GIVEN}:")
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        many = "; a simulator of tensors is named vector:my_module:make" if "'num_envs'" in f"{error}" else ""
        raise ConfigError(f"{name!r} cannot be called with {kwargs}: {error}{many}") from None
    except ValueError:
        pass
    try:
        return maker(**kwargs)
    except BaseException as error:
        if isinstance(error, PalaestraError | Hang) or not is_own(error):
            raise
        if isinstance(error, TypeError) and any(f"unexpected keyword argument '{key}'" in f"{error}" for key in kwargs):
            raise ConfigError(f"{name!r} cannot be called with {kwargs}: {error}") from None
        kind, said = describe(error)
        raise EnvError(f"{name!r} raised {kind} when it was made: {said}") from error


def _driver(config: EnvConfig, factories: Sequence[Callable[[], SingleEnvironment]], first_id: int) -> Driver:
    if config.vectorization == "thread":
        return ThreadDriver(factories[0], faults=config.faults)
    if config.vectorization == "process":
        return ProcessDriver(factories, num_workers=config.num_workers, faults=config.faults, first_id=first_id)
    return SerialDriver(factories, faults=config.faults, first_id=first_id)


@refuses(ConfigError)
def _require_native(config: EnvConfig) -> Iterator[str]:
    config.require_raising()
    if config.gym_wrappers:
        yield (
            f"{config.name!r} is stepped natively, all lanes as one, and Gymnasium's wrappers, such as "
            f"{config.gym_wrappers[0]}, are for single environments; use time step wrappers that go around a batch "
            "(env.wrappers), or vectorization=serial or process where that can be"
        )
    if config.vectorization not in ("auto", "native", "batch"):
        yield f"{config.name!r} exists as a pool only, whose lanes are stepped as one; leave env.vectorization out"


def _native(config: EnvConfig, maker: Callable[..., Any] | None, lane_seeds: Sequence[int]) -> Environment:
    _require_native(config)
    name, size, limit, kwargs = config.name, config.num_envs, config.max_episode_steps, config.all_kwargs
    if maker is None:
        pool, stacked = native(name, size, kwargs, limit)
    else:
        pool, stacked = Native(_made(name, maker, {**kwargs, "num_envs": size}))
    if not isinstance(pool, VectorEnv):
        raise ConfigError(
            f"{name!r} made a {type(pool).__name__}; vectorization=native needs a gymnasium.vector.VectorEnv, made "
            "with the argument num_envs"
        )
    env = NativeVectorEnvironment(pool, lane_seeds=lane_seeds, stacked=stacked, strict=config.strict)
    env.info = chosen_entries(config.info, _found(config)) if config.info else ()
    return _wrapped(config, env, limit if maker is not None else None)


def _wrapped(config: EnvConfig, env: Environment, limit: int | None) -> Environment:
    """A batch with its wrappers, and with a time limit that it has not itself."""
    try:
        if limit == 0:
            raise ConfigError(
                f"{config.name!r} has no time limit that could be taken off from outside; leave max_episode_steps out"
            )
        if limit is not None:
            env = _layer(env, Wrap(TimeLimit, duration=limit))
        raw = env = RawRows(env) if config.untransformed else env
        env = functools.reduce(_layer, (*config.wrappers, *config.train_wrappers), env)
        return UntransformedRows(env, raw) if config.untransformed else env
    except BaseException:
        env.close()
        raise


def _layer(env: Environment, wrapper: Callable[[Environment], Any]) -> Environment:
    wrapped = wrapper(env)
    if not isinstance(wrapped, Environment):
        raise ConfigError(
            f"the wrapper {wrapper} made a {type(wrapped).__name__} of a batched environment; it has to make an "
            "Environment, as a BatchedWrapper is one"
        )
    return wrapped


def _first_ready(
    config: EnvConfig, factories: Sequence[Callable[[], Any]], lane_seeds: Sequence[int], options: dict[str, Any]
) -> Environment:
    workers = min(config.num_workers or num_cores(), config.num_envs)
    if config.num_envs % workers:
        raise ConfigError(
            f"num_envs is {config.num_envs}, num_workers {workers}; with num_ready each needs as many environments"
        )
    size = config.num_envs // workers
    with contextlib.ExitStack() as opened:  # closes the others where one cannot be made
        groups: list[LaneEnvironment] = []
        for first in range(0, config.num_envs, size):
            mine = slice(first, first + size)
            driver = ProcessDriver(factories[mine], num_workers=1, faults=config.faults, first_id=first)
            groups.append(opened.enter_context(LaneEnvironment(driver, lane_seeds=lane_seeds[mine], **options)))
            options["info"], groups[-1].info = (), groups[0].info  # the first has looked for all
        env = FirstReadyEnvironment(groups, num_ready=config.num_ready or config.num_envs)
        opened.pop_all()
        return env


def _batched(config: EnvConfig, maker: Callable[..., Any], lane_seeds: Sequence[int]) -> Environment:
    _require_native(config)
    if config.strict:
        raise ConfigError(
            f"{config.name!r} is a batched environment, whose observations are not checked in a run; leave out "
            f"env.strict, and look at them once: palaestra check-env {config.name}"
        )
    kwargs: dict[str, Any] = {**config.all_kwargs, "batch_size": config.num_envs}
    parameters, limit = inspect.signature(maker).parameters, config.max_episode_steps
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    # it resets its lanes itself, so it may know where they end
    if limit is not None and (takes_all or "max_episode_steps" in parameters):
        kwargs["max_episode_steps"], limit = limit, None
    if kwargs.get("render_mode") == "rgb_array" and not takes_all and "render_mode" not in parameters:
        del kwargs["render_mode"]  # `render` draws whenever it is asked
    if config.num_threads is not None:
        kwargs["num_threads"] = config.num_threads
    if takes_all or "lane_seeds" in parameters:
        kwargs["lane_seeds"] = list(lane_seeds)
    env = _made(config.name, maker, kwargs)
    if not isinstance(env, Environment):
        raise ConfigError(f"{config.name!r} has `batched = True` and made a {type(env).__name__}, not an Environment")
    if isinstance(env, BatchEnvironment):
        env.info = chosen_entries(config.info, _found(config)) if config.info else ()
    elif not set(config.info) <= {"*", *env.info}:
        raise ConfigError(f"every time step of {config.name!r} has the entries {env.info} of info, not {config.info}")
    return _wrapped(config, env, limit)
