"""What a collection needs (a buffer, a number of rows) and gives, and loaded data instead of a collector."""

import contextlib
import logging
import math
import operator
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import DeviceMemory, KeepsBuffer, ReplayBuffer, buffer_of, other_actions, sampler_of
from palaestra.core import ConfigError, ShapeError, SpecTree, TensorSpec, schedule_value, spec_layout
from palaestra.core.errors import require_kind
from palaestra.core.importing import GIVEN
from palaestra.core.plan import POLICY, OnPolicy, Replay
from palaestra.envs import EnvConfig, Environment
from palaestra.policies import Policy, PopulationPolicy
from palaestra.rollout.episodes import Episode

__all__ = [
    "CollectInfo",
    "OfflineData",
    "OfflineFirst",
    "Quota",
    "buffer_for",
    "episode_discount",
    "episodes_of_lanes",
    "origin_of",
    "require_compression",
]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CollectInfo:
    """What one collection did."""

    env_steps: int
    """Actions executed over all environments, resets not counted."""
    rows: int = 0
    """Time steps collected from every environment, resets included."""
    rows_of: dict[str, int] = field(default_factory=dict)
    """Time steps collected for each policy, where there are several; a policy without any does not learn from them."""
    episodes: list[Episode] = field(default_factory=list)
    """Episodes that ended and had not been reported yet."""
    env_s: float = 0.0
    """Seconds spent in the environments."""
    inference_s: float = 0.0
    """Seconds spent choosing actions."""
    total_s: float = 0.0
    """Seconds of the whole collection."""

    @property
    def stats(self) -> dict[str, float]:
        """Episodes `n/ep`, env steps `n/st`, both per second `v/ep` and `v/st`, mean return `rew` and length `len`.

        Without an episode, `rew` and `len` are NaN.
        """
        episodes, seconds = self.episodes, max(self.total_s, 1e-9)
        return {
            "n/ep": len(episodes),
            "n/st": self.env_steps,
            "v/ep": len(episodes) / seconds,
            "v/st": self.env_steps / seconds,
            "rew": float(np.mean([e.episode_return for e in episodes])) if episodes else float("nan"),
            "len": float(np.mean([e.length for e in episodes])) if episodes else float("nan"),
        }


class Quota:
    """How many rows the current unroll still needs. A fractional unroll length is met on average over unrolls.

    Examples:
        >>> quota = Quota()
        >>> taken = []
        >>> for _ in range(4):
        ...     taken.append(quota.begin(1.5))
        ...     quota.left = 0
        >>> taken
        [1, 2, 1, 2]
    """

    def __init__(self) -> None:
        self.left = 0
        """Rows that are still to be collected; subtract what you have collected."""
        self._carry = 0.0

    def begin(self, length: float) -> int:
        """Begins an unroll, or continues one that was paused.

        Args:
            length: rows of an unroll; ignored where one was paused.

        Returns:
            Rows to collect.

        Raises:
            ConfigError: the length is negative, or no number.
        """
        if not 0 <= length < math.inf:
            raise ConfigError(f"an unroll of length {length} was asked for; it must be at least 0, and finite")
        if not self.left:
            self._carry += length
            self.left = int(self._carry + 1e-9)  # ten times 0.1 is a row
            self._carry -= self.left
        return self.left

    def state(self) -> dict[str, Any]:
        """`rows_left` and `carry`, for a checkpoint."""
        return {"rows_left": self.left, "carry": self._carry}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Args:
            state: with its two entries, and possibly others.
        """
        self.left, self._carry = state["rows_left"], state["carry"]


_PATIENCE_STEPS, _LONG_EPISODE = 100_000, 10_000  # env steps of all environments, and of each


class EpisodePatience:
    """Warns where many env steps are taken and no episode ends.

    Args:
        asked: what is collected, for the message.
        num_envs: environments.
    """

    def __init__(self, asked: str, num_envs: int) -> None:
        self._asked, self._most = asked, max(_PATIENCE_STEPS, _LONG_EPISODE * num_envs)
        self._warn_at = self._most

    def look(self, env_steps: int, *, ended: bool) -> None:
        """Takes what has happened.

        Args:
            env_steps: since collection began.
            ended: whether an episode has ended since the last call.
        """
        if ended:
            self._warn_at = env_steps + self._most
        elif env_steps >= self._warn_at:
            self._warn_at += self._most
            warnings.warn(
                f"{self._asked} has taken {env_steps:,} env steps and no episode has ended in the last "
                f"{self._most:,}; set a time limit (env.max_episode_steps), or ask for time steps",
                stacklevel=3,
            )


def origin_of(env: EnvConfig) -> dict[str, str]:
    """What a data set tells of where it was collected: see `ReplayBuffer.save`.

    Args:
        env: where. Of one that has a name in this process alone, only the rewards are told.

    Returns:
        `environment`; `task`, all that returns depend on; and `rewards`: of the task, or as training changed them.
    """
    changes = [*_named(env.train_wrappers), *(f"{key}={value!r}" for key, value in env.train_kwargs.items())]
    rewards = {"rewards": f"of training, with {', '.join(changes)}" if changes else "of the task"}
    if env.name.startswith(f"{GIVEN}:"):
        return rewards
    task = " ".join([env.task, *_named((*env.gym_wrappers, *env.wrappers))])
    return {"environment": env.name.rpartition(":")[2], "task": task} | rewards


def _named(wrappers: Iterable[Any]) -> list[str]:
    """Wrappers as text; code without a name has the same one everywhere."""
    return [str(one) if " at 0x" not in str(one) else "a function" for one in wrappers]


class OfflineData:
    """A fixed data set to learn from: `Trainer(OfflineData(buffer), algorithm)`.

    There are no env steps offline, so an update takes the place of an env step, everywhere: in the budget
    `total_env_steps`, in every period, in schedules and on the x axis of metrics.

    Args:
        data: the buffer or memory that holds the data, or those of several policies by name; they are never written
            to.

    Raises:
        ShapeError: there is none, or one is empty.
    """

    def __init__(self, data: ReplayBuffer | KeepsBuffer | Mapping[str, ReplayBuffer | KeepsBuffer]) -> None:
        given = data if isinstance(data, Mapping) else {POLICY: data}
        sources = {policy: buffer_of(source) for policy, source in given.items()}
        if not sources or not all(len(buffer) for buffer in sources.values()):
            raise ShapeError("the buffer of an offline run is empty; load or collect data into it first")
        self.sources = sources
        """What each policy learns from: its buffer."""
        self.num_lanes = sum(buffer.num_lanes for buffer in sources.values())
        """Streams of the data."""
        self.buffers: dict[str, ReplayBuffer] = {}
        """None: loaded data does not change, so it is not part of checkpoints."""
        self.env_steps = 0
        """Updates so far."""

    unfinished = False
    """Never: nothing is collected."""

    def require_units_of(self, policies: Mapping[str, Policy]) -> None:
        """Refuses data with other actions than those that policies sample.

        Args:
            policies: that learn, by name.

        Raises:
            ShapeError: they are executed ones where the policy's are raw, or of other bounds.
        """
        for name in self.sources.keys() & policies.keys():
            own = {"action_spec": policies[name].raw_action_spec, "executed_spec": policies[name].action_spec}
            if said := other_actions({"the data": self.sources[name].options, f"the {name} that learns": own}):
                raise ShapeError(said)

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Counts one update; nothing is collected.

        Args:
            length: ignored.
            random: ignored.
        """
        self.env_steps += 1
        return CollectInfo(0)

    def pause(self) -> None:
        """Nothing runs that could be paused."""

    def drain(self) -> list[Episode]:
        """No episodes end."""
        return []

    def state(self) -> dict[str, Any]:
        """The count; the data is not part of a checkpoint."""
        return {"env_steps": self.env_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Args:
            state: of a run on the same data.
        """
        self.env_steps = state["env_steps"]


class OfflineFirst:
    """Updates on loaded data, each instead of an env step as with `OfflineData`; then a collector takes over.

    Args:
        collector: that takes over.
        data: the buffers that hold the data, by policy; they are never written to.
        updates: how many.
    """

    def __init__(self, collector: Any, data: Mapping[str, ReplayBuffer], updates: int) -> None:
        self.collector, self._offline, self._updates = collector, OfflineData(data), updates
        self.num_lanes: int = collector.num_lanes
        """Streams of the collector."""

    def require_units_of(self, policies: Mapping[str, Policy]) -> None:
        """See `OfflineData.require_units_of`."""
        self._offline.require_units_of(policies)

    @property
    def loaded(self) -> Mapping[str, ReplayBuffer]:
        """The data, by policy; whether or not it is still learned from."""
        return self._offline.sources

    @property
    def updates_made(self) -> int:
        """How many of the env steps were updates."""
        return self._offline.env_steps

    @property
    def env_steps(self) -> int:
        """Updates on the data, and env steps after them."""
        return self.updates_made + self.collector.env_steps

    @property
    def _collects(self) -> bool:
        return self.updates_made >= self._updates

    @property
    def buffers(self) -> Mapping[str, Any]:
        """Those of the collector."""
        return self.collector.buffers

    @property
    def sources(self) -> Mapping[str, Any]:
        """The data, and once all updates on it are made what the collector has."""
        return self.collector.sources if self.collector.env_steps else self._offline.sources

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause` before it had all its rows."""
        return self.collector.unfinished

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Counts one update, or collects for one training iteration.

        Args:
            length: time steps from every environment.
            random: names of the policies that act at random.
        """
        return (self.collector if self._collects else self._offline).unroll(length, random=random)

    def take_over(self) -> None:
        """Lets the collector take over now, whatever updates are left."""
        self._updates = self.updates_made

    def pause(self) -> None:
        """Ends a running unroll as soon as it can."""
        self.collector.pause()

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        return self.collector.drain()

    def state(self) -> dict[str, Any]:
        """Of both, for a checkpoint."""
        return {"offline": self._offline.state(), "collector": self.collector.state()}

    @staticmethod
    def is_of_offline_run(state: Mapping[str, Any]) -> bool:
        """Whether a state is of `OfflineData`: of an offline run, which goes online now and has no rows of its own.

        Args:
            state: that was saved.
        """
        return "collector" not in state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Args:
            state: of a run on the same data, or of an offline run.
        """
        if self.is_of_offline_run(state):
            self._offline.load_state(state)
            return
        self._offline.load_state(state["offline"])
        self.collector.load_state(state["collector"])


def require_fit(env: Any, policy: Any, called: str, *, changed: bool = False) -> None:
    """Refuses what is no batch of environments, or no policy for it.

    Args:
        env: should be a batch.
        policy: should have its observations and actions.
        called: what they were given to, for the message.
        changed: whether something in between makes other observations.

    Raises:
        ConfigError: they are something else, or do not fit together.
    """
    require_kind(env, Environment, called, "environments, as create_environment(EnvConfig(name=...)) makes them")
    require_kind(policy, Policy, called, "a policy, such as algorithm.policy or load_policy('RUN/policy')")
    for what in ("action",) if changed else ("observation", "action"):
        here, there = (spec_layout(getattr(one, f"{what}_spec")) for one in (env, policy))
        if (here if what == "action" else spec_layout(policy.seen_of(env.observation_spec))) != there:
            raise ConfigError(
                f"{called} was given environments whose {what}s are {here}, and a policy for {there}; make it with "
                f"env.observation_spec and env.action_spec"
            )


def buffer_for(
    algorithm: Algorithm[Any, Any],
    num_lanes: int,
    *,
    observation_spec: SpecTree,
    reward_spec: TensorSpec,
    complete_episodes_only: bool = False,
    fragments: bool = False,
    device: torch.device | None = None,
    **rest: Any,
) -> ReplayBuffer:
    """An empty buffer with the size, fields and sampler that an algorithm's plan and policy ask for.

    Args:
        algorithm: that will learn from it.
        num_lanes: streams that are written side by side.
        observation_spec: of the environment.
        reward_spec: of the environment.
        complete_episodes_only: whether only episodes that have ended are learned from.
        fragments: whether the buffer only holds what is on its way to the one that is learned from: it grows, keeps a
            policy's hidden state with every row, and nothing is sampled from it.
        device: where rows come from; those of a GPU stay there.
        rest: what else a row keeps: `env_info_spec` and `untransformed_spec`, see `Environment.row_specs`; and
            `compression`.

    Raises:
        ConfigError: the plan collects nothing, or the algorithm cannot learn from such rewards.
    """
    algorithm.require_reward(reward_spec)
    plan, policy = algorithm.plan, algorithm.policy
    if complete_episodes_only and isinstance(policy, PopulationPolicy):
        raise ConfigError(
            "complete_episodes_only keeps what earlier perturbations began, and evolution strategies compare what each "
            "earned in as many time steps; leave it out, or ask for whole episodes (episodes_per_iteration)"
        )
    capacity = plan.capacity_for(num_lanes)
    if isinstance(plan, Replay) and capacity is not None and plan.capacity < capacity and not fragments:
        _log.warning(
            "algorithm.capacity is %d, and draws from each of %d lanes need %d rows; the buffer keeps so many",
            *(plan.capacity, num_lanes, capacity),
        )
    return ReplayBuffer(
        None if fragments else capacity,
        num_lanes,
        sampler=sampler_of(plan) if isinstance(plan, Replay) and not fragments else None,
        observation_spec=observation_spec,
        action_spec=policy.raw_action_spec,
        executed_spec=policy.action_spec,
        info_spec={name: spec for name, spec in policy.behaviour_spec.items() if name in algorithm.stored_fields},
        reward_spec=reward_spec,
        state_spec=policy.stored_state_spec or None,
        state_period=1 if isinstance(plan, OnPolicy) or fragments else plan.mini_batch_length,
        complete_episodes_only=complete_episodes_only,
        **rest,
        storage=None if device is None or device.type == "cpu" else DeviceMemory(device),
    )


def require_compression(algorithm: Algorithm[Any, Any], compression: str) -> None:
    """Refuses compression where there is nothing to compress, or no codec; no buffer has been made then.

    Args:
        algorithm: that will learn.
        compression: see `RowOptions`.

    Raises:
        ConfigError: the algorithm replays nothing, or its observations have no picture.
        MissingExtraError: the codec is not installed.
    """
    if compression == "none":
        return
    policy, data = algorithm.policy, algorithm.plan.data
    if data != "replay":
        raise ConfigError(
            f"buffer.compression is {compression!r}, for a buffer that is replayed, and {type(algorithm).__name__} "
            f"learns from {data} data; leave it out"
        )
    specs: Any = {"observation_spec": policy.observation_spec, "action_spec": policy.raw_action_spec}
    ReplayBuffer(1, 1, **specs | {"compression": compression})


def episodes_of_lanes(env: Environment, given: Any) -> int | np.ndarray:
    """Whole episodes that all environments together are to play, or each: int64 [B], 0 for those that were dropped.

    Args:
        env: the environments.
        given: a whole number, or a sequence or an array of one for each.

    Raises:
        ConfigError: these are other numbers, or the environments cannot be stepped for some of them alone.
    """
    left = np.array(-1)
    with contextlib.suppress(TypeError):
        left = np.array([operator.index(n) for n in given] if np.ndim(given) else operator.index(given), np.int64)
    if left.shape not in ((), (env.batch_size,)) or (left < 0).any():
        raise ConfigError(
            f"collect(n_episode={given!r}): give a whole number of at least 0 for each of the "
            f"{env.batch_size} environments, or one number for all of them together"
        )
    if not left.ndim:
        return int(left)
    ready = env.num_ready
    if ready < env.batch_size or env.device.type != "cpu":
        where = f"on {env.device}" if env.device.type != "cpu" else f"{ready} ready at a time"
        raise ConfigError(
            "a number of whole episodes of each environment is for environments that are stepped together on the "
            f"CPU, and these are {where}; ask for time steps"
        )
    if dropped := [lane for lane in sorted(env.dropped) if left[lane]]:
        warnings.warn(f"environments {dropped} were dropped and play none of the episodes asked of them", stacklevel=3)
        left[dropped] = 0
    return left


def episode_discount(algorithm: Algorithm[Any, Any]) -> float | None:
    """The discount that episodes are reported with: the algorithm's at the end of its schedule, if it has one.

    Args:
        algorithm: that learns.
    """
    gamma = getattr(algorithm.config, "gamma", None)
    return None if gamma is None else schedule_value(gamma, 1.0)
