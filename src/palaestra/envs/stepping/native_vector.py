"""`NativeVectorEnvironment`: environments that Gymnasium, or a simulator, steps as one."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from palaestra.core import Batch, ConfigError, EnvError, NonFiniteError, SpecError, TensorSpec, TimeStep, episode_seed
from palaestra.envs.contract.attributes import Found, SharedAttributes
from palaestra.envs.contract.boundary import ActionReader, Boundary, batched_time_step, require_all, taken
from palaestra.envs.contract.environment import Environment, HasSpecs
from palaestra.envs.contract.episodes import lane_seeds_of, require_read_mask, saved_seeds
from palaestra.envs.contract.nest import batched_arrays, batched_leaves, flatten, to_batched, unflatten
from palaestra.envs.contract.rows import MOST_ELEMENTS, Rows, Specs, completed, no_number
from palaestra.envs.contract.spaces import reward_spec_of, spec_from_space
from palaestra.envs.supervision.faults import describe, no_pictures

__all__ = ["NativeVectorEnvironment"]

_Told: TypeAlias = tuple[np.ndarray, Any]  # lanes [B] that were reset, and the info of that
# Where the pools are defined whose every step gives arrays in new memory. What others give is copied: they may write to
# it again.
_GIVE_NEW_ARRAYS = ("ale_py.vector_env",)


@final
class NativeVectorEnvironment(SharedAttributes, HasSpecs, Environment):
    """Adapts a Gymnasium `VectorEnv`, in any of its three ways to reset.

    NEXT_STEP is what this library does everywhere. One that resets within the step (SAME_STEP), or not by itself
    (DISABLED; then it is reset here), returns the FIRST row of the new episode, and the LAST rows in `ended`.

    A pool takes one seed for all its environments and cannot be put back into the middle of an episode, so a restored
    one starts new episodes.

    Args:
        vector_env: that is not used elsewhere.
        lane_seeds: one for every environment; fresh ones if left out.
        stacked: how many frames the first axis of an observation holds, as `TensorSpec.stacked` says.
        strict: whether an observation outside its bounds is an error, looked for in every step; else it is logged once.

    Raises:
        ConfigError: it does not say how it resets.
        SpecError: a space has no arrays of fixed shape, or there is another number of seeds.

    Examples:
        >>> import gymnasium
        >>> pool = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
        >>> env = NativeVectorEnvironment(pool, lane_seeds=[1, 2])
        >>> env.reset().step_type, env.step(torch.tensor([0, 1])).step_type
        (tensor([0, 0], dtype=torch.int32), tensor([1, 1], dtype=torch.int32))
    """

    seeding = "per_batch"
    resume = "statistical"
    checks_finite = True

    def __init__(
        self,
        vector_env: VectorEnv[Any, Any, Any],
        *,
        lane_seeds: Sequence[int] | None = None,
        stacked: int = 1,
        strict: bool = False,
    ) -> None:
        mode = vector_env.metadata.get("autoreset_mode")
        if mode is None:
            raise ConfigError(
                f"{vector_env} does not say how it resets; set metadata['autoreset_mode'] to one of "
                f"{[mode.name for mode in AutoresetMode]} of gymnasium.vector.AutoresetMode"
            )
        self._observation = spec_from_space(vector_env.single_observation_space, "observation_space")
        if stacked > 1:
            self._observation = dataclasses.replace(self._observation, stacked=stacked)
        self._action = spec_from_space(vector_env.single_action_space, "action_space")
        reward = reward_spec_of(getattr(vector_env, "single_reward_space", None))
        bare = Specs(self._observation, self._action, reward)
        self.specs = bare.batched()
        self.batch_size = vector_env.num_envs
        self._env_id = torch.arange(self.batch_size)
        self._reader = ActionReader(bare, self.batch_size)
        self._sent: list[np.ndarray] | None = None
        self.vector_env = vector_env
        self._mode = AutoresetMode(mode)
        if isinstance(vector_env.unwrapped, SyncVectorEnv | AsyncVectorEnv) or self._mode is AutoresetMode.DISABLED:
            self.end_episodes = self._end_episodes  # for single lanes of others cannot be reset
        self._seeds = lane_seeds_of(lane_seeds, self.batch_size)
        self._leaves = batched_leaves(self._observation, self.batch_size)
        self._reward_shape = (self.batch_size, *reward.shape)
        self._flat_action = isinstance(self._action, TensorSpec)
        self._copies = True if type(vector_env).__module__ not in _GIVE_NEW_ARRAYS else None
        rewards = self.batch_size * reward.size
        self._boundary = Boundary(self._observation, rewards, self.batch_size, strict=strict, first=0)
        self._no_floats = all(dtype.kind != "f" for _, _, dtype in self._leaves)
        self._at_reset: Collection[str] = ()  # names of what a reset reports
        self._whole = False  # whether the latest step gave whole numbers alone, of which none is NaN
        self._resets = 0
        self._steps = 0
        self._running = False
        self._over: np.ndarray | None = None  # lanes whose episode ended in the latest step, if any did
        # lanes, bool [B], that the next step begins anew by order of a time limit, and those that the latest one has
        self._cut: np.ndarray | None = None
        self._begun: np.ndarray | None = None
        self._mid, self._one = np.ones(self.batch_size, np.int32), np.ones(self.batch_size, np.float32)

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Takes the actions; `recv` steps the pool.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received.
            SpecError: an action is NaN, outside its space, or not allowed; no environment has seen any of them.
        """
        if env_id is not None or self._sent is not None:
            require_all(self, env_id, self._sent is not None)
        self._sent = self._reader.checked(action, 0, self._where)

    def recv(self) -> TimeStep:
        actions, self._sent = taken(self._sent), None
        time_step = self._step(actions) if self._running else self._reset()
        if self._reader.masked:
            self._reader.show(time_step)
        return time_step

    def reset(self) -> TimeStep:
        """Resets all environments with the next seed of the batch."""
        self._running, self._reader.mask = False, None
        self._sent = self._reader.zeros()
        return self.recv()

    def _end_episodes(self, lanes: torch.Tensor) -> None:
        """Lanes are stepped and reset in the next step."""
        if lanes.any():
            self._cut = lanes.numpy().copy()
            if self._reader.mask is not None:  # the action after LAST is ignored, whatever it is
                self._reader.mask[self._cut] = True

    def _reset(self) -> TimeStep:
        self.ended, self._steps, self._cut, self._begun = None, 0, None, None
        seed = self._next_seeds()
        try:
            observation, info = self.vector_env.reset(seed=seed)
        except Exception as error:
            raise self._failure(error, f"reset {self._resets} with seed {seed}") from error
        self._running, self._at_reset = True, info.keys()
        self._over = None
        self._resets += 1
        step_type, reward = np.zeros(self.batch_size, np.int32), np.zeros(self._reward_shape, np.float32)
        rows = Rows(step_type, reward, self._one.copy(), self._arrays(observation))
        return self._emitted(rows, self._reader.zeros(), info)

    def _where(self, lane: int) -> str:
        return f" (step {self._steps + 1} after reset {self._resets - 1})"

    def _step(self, actions: list[np.ndarray]) -> TimeStep:
        self.ended, self._begun, self._cut = None, self._cut, None
        self._steps += 1
        try:
            # the pool may keep or change what it is given
            copies = [array.copy() for array in actions]
            given = copies[0] if self._flat_action else unflatten(iter(copies), self._action)
            observation, reward, terminated, truncated, info = self.vector_env.step(given)
            if wrong := no_number(reward):
                raise SpecError(wrong)
            self._whole = self._no_floats and np.asarray(reward).dtype.kind in "biu"
            reward = np.array(reward, np.float32)
            if reward.shape != self._reward_shape:
                raise SpecError(f"the rewards have shape {reward.shape}, expected {self._reward_shape}")
            step_type, discount = self._mid.copy(), self._one.copy()
            began, self._over, told = self._over, None, list[_Told]()
            if self._begun is not None:
                anew = self._begun  # but those that the pool has reset within this step by itself
                if self._mode is AutoresetMode.SAME_STEP:
                    anew = anew & ~np.logical_or(terminated, truncated)
                if anew.any():
                    observation, at_reset = self.vector_env.reset(options={"reset_mask": anew.copy()})
                    told.append((anew, at_reset))
                terminated, truncated = (np.asarray(flags) & ~self._begun for flags in (terminated, truncated))
            if np.count_nonzero(terminated) or np.count_nonzero(truncated):
                over = np.logical_or(terminated, truncated)
                discount[np.asarray(terminated, np.bool_)] = 0.0
                if self._mode is not AutoresetMode.NEXT_STEP:
                    return self._same_step(actions, observation, reward, discount, over, info, told)
                self._over = over.nonzero()[0]
                step_type[self._over] = 2
            rows = Rows(step_type, reward, discount, self._arrays(observation))
            if began is not None:
                _make_first(began, rows, actions)
            if self._begun is not None:
                _make_first(np.flatnonzero(self._begun), rows, actions)
            return self._emitted(rows, actions, info, told)
        except NonFiniteError:
            self._running = False
            raise
        except Exception as error:
            self._running = False
            raise self._failure(error, f"step {self._steps} after reset {self._resets - 1}") from error

    def state_dict(self) -> dict[str, Any]:
        """The seeds, and how often the pool was reset."""
        state = {"lane_seed": np.array(self._seeds, np.int64), "resets": self._resets}
        return state | self._attributes_text()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the seeds; the next step starts new episodes everywhere, with a seed not used before.

        Raises:
            EnvError: it is of another number of environments.
        """
        self._seeds, self._resets = saved_seeds(state, self.batch_size), int(state["resets"])
        self._load_attributes(state)
        self._sent, self._reader.mask, self._running = None, None, False

    def lane_state(self) -> dict[str, Any]:
        """Every lane's seed, what was set, and how often the pool was reset; who continues takes the next seed."""
        state = {"lane_seed": np.array(self._seeds, np.int64), "episode": np.full(self.batch_size, self._resets - 1)}
        return state | self._attributes_text()

    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and the number of resets; the next step starts new episodes everywhere."""
        self.load_state_dict({**state, "resets": state["episode"][0] + 1})

    def _read(self, name: str) -> Found:
        pool: Any = self.vector_env.unwrapped
        try:
            values = pool.get_attr(name) if isinstance(pool, SyncVectorEnv | AsyncVectorEnv) else [getattr(pool, name)]
            if len({repr(value) for value in values}) > 1:
                raise ConfigError(
                    f"{name} differs between the environments of this pool, which share their attributes here: "
                    f"{list(values)}; give env.vectorization as serial"
                )
            return Found(True, values[0])
        except AttributeError:
            return Found(False, [])

    def _write(self, name: str, value: Any) -> None:
        pool: Any = self.vector_env.unwrapped
        if isinstance(pool, SyncVectorEnv | AsyncVectorEnv):
            pool.set_attr(name, [value] * self.batch_size)
        else:
            setattr(pool, name, value)

    def render(self) -> np.ndarray:
        try:
            pictures = self.vector_env.render()
        except NotImplementedError:
            raise EnvError(f"{self.vector_env} cannot be drawn: it has no method render") from None
        if pictures is None or not isinstance(pictures[0], np.ndarray):
            mode = self.vector_env.render_mode
            raise EnvError(f"{self.vector_env} drew nothing with render_mode {mode!r}{no_pictures(mode)}")
        return pictures[0]

    def close(self) -> None:
        if not self.vector_env.closed:
            self.vector_env.close()

    def _same_step(
        self,
        actions: Any,
        observation: Any,
        reward: np.ndarray,
        discount: np.ndarray,
        over: np.ndarray,
        info: Any,
        told: list[_Told],
    ) -> TimeStep:
        """A step after which no lane waits to be reset: ended lanes show their FIRST, and `ended` their LAST."""
        lanes = np.flatnonzero(over)
        if self._mode is AutoresetMode.SAME_STEP:
            # one final observation for every lane, in whatever it is that holds them
            finals = zip(*[flatten(info["final_obs"][lane], self._observation) for lane in lanes], strict=True)
            final = [np.array(column, dtype) for column, (_, _, dtype) in zip(finals, self._leaves, strict=True)]
            ended = over if self._begun is None else over | self._begun
            final_info = dict(info.get("final_info", {}))
            info = {key: value for key, value in info.items() if key.lstrip("_") not in ("final_obs", "final_info")}
            masked = [key for key in info if f"_{key}" in info and key not in self._at_reset]
            for key in masked:  # of ended episodes alone, as wrappers of the pool report them
                if not np.any(np.asarray(info[f"_{key}"])[~ended]):
                    final_info |= {name: info.pop(name) for name in (key, f"_{key}")}
        else:
            final, final_info = [array[lanes] for array in self._arrays(observation)], info
            observation, at_reset = self.vector_env.reset(options={"reset_mask": over.copy()})
            told.append((over, at_reset))
        last = Rows(np.full(len(lanes), 2, np.int32), reward[lanes], discount[lanes], final)
        prev_action = to_batched([array[lanes] for array in actions], self._action)
        self._boundary.require_finite(last, self._where, lanes.tolist())
        ended_info = _info(final_info, self.batch_size, lanes)
        if self.info:
            ended_info = completed(ended_info, last.step_type, self.info)
        self.ended = batched_time_step(last, prev_action, torch.from_numpy(lanes), ended_info, self._observation)
        rows = Rows(self._mid.copy(), reward, discount, self._arrays(observation))
        _make_first(lanes if self._begun is None else np.flatnonzero(over | self._begun), rows, actions)
        return self._emitted(rows, actions, info, told)

    def _emitted(self, rows: Rows, actions: list[np.ndarray], info: Any, told: Sequence[_Told] = ()) -> TimeStep:
        self._boundary.require(rows, self._steps, self._where, whole=self._whole)
        prev_action = torch.from_numpy(actions[0]) if self._flat_action else to_batched(actions, self._action)
        require_read_mask(info, self._observation, "give --env.vectorization serial and --env.wrappers ActionMask")
        found = _info(info, self.batch_size) if info else ()
        for lanes, at_reset in told:  # instead of what the step before the reset reported
            found = _instead(found, torch.from_numpy(lanes), _info(at_reset, self.batch_size))
        if self.info:
            found = completed(found, rows.step_type, self.info)
        return batched_time_step(rows, prev_action, self._env_id, found, self._observation)

    def _arrays(self, observation: Any) -> list[np.ndarray]:
        leaves = flatten(observation, self._observation)
        return batched_arrays(leaves, self._leaves, "the observations have", copy=self._copies)

    def _next_seeds(self) -> Any:
        if isinstance(self.vector_env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            return [episode_seed(seed, self._resets) for seed in self._seeds]
        return episode_seed(self._seeds[0], self._resets)

    def _failure(self, error: Exception, where: str) -> EnvError:
        kind, detail = describe(error)
        return EnvError(f"the vector environment {self.vector_env} raised {kind} at {where}: {detail}")


def _make_first(lanes: np.ndarray, rows: Rows, actions: list[np.ndarray]) -> None:
    """Makes FIRST rows of the lanes that show a new episode; their actions become zeros."""
    rows.make_first(lanes)
    for array in actions:
        array[lanes] = 0


def _info(info: dict[str, Any], batch_size: int, lanes: np.ndarray | None = None) -> Any:
    columns: dict[str, torch.Tensor] = {}
    _columns(info, "", batch_size, columns)
    if not columns:
        return ()
    return Batch.of(columns if lanes is None else {key: column[lanes] for key, column in columns.items()})


def _instead(found: Any, lanes: torch.Tensor, told: Any) -> Any:
    """Columns with those of some lanes [B] exchanged."""
    ours, theirs = (dict(vars(one)) if isinstance(one, Batch) else {} for one in (found, told))
    missing = torch.full((len(lanes),), torch.nan, dtype=torch.float64)
    names = [*ours, *(name for name in theirs if name not in ours)]
    columns = {name: torch.where(lanes, theirs.get(name, missing), ours.get(name, missing)) for name in names}
    return Batch.of(columns) if columns else ()


def _columns(
    info: dict[str, Any], prefix: str, batch_size: int, out: dict[str, torch.Tensor], outer: np.ndarray | None = None
) -> None:
    for key, value in info.items():
        if key == "env_id" or (key.startswith("_") and key[1:] in info):  # a time step says its env_id itself
            continue
        mask = info.get(f"_{key}", outer)
        if isinstance(value, dict):
            _columns(value, f"{prefix}{key}/", batch_size, out, mask)
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "fiub" or array.shape[:1] != (batch_size,):
            continue
        elements = array.reshape(batch_size, -1)
        if elements.shape[1] > MOST_ELEMENTS:
            continue
        names = [key] if array.ndim == 1 else [f"{key}/{index}" for index in range(elements.shape[1])]
        for name, element in zip(names, elements.T, strict=True):
            column = element.astype(np.float64)
            if mask is not None:
                column[~np.asarray(mask, np.bool_)] = np.nan
            if (mask is None and array.dtype.kind != "f") or not np.isnan(column).all():
                out[f"{prefix}{name}"] = torch.from_numpy(column)
