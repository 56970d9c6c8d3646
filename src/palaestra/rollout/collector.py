"""`Collector`: lets a policy act in an environment and stores what happens."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer, sampler_of
from palaestra.core import Batch, ConfigError, NonFiniteError, OnPolicy, Replay, TensorSpec, TimeStep
from palaestra.envs import Environment
from palaestra.policies import Phase, Policy
from palaestra.rollout.episodes import Episode, EpisodeTracker

__all__ = ["CollectInfo", "Collector"]

_FLUSH_ROWS = 256


@dataclass(slots=True)
class CollectInfo:
    """What one collection did."""

    env_steps: int
    """Actions executed over all environments; resets are none."""
    episodes: list[Episode] = field(default_factory=list)
    """Episodes that ended and had not been reported yet."""
    env_s: float = 0.0
    """Seconds spent in the environments."""


class Collector:
    """Steps a policy and a batched environment against each other and appends every row to a buffer.

    Args:
        env: where to act; the collector resets it at its first use.
        policy: how to act, in `Phase.COLLECT`.
        buffer: what rows are appended to, one lane per environment.

    Examples:
        >>> from palaestra import PPO, Collector, EnvConfig, create_environment
        >>> env = create_environment(EnvConfig(name="CartPole-v1", num_envs=2))
        >>> collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
        >>> collector.collect(n_step=10).env_steps
        10
    """

    def __init__(self, env: Environment, policy: Policy, buffer: ReplayBuffer) -> None:
        if buffer.num_lanes != env.batch_size:
            raise ConfigError(f"the buffer has {buffer.num_lanes} lanes for {env.batch_size} environments")
        self.env, self.policy, self.buffer = env, policy, buffer
        self.env_steps = 0
        """Actions executed so far."""
        self._tracker = EpisodeTracker(env.batch_size)
        self._time_step: TimeStep | None = None
        self._state: Any = ()
        self._carry = 0.0

    @property
    def num_lanes(self) -> int:
        """Environments stepped side by side."""
        return self.env.batch_size

    @classmethod
    def of(cls, env: Environment, algorithm: Algorithm[Any], *, complete_episodes_only: bool = False) -> Self:
        """A collector with the buffer that an algorithm's plan asks for.

        Args:
            env: where to act.
            algorithm: whose policy acts and whose plan sizes the buffer.
            complete_episodes_only: whether only episodes that have ended are learned from.

        Raises:
            ConfigError: the plan collects nothing.
        """
        plan, policy = algorithm.plan, algorithm.policy
        if isinstance(plan, OnPolicy):
            capacity = None
        elif isinstance(plan, Replay):
            capacity = max(plan.capacity, env.batch_size * (plan.n_step + 1))
        else:
            raise ConfigError("an offline plan learns from a loaded buffer and collects nothing")
        buffer = ReplayBuffer(
            capacity,
            env.batch_size,
            sampler=sampler_of(plan) if isinstance(plan, Replay) else None,
            observation_spec=env.observation_spec,
            action_spec=policy.raw_action_spec,
            info_spec={name: TensorSpec(()) for name in policy.behaviour_fields if name in algorithm.stored_fields},
            reward_spec=env.reward_spec,
            complete_episodes_only=complete_episodes_only,
        )
        return cls(env, policy, buffer)

    def collect(self, *, n_step: int | None = None, n_episode: int | None = None) -> CollectInfo:
        """Acts until at least so many env steps were executed or episodes have ended.

        Args:
            n_step: env steps, over all environments.
            n_episode: episodes, over all environments.

        Raises:
            ConfigError: not exactly one of the two is given.
            NonFiniteError: an observation or reward is NaN or infinite.
        """
        if (n_step is None) == (n_episode is None):
            raise ConfigError(f"collect(n_step={n_step}, n_episode={n_episode}): give exactly one of the two")
        info = CollectInfo(0)
        num_envs = self.env.batch_size
        while n_step is not None and info.env_steps < n_step:
            self._run(math.ceil((n_step - info.env_steps) / num_envs), info)
        info.episodes += self._tracker.finished()
        while n_episode is not None and len(info.episodes) < n_episode:
            self._run(1, info)
            info.episodes += self._tracker.finished()
        return info

    def unroll(self, length: float) -> CollectInfo:
        """Collects time steps from every environment for one training iteration.

        Args:
            length: time steps from each; a fraction is met on average over calls.

        Raises:
            NonFiniteError: an observation or reward is NaN or infinite.
        """
        self._carry += length
        rows = int(self._carry)
        self._carry -= rows
        info = CollectInfo(0)
        if rows:
            self._run(rows, info)
        if len(self._tracker) >= _FLUSH_ROWS or rows > 1:
            info.episodes = self._tracker.finished()
        return info

    def _start(self) -> TimeStep:
        """Begins new episodes; running ones break off, which the buffer sees as fragments that end with no LAST."""
        time_step = self.env.reset()
        self.env.interrupted = False
        self._state = self.policy.initial_state(self.env.batch_size)
        self.buffer.open(time_step)
        self._tracker.add(time_step)
        return time_step

    def _run(self, rows: int, info: CollectInfo) -> None:
        env, policy, tracker, append = self.env, self.policy, self._tracker, self.buffer.append
        version, clock, env_s, resets = policy.version, time.perf_counter, 0.0, 0
        with torch.inference_mode():
            time_step = self._start() if self._time_step is None or env.interrupted else self._time_step
            state = self._state
            for _ in range(rows):
                resets += time_step.step_type.tolist().count(2)  # the action on a LAST row is not executed
                step = policy.act(time_step, state, phase=Phase.COLLECT)
                action = policy.env_action(step.action)
                begin = clock()
                time_step = env.step(action)
                env_s += clock() - begin
                if env.ended is not None:
                    raise ConfigError(
                        f"{type(env).__name__} resets within the step, which the collector cannot store yet; "
                        "use an environment that resets at the next step"
                    )
                state = step.state
                append(step.action, time_step, policy_version=version)
                tracker.add(time_step)
            self._time_step, self._state = time_step, state
            self._check_finite(rows)
            if self.buffer.info_fields:
                self._add_behaviour(rows)
        env_steps = rows * env.batch_size - resets
        self.env_steps += env_steps
        info.env_steps += env_steps
        info.env_s += env_s

    def _add_behaviour(self, rows: int) -> None:
        """One batched pass over the new rows with the weights that acted, before any update."""
        info = self.policy.behaviour(self.buffer.recent("observation", rows), self.buffer.recent("action", rows))
        self.buffer.write_info(info, rows)

    def _check_finite(self, rows: int) -> None:
        """Looks at the rows that were just completed and at the newest time step."""
        newest = self._time_step
        assert newest is not None
        with np.errstate(over="ignore", invalid="ignore"):
            for name, value in (("observation", newest.observation), ("reward", newest.reward)):
                _require_finite(name, value, env_dim=0)
                if rows > 1:
                    _require_finite(name, self.buffer.recent(name, rows), env_dim=1)

    def state(self) -> dict[str, Any]:
        """Where collection is, by name: tensors and JSON values, for a checkpoint."""
        state: dict[str, Any] = {"env_steps": self.env_steps, "carry": self._carry, "tracker": self._tracker.state()}
        if self._time_step is not None:
            state["env"] = self.env.state_dict()
            state["time_step"] = self._time_step._asdict() | {"env_info": (), "untransformed": ()}
            state["policy_state"] = self._state
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave. Environments that cannot go on exactly begin new episodes.

        Args:
            state: of a collector with the same environments.
        """
        self.env_steps, self._carry = state["env_steps"], state["carry"]
        self._tracker.load_state(state["tracker"])
        if "env" in state:
            self.env.load_state_dict(state["env"])
            self._time_step, self._state = TimeStep(**state["time_step"]), state["policy_state"]
            if self.env.resume == "statistical":
                self._time_step = self._start()
                self._tracker = EpisodeTracker(self.env.batch_size)

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        return self._tracker.finished()


def _require_finite(name: str, value: Any, *, env_dim: int) -> None:
    if isinstance(value, Batch):
        for key, part in value.items():
            _require_finite(f"{name}.{key}", part, env_dim=env_dim)
        return
    if not value.is_floating_point() or math.isfinite(np.add.reduce(value.numpy(), axis=None)):
        return
    for place in (~torch.isfinite(value)).nonzero().tolist():  # none where only the sum overflows
        element = place[env_dim + 1 :] or ""
        raise NonFiniteError(
            f"environment {place[env_dim]} emitted {name}{element} = {value[tuple(place)].item()}; "
            "look at the environment, or clip what it emits"
        )
