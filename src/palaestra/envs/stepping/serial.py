"""`SerialDriver`: bare environments stepped one after another, right here.

A worker process runs it on its part of the batch, a thread on its one environment, so all give the same stream.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from palaestra.core import ConfigError, SpecError, TensorSpec, TimeStep, spec_leaves
from palaestra.envs.contract.attributes import Attributed, release
from palaestra.envs.contract.boundary import ActionReader, Boundary
from palaestra.envs.contract.environment import SingleEnvironment, common_specs
from palaestra.envs.contract.episodes import NEVER, LaneEpisode, StepLimits, require_read_mask
from palaestra.envs.contract.gym_environment import GymEnvironment, begun, end_of, last_seen, over_of, wrong_flags
from palaestra.envs.contract.nest import fits, flatten, leaf_arrays, leaf_dtypes, neutral_rows, problem, unflatten
from palaestra.envs.contract.rows import TEXT, Infos, Rows, batched_info, numeric_infos, put, stacked, unreadable
from palaestra.envs.stepping.driver import Driver, Outcome
from palaestra.envs.supervision.faults import ANY_FAULT, Failure, FaultPolicy, Incident
from palaestra.envs.supervision.places import lane_calls
from palaestra.envs.wrappers.episode_ends import TimeLimit

__all__ = ["SerialDriver"]

# a NamedTuple's own constructor takes twice as long
_new = tuple.__new__
_log = logging.getLogger(__name__)


@final
class SerialDriver(Attributed, Driver):
    """Steps bare environments in this process: no sub-process exists, so a debugger works.

    The fastest choice for environments whose step takes less than about 10 microseconds. One that fails does not keep
    the others from being stepped. One that hangs is interrupted; if it cannot be, or ends the process, that is the end
    of the run, and worker processes are for those.

    Args:
        envs: the outermost layers, or what makes them; all with equal specs.
        faults: what to do when one fails; `restart` needs what makes them.
        factories: what made the `envs`, where these are made already.
        cursor: element 0 is set to the lane being stepped, so that a watcher knows which one never came back.
        first_id: number of the first environment, where this is a part of a larger batch.
        watched: whether hangs are looked for here; not where somebody else waits for this driver with a deadline.

    Raises:
        SpecError: no environments, or other specs.
        EnvError: one cannot be made.
        ConfigError: environments that cannot be made again are to be restarted.

    Attributes:
        envs: the outermost layers.
        specs: that all of them share.
        reader: of their actions.
        batch_size: B.
        over: lanes whose episode ended in the latest step.
        doing: as long as the lane that is being worked on, for the watchdog; `None` while no environment has control.
    """

    def __init__(
        self,
        envs: Sequence[SingleEnvironment | Callable[[], SingleEnvironment]],
        *,
        faults: FaultPolicy = ANY_FAULT,
        factories: Sequence[Callable[[], SingleEnvironment]] = (),
        cursor: np.ndarray | None = None,
        first_id: int = 0,
        watched: bool = True,
    ) -> None:
        self._factories: list[Any] = list(factories) or [env for env in envs if callable(env)]
        if faults.on_fault == "restart" and len(self._factories) < len(envs):
            raise ConfigError(
                'on_fault="restart" makes environments again; give what makes them, such as partial(load, ...)'
            )
        Attributed.__init__(self, faults, first_id, cursor, watched=watched)
        self._given: tuple[Any, dict[int, int]] = (), {}
        self.envs: list[Any] = [self.made(lane, env) if callable(env) else env for lane, env in enumerate(envs)]
        self._claim()
        self.specs, self.batch_size = common_specs(self.envs), len(self.envs)
        size, observation = self.batch_size, self.specs.observation
        self.reader = ActionReader(self.specs, size)
        self._dtypes = leaf_dtypes(observation)
        self._shapes = [(size, *leaf.shape) for leaf in spec_leaves(observation).values()]
        self._plain = isinstance(observation, TensorSpec)
        self._reward_shape = (size, *self.specs.reward.shape)
        rewards = size * self.specs.reward.size
        self._boundary = Boundary(observation, rewards, size, strict=faults.strict, first=first_id)
        self._clock, self._bounds_period = 0, self._boundary.period
        self._mid, self._one = np.ones(size, np.int32), np.ones(size, np.float32)
        self._cast = set[tuple[int, np.dtype]]()
        # where somebody else watches, each lane is marked; else its line is in every stack
        self._calls: Any = (lane_calls(size) if cursor is None else None) or functools.partial(self._rest, 0)
        self._forget()

    # -- as a driver

    def submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        self._given = self.reader.per_lane(actions), seeds

    def collect(self) -> Outcome:
        rows, infos, failures = self.step(*self._given)
        info = batched_info(infos, self.batch_size) if infos else ()
        return rows, self.over, info, [Incident(failure) for failure in failures] if failures else ()

    def restart(
        self, seeds: dict[int, int], *, fatal: bool
    ) -> tuple[dict[int, list[np.ndarray]], Sequence[str]] | Incident:
        # `fatal`: these environments have just been made, for those of a worker that is gone
        found: dict[int, list[np.ndarray]] = {}
        for lane, seed in seeds.items():
            restarted = self.call(lane, self._begin_again, lane, seed, not fatal)
            if isinstance(restarted, Failure):
                return Incident(restarted)
            found[lane] = restarted
        return found, list(self.envs[0].carried_state()) if fatal else ()

    def drop(self, lanes: list[int], *, fatal: bool) -> None:
        for lane in lanes:
            self.closed(lane, self.envs[lane])
            self._dropped[lane] = self._stand_in(lane)
        self._find_steps()

    def digests(self) -> list[str]:
        lanes = zip(self.envs, self._latest, self._earned, strict=True)
        return ["" if latest is None else env.mark(latest, earned) for env, latest, earned in lanes]

    def load(self, episodes: Sequence[LaneEpisode]) -> list[int] | Incident:
        self._forget()
        for lane, episode in enumerate(episodes):
            try:
                time_step = self.call(lane, self.envs[lane].replay, episode)
            except BaseException as error:
                return Incident(self.failure(lane, error))
            if time_step is None or time_step.step_type == 2:
                self.over.append(lane)
            else:
                self._limits.begin(lane, len(episode.actions))
            if time_step is not None:
                self._show(lane, time_step.observation, time_step.reward)
        return self.over

    def render(self) -> np.ndarray | Incident:
        try:
            return self.call(0, self.envs[0].render)
        except BaseException as error:
            failure = self.failure(0, error)
            return Incident(failure._replace(what=f"{failure.what} when it was drawn"))

    def close(self) -> list[Incident]:
        """Closes every environment, also where closing one fails."""
        found = self.close_all({lane: env for lane, env in enumerate(self.envs) if lane not in self._dropped})
        release(self)
        return [Incident(failure) for failure in found]

    # -- a step

    def step(self, actions: Sequence[Any], seeds: dict[int, int]) -> tuple[Rows, Infos | None, list[Failure]]:
        """Executes an action in every lane, or starts an episode there.

        Args:
            actions: one for every lane, as its environment takes it.
            seeds: of the lanes that start an episode instead.

        Returns:
            The rows; numeric info, or `None` where none was reported; and what went wrong. The row of a lane that
            failed is FIRST and shows what the lane showed before.
        """
        steps = self._steps
        if seeds:
            steps = steps.copy()
            for lane, seed in seeds.items():
                steps[lane] = functools.partial(self._begin, lane, seed, -1)
        results, failures = list[Any](), list[Failure]()
        self._starting, self.doing, calls = seeds, results, self._calls
        try:
            while len(results) < len(steps):
                try:
                    calls(steps, actions, results.append)
                except BaseException as error:
                    failures.append(self.failure(len(results), error))
                    results.append(self._stand_in(len(results)))
                    if failures[-1].kind == "timeout" and self.faults.on_fault == "raise":  # so the time of all is up
                        results += map(self._stand_in, range(len(results), len(steps)))
                    calls = functools.partial(self._rest, len(results))
        finally:
            self.doing = None
        self._limited = self._limits.tick()
        try:
            rows, seen, numbers = self._read(results, seeds)
        except Exception:
            failures += self._malformed(results)
            rows, seen, numbers = self._read(results, seeds)
        if self._clock % self._bounds_period == 0:
            failures += self._boundary.out_of_place(rows.observation, seen)
        self._clock += 1
        if not self._boundary.finite(rows.observation, rows.reward):
            failures += self._malformed(results)
            failures += self._boundary.not_finite(rows.observation, rows.reward, {one.lane for one in failures})
        if failures or self._dropped:
            failures = [failure for failure in failures if failure.lane not in self._dropped]
            seen = self._blank(rows, seen, {failure.lane for failure in failures} | self._dropped.keys())
        self._latest, self._shown = tuple(seen), rows.observation
        return rows, numbers, failures

    def _begin_again(self, lane: int, seed: int, remade: bool) -> list[np.ndarray] | Failure:
        """Starts an episode in a lane that failed; returns its first observation, or what went wrong."""
        try:
            if remade:
                env = self._remade(lane, self._factories[lane])
                common_specs([*self.envs[:1], env] if lane else [env, *self.envs[1:2]])
                self.envs[lane] = env
                self._find_steps()
            result = self._begin(lane, seed, 0, None)
            observation = result[0] if self._all_direct else result.observation
            if wrong := problem(observation, self.specs.observation):
                return Failure(lane, "malformed", "emitted another observation", f"it has {wrong}")
        except BaseException as error:
            return self.failure(lane, error)
        arrays = leaf_arrays(observation, self.specs.observation)
        if not all(np.isfinite(array).all() for array in arrays):
            return Failure(lane, "non-finite", "emitted NaN or infinity", "look at the environment's reset")
        self._show(lane, observation, 0.0 if self._all_direct else result.reward)
        return arrays

    def _show(self, lane: int, observation: Any, reward: Any) -> None:
        """Notes what a lane shows besides what a step brings."""
        put(self._shown, lane, flatten(observation, self.specs.observation))
        self._latest = (*self._latest[:lane], observation, *self._latest[lane + 1 :])
        self._earned = (*self._earned[:lane], reward, *self._earned[lane + 1 :])

    def _forget(self) -> None:
        """No episode runs in any lane, and no lane was dropped."""
        self.over: list[int] = []
        self._dropped = dict[int, Any]()
        self._latest = self._earned = tuple[Any, ...]([None] * self.batch_size)
        self._shown = neutral_rows(self.specs.observation, self.batch_size)
        self._limits = StepLimits([direct.duration if direct else NEVER for direct in map(_direct, self.envs)])
        self._find_steps()

    def _find_steps(self) -> None:
        """What to call for a step: a Gymnasium environment itself, where no layer of any lane adds to it."""
        self._direct = [_direct(env) for env in self.envs]
        self._all_direct = all(direct is not None for direct in self._direct)
        self._steps: list[Callable[[Any], Any]] = [
            direct.step if direct and self._all_direct else env.advance
            for direct, env in zip(self._direct, self.envs, strict=True)
        ]
        for lane in self._dropped:
            self._steps[lane] = lambda action, lane=lane: self._stand_in(lane)

    def _rest(self, first: int, steps: list[Any], actions: Sequence[Any], add: Callable[[Any], None]) -> None:
        """Calls the steps from a lane on, and marks each."""
        cursor = self._cursor
        for lane in range(first, len(steps)):
            if cursor is not None:
                cursor[0] = lane
            add(steps[lane](actions[lane]))

    def _read(self, results: list[Any], seeds: dict[int, int]) -> tuple[Rows, Sequence[Any], Any]:
        """Rows of what layers returned, or the Gymnasium environments themselves; observations as they came; info."""
        if self._all_direct:
            seen, earned, terminated, truncated, infos = zip(*results)  # noqa: B905 - every one has five
            step_type, discount = self._mid.copy(), self._one.copy()
            over = list(self._limited)
            if terminated.count(False) != self.batch_size or truncated.count(False) != self.batch_size:
                over = sorted({*over, *over_of(terminated, truncated)})
            for lane in over:
                step_type[lane], discount[lane] = end_of(terminated[lane], True)
                if infos[lane] and (terminated[lane] or truncated[lane]):
                    last = last_seen(self.envs[lane], seen[lane], infos[lane], terminated[lane])
                    seen = (*seen[:lane], last, *seen[lane + 1 :])
            for lane in seeds:
                step_type[lane] = 0
        else:
            kinds, earned, discounts, seen, _, _, _, infos = zip(*results, strict=True)
            over = [lane for lane, kind in enumerate(kinds) if kind == 2] if 2 in kinds else []
            step_type, discount = np.array(kinds, np.int32), np.array(discounts, np.float32)
        self.over, self._earned = over, earned
        for info in filter(None, infos):
            require_read_mask(info, self.specs.observation)
        try:
            reward, observation = np.array(earned, np.float32), [np.array(seen)] if self._plain else []
        except ValueError:  # ragged: seen to below
            reward = observation = None
        if reward is None or reward.shape != self._reward_shape or not TEXT.isdisjoint(map(type, earned)):
            reward = self._rewards(earned)
        if not observation or observation[0].dtype != self._dtypes[0] or observation[0].shape != self._shapes[0]:
            observation = self._gather(seen)
        rows = _new(Rows, (step_type, reward, discount, observation))
        return rows, seen, numeric_infos(infos) if any(infos) else None

    def _rewards(self, rewards: Sequence[Any]) -> np.ndarray:
        """[B] or [B, k] of rewards that do not come as plain numbers."""
        if any(np.asarray(one).dtype.kind in "SU" for one in rewards):
            raise TypeError("text is no number")
        alike = len({*map(np.shape, rewards)}) == 1  # no number beside an array of one
        reward = np.array(rewards if alike else [np.asarray(one, np.float32).item() for one in rewards], np.float32)
        if reward.shape != self._reward_shape and (reward.size != len(self.envs) or len(self._reward_shape) > 1):
            raise SpecError(f"the rewards have shape {reward.shape}, expected {self._reward_shape}")
        return reward.reshape(self._reward_shape)

    def _begin(self, lane: int, seed: int, steps: int, action: Any) -> Any:
        direct = self._direct[lane]
        self._limits.begin(lane, steps, duration=direct.duration if direct else NEVER)
        if direct is None or not self._all_direct:
            return self.envs[lane].begin(seed)
        observation, info = begun(direct, seed)
        require_read_mask(info, self.specs.observation)
        return observation, 0.0, False, False, info

    def _stand_in(self, lane: int) -> Any:
        """What stands for the step of a lane that gave none: what it showed before, and nothing else.

        It is taken from the rows, because an environment may write every observation into the same array.
        """
        if lane in self._dropped:
            return self._dropped[lane]
        observation = unflatten((array[lane].copy() for array in self._shown), self.specs.observation)
        if self._all_direct:
            return observation, 0.0, False, False, {}
        reward = np.zeros(self.specs.reward.shape, np.float32) if self.specs.reward.shape else 0.0
        return TimeStep(0, reward, 1.0, observation, (), self.first_id + lane, (), {})

    def _blank(self, rows: Rows, seen: Sequence[Any], lanes: set[int]) -> list[Any]:
        """Makes the rows of these lanes FIRST; their observations, too, if they are not fit to be seen."""
        seen = list(seen)
        for lane in lanes:
            rows.make_first(lane)
            shown = self._stand_in(lane)
            observation = seen[lane] = shown[0] if self._all_direct else shown.observation
            put(rows.observation, lane, flatten(observation, self.specs.observation))
        self.over = [lane for lane in self.over if lane not in lanes]
        return seen

    def _malformed(self, results: list[Any]) -> list[Failure]:
        """Finds the lanes whose results cannot be read, and puts others in their place."""
        found: list[Failure] = []
        for lane, result in enumerate(results):
            try:
                wrong = unreadable(result, self.specs, direct=self._all_direct)
                wrong = wrong or (wrong_flags(*result[2:4]) if self._all_direct else "")
                if not wrong:
                    require_read_mask(result[-1], self.specs.observation)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                other = "emitted another observation" if wrong.startswith("the observation") else ""
                found.append(Failure(lane, "malformed", other or "returned what cannot be read", wrong))
                results[lane] = self._stand_in(lane)
        return found

    def _gather(self, seen: Sequence[Any]) -> list[np.ndarray]:
        """One array for every leaf, cast where need be, and no broadcasting of a row that has another shape."""
        spec = self.specs.observation
        columns = [seen] if self._plain else zip(*[flatten(observation, spec) for observation in seen], strict=True)
        arrays: list[np.ndarray] = []
        for leaf, (column, shape, dtype) in enumerate(zip(columns, self._shapes, self._dtypes, strict=True)):
            array = stacked(column)
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
                name = f"observation.{list(spec_leaves(self.specs.observation))[leaf]}".removesuffix(".")
                text = "%s comes as %s and its space says %s; it is cast in every step, which takes time. Said once"
                _log.info(text, name, array.dtype, dtype)
        with np.errstate(over="ignore"):
            return array.astype(dtype)


class _Direct(NamedTuple):
    """A stack that adds nothing to a Gymnasium environment but a time limit: the loop over all lanes does its work."""

    step: Callable[[Any], Any]
    """Of the Gymnasium environment."""
    reset: Callable[..., Any]
    """The same."""
    limit: TimeLimit | None
    """The layer that ends episodes."""

    @property
    def duration(self) -> int:
        """The time limit in env steps as it is now, or `NEVER`."""
        return NEVER if self.limit is None else self.limit.duration


def _direct(env: SingleEnvironment) -> _Direct | None:
    limit, env = (env, env.env) if type(env) is TimeLimit else (None, env)
    if type(env) is GymEnvironment and env.plain:
        return _Direct(env.gym_env.step, env.gym_env.reset, limit)
    return None
