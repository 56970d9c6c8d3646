"""`WorkerStreams`: what a `RolloutManager` and a `PolicyServer` have in common."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

from palaestra.buffers import ReplayBuffer
from palaestra.core import DataSource
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.worker import ActingParts, Fragment, RolloutWorker, acting_weights, broken_off
from palaestra.distributed.worker_group import Dropped, Worker, WorkerGroup
from palaestra.policies import Policy
from palaestra.rollout import CollectInfo, Episode
from palaestra.runtime import Call, Runtime, Shared
from palaestra.training import Callback

if TYPE_CHECKING:
    from palaestra.training import Trainer

__all__ = ["WorkerStreams", "WorkersView"]


class WorkerStreams:
    """Workers that act, the weights that they act with, and the gaps that dropped fragments leave in their streams.

    Args:
        runtime: where the workers live.
        make: makes the parts of a worker from its number, such as a `CollectorFactory`.
        policies: by name, whose weights the workers act with.
        buffers: by policy name, where rows lie.
        config: how many workers, and how to wait for them.
        num_lanes: environments stepped in parallel, over all workers.
        name: of the workers, for people.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], ActingParts],
        policies: Mapping[str, Policy],
        buffers: Mapping[str, ReplayBuffer],
        config: DistributedConfig,
        *,
        num_lanes: int,
        name: str,
    ) -> None:
        self.buffers = dict(buffers)
        """Where rows lie, by policy."""
        self.sources: dict[str, DataSource] = dict(buffers)
        """What each policy learns from: its buffer, unless you set a mixture of it with loaded data."""
        self.num_lanes = num_lanes
        """Environments stepped in parallel, over all workers."""
        self.env_steps = 0
        """Actions executed so far, of fragments that were used."""
        self.runtime = runtime
        """Where the workers live."""
        factory = functools.partial(RolloutWorker, make)
        self.group = WorkerGroup(runtime, factory, config, name=name, joined=self.has_joined)
        """The workers."""
        self.positions: list[Any] | None = None
        """What each worker begins with, by its number; `None` for new episodes."""
        self.gaps: set[int] = set()
        """Workers whose last fragment is missing in their streams."""
        self._policies, self._num_envs = policies, num_lanes // config.num_workers
        self._weights: Shared | None = None
        self._mark: Any = None

    def has_joined(self, worker: Worker, resume: str) -> None:
        """Called with a worker that has begun.

        Args:
            worker: which.
            resume: how it continues its environments: "exact" or "statistical".
        """

    def drain(self) -> list[Episode]:
        """Nothing: every fragment brings the episodes that have ended in it."""
        return []

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Fragments that are not learned from, in order."""
        return self.group.dropped

    @property
    def faults(self) -> Sequence[Any]:
        """Ends of workers, and faults of environments that workers dealt with, in order."""
        return self.group.faults

    def begin(self) -> None:
        """Starts the workers, if there are none yet, and lifts the limit of an earlier pause."""
        self.group.limit_s = math.inf
        if not self.group.workers:
            self.group.start(self.positions)

    def weights(self) -> Shared:
        """Of the policies as they are now; what has not changed is not encoded again."""
        mark = [
            (one.version, None if one.exploration is None else one.exploration.strength)
            for one in self._policies.values()
        ]
        if self._weights is None or mark != self._mark:
            self._weights, self._mark = Shared(acting_weights(self._policies)), mark
        return self._weights

    def lag(self, fragment: Fragment) -> int:
        """How many policy versions old a fragment is.

        Args:
            fragment: which.
        """
        return max(self._policies[name].version - version for name, version in fragment.versions.items())

    def drop(self, worker: Worker, call: Call, lag: int, max_lag: int | None) -> None:
        """Notes that a fragment is too old to be learned from, so that its worker's streams have a gap.

        Args:
            worker: that sent it.
            call: that asked for it.
            lag: how old it is.
            max_lag: how old it may be.
        """
        self.group.drop(call, f"it is {lag} policy versions old, and max_lag is {max_lag}")
        self.gaps.add(worker.number)

    def continued(self, worker: Worker, fragment: Fragment) -> Fragment:
        """A fragment as its buffer needs it: the beginning of new streams where the one before was dropped.

        Args:
            worker: that sent it.
            fragment: the oldest of its fragments that were not stored yet.
        """
        whole = worker.number not in self.gaps
        self.gaps.discard(worker.number)
        return fragment if whole else broken_off(fragment)

    def report(self, info: CollectInfo, worker: Worker, fragment: Fragment, share: float) -> None:
        """Adds what a worker did to what an unroll did; environments are numbered over all workers.

        Args:
            info: of the unroll.
            worker: who.
            fragment: what it sent.
            share: of the worker's seconds that the unroll took.
        """
        one, first = fragment.info, worker.number * self._num_envs
        info.env_steps += one.env_steps
        info.rows = max(info.rows, one.rows)
        for name, rows in one.rows_of.items():
            info.rows_of[name] = max(rows, info.rows_of.get(name, 0))
        info.episodes += [episode._replace(env_id=first + episode.env_id) for episode in one.episodes]
        info.env_s += one.env_s * share
        info.inference_s += one.inference_s * share
        self.group.faults += [dataclasses.replace(fault, env_id=first + fault.env_id) for fault in fragment.faults]

    def metrics(self) -> dict[str, float]:
        """Workers that are there, restarts and losses."""
        group = self.group
        return {
            "workers/there": len(group.idle) + len(group.busy),
            "workers/restarts": group.runtime.restarted,
            "workers/dropped": len(group.dropped),
            "workers/duplicates": group.runtime.duplicates,
        }


class _Measured(Protocol):
    def metrics(self) -> dict[str, float]: ...


@final
class WorkersView(Callback):
    """Adds the metrics of a `RolloutManager`, a `PolicyServer` or a robot's collector to every row of metrics.

    Args:
        manager: of the workers.
    """

    def __init__(self, manager: _Measured) -> None:
        self._manager = manager

    def logged(self, trainer: Trainer, row: dict[str, float]) -> None:
        row |= self._manager.metrics()
