"""`Lanes`: the loop that steps bare environments and writes their time steps into rows.

A serial environment runs it on fresh arrays, a worker process on its part of shared memory, so both give the same
stream bit for bit.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from palaestra.core import SpecError, SpecTree, TensorSpec, TimeStep, spec_leaves
from palaestra.envs.driving import mark, replay
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.episode_log import Episode
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.nest import flatten, leaf_dtypes, problem
from palaestra.envs.wrappers.time_limit import TimeLimit

__all__ = ["Infos", "Lanes", "Rows", "Specs"]

_call: Callable[[Callable[[Any], Any], Any], Any] = operator.call  # pyright: ignore[reportAssignmentType]
_NEVER = sys.maxsize >> 1

Infos = dict[int, dict[str, float]]
"""Numeric info entries by lane; lanes without any are left out."""


class Specs(NamedTuple):
    """The specs that all environments of a batch share."""

    observation: SpecTree
    """Of an observation."""
    action: SpecTree
    """Of an action."""
    reward: TensorSpec
    """Of a reward."""
    env_info: SpecTree
    """Of declared info entries."""


class Rows(NamedTuple):
    """What one step of several lanes gave; every array is new."""

    step_type: np.ndarray
    """int32 [B]."""
    reward: np.ndarray
    """float32 [B] or [B, k]."""
    discount: np.ndarray
    """float32 [B]."""
    observation: list[np.ndarray]
    """One array [B, ...] for every leaf of the observation spec."""


class Lanes:
    """Some bare environments.

    Args:
        envs: the outermost layers.
        cursor: element 0 is set to the lane being stepped, so that whoever watches knows which one never came back.

    Attributes:
        specs: that all of them share.
        lane: where the latest call stopped; of interest when it raised.
        over: lanes whose episode ended in the latest step.
    """

    def __init__(self, envs: Sequence[SingleEnvironment], cursor: np.ndarray | None = None) -> None:
        self.envs = list(envs)
        self.specs = _common_specs(self.envs)
        self.lane = 0
        self.over: list[int] = []
        self._cursor = cursor
        self._dtypes = leaf_dtypes(self.specs.observation)
        self._shapes = [(len(self.envs), *leaf.shape) for leaf in spec_leaves(self.specs.observation).values()]
        self._plain = isinstance(self.specs.observation, TensorSpec)
        self._reward_shape = (len(self.envs), *self.specs.reward.shape)
        self._mid = np.ones(len(self.envs), np.int32)
        self._one = np.ones(len(self.envs), np.float32)
        self._latest: Sequence[Any] = ()
        self._clock = 0
        self._direct = [_direct(env) for env in self.envs]
        self._all_direct = all(direct is not None for direct in self._direct)
        self._steps: list[Callable[[Any], Any]] = [
            direct.step if direct and self._all_direct else env.advance
            for direct, env in zip(self._direct, self.envs, strict=True)
        ]
        self._limits = [_NEVER] * len(self.envs)
        self._next_limit = _NEVER

    def step(self, actions: Iterable[Any], seeds: dict[int, int]) -> tuple[Rows, Infos | None]:
        """Executes an action in every lane, or starts an episode there.

        Args:
            actions: one for every lane, as its environment takes it.
            seeds: of the lanes that start an episode instead.

        Returns:
            The rows, and numeric info, or `None` where nobody reported any.

        Raises:
            Exception: whatever an environment raised; `lane` says which.
        """
        self._latest = ()
        self._clock += 1
        steps = self._steps
        if seeds:
            steps = steps.copy()
            for lane, seed in seeds.items():
                steps[lane] = functools.partial(self._begin, lane, seed)
        results: list[Any] = []
        try:
            if self._cursor is None:
                # the loop below without its overhead; what came before an exception is in the list
                results.extend(map(_call, steps, actions))
                if len(results) < len(steps):
                    raise RuntimeError("the environment raised StopIteration")
            else:
                for step, action in zip(steps, actions, strict=True):
                    self._cursor[0] = len(results)
                    results.append(step(action))
        except Exception:
            self.lane = len(results)
            raise
        read = self._read_direct if self._all_direct else self._read
        seen, infos, step_type, reward, discount = read(results, seeds)
        if reward.shape != self._reward_shape:
            reward = self._rewards(reward)
        rows = Rows(step_type, reward, discount, self._gather(seen))
        self._latest = seen
        return rows, _numeric(infos) if any(infos) else None

    def _read(self, results: list[TimeStep], seeds: dict[int, int]) -> tuple[Any, ...]:
        kinds, rewards, discounts, seen, _, _, _, infos = zip(*results, strict=True)
        self.over = [lane for lane, kind in enumerate(kinds) if kind == 2] if 2 in kinds else []
        rows = np.array(kinds, np.int32), np.array(rewards, np.float32), np.array(discounts, np.float32)
        return seen, infos, *rows

    def _read_direct(self, results: list[Any], seeds: dict[int, int]) -> tuple[Any, ...]:
        """`_read` for `GymEnvironment`s under a `TimeLimit` or none, of what their Gymnasium environments return."""
        seen, rewards, terminated, truncated, infos = zip(*results)  # noqa: B905 - every one has five
        step_type, discount = self._mid.copy(), self._one.copy()
        over: list[int] = []
        if self._clock >= self._next_limit:
            over = [lane for lane, limit in enumerate(self._limits) if self._clock == limit]
            self._next_limit = min((limit for limit in self._limits if limit > self._clock), default=_NEVER)
        if any(terminated) or any(truncated):
            over = [lane for lane in range(len(results)) if terminated[lane] or truncated[lane] or lane in over]
            discount[:] = [0.0 if ended else 1.0 for ended in terminated]
        for lane in over:
            step_type[lane] = 2
        for lane in seeds:
            step_type[lane] = 0
        self.over = over
        return seen, infos, step_type, np.array(rewards, np.float32), discount

    def _rewards(self, reward: np.ndarray) -> np.ndarray:
        if reward.size != len(self.envs) or len(self._reward_shape) > 1:
            raise SpecError(f"the rewards have shape {reward.shape}, expected {self._reward_shape}")
        return reward.reshape(self._reward_shape)

    def _begin(self, lane: int, seed: int, action: Any) -> Any:
        direct = self._direct[lane]
        if direct is None or not self._all_direct:
            return self.envs[lane].begin_episode(seed)
        self._set_limit(lane, 0)
        observation, info = direct.reset(seed=seed)
        return observation, 0.0, False, False, info

    def _set_limit(self, lane: int, steps: int) -> None:
        direct = self._direct[lane]
        self._limits[lane] = limit = self._clock + (direct.duration if direct else _NEVER) - steps
        self._next_limit = min(self._next_limit, limit)

    def _gather(self, seen: Sequence[Any]) -> list[np.ndarray]:
        """One array for every leaf, and no broadcasting of a row that has another shape."""
        if self._plain:
            try:
                array = np.array(seen)
            except ValueError:  # ragged
                array = np.empty(0)
            if array.dtype == self._dtypes[0] and array.shape == self._shapes[0]:
                return [array]
        spec = self.specs.observation
        columns = [seen] if self._plain else zip(*[flatten(observation, spec) for observation in seen], strict=True)
        arrays: list[np.ndarray] = []
        for column, shape, dtype in zip(columns, self._shapes, self._dtypes, strict=True):
            try:
                array = np.array(column)
            except ValueError:  # ragged
                array = np.empty(0)
            if array.dtype != dtype or array.shape != shape:
                self._name_the_odd_one(seen)
                array = array.astype(dtype)
            arrays.append(array)
        return arrays

    def _name_the_odd_one(self, seen: Sequence[Any]) -> None:
        for lane, observation in enumerate(seen):
            self.lane = lane
            wrong = problem(observation, self.specs.observation)
            if wrong:
                raise SpecError(f"the observation has {wrong}")

    def digests(self) -> list[str]:
        """The mark of every lane's running episode; empty where none is running."""
        marks = [mark(env, latest) for env, latest in zip(self.envs, self._latest, strict=False)]
        return marks or [""] * len(self.envs)

    def load(self, episodes: Sequence[Episode]) -> None:
        """Replays a running episode in every lane, and sets `over` to those that need a new one.

        Args:
            episodes: one for every lane.

        Raises:
            EnvError: one does not replay; `lane` says which.
        """
        self.over, self._latest = [], ()
        latest: list[Any] = []
        for lane, episode in enumerate(episodes):
            self.lane = lane
            if self._cursor is not None:
                self._cursor[0] = lane
            time_step = replay(self.envs[lane], episode)
            if time_step is None or time_step.step_type == 2:
                self.over.append(lane)
            else:
                self._set_limit(lane, len(episode.actions))
            if time_step is not None:
                latest.append(time_step.observation)
        # all lanes are stepped together, so either all of them had begun or none
        self._latest = latest

    def close(self) -> None:
        """Closes every environment."""
        for env in self.envs:
            env.close()


class _Direct(NamedTuple):
    """The Gymnasium environment of a stack that adds nothing but a time limit."""

    step: Callable[[Any], Any]
    reset: Callable[..., Any]
    duration: int


def _direct(env: SingleEnvironment) -> _Direct | None:
    duration = _NEVER
    if type(env) is TimeLimit:
        duration, env = env.duration, env.env
    if type(env) is not GymEnvironment or not env.plain:
        return None
    return _Direct(env.gym_env.step, env.gym_env.reset, duration)


def _common_specs(envs: Sequence[SingleEnvironment]) -> Specs:
    if not envs:
        raise SpecError("no environments were given; at least one is needed")
    for lane, env in enumerate(envs):
        if not isinstance(env, SingleEnvironment):
            kind = type(env).__name__
            raise SpecError(f"environment {lane} is a {kind}, not a SingleEnvironment; use GymEnvironment({kind}())")
    specs = [Specs(env.observation_spec, env.action_spec, env.reward_spec, env.env_info_spec) for env in envs]
    for lane, other in enumerate(specs):
        if other[:3] != specs[0][:3]:
            raise SpecError(
                f"environment {lane} has the specs {other[:3]} and environment 0 {specs[0][:3]}; "
                "environments of one batch need equal ones"
            )
    return specs[0]


def _numeric(infos: Iterable[Any]) -> Infos | None:
    found: Infos = {}
    for lane, info in enumerate(infos):
        if info:
            numbers: dict[str, float] = {}
            _numbers(info, "", numbers)
            if numbers:
                found[lane] = numbers
    return found or None


def _numbers(info: Any, prefix: str, out: dict[str, float]) -> None:
    for key, value in info.items():
        kind = type(value)
        if kind is float or kind is int or kind is bool or isinstance(value, np.number | np.bool_):
            out[f"{prefix}{key}"] = float(value)
        elif isinstance(value, dict):
            _numbers(value, f"{prefix}{key}/", out)
        elif isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "fiub":
            out[f"{prefix}{key}"] = float(value)
