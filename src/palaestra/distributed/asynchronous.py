"""How asynchronous learning goes: how stale data may be, how much is learned from at a time, and who waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer, SamplesPerInsert
from palaestra.core import ConfigError, Offline, OnPolicy, Replay, require_at_least, spec_leaves

__all__ = ["AsynchronousConfig", "Pace"]

_REPLAY_FRAGMENT_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class AsynchronousConfig:
    """How stale data may be, how much is learned from at a time, and who waits for whom."""

    max_lag: int | None = None
    """Policy versions that data may be old when it is used; older data is dropped. 0 uses only the newest; no bound if
    left out, which is right for replayed data and for V-trace."""
    fragment_steps: int | None = None
    """Time steps that an actor takes in each environment before it sends them; the algorithm's unroll_length if left
    out, or 16 where data is replayed."""
    fragments_per_update: int = 1
    """Fragments that an on-policy algorithm learns from at a time."""
    queue_size: int | None = None
    """Fragments that may wait; while so many do, actors are not answered. As many as there are actors if left out."""
    samples_per_insert: float | None = None
    """Rows drawn for each row written, where data is replayed; what the algorithm's plan does in one process if left
    out."""

    def __post_init__(self) -> None:
        least = {"max_lag": 0, "fragment_steps": 1, "fragments_per_update": 1, "queue_size": 1}
        require_at_least(self, "asynchronous.", **least)
        if self.samples_per_insert is not None and not self.samples_per_insert > 0:
            raise ConfigError(f"asynchronous.samples_per_insert is {self.samples_per_insert}; it must be above 0")


class Pace:
    """Says when there is enough to learn from, and whether more may be taken.

    Args:
        algorithms: of the policies, by name.
        buffers: by policy name, with the lanes of all actors.
        num_actors: that share the lanes.
        config: what was asked for.

    Raises:
        ConfigError: see `PolicyServer`.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm[Any]],
        buffers: Mapping[str, ReplayBuffer],
        num_actors: int,
        config: AsynchronousConfig,
    ) -> None:
        plans = {name: algorithm.plan for name, algorithm in algorithms.items()}
        for name, plan in plans.items():
            if name not in buffers or buffers[name].num_lanes % num_actors:
                lanes = buffers[name].num_lanes if name in buffers else "no"
                raise ConfigError(f"the buffer of {name!r} has {lanes} lanes, which {num_actors} actors cannot share")
            if isinstance(plan, Offline) or (isinstance(plan, OnPolicy) and not plan.clear):
                raise ConfigError(
                    f"policy {name!r} learns by {type(algorithms[name]).__name__}, whose plan {plan} keeps its own "
                    "data, so actors cannot feed it; use an algorithm that discards its unrolls, or one with a replay"
                )
            stacked = max(leaf.stacked for leaf in spec_leaves(buffers[name].options["observation_spec"]).values())
            if isinstance(plan, Replay) and stacked > 1 and config.max_lag is not None:
                raise ConfigError(
                    f"asynchronous.max_lag is {config.max_lag}, but the buffer of {name!r} stores single frames of "
                    f"stacks of {stacked}, which cannot be put together where a fragment is missing; leave max_lag out"
                )
        self._config, self._num_actors = config, num_actors
        self.on_policy = any(isinstance(plan, OnPolicy) for plan in plans.values())
        """Whether a policy learns on-policy; those that replay then follow it."""
        replayed = [plan for plan in plans.values() if isinstance(plan, Replay)]
        lanes = next(iter(buffers.values())).num_lanes
        self._drawn = sum(plan.gradient_steps * plan.mini_batch_size for plan in replayed)  # in one training iteration
        self._first = min((plan.learns_after(lanes) for plan in replayed), default=0)
        self._limiter: SamplesPerInsert | None = None
        if not self.on_policy:
            ratio = config.samples_per_insert or self._drawn / (replayed[0].unroll_length * lanes)
            written = self.fragment_steps(0.0) * lanes // num_actors
            self._limiter = SamplesPerInsert(ratio=ratio, slack=ratio * written * num_actors + self._drawn)

    def fragment_steps(self, length: float) -> int:
        """Time steps of a fragment.

        Args:
            length: of the plan's unroll.
        """
        if self._config.fragment_steps is not None:
            return self._config.fragment_steps
        return max(1, round(length)) if self.on_policy else _REPLAY_FRAGMENT_STEPS

    def blocks(self, buffer: ReplayBuffer) -> ReplayBuffer:
        """Room for the fragments of one on-policy update, beside each other.

        Args:
            buffer: with the same rows.
        """
        lanes = buffer.num_lanes // self._num_actors * self._config.fragments_per_update
        return ReplayBuffer(None, lanes, **buffer.options)

    def fresh(self, lag: int) -> bool:
        """Whether data may be learned from: the one rule about staleness.

        Args:
            lag: newest policy version minus that of the data.
        """
        return self._config.max_lag is None or lag <= self._config.max_lag

    def may_take(self, taken: int, rows: int) -> bool:
        """Whether one more fragment may be taken: as many as an update needs, or until learning falls behind.

        Args:
            taken: in this training iteration.
            rows: of the fragment.
        """
        if self._limiter is None:
            return taken < self._config.fragments_per_update
        return self._limiter.may_write(rows)

    def took(self, rows: int, env_steps: int) -> None:
        """A fragment was taken.

        Args:
            rows: of it.
            env_steps: of the run, with it.
        """
        if self._limiter is not None and env_steps > self._first:
            self._limiter.wrote(rows, timeout_s=0.0)

    def enough(self, taken: int, env_steps: int) -> bool:
        """Whether there is enough to learn from. What a replay plan will draw is counted by saying yes.

        Args:
            taken: fragments in this training iteration.
            env_steps: of the run.
        """
        if self._limiter is None:
            return taken == self._config.fragments_per_update
        if env_steps <= self._first:
            return taken > 0
        if not self._limiter.may_draw(self._drawn):
            return False
        self._limiter.drew(self._drawn, timeout_s=0.0)
        return True

    @property
    def samples_per_insert(self) -> float | None:
        """Rows drawn for each row written since learning began; `None` where nothing is replayed or learned yet."""
        if self._limiter is None or not self._limiter.written:
            return None
        return self._limiter.drawn / self._limiter.written
