"""Environments written in JAX, many as one: `jax:PACKAGE:ENV`, such as `jax:gymnax:CartPole-v1`.

All lanes are one compiled program (`jit` of `vmap`). An episode of a lane is made from its own key, whatever other
lanes do, and begins here, never in the package. What packages call things is in `jax_packages`.
"""

import functools
import importlib.util
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from palaestra.core import ConfigError, EnvError, PalaestraError, did_you_mean, import_module
from palaestra.core.errors import is_news
from palaestra.envs.contract.batch import BatchEnvironment
from palaestra.envs.simulators.jax_packages import PACKAGES, Package, Stepped, Task, plain
from palaestra.envs.supervision.faults import describe

__all__ = ["JaxBatch"]

_log = logging.getLogger(__name__)
_CHUNK = 16  # lanes whose episodes begin together: few, since most steps begin few
_MOST_VALUES = 1 << 16  # of whole numbers that are scaled by their bounds; more are float32 as they are
_MOST_KINDS = 512  # values of one whole number that are kinds of things; more are an amount


class _JaxLane(NamedTuple):
    """All that there is of one lane; leaves [B, ...] of all."""

    key: Any
    """uint32 [2]: of the episode. It resets, and step t gets `fold_in(key, t)`."""
    steps: Any
    """int32: in the episode."""
    last: Stepped
    """The latest step."""


@final
class JaxBatch(BatchEnvironment):
    """An environment of a JAX package, B times.

    The first episode of a lane is what the package itself makes of `jax.random.wrap_key_data([high, low])`, the two
    halves of the episode's seed, and of `jax.random.fold_in(key, t)` in step t = 1, 2, ...

    Whole numbers without bounds are observed as float32, truth values as 0 and 1.

    Args:
        name: `PACKAGE:ENV`.
        batch_size: B, lanes.
        lane_seeds: of them; new ones by default.
        max_episode_steps: the time limit; the package's by default, 0 for none.
        kwargs: settings of the package.

    Raises:
        ConfigError: there is no such package or environment, it is not installed, or a setting does not fit.
        EnvError: the package failed.
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        *,
        lane_seeds: Sequence[int] | None = None,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        package, _, task_name = name.partition(":")
        self._programs = programs = _made(package, task_name, kwargs)
        task, limit = programs.task, max_episode_steps
        if limit is not None and task.limit and task.limit_name and not 0 < limit <= task.limit:
            raise ConfigError(
                f"env.max_episode_steps is {limit}, and {package} itself cuts episodes of {task_name!r} off after "
                f"{task.limit} steps; give env.kwargs {{'{task.limit_name}': ...}} instead"
            )
        spaces = programs.observation_space, programs.action_space
        limit = (0 if task.limit_name else task.limit) if limit is None else limit
        super().__init__(batch_size, *spaces, lane_seeds=lane_seeds, max_episode_steps=limit)
        self._lanes_state = programs.blank(batch_size)

    def fresh(self, lanes: np.ndarray, seeds: Sequence[int]) -> None:
        size = min(self.batch_size, _CHUNK)
        padded = -(-self.batch_size // size) * size
        places, keys = np.full(padded, self.batch_size, np.int32), np.zeros((padded, 2), np.uint32)
        places[: len(lanes)] = lanes
        words = np.array(seeds, np.uint64)
        keys[: len(lanes)] = np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=1)
        self._lanes_state = self._programs.begin(self._lanes_state, places, keys, len(lanes))

    def transition(self, lanes: np.ndarray, action: Any) -> tuple[np.ndarray, np.ndarray]:
        running = np.zeros(self.batch_size, np.bool_)
        running[lanes] = True
        kind = self._programs.action_dtype
        given = np.zeros((self.batch_size, *action.shape[1:]), kind)
        given[lanes] = action
        self._lanes_state = self._programs.advance(self._lanes_state, given, running)
        last = self._lanes_state.last
        return np.asarray(last.reward)[lanes], np.asarray(last.terminated)[lanes]

    def truncated(self) -> np.ndarray:
        return np.asarray(self._lanes_state.last.truncated)

    def observe(self) -> Any:
        return _arrays(self._lanes_state.last.observation)

    def infos(self) -> Mapping[str, np.ndarray]:
        return _arrays(self._lanes_state.last.info)

    def rows(self) -> Mapping[str, np.ndarray]:
        leaves = _jax().tree.leaves(self._lanes_state)
        return {path: _saved(leaf) for path, leaf in zip(self._programs.paths, leaves, strict=True)}

    def set_rows(self, rows: Mapping[str, np.ndarray]) -> None:
        leaves, tree = _jax().tree.flatten(self._lanes_state)
        if rows.keys() != set(self._programs.paths):
            odd = sorted(rows.keys() ^ set(self._programs.paths))
            raise EnvError(f"the saved state has other parts than this version of the package: {', '.join(odd[:5])}")
        restored = [_restored(rows[path], leaf) for path, leaf in zip(self._programs.paths, leaves, strict=True)]
        self._lanes_state = tree.unflatten(restored)


class _Programs:
    """What is compiled of a task, once for all batches of one size: an evaluation waits for no second compiler run.

    Args:
        task: of a package.
        name: of it, for messages.
    """

    def __init__(self, task: Task, name: str) -> None:
        jax = _jax()
        self.task, self._name = task, name
        self.action_space, self.action_dtype = action_space_of(task.action, name)
        key = jax.random.wrap_key_data(np.zeros(2, np.uint32))
        state, _ = jax.eval_shape(task.reset, key)
        action = np.zeros(self.action_space.shape or (), self.action_dtype)
        stepped = jax.eval_shape(task.step, key, state, action)
        if stepped.reward.shape:
            raise ConfigError(
                f"{name!r} has rewards of shape {stepped.reward.shape}, those of several agents; jax: is for one"
            )
        self._info = [key for key, value in plain(stepped.info).items() if _is_number(value)]
        one = jax.eval_shape(self._first, np.zeros(2, np.uint32))
        self.observation_space = space_of(one.last.observation, task.observation, name)
        self._one = one
        self.paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(one)[0]]
        self.begin: Any = jax.jit(self._begin)
        self.advance: Any = jax.jit(jax.vmap(self._advance))

    def blank(self, batch_size: int) -> _JaxLane:
        """B lanes that nobody has begun."""
        return _jax().tree.map(lambda leaf: _zeros((batch_size, *leaf.shape), leaf.dtype), self._one)

    def _first(self, key: Any) -> _JaxLane:
        """A lane at the start of its episode."""
        jax = _jax()
        state, observation = self.task.reset(jax.random.wrap_key_data(key))
        info = dict.fromkeys(self._info, np.float32(np.nan))
        last = Stepped(state, plain(observation), jax.numpy.zeros((), float), np.bool_(False), np.bool_(False), info)
        return _JaxLane(key, np.int32(0), last)

    def _advance(self, lane: _JaxLane, action: Any, running: Any) -> _JaxLane:
        """A lane after an action, or as it was."""
        jax = _jax()
        steps = lane.steps + 1
        key = jax.random.fold_in(jax.random.wrap_key_data(lane.key), steps)
        state, observation, reward, terminated, truncated, info = self.task.step(key, lane.last.state, action)
        numbers = plain(info)
        info = {name: jax.numpy.float32(numbers[name]) for name in self._info}
        last = Stepped(state, plain(observation), jax.numpy.asarray(reward, float), terminated, truncated, info)
        return jax.tree.map(functools.partial(self._chosen, running), _JaxLane(lane.key, steps, last), lane)

    def _chosen(self, running: Any, new: Any, old: Any) -> Any:
        new = _jax().numpy.asarray(new)
        if new.dtype != old.dtype:
            raise EnvError(f"{self._name!r} has {old.dtype} in its state after a reset, and {new.dtype} after a step")
        return _jax().numpy.where(running, new, old)

    def _begin(self, lanes: _JaxLane, places: Any, keys: Any, count: Any) -> _JaxLane:
        """New episodes in some lanes, a few at a time.

        Args:
            lanes: all.
            places: int32 [N], a multiple of a few; B, which is no lane, beyond those that begin.
            keys: uint32 [N, 2].
            count: of lanes that begin.
        """
        jax = _jax()
        size = min(len(lanes.steps), _CHUNK)

        def some(chunk: Any, lanes: _JaxLane) -> _JaxLane:
            at, key = (jax.lax.dynamic_slice_in_dim(array, chunk * size, size) for array in (places, keys))
            fresh = jax.vmap(self._first)(key)
            return jax.tree.map(lambda old, new: old.at[at].set(new, mode="drop"), lanes, fresh)

        return jax.lax.fori_loop(0, (count + size - 1) // size, some, lanes)


_MADE: dict[tuple[str, str, str], _Programs] = {}


def _made(package: str, name: str, kwargs: dict[str, Any]) -> _Programs:
    """The programs of an environment, which all batches of this process share."""
    row = _package(package, name)
    place = package, name, repr(sorted(kwargs.items()))
    if place not in _MADE:
        _MADE[place] = _Programs(_task(row, package, name, dict(kwargs)), f"jax:{package}:{name}")
    return _MADE[place]


def _package(package: str, name: str) -> Package:
    """The entry of a package, which is imported.

    Raises:
        ConfigError: it is not known, refused, or not installed.
    """
    if package not in PACKAGES or not name:
        raise ConfigError(
            f"'jax:{package}:{name}' is no environment{did_you_mean(package, PACKAGES)}; give jax:PACKAGE:ENV with one "
            f"of {', '.join(PACKAGES)}, such as jax:gymnax:CartPole-v1"
        )
    row = PACKAGES[package]
    if row.make is None:
        raise ConfigError(f"'jax:{package}:{name}' is not taken: {row.ends}")
    if missing := [module for module in row.modules if importlib.util.find_spec(module) is None]:
        raise ConfigError(
            f"'jax:{package}:{name}' needs {' and '.join(missing)}, which is not installed: pip install {row.pip} "
            "('palaestra[jax]' brings all packages of JAX)"
        )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes the GPU's memory from PyTorch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are of the packages
        for module in row.modules:
            import_module(module, f"jax:{package}")
    return row


def _task(row: Package, package: str, name: str, kwargs: dict[str, Any]) -> Task:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = [*row.names()]
        if name not in known:
            raise ConfigError(f"{package} has no environment {name!r}{did_you_mean(name, known)}")
        try:
            assert row.make is not None
            return row.make(name, kwargs)
        except PalaestraError:
            raise
        except (TypeError, AttributeError, KeyError) as error:
            raise ConfigError(f"{package} cannot make {name!r} with {kwargs}: {error}") from error
        except Exception as error:
            raise EnvError(f"{package} raised {': '.join(describe(error))}") from error


# -- spaces


def action_space_of(said: Any, name: str) -> tuple[Space[Any], Any]:
    """The space of actions, and the dtype that the package takes."""
    match said:
        case Box():
            return said, said.dtype
        case int():
            return Discrete(said), np.int32
    kind = _dtype(getattr(said, "dtype", np.int32))
    choices = getattr(said, "num_values", getattr(said, "n", None))
    if choices is not None:
        counts = np.asarray(choices)
        return Discrete(int(counts)) if counts.ndim == 0 else MultiDiscrete(counts.reshape(-1)), kind
    low, high = _bounds(said)
    if low is None or kind.kind != "f":
        raise ConfigError(f"{name!r} has the actions {said}; they must be choices, or numbers between bounds")
    _say_narrowed(said, kind, f"the actions of {name}")
    return Box(np.broadcast_to(low, said.shape), np.broadcast_to(high, said.shape), said.shape, kind.type), kind


def space_of(shape: Any, said: Any, name: str) -> Space[Any]:
    """The space of observations: shapes and dtypes are what the program gives, bounds what the package says."""
    if isinstance(shape, dict):
        parts: Any = getattr(said, "spaces", None) or vars(said).get("_specs") if said is not None else None
        parts = parts if isinstance(parts, Mapping) else {}
        return spaces.Dict([(key, space_of(child, parts.get(key), name)) for key, child in shape.items()])
    dtype = np.dtype(shape.dtype)
    if dtype.kind == "b":
        return Box(0, 1, shape.shape, np.int8)
    low, high = _bounds(said)
    if dtype.kind in "iu":
        if low is None or np.any(np.asarray(high, np.float64) - low > _MOST_VALUES):
            return Box(-np.inf, np.inf, shape.shape, np.float32)
        if not shape.shape and low == 0 and high < _MOST_KINDS:
            return Discrete(int(high) + 1)
    else:
        _say_narrowed(said, dtype, f"the observations of {name}")
        low, high = (-np.inf, np.inf) if low is None else (low, high)
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape.shape) for bound in (low, high))
    return Box(low, high, shape.shape, dtype.type)


def _bounds(said: Any) -> tuple[Any, Any]:
    """The least and the greatest value that a package says; two of `None` if it says none."""
    choices = getattr(said, "num_values", getattr(said, "n", None))
    if choices is not None:
        return 0, np.asarray(choices) - 1
    for least, greatest in (("low", "high"), ("minimum", "maximum")):
        if hasattr(said, least):
            return np.asarray(getattr(said, least)), np.asarray(getattr(said, greatest))
    return None, None


def _dtype(said: Any) -> np.dtype:
    """The dtype that JAX computes in where another one is said."""
    return np.dtype(_jax().dtypes.canonicalize_dtype(said))


def _say_narrowed(said: Any, dtype: np.dtype, what: str) -> None:
    """Warns where a package says float64 and JAX computes in float32."""
    wide = np.dtype(getattr(said, "dtype", dtype))
    if wide.kind == "f" and wide.itemsize > dtype.itemsize and is_news(what):
        _log.warning("%s are said to be %s, and JAX computes %s; JAX_ENABLE_X64=1 changes that", what, wide, dtype)


# -- arrays


def _arrays(nest: Any) -> Any:
    """Arrays of numpy that look into JAX's memory: only to be read."""
    return {key: _arrays(child) for key, child in nest.items()} if isinstance(nest, dict) else np.asarray(nest)


def _is_number(value: Any) -> bool:
    return not value.shape and np.dtype(value.dtype).kind in "fiub"


def _is_key(dtype: Any) -> bool:
    return _jax().dtypes.issubdtype(dtype, _jax().dtypes.prng_key)


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    jax = _jax()
    if not _is_key(dtype):
        return jax.numpy.zeros(shape, dtype)
    kind = jax.random.key_impl(jax.random.key(0))
    return jax.random.wrap_key_data(
        np.zeros((*shape, *jax.random.key_data(jax.random.key(0)).shape), np.uint32), impl=kind
    )


def _saved(leaf: Any) -> np.ndarray:
    return np.asarray(_jax().random.key_data(leaf) if _is_key(leaf.dtype) else leaf)


def _restored(row: np.ndarray, leaf: Any) -> Any:
    """A saved row as JAX had it.

    Args:
        row: that was saved.
        leaf: what it takes the place of.
    """
    jax = _jax()
    new = jax.random.wrap_key_data(row, impl=jax.random.key_impl(leaf)) if _is_key(leaf.dtype) else jax.numpy.array(row)
    if new.dtype != leaf.dtype or new.shape != leaf.shape:
        raise EnvError(f"a saved state has shape {new.shape} and {new.dtype}, expected {leaf.shape} and {leaf.dtype}")
    return new


def _jax() -> Any:
    return import_module("jax", "jax")
