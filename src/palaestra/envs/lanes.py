"""`Lanes`: the loop that steps bare environments and writes their time steps into rows.

A serial environment runs it on fresh arrays, a worker process on its part of shared memory, so both give the same
stream bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from palaestra.core import SpecError, TensorSpec, TimeStep, spec_leaves
from palaestra.envs.boundary import Boundary
from palaestra.envs.direct import NEVER, direct_calls
from palaestra.envs.driving import mark, remade, replay
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.episode_log import Episode
from palaestra.envs.faults import Failure, failure_of
from palaestra.envs.nest import fits, flatten, leaf_dtypes, neutral, problem, unflatten, zeros
from palaestra.envs.rows import Infos, Rows, common_specs, numeric_infos

__all__ = ["Lanes"]

_call: Callable[[Callable[[Any], Any], Any], Any] = operator.call  # pyright: ignore[reportAssignmentType]
# a NamedTuple's own constructor takes twice as long
_new = tuple.__new__
_log = logging.getLogger(__name__)


class Lanes:
    """Some bare environments. One that fails does not keep the others from being stepped.

    Args:
        envs: the outermost layers.
        factories: that made them, where they can be made again.
        cursor: element 0 is set to the lane being stepped, so that whoever watches knows which one never came back.
        strict: whether an observation outside its bounds is a failure.
        first: number of the first lane's environment, for messages.

    Attributes:
        specs: that all of them share.
        over: lanes whose episode ended in the latest step.
    """

    def __init__(
        self,
        envs: Sequence[SingleEnvironment],
        factories: Sequence[Callable[[], SingleEnvironment]] = (),
        cursor: np.ndarray | None = None,
        *,
        strict: bool = False,
        first: int = 0,
    ) -> None:
        self.envs, size = list(envs), len(envs)
        self.specs = common_specs(self.envs)
        self.over: list[int] = []
        self._factories, self._cursor, self._first = list(factories), cursor, first
        self._dtypes = leaf_dtypes(self.specs.observation)
        self._shapes = [(size, *leaf.shape) for leaf in spec_leaves(self.specs.observation).values()]
        self._plain = isinstance(self.specs.observation, TensorSpec)
        self._reward_shape = (size, *self.specs.reward.shape)
        rewards = int(np.prod(self._reward_shape))
        self._boundary = Boundary(self.specs.observation, rewards, size, strict=strict, first=first)
        self._bounds_period = self._boundary.period
        self._mid, self._one = np.ones(size, np.int32), np.ones(size, np.float32)
        self._latest: Sequence[Any] = [None] * size
        self._shown = self._nothing()
        self._clock = -1
        self._next_limit = NEVER
        self._limits = [NEVER] * size
        self._dropped, self._cast = dict[int, Any](), set[tuple[int, np.dtype]]()
        self._find_steps()

    def step(self, actions: Iterable[Any], seeds: dict[int, int]) -> tuple[Rows, Infos | None, list[Failure]]:
        """Executes an action in every lane, or starts an episode there.

        Args:
            actions: one for every lane, as its environment takes it.
            seeds: of the lanes that start an episode instead.

        Returns:
            The rows; numeric info, or `None` where nobody reported any; and what went wrong. The row of a lane that
            failed is FIRST and shows what the lane showed before.
        """
        self._clock += 1
        steps = self._steps
        if seeds:
            steps = steps.copy()
            for lane, seed in seeds.items():
                steps[lane] = functools.partial(self._begin, lane, seed)
        results: list[Any] = []
        failures: list[Failure] = []
        # the loop without its overhead; after an exception it goes on with the next lane
        calls = map(_call, steps, actions) if self._cursor is None else self._watched(steps, actions, results)
        while True:
            try:
                results.extend(calls)
                if len(results) == len(steps):
                    break
                raise RuntimeError("the environment raised StopIteration")
            except (Exception, SystemExit) as error:
                failures.append(failure_of(len(results), error))
                results.append(self._stand_in(len(results)))
                if self._cursor is not None:
                    calls = self._watched(steps, actions, results)
        try:
            rows, seen, infos = self._read(results, seeds)
        except Exception:
            failures += self._malformed(results)
            rows, seen, infos = self._read(results, seeds)
        if self._clock % self._bounds_period == 0:
            failures += self._boundary.out_of_place(rows.observation, seen)
        if not self._boundary.finite(rows.observation, rows.reward):
            failures += self._boundary.not_finite(rows.observation, rows.reward)
        if failures or self._dropped:
            failures = [failure for failure in failures if failure.lane not in self._dropped]
            seen = self._blank(rows, seen, {failure.lane for failure in failures} | self._dropped.keys())
        self._latest, self._shown = seen, rows.observation
        return rows, numeric_infos(infos) if any(infos) else None, failures

    def restart(self, lane: int, seed: int, *, again: bool = True) -> list[np.ndarray] | Failure:
        """Makes a lane's environment again and starts an episode.

        Args:
            lane: which.
            seed: of the episode.
            again: whether to make it, or take the one that is there.

        Returns:
            The leaves of the first observation, or what went wrong.
        """
        try:
            if again:
                env = remade(self.envs[lane], self._factories[lane])
                common_specs([*self.envs[:1], env] if lane else [env, *self.envs[1:2]])
                self.envs[lane] = env
                self._find_steps()
            result = self._begin(lane, seed, None)
            observation = result[0] if self._all_direct else result.observation
            wrong = problem(observation, self.specs.observation)
            if wrong:
                return Failure(lane, "malformed", "emitted another observation", f"it has {wrong}")
        except (Exception, SystemExit) as error:
            return failure_of(lane, error)
        leaves = flatten(observation, self.specs.observation)
        arrays = [np.array(leaf, dtype) for leaf, dtype in zip(leaves, self._dtypes, strict=True)]
        for array in arrays:
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return Failure(lane, "non-finite", "emitted NaN or infinity", "look at the environment's reset")
        for shown, array in zip(self._shown, arrays, strict=True):
            shown[lane] = array
        self._latest = [observation if number == lane else latest for number, latest in enumerate(self._latest)]
        return arrays

    def mark(self, lane: int) -> None:
        """Tells whoever watches that a lane is being worked on.

        Args:
            lane: which.
        """
        if self._cursor is not None:
            self._cursor[0] = lane

    def drop(self, lane: int) -> None:
        """Closes a lane's environment; from now on its rows are FIRST and show what it showed last.

        Args:
            lane: which.
        """
        with contextlib.suppress(Exception):
            self.envs[lane].close()
        self._dropped[lane] = self._stand_in(lane)
        self._find_steps()

    def _find_steps(self) -> None:
        self._direct = [direct_calls(env) for env in self.envs]
        self._all_direct = all(direct is not None for direct in self._direct)
        self._read: Any = self._read_direct if self._all_direct else self._read_layers
        self._steps: list[Callable[[Any], Any]] = [
            direct.step if direct and self._all_direct else env.advance
            for direct, env in zip(self._direct, self.envs, strict=True)
        ]
        for lane in self._dropped:
            self._steps[lane] = functools.partial(_ignore, self._stand_in, lane)
            self._limits[lane] = NEVER

    def _watched(self, steps: list[Any], actions: Iterable[Any], results: list[Any]) -> Iterator[Any]:
        cursor, done = self._cursor, len(results)
        assert cursor is not None
        for lane, (step, action) in enumerate(zip(steps, actions, strict=True)):
            if lane >= done:
                cursor[0] = lane
                yield step(action)

    def _read_layers(self, results: list[TimeStep], seeds: dict[int, int]) -> tuple[Rows, Sequence[Any], Any]:
        kinds, rewards, discounts, seen, _, _, _, infos = zip(*results, strict=True)
        self.over = [lane for lane, kind in enumerate(kinds) if kind == 2] if 2 in kinds else []
        reward = np.array(rewards, np.float32)
        if reward.shape != self._reward_shape:
            reward = self._rewards(reward)
        rows = np.array(kinds, np.int32), reward, np.array(discounts, np.float32), self._gather(seen)
        return _new(Rows, rows), seen, infos

    def _read_direct(self, results: list[Any], seeds: dict[int, int]) -> tuple[Rows, Sequence[Any], Any]:
        """The same for `GymEnvironment`s under a `TimeLimit` or none, of what their Gymnasium environments return."""
        seen, rewards, terminated, truncated, infos = zip(*results)  # noqa: B905 - every one has five
        step_type, discount = self._mid.copy(), self._one.copy()
        over: list[int] = []
        if self._clock >= self._next_limit:
            over = [lane for lane, limit in enumerate(self._limits) if self._clock == limit]
            self._next_limit = min((limit for limit in self._limits if limit > self._clock), default=NEVER)
        if any(terminated) or any(truncated):
            ends = enumerate(zip(terminated, truncated))  # noqa: B905 - as above
            over = sorted({*over, *(lane for lane, (ended, cut) in ends if ended or cut)})
        for lane in over:
            step_type[lane] = 2
            if terminated[lane]:
                discount[lane] = 0.0
        for lane in seeds:
            step_type[lane] = 0
        self.over = over
        reward = np.array(rewards, np.float32)
        if reward.shape != self._reward_shape:
            reward = self._rewards(reward)
        return _new(Rows, (step_type, reward, discount, self._gather(seen))), seen, infos

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
        self._limits[lane] = limit = self._clock + (direct.duration if direct else NEVER) - steps
        self._next_limit = min(self._next_limit, limit)

    def _nothing(self) -> list[np.ndarray]:
        """The leaves of observations that nobody made."""
        leaves = flatten(neutral(self.specs.observation), self.specs.observation)
        return [np.tile(leaf, (len(self.envs), *[1] * np.ndim(leaf))) for leaf in leaves]

    def _stand_in(self, lane: int) -> Any:
        """What stands for the step of a lane that gave none: what it showed before, and nothing else.

        It is taken from the rows, because an environment may write every observation into the same array.
        """
        if lane in self._dropped:
            return self._dropped[lane]
        observation = unflatten((array[lane].copy() for array in self._shown), self.specs.observation)
        if self._all_direct:
            return observation, 0.0, False, False, {}
        reward = zeros(self.specs.reward) if self.specs.reward.shape else 0.0
        return TimeStep(0, reward, 1.0, observation, (), self._first + lane, (), {})

    def _blank(self, rows: Rows, seen: Sequence[Any], lanes: set[int]) -> list[Any]:
        """Makes the rows of these lanes FIRST; their observations, too, if they are not fit to be seen."""
        seen = list(seen)
        for lane in lanes:
            rows.step_type[lane], rows.reward[lane], rows.discount[lane] = 0, 0.0, 1.0
            shown = self._stand_in(lane)
            observation = seen[lane] = shown[0] if self._all_direct else shown.observation
            for array, leaf in zip(rows.observation, flatten(observation, self.specs.observation), strict=True):
                array[lane] = leaf
        self.over = [lane for lane in self.over if lane not in lanes]
        return seen

    def _malformed(self, results: list[Any]) -> list[Failure]:
        """Finds the lanes whose results cannot be read, and puts others in their place."""
        found: list[Failure] = []
        for lane, result in enumerate(results):
            try:
                wrong = self._wrong(result)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                what = "returned what cannot be read" if "observation" not in wrong else "emitted another observation"
                found.append(Failure(lane, "malformed", what, wrong))
                results[lane] = self._stand_in(lane)
        return found

    def _wrong(self, result: Any) -> str:
        if self._all_direct:
            if not isinstance(result, tuple) or len(result) != 5:
                return f"step must return five values, and returned {type(result).__name__}"
            observation, reward, *_, info = result
        else:
            observation, reward, info = result.observation, result.reward, result.env_info
        wrong = problem(observation, self.specs.observation)
        if wrong:
            return f"the observation has {wrong}"
        if not isinstance(info, dict) and info != ():
            return f"info must be a dict, and is {info!r}"
        array = np.asarray(reward, np.float32)
        if array.shape != self.specs.reward.shape and (array.size != 1 or self.specs.reward.shape):
            return f"the reward has shape {array.shape}, expected {self.specs.reward.shape}"
        return ""

    def _gather(self, seen: Sequence[Any]) -> list[np.ndarray]:
        """One array for every leaf, and no broadcasting of a row that has another shape."""
        if self._plain:
            try:
                array = np.array(seen)
                if array.dtype == self._dtypes[0] and array.shape == self._shapes[0]:
                    return [array]
            except ValueError:  # ragged: found below
                pass
        spec = self.specs.observation
        columns = [seen] if self._plain else zip(*[flatten(observation, spec) for observation in seen], strict=True)
        arrays: list[np.ndarray] = []
        for leaf, (column, shape, dtype) in enumerate(zip(columns, self._shapes, self._dtypes, strict=True)):
            array = _stacked(column)
            if array.dtype != dtype or array.shape != shape:
                if array.shape != shape or not fits(array, dtype):
                    raise SpecError(f"an observation has shape {array.shape[1:]} and dtype {array.dtype}")
                array = self._casted(leaf, array, dtype)
            arrays.append(array)
        return arrays

    def _casted(self, leaf: int, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if (leaf, array.dtype) not in self._cast:
            self._cast.add((leaf, array.dtype))
            if array.dtype.kind != dtype.kind:
                path = list(spec_leaves(self.specs.observation))[leaf]
                name = f"observation.{path}" if path else "observation"
                text = "%s comes as %s and its space says %s; it is cast in every step, which takes time. Said once"
                _log.info(text, name, array.dtype, dtype)
        with np.errstate(over="ignore"):
            return array.astype(dtype)

    def digests(self) -> list[str]:
        """The mark of every lane's running episode; empty where none is running."""
        pairs = zip(self.envs, self._latest, strict=True)
        return ["" if latest is None else mark(env, latest) for env, latest in pairs]

    def load(self, episodes: Sequence[Episode]) -> Failure | None:
        """Replays a running episode in every lane, and sets `over` to those that need a new one.

        Args:
            episodes: one for every lane.

        Returns:
            What went wrong, if anything; the lanes then have no episodes.
        """
        self.over, self._dropped = [], {}
        self._find_steps()
        self._latest, self._shown = [None] * len(self.envs), self._nothing()
        latest: list[Any] = []
        for lane, episode in enumerate(episodes):
            self.mark(lane)
            try:
                time_step = replay(self.envs[lane], episode)
            except (Exception, SystemExit) as error:
                return failure_of(lane, error)
            if time_step is None or time_step.step_type == 2:
                self.over.append(lane)
            else:
                self._set_limit(lane, len(episode.actions))
            latest.append(None if time_step is None else time_step.observation)
            if time_step is not None:
                for shown, leaf in zip(self._shown, flatten(latest[lane], self.specs.observation), strict=True):
                    shown[lane] = leaf
        self._latest = latest
        return None

    def close(self) -> None:
        """Closes every environment, also where closing one raises an error; the first is raised in the end."""
        errors: list[Exception] = []
        for lane, env in enumerate(self.envs):
            if lane not in self._dropped:
                try:
                    env.close()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def _ignore(shown: Callable[[int], Any], lane: int, action: Any) -> Any:
    return shown(lane)


def _stacked(column: Sequence[Any]) -> np.ndarray:
    try:
        return np.array(column)
    except ValueError:  # ragged
        return np.empty(0)
