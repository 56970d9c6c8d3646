"""`RolloutManager`: collects with workers, in place of a collector; `WorkerStreams` is what every such manager has."""

from __future__ import annotations

import functools
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final, runtime_checkable

import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, ConfigError, DataSource
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.factories import ActingParts, AgentsFactory
from palaestra.distributed.replay_shards import ShardedReplay
from palaestra.distributed.worker import ActingWeights, Fragment, RolloutWorker, shared_out
from palaestra.distributed.worker_group import Worker, WorkerGroup
from palaestra.envs import EventLog
from palaestra.envs.contract.attributes import as_json, require_lanes
from palaestra.multiagent import refuse_whole_episodes, with_opponents
from palaestra.policies import Policy
from palaestra.rollout import CollectInfo, Episode, Quota
from palaestra.runtime import Call, Runtime, Shared
from palaestra.training import Callback

if TYPE_CHECKING:
    from palaestra.training import TrainingRun

__all__ = ["Measured", "RolloutManager", "WorkerStreams", "WorkersView"]

_log = logging.getLogger(__name__)
_PATIENCE_S = 5.0  # for fragments that are on their way when a signal comes
_SLICE_S = 0.2


class Fresh(NamedTuple):
    """What of a fragment may be learned from."""

    fragment: Fragment | None
    """Without the rows of policies for which they are too old; `None` if they are for all."""
    lag: int
    """Of the oldest rows that are left; of all if none are."""


class WorkerStreams:
    """Workers that act, the weights that they act with, and the streams that dropped fragments end.

    Args:
        make: makes the parts of a worker from its number, such as a `CollectorFactory`.
        policies: by name, whose weights the workers act with.
        buffers: by policy name, where rows lie.
        config: how many workers, and how to wait for them.
        num_lanes: environments stepped in parallel, over all workers.
        name: of the workers, for people.
    """

    acts_meanwhile: bool = False
    """Whether workers act while the run evaluates and saves, too."""

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], ActingParts],
        policies: Mapping[str, Policy],
        buffers: Mapping[str, ReplayBuffer | ShardedReplay],
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
        self.shards = next((one.shards for one in buffers.values() if isinstance(one, ShardedReplay)), None)
        """Where rows lie that are not here."""
        self._make, factory, parcels = make, functools.partial(RolloutWorker, make), 0
        if self.shards is not None:
            factory = functools.partial(factory, shards=self.shards.map)
            parcels = self.shards.map.most(config.num_workers)
        self.group = WorkerGroup(runtime, factory, config, name=name, joined=self.has_joined, parcels=parcels)
        """The workers."""
        if self.shards is not None:
            self.shards.faults = self.group.faults
        self.positions: list[Any] | None = None
        """What each worker begins with, by its number; `None` for new episodes."""
        self.continued: Collection[str] = self.buffers
        """Names of the buffers in whose lanes the streams of workers continue from fragment to fragment."""
        self.dropped_of: Counter[str] = Counter()
        """In how many fragments the rows of a policy were too old for it, by policy."""
        self._arrived = {name: Counter[int]() for name in policies}  # lags, since the last row of metrics
        self._lags, self._num_envs = Counter[int](), num_lanes // config.num_workers  # lags of whole fragments
        self._policies, self._weights = policies, ActingWeights(policies)
        self._attributes: dict[int, dict[str, Any]] = {}

    def set_env_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of environments: workers have it from their next work on, in new episodes.

        Args:
            name: of the attribute; see `Environment.set_attr`.
            lanes: numbers of the environments over all workers; all by default.

        Raises:
            ConfigError: there is no such environment, or the value cannot be saved. Whether there is such an attribute
                workers find out.
        """
        value = as_json(name, value)
        for lane in require_lanes(lanes, self.num_lanes):
            self._attributes[lane] = {**self._attributes.get(lane, {}), name: value}

    def get_env_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What `set_env_attr` was given, one value for each environment; `None` where it was not called.

        Args:
            name: of the attribute.
            lanes: numbers of the environments over all workers; all by default.
        """
        return [self._attributes.get(lane, {}).get(name) for lane in require_lanes(lanes, self.num_lanes)]

    def attributes_state(self) -> dict[str, Any]:
        """What was set of environments, for a state; nothing if nothing was."""
        return {"attributes": json.dumps(list(self._attributes.items()))} if self._attributes else {}

    def load_attributes(self, state: Mapping[str, Any]) -> None:
        """Takes over what a state has of `attributes_state`.

        Args:
            state: of a manager of as many environments.
        """
        self._attributes = dict(json.loads(state.get("attributes", "[]")))

    def attributes_of(self, worker: Worker) -> dict[int, dict[str, Any]]:
        """What was set of a worker's environments, as the worker numbers them.

        Args:
            worker: which.
        """
        first = worker.number * self._num_envs
        mine = range(first, first + self._num_envs)
        return {lane - first: self._attributes[lane] for lane in mine if lane in self._attributes}

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
    def dropped(self) -> EventLog:
        """The newest fragments that are not learned from, in order; and counts of all."""
        return self.group.dropped

    @property
    def faults(self) -> EventLog:
        """The newest ends of workers, and faults of environments that workers dealt with, in order; counts of all."""
        return self.group.faults

    def begin(self) -> None:
        """Starts the workers, if there are none yet, and lifts the limit of an earlier pause."""
        self.group.limit_s = math.inf
        if not self.group.workers:
            self.group.start(self.positions)

    def weights(self) -> list[Shared]:
        """Of the policies as they are now; what has not changed is neither encoded again nor sent."""
        return self._weights.newest()

    def lags_of(self, fragment: Fragment) -> dict[str, int]:
        """How many versions old the rows of a fragment are, by policy; of those that have rows in it.

        Args:
            fragment: which.
        """
        return {name: self._policies[name].version - fragment.versions[name] for name in fragment.with_rows}

    def fresh(self, worker: Worker, call: Call, fragment: Fragment, max_lag: Callable[[str], int | None]) -> Fresh:
        """What of a fragment may be learned from: the one rule about staleness.

        Rows that are older than their policy allows are dropped and named; the worker's streams of this policy end, so
        that nothing leads over the gap.

        Args:
            worker: that sent it.
            call: that asked for it.
            fragment: as it came.
            max_lag: how old rows may be, by policy.
        """
        for fault in fragment.faults:  # of a fragment that is dropped, too
            self.group.faults.append(fault)
            if fault.handled == "warn":
                _log.warning("%s", fault)
        lags = self.lags_of(fragment)
        bounds = {name: max_lag(name) for name in lags}
        old = [name for name, bound in bounds.items() if bound is not None and lags[name] > bound]
        for name, lag in lags.items():
            self._arrived[name][lag] += 1
        if not old:
            return Fresh(fragment, max(lags.values(), default=0))
        several, whole = len(lags) > 1, len(old) == len(lags)
        reasons = [
            f"{f'of {name} ' if several else ''}it is {lags[name]} policy versions old, and max_lag is {bounds[name]}"
            for name in old
        ]
        self.group.drop(call, "; ".join(reasons), "old", () if whole else old)
        self.dropped_of.update(old)
        for name in old:
            if name in self.continued:
                share = self.buffers[name].num_lanes // len(self.group.workers)
                self.buffers[name].end_streams(range(worker.number * share, (worker.number + 1) * share))
        if whole:
            return Fresh(None, max(lags.values()))
        return Fresh(fragment.without(old), max(lag for name, lag in lags.items() if name not in old))

    def pass_on(self, fragments: Sequence[Fragment]) -> None:
        """Sends rows to their shards, once what is here knows all of them, and nothing else.

        Args:
            fragments: that are used.
        """
        if self.shards is not None:
            for one in fragments:
                self.shards.extend(one.parcels, [name for name, pieces in one.pieces.items() if pieces])
            self.shards.keep_up()

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

    def metrics(self) -> dict[str, float]:
        """Workers that are there, restarts and losses; of several policies, how old data was and what was too old."""
        group, arrived, whole = self.group, self._arrived, self._lags
        self._arrived, self._lags = {name: Counter[int]() for name in arrived}, Counter()
        several = arrived if len(arrived) > 1 else {}
        return {
            "workers/lag_mean": _mean_lag(whole),
            "workers/lag_max": float(max(whole, default=0)),
            "workers/there": len(group.idle) + len(group.busy),
            "workers/restarts": sum(worker.incarnation for worker in group.workers),
            "workers/dropped": group.dropped.total,
            "workers/duplicates": group.runtime.duplicates,
            **{f"workers/lag_mean/{name}": _mean_lag(lags) for name, lags in several.items()},
            **{f"workers/dropped/{name}": self.dropped_of[name] for name in several},
            **({} if self.shards is None else self.shards.metrics()),
        }


@final
class RolloutManager(WorkerStreams):
    """Lets workers collect, each in its own environments, and puts what they send into the buffers of the run.

    A `Trainer` takes it instead of a `Collector`. Every unroll goes to all workers that are there, with the newest
    weights. By default all of them are waited for. With `min_finished_workers` an unroll ends when so many have
    answered and `grace_timeout_s` are over; who comes later has its data used in the next one, if it is at most
    `max_lag` policy versions old then, each policy's by its own version. A worker that ends is replaced and its
    fragment dropped; every fragment is either used once or named in `dropped`.

    Args:
        make: makes the parts of a worker from its number, such as a `CollectorFactory`.
        policies: the learning policies by name, whose weights the workers act with.
        buffers: by policy name, where data goes. The workers share their lanes evenly, the first worker has the first.
        config: how many workers, and how to wait for them.
        num_envs: environments stepped side by side, over all workers; as many as the first buffer has lanes if left
            out.

    Raises:
        ConfigError: the lanes of a buffer cannot be shared evenly.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], ActingParts],
        policies: Mapping[str, Policy],
        buffers: Mapping[str, ReplayBuffer | ShardedReplay],
        config: DistributedConfig,
        num_envs: int | None = None,
    ) -> None:
        for name, buffer in buffers.items():
            if buffer.num_lanes % config.num_workers:
                raise ConfigError(
                    f"the buffer of {name!r} has {buffer.num_lanes} lanes, which {config.num_workers} workers cannot "
                    "share evenly"
                )
        num_lanes = num_envs or next(iter(buffers.values())).num_lanes
        super().__init__(runtime, make, policies, buffers, config, num_lanes=num_lanes, name="rollout")
        self._config = config
        self.episodes: int | None = None
        """Whole episodes that each environment plays in an unroll, instead of a length."""
        self._quota, self._fragments, self._exact = Quota(), 0, True

    def begin(self) -> None:
        """See `WorkerStreams.begin`; refuses whole episodes of many agents before."""
        if isinstance(self._make, AgentsFactory):
            refuse_whole_episodes(self.episodes, "what trainer.episodes_per_iteration sets,", self._make.env.name)
        super().begin()

    # -- collecting

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Collects for one training iteration.

        Args:
            length: time steps from every environment; a fraction is met on average over calls. Ignored where
                `episodes` is set.
            random: names of the policies that act at random.

        Raises:
            ConfigError: whole episodes are asked for, and there are many agents.
            WorkersLostError: there are too few workers.
            RemoteError: a worker's environment or policy failed.
        """
        began, info = time.perf_counter(), CollectInfo(0)
        self.begin()
        if rows := self._quota.begin(self.episodes or length):
            taken, whole = self._collect(self.episodes or rows, sorted(random))
            self._quota.left = 0 if whole else self._quota.left
            self._store(taken, info, time.perf_counter() - began)
        info.total_s = time.perf_counter() - began
        return info

    def _collect(self, amount: int, random: Sequence[str]) -> tuple[list[tuple[Worker, Fragment]], bool]:
        """Fragments by the number of their worker, and whether all that were to be waited for are there."""
        group, config, weights = self.group, self._config, self.weights()
        episodes = self.episodes is not None

        def work(worker: Worker) -> None:
            attributes = self.attributes_of(worker)
            group.give(worker, "collect", amount, *weights, episodes=episodes, random=random, attributes=attributes)

        group.admit()
        while not (group.idle or group.busy) and group.runtime.now() < group.limit_s:
            group.admit(_SLICE_S)
        for worker in group.idle:
            work(worker)
        needed = min(config.min_finished_workers or self._config.num_workers, len(group.busy))
        used: list[tuple[Worker, Fragment]] = []
        while len(used) < needed and group.runtime.now() < group.limit_s:
            self._sort(group.take(at_least=needed - len(used), timeout_s=config.timeout_s), used, work)
            needed = min(needed, len(used) + len(group.busy))
        if group.busy:
            self._sort(group.take(at_least=len(group.busy), timeout_s=config.grace_timeout_s), used, None)
        return sorted(used, key=lambda one: one[0].number), bool(used) and len(used) >= needed

    def _sort(
        self,
        taken: Sequence[tuple[Worker, Call, Fragment]],
        used: list[tuple[Worker, Fragment]],
        again: Callable[[Worker], None] | None,
    ) -> None:
        """Keeps what may be learned from; who sent nothing but what is too old gets new work."""
        for worker, call, fragment in taken:
            if call.method != "collect":  # a state that came too late for its checkpoint
                continue
            worker.position = {"lanes": fragment.lanes}
            fresh = self.fresh(worker, call, fragment, lambda policy: self._config.max_lag)
            self._lags[fresh.lag] += 1
            if fresh.fragment is not None:
                used.append((worker, fresh.fragment))
            elif again is not None:
                again(worker)

    def _store(self, taken: Sequence[tuple[Worker, Fragment]], info: CollectInfo, waited_s: float) -> None:
        """Fragments of equal length go into a buffer together, so that lanes stay together where they can."""
        for name, buffer in self.buffers.items():
            size, groups = buffer.num_lanes // self._config.num_workers, dict[int, tuple[list[int], list[Batch]]]()
            for worker, fragment in taken:
                for lanes, rows in fragment.pieces[name]:
                    numbers, batches = groups.setdefault(len(rows.step_type), ([], []))
                    numbers += [worker.number * size + lane for lane in lanes]
                    batches.append(rows)
            for numbers, batches in groups.values():
                buffer.extend(batches[0] if len(batches) == 1 else _beside(batches), numbers)
        self.pass_on([fragment for _, fragment in taken])
        # who came late has the seconds of several unrolls
        share = min(1 / max(len(taken), 1), waited_s / max(sum(one.info.total_s for _, one in taken), 1e-9))
        for worker, fragment in taken:
            self.report(info, worker, fragment, share)
        self.env_steps += info.env_steps
        self._fragments += len(taken)

    def pause(self) -> None:
        """Lets a running unroll end within seconds; fragments that are still on their way then are dropped."""
        self.group.limit_s = self.group.runtime.now() + _PATIENCE_S

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause`."""
        return self._quota.left > 0

    # -- how things are

    @property
    def resume(self) -> str:
        """Whether a run resumes from a checkpoint exactly: "exact", or "statistical"."""
        return "exact" if self._exact else "statistical"

    def metrics(self) -> dict[str, float]:
        """For a row of metrics: who is there, what was used and dropped, how old data was since the last call."""
        return {**super().metrics(), "workers/late": len(self.group.busy), "workers/fragments": self._fragments}

    def has_joined(self, worker: Worker, resume: str) -> None:
        self._exact = self._exact and resume == "exact"

    def opponents(self) -> dict[int, list[torch.Tensor]]:
        """Weights of the pool of self-play of one worker; those of the others have the same versions.

        Raises:
            WorkersLostError: there are too few workers.
        """
        self.begin()
        group = self.group
        while not group.idle:
            group.admit(_SLICE_S)
        asked = group.idle[:1]
        group.give(asked[0], "opponents")
        told = group.take(at_least=1, timeout_s=self._config.timeout_s, of=asked)
        return told[0][2] if told else {}

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is. Who is still at work is not waited for: a resumed run does not get its fragment."""
        group = self.group
        positions = {str(number): position for number, position in enumerate(self.positions or ())}
        positions |= {str(worker.number): worker.position for worker in group.workers}
        group.limit_s, asked = math.inf, group.idle
        for worker in asked:
            group.give(worker, "state")
        told = group.take(at_least=len(asked), timeout_s=self._config.timeout_s, of=asked)
        positions |= {str(worker.number): state for worker, _, state in told}
        return {
            "env_steps": self.env_steps,
            **self._quota.state(),
            "fragments": self._fragments,
            "workers": positions,
            "exact": self._exact and len(told) == len(group.workers),
            **self.attributes_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave; the workers take their positions when they start.

        Another number of workers begins the next episodes of the same environments.

        Args:
            state: of a manager with as many environments.
        """
        saved, number = state["workers"], self._config.num_workers
        positions = [saved[str(worker)] for worker in range(len(saved))]
        if not (alike := len(positions) in (0, number)):
            positions = shared_out([position and position["lanes"] for position in positions], number, self._make)
        self.env_steps = state["env_steps"]
        self.load_attributes(state)
        self._quota.load_state(state)
        self._fragments, self._exact = state["fragments"], state["exact"] and alike
        self.positions = with_opponents(positions, state) or None


def _mean_lag(lags: Counter[int]) -> float:
    """Of so many fragments of each lag; 0 of none.

    Args:
        lags: how many there are, by lag.
    """
    return sum(lag * count for lag, count in lags.items()) / max(lags.total(), 1)


def _beside(batches: Sequence[Batch]) -> Batch:
    """[T, B, ...] of several workers as lanes of one batch."""
    return batches[0].map(lambda *leaves: torch.cat(leaves, 1), *batches[1:])


@runtime_checkable
class Measured(Protocol):
    """Who says how workers do."""

    def metrics(self) -> dict[str, float]:
        """For a row of metrics."""
        ...


@final
class WorkersView(Callback):
    """Adds the metrics of a `RolloutManager`, a `PolicyServer`, a policy manager or a robot's collector to every row.

    Args:
        manager: of the workers.
    """

    def __init__(self, manager: Measured) -> None:
        self._manager = manager

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        row |= self._manager.metrics()
