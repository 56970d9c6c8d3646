"""What each package of JAX environments calls things: how to make, reset and step one, and what its ends mean.

One entry of `PACKAGES` each; `palaestra.envs.simulators.jax` does the rest, the same for all. Packages reset nothing
here: most of their automatic resets lose the last observation, and Brax's begin every episode of a lane alike.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from palaestra.core import ACTION_MASK, ConfigError, import_module

NEVER = (1 << 31) - 1
"""A time limit that is never reached."""


class Stepped(NamedTuple):
    """Results of a step of one lane."""

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    """Whether the task is over."""
    truncated: Any
    """Whether the package has cut the episode off."""
    info: Mapping[str, Any] = {}
    """Of which numbers are reported."""


class Task(NamedTuple):
    """An environment of a package, as pure functions of one lane."""

    reset: Callable[[Any], tuple[Any, Any]]
    """State and observation of a key."""
    step: Callable[[Any, Any, Any], Stepped]
    """Of a key, a state and an action."""
    action: Any
    """What the package says of actions: a space or spec of its own, or how many there are."""
    observation: Any = None
    """The same of observations; `None` where it says shapes alone, which JAX knows."""
    limit: int = 0
    """Its time limit in steps; 0: none."""
    limit_name: str = ""
    """The setting of the package that changes it; empty where `max_episode_steps` does, since it is counted here."""


class Package(NamedTuple):
    """How a package is brought, and read."""

    modules: tuple[str, ...]
    """That are imported."""
    pip: str
    """Names to install by pip."""
    make: Callable[[str, dict[str, Any]], Task] | None
    """Makes an environment by its name; `None` where there is a reason not to."""
    names: Callable[[], Iterable[str]]
    """The environments that there are."""
    ends: str
    """What its flags mean; or why it is refused."""


def _gymnax(name: str, kwargs: dict[str, Any]) -> Task:
    gymnax, jax = _module("gymnax"), _module("jax")
    _, params = gymnax.make(name)
    known = {field.name for field in dataclasses.fields(params)}
    env, params = gymnax.make(name, **{key: value for key, value in kwargs.items() if key not in known})
    params = params.replace(**{key: value for key, value in kwargs.items() if key in known})
    if not hasattr(env, "is_truncated"):
        raise ConfigError("this gymnax does not say what ends an episode (is_truncated); pip install 'gymnax>=1.0'")

    def reset(key: Any) -> tuple[Any, Any]:
        observation, state = env.reset_env(key, params)
        return state, observation

    def step(key: Any, state: Any, action: Any) -> Stepped:
        key, _ = jax.random.split(key)  # as its own `step`, which resets with the other half
        observation, state, reward, terminated, info = env.step_env(key, state, action, params)
        return Stepped(state, observation, reward, terminated, env.is_truncated(state, params), info)

    limit = int(getattr(params, "max_steps_in_episode", 0))
    spaces = env.action_space(params), env.observation_space(params)
    return Task(reset, step, *spaces, limit, "max_steps_in_episode")


def _craftax(name: str, kwargs: dict[str, Any]) -> Task:
    env = _module("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(**kwargs)
    limit, params = int(params.max_timesteps), params.replace(max_timesteps=NEVER)

    def reset(key: Any) -> tuple[Any, Any]:
        observation, state = env.reset_env(key, params)
        return state, observation

    def step(key: Any, state: Any, action: Any) -> Stepped:
        observation, state, reward, terminated, info = env.step_env(key, state, action, params)
        return Stepped(state, observation, reward, terminated, False, info)

    return Task(reset, step, env.action_space(params), env.observation_space(params), limit)


def _brax(name: str, kwargs: dict[str, Any]) -> Task:
    limit = kwargs.pop("episode_length", 1000)
    return _physics(_module("brax.envs").get_environment(name, **kwargs), limit)


def _playground(name: str, kwargs: dict[str, Any]) -> Task:
    overrides = {"impl": "jax", **kwargs}  # its default, warp, needs CUDA
    registry = _module("mujoco_playground").registry
    config = registry.get_default_config(name)
    return _physics(
        registry.load(name, config_overrides=overrides), overrides.get("episode_length", config.episode_length)
    )


def _physics(env: Any, limit: int) -> Task:
    """What Brax and Playground share; their wrappers, which count steps, are left out."""

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.reset(key)
        return state, state.obs

    def step(key: Any, state: Any, action: Any) -> Stepped:
        state = env.step(state, action)
        return Stepped(state, state.obs, state.reward, state.done > 0.5, False, state.metrics)

    return Task(reset, step, Box(-1.0, 1.0, (env.action_size,), np.float32), None, int(limit))


def _jumanji(name: str, kwargs: dict[str, Any]) -> Task:
    jumanji, jnp = _module("jumanji"), _module("jax.numpy")
    env = endless = jumanji.make(name, **kwargs)
    limited = "time_limit" in inspect.signature(type(env).__init__).parameters
    if limited:
        endless = jumanji.make(name, **{**kwargs, "time_limit": NEVER})
    choices = np.asarray(getattr(env.action_spec, "num_values", 0))
    mask = vars(env.observation_spec).get("_specs", {}).get(ACTION_MASK)
    joint = choices.ndim > 0 and mask is not None and mask.shape == tuple(choices)

    def seen(time_step: Any) -> Any:
        observation = plain(time_step.observation)
        if mask is not None:
            allowed = observation[ACTION_MASK]
            allowed = allowed if choices.ndim and not joint else allowed.reshape(-1)
            # where it allows nothing, as a snake that is trapped, every action ends the episode
            observation[ACTION_MASK] = (allowed | ~allowed.any(-1, keepdims=True)).reshape(-1)
        return observation

    def reset(key: Any) -> tuple[Any, Any]:
        state, time_step = env.reset(key)
        return state, seen(time_step)

    def step(key: Any, state: Any, action: Any) -> Stepped:
        if joint:  # a mask of all combinations: they are choices of one
            action = jnp.stack(jnp.unravel_index(action, tuple(choices)))
        elif choices.ndim:
            action = action.reshape(choices.shape)
        before = state
        state, time_step = env.step(before, action)
        # whether it would be over without a limit; the compiler computes what both share once
        terminated = endless.step(before, action)[1]
        over = terminated.last() & (terminated.discount == 0)
        cut = time_step.last() & ~over
        return Stepped(state, seen(time_step), time_step.reward, over, cut, time_step.extras or {})

    action = int(choices.prod()) if joint else env.action_spec
    limit = int(getattr(env, "time_limit", 0)) if limited else 0
    return Task(reset, step, action, env.observation_spec, limit, "time_limit")


def _pgx(name: str, kwargs: dict[str, Any]) -> Task:
    pgx, jax = _module("pgx"), _module("jax")
    opponent = kwargs.pop("opponent", None)
    if kwargs or opponent not in (None, "random"):
        raise ConfigError(f"pgx takes opponent=random as its only setting, not {kwargs or opponent!r}")
    env = pgx.make(name)
    if opponent and env.num_players == 1:
        raise ConfigError(f"pgx's {name!r} has one player; leave out opponent")

    def seen(state: Any) -> Any:
        return {"observation": state.observation, ACTION_MASK: state.legal_action_mask}

    def answered(key: Any, state: Any) -> tuple[Any, Any]:
        """After random moves of the others until player 0 moves, and what player 0 earned in them."""

        def waits(carried: Any) -> Any:
            _, state, _ = carried
            return (state.current_player != 0) & ~state.terminated

        def move(carried: Any) -> Any:
            key, state, reward = carried
            key, draw, chance = jax.random.split(key, 3)
            logits = jax.numpy.where(state.legal_action_mask, 0.0, -jax.numpy.inf)
            state = env.step(state, jax.random.categorical(draw, logits), chance)
            return key, state, reward + state.rewards[0]

        _, state, reward = jax.lax.while_loop(waits, move, (key, state, state.rewards[0]))
        shown = state.replace(current_player=jax.numpy.zeros_like(state.current_player))
        return state.replace(observation=env.observe(shown)), reward

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.init(key)
        if opponent:
            state, _ = answered(jax.random.fold_in(key, 0), state)
        return state, seen(state)

    def step(key: Any, state: Any, action: Any) -> Stepped:
        mover = state.current_player
        if opponent:
            key, later = jax.random.split(key)
            state, reward = answered(later, env.step(state, action, key))
        else:
            state = env.step(state, action, key)
            reward = state.rewards[mover]
        return Stepped(state, seen(state), reward, state.terminated, state.truncated)

    return Task(reset, step, int(env.num_actions))


def _navix(name: str, kwargs: dict[str, Any]) -> Task:
    env = _module("navix").make(name, **kwargs)

    def reset(key: Any) -> tuple[Any, Any]:
        time_step = env.reset(key)
        return time_step, time_step.observation

    def step(key: Any, state: Any, action: Any) -> Stepped:
        state = env._step(state, action)  # its `step` would also compute a reset, for lanes that are over
        over, cut = state.is_termination(), state.is_truncation()
        return Stepped(state, state.observation, state.reward, over, cut, {})

    return Task(reset, step, env.action_space, env.observation_space, int(env.max_steps), "max_steps")


def _xminigrid(name: str, kwargs: dict[str, Any]) -> Task:
    env, params = _module("xminigrid").make(name, **kwargs)
    constants = _module("xminigrid.core.constants")
    kinds = max(constants.NUM_TILES, constants.NUM_COLORS)

    def reset(key: Any) -> tuple[Any, Any]:
        time_step = env.reset(params, key)
        return time_step, time_step.observation

    def step(key: Any, state: Any, action: Any) -> Stepped:
        state = env.step(params, state, action)
        over = state.last() & (state.discount == 0)
        return Stepped(state, state.observation, state.reward, over, state.last() & ~over)

    shape = env.observation_shape(params)
    space = Box(0, kinds - 1, shape, np.uint8) if isinstance(shape, tuple) else None
    return Task(reset, step, env.num_actions(params), space, int(params.max_steps), "max_steps")


def plain(nest: Any) -> Any:
    """Dicts of what is in named tuples, dataclasses, lists and dicts; a single array stays as it is.

    Args:
        nest: that JAX knows.
    """
    leaves, _ = _module("jax").tree_util.tree_flatten_with_path(nest)
    found: dict[str, Any] = {}
    for path, leaf in leaves:
        if not path:
            return leaf
        *outer, last = (str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part)))) for part in path)
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = leaf
    return found


def _module(name: str) -> Any:
    return import_module(name, f"jax:{name.partition('.')[0]}")


_CRAFTAX = [f"Craftax-{kind}-v1" for kind in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")]

PACKAGES = {
    "gymnax": Package(
        ("jax", "gymnax", "six"), "'gymnax>=1.0' six", _gymnax, lambda: _module("gymnax").registered_envs,
        "terminated and truncated are two flags",
    ),
    "brax": Package(
        ("jax", "brax"), "brax", _brax, lambda: vars(_module("brax.envs"))["_envs"],
        "done is the end of the task; inverted_pendulum's info['time_out'] is 1 at a fall, and not read",
    ),
    "playground": Package(
        ("jax", "mujoco_playground"), "playground", _playground,
        lambda: _module("mujoco_playground").registry.ALL_ENVS, "done is the end of the task",
    ),
    "jumanji": Package(
        ("jax", "jumanji"), "jumanji", _jumanji, lambda: _module("jumanji").registered_environments(),
        "discount 0 is also said at the time limit; a step of the same task without one tells which it is",
    ),
    "pgx": Package(
        ("jax", "pgx"), "pgx", _pgx, lambda: _module("pgx").available_envs(),
        "terminated ends a game, truncated is never true; at the end every action is allowed",
    ),
    "craftax": Package(
        ("jax", "craftax"), "craftax", _craftax, lambda: _CRAFTAX,
        "done and discount 0 are also said at the time limit, which is taken off and counted here",
    ),
    "navix": Package(
        ("jax", "navix"), "navix", _navix, lambda: _module("navix").registry(),
        "step_type 1 is cut off, 2 is an end",
    ),
    "xminigrid": Package(
        ("jax", "xminigrid"), "xminigrid", _xminigrid, lambda: _module("xminigrid").registered_environments(),
        "LAST with discount 0 is an end, with discount 1 cut off",
    ),
    "jaxmarl": Package(
        ("jax", "jaxmarl"), "jaxmarl", None, list,
        "its environments have several agents that act at once, each with rewards of its own, and jax: is for one; "
        "a PettingZoo ParallelEnv around it can be trained (docs/concepts/many_agents.md)",
    ),
}  # fmt: skip
"""By the name that follows `jax:`."""
