"""Gradient workers: replicas that learn beside a policy's learner."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.algorithms import Algorithm, GradientAlgorithm, UpdateInfo
from palaestra.core import POLICY, ConfigError, DataSource, PalaestraError
from palaestra.distributed.allocation import TrainerAllocator
from palaestra.distributed.exchange import Exchange, GroupSeat, exchange_for, fingerprint, listening_store, say_whether
from palaestra.distributed.policy_host import DrawnSource, HostTask, host_factory, updated_by
from palaestra.distributed.worker_group import WorkerFault
from palaestra.envs import EventLog
from palaestra.runtime import Call, PlacementGroup, Result, Runtime, Shared, WorkerDiedError

__all__ = ["GradientWorkers", "require_gradients"]

_log = logging.getLogger(__name__)
_PATIENCE_S = 0.2  # of one question whether an update has ended
_FAREWELL_S = 5.0  # that replicas of a broken group have to say so, before they are left out for a while


@dataclass(eq=False)
class _Round:
    """One update of one policy, as its replicas see it."""

    seat: GroupSeat
    version: int
    incarnations: dict[str, int]
    """Of the replicas; those that are lost are left out."""
    ranks: dict[str, int]
    """Of all that it began with."""
    update: int
    """The policy version that it makes."""
    to_begin: set[str] = field(default_factory=set)
    """Replicas that have not said that they are there."""
    fingerprints: dict[str, int] = field(default_factory=dict)
    """Of the weights that replicas ended with."""
    broken: bool = False
    deadline: float = 0.0


class GradientWorkers:
    """Replicas, each with a copy of every policy's algorithm and optimizer, that make updates together with a learner.

    The learner, this process or a policy host, is rank 0 of a policy's group, and the policy's workers are the others.
    All get the rows of an update once, and make the same update: of every minibatch each rank computes the gradients
    of its shards, they are exchanged over gloo, and every rank adds them in the order of the shards and takes the same
    optimizer step. With `num_shards`, what is learned does not depend on the number of workers, bit by bit. Weights
    travel to a worker when it starts, after a fault, and when they were changed outside of an update.

    Workers flush denormal numbers to zero, as training does; who calls `update` without a `Trainer` does so too
    (`torch.set_flush_denormal`).

    Where a worker dies or is silent, rank 0 makes the interrupted gradient step again, and the rest of the update, with
    all shards itself: the result is the same. The next update has a new group of those that are alive. Where an
    algorithm mixes rows, rank 0 learns alone.

    Args:
        algorithms: by policy name; each must be a `GradientAlgorithm`.
        num_workers: how many, beside the learner; with 0 the learner computes all shards.
        allocator: shares them out among policies; by default every policy has all of them.
        num_shards: of each minibatch, for all policies; by default one for each worker of a policy and its learner.
        timeout_s: a rank that keeps the others waiting for longer is given up.
        resources: what each worker needs, where the runtime hands out resources; they get a placement group. Or a
            group, for hosts that learn with them to be in it, too.

    Raises:
        ClusterError: there is no room for them within `timeout_s`.
        ConfigError: an algorithm states no losses, there are fewer shards than ranks, or the allocator is for another
            number of workers.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm[Any, Any]],
        runtime: Runtime,
        num_workers: int,
        *,
        allocator: TrainerAllocator | None = None,
        num_shards: int | None = None,
        timeout_s: float = 120.0,
        resources: Mapping[str, float] | PlacementGroup | None = None,
    ) -> None:
        if num_workers < 0 or (num_shards is not None and num_shards <= num_workers):
            raise ConfigError(
                f"num_workers={num_workers}, num_shards={num_shards}: give at least 0 workers, and a shard for each "
                "and one for the learner"
            )
        if allocator is not None and allocator.num_trainers != num_workers:
            raise ConfigError(f"the allocator shares out {allocator.num_trainers} workers, but there are {num_workers}")
        self._algorithms = require_gradients(algorithms)
        self.runtime = runtime
        """Where the workers live."""
        self.regrouped = 0
        """Groups that were made because another was broken, or its ranks had changed."""
        self.lost = 0
        """Ends of workers so far; each is restarted, as often as the runtime allows."""
        self.faults = EventLog()
        """The same, newest last; a run puts its own list here."""
        self._allocator, self._num_shards, self._timeout_s = allocator, num_shards, timeout_s
        self._store = listening_store(runtime.address, timeout_s) if num_workers else None
        if not isinstance(resources, PlacementGroup):
            resources = runtime.placement_group([resources or {}] * num_workers, name="learners", timeout_s=timeout_s)
        self._workers = self._started(range(num_workers), resources)
        self._needs = next(iter(resources.bundles), {})
        self._joining = set[str]()  # workers that no update waits for to begin
        everybody = {name: list(range(num_workers)) for name in self._algorithms}
        self._allocation = everybody if allocator is None else allocator.allocate()
        for name, workers in self._allocation.items():
            if self._algorithms[name].mixes_rows and workers:
                _log.warning(
                    "policy %r normalises the rows of a minibatch by the whole of it (network.batch_norm), so that its "
                    "learner gets all of them, and its %d gradient workers do nothing for it",
                    name,
                    len(workers),
                )
        self._experience: Counter[str] = Counter()
        self._updates = 0
        self._numbers, self._versions = itertools.count(), dict[str, int]()
        self._fingerprints: dict[str, int] = {}
        """By policy: of its learner's weights after its last update."""
        self._held: dict[tuple[str, str], tuple[int, int]] = {}
        """By policy and worker: the worker's incarnation that has a state, and the state's version."""
        self._rounds: dict[str, _Round] = {}
        self._last: dict[str, tuple[GroupSeat, dict[str, int]]] = {}
        """By policy: the seat of rank 0 in the group that the last update left whole, and incarnations of the rest."""
        self._exchanges: dict[str, Exchange] = {}
        self._calls: dict[Call, tuple[str, _Round]] = {}
        self._told: dict[str, int] = {}
        """By worker: the incarnation of whose end was told last."""

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Numbers of the workers that each policy has."""
        return {name: list(workers) for name, workers in self._allocation.items()}

    # -- updates of which this process is rank 0

    def update(self, policy: str, source: DataSource) -> UpdateInfo:
        """An update of this process's copy of a policy's algorithm, together with the workers.

        Raises:
            NonFiniteError: a gradient is NaN or infinite.
            PalaestraError: a worker's weights are not this process's.
        """
        algorithm = self._algorithms[policy]
        drawn = DrawnSource(source.draw(algorithm.plan, algorithm.minibatch_generator))
        shared = Shared(drawn.batch) if self._workers else None
        seat = self.begin(policy, HostTask(0, algorithm.minibatch_generator.get_state(), algorithm.progress), shared)
        while policy in self._rounds and self._rounds[policy].to_begin:
            self.take(self.runtime.wait(self.calls, at_least=1, timeout_s=self.patience_s))
        exchange = exchange_for(self._exchanges, policy, seat)
        broken = True
        try:
            info = updated_by(algorithm, drawn, exchange)
            broken = exchange.error is not None
        finally:
            for indices, priority in drawn.write_backs:
                source.write_back(indices, priority)
            if broken:
                self._exchanges.pop(policy).close()
            self.settle(policy, fingerprint(algorithm), broken=broken, why=str(exchange.error or ""))
        self.learned(policy, info.rows_trained)
        return info

    # -- updates of which any process is rank 0

    def begin(self, policy: str, task: HostTask, drawn: Shared | None) -> GroupSeat:
        """Begins an update at the workers of a policy that are alive; `settle` ends it.

        Returns:
            The seat of rank 0, whose turn it is as soon as all have been asked.
        """
        algorithm = self._algorithms[policy]
        self.take(self.runtime.wait(self.calls, at_least=0, timeout_s=0.0))
        now = fingerprint(algorithm)
        if self._fingerprints.get(policy) != now:
            self._versions[policy] = next(self._numbers) << 32
        incarnations = {worker: self.runtime.status()[worker].incarnation for worker in self._ready(policy)}
        seat, version = self._seat(policy, incarnations), self._versions[policy]
        ranks = {worker: rank for rank, worker in enumerate(incarnations, start=1)}
        round_ = _Round(seat, version, dict(incarnations), ranks, algorithm.policy_version + 1, set(incarnations))
        round_.deadline = self.runtime.now() + self._timeout_s
        if not incarnations:
            return seat
        self._rounds[policy], state = round_, None
        for worker, incarnation in incarnations.items():
            needed = self._held.pop((policy, worker), None) != (incarnation, version)
            if needed and state is None:
                state = Shared(algorithm.state_tensors())
            mine = task._replace(version=version, seat=seat._replace(rank=ranks[worker]))
            call = self.runtime.call(worker, "update", policy, mine, drawn, state if needed else None)
            self._calls[call] = policy, round_
        return seat

    def settle(self, policy: str, weights: int | None, *, broken: bool, why: str = "") -> None:
        """Ends an update: rank 0 has made it, and workers must have come to the same weights.

        Args:
            weights: `fingerprint` of rank 0's; `None` if it died, so that the update begins again.
            broken: whether it made a part of it alone.
            why: its group broke; said here where no worker's end has been.

        Raises:
            PalaestraError: a worker's weights are others.
        """
        round_ = self._rounds.get(policy)
        if weights is None:
            self._fingerprints.pop(policy, None)
        else:
            self._fingerprints[policy] = weights
        if round_ is None:
            return
        round_.broken |= broken
        round_.deadline = self.runtime.now() + self._timeout_s
        for worker in list(round_.incarnations):
            self._ask(worker, policy, round_)
        deadline = self.runtime.now() + (_FAREWELL_S if round_.broken else self._timeout_s)
        while (mine := [call for call, (_, one) in self._calls.items() if one is round_]) and (
            (left := deadline - self.runtime.now()) > 0
        ):
            self.take(self.runtime.wait(mine, at_least=1, timeout_s=left))
        del self._rounds[policy]
        if why and len(round_.incarnations) == round_.seat.size - 1:
            _log.warning("a replica is lost, and its policy's learner has computed the rest of the update: %s", why)
        self._versions[policy] += 1
        if not round_.broken and len(round_.fingerprints) == round_.seat.size - 1:
            self._last[policy] = round_.seat, round_.incarnations
        else:
            self._last.pop(policy, None)
        for worker, other in round_.fingerprints.items() if weights is not None else ():
            if other != weights:
                raise PalaestraError(
                    f"{worker} has other weights of policy {policy!r} than its learner, although both made the same "
                    "update; processors of several kinds round differently: give all ranks machines of one kind, or "
                    "leave gradient workers out"
                )
            self._held[policy, worker] = round_.incarnations[worker], self._versions[policy]

    @property
    def calls(self) -> list[Call]:
        """Whose results `take` waits for."""
        return list(self._calls)

    @property
    def patience_s(self) -> float:
        """Seconds until a worker has had its update for too long."""
        deadline = min((one.deadline for _, one in self._calls.values()), default=self.runtime.now() + self._timeout_s)
        return max(0.0, deadline - self.runtime.now())

    def take(self, results: Iterable[Result]) -> None:
        """Takes answers in, asks workers that have begun how it went, and restarts those that died or take too long.

        Args:
            results: of any calls; others than `calls` are left out.

        Raises:
            RemoteError: a worker failed at an update.
        """
        for result in results:
            if result.call not in self._calls:
                continue
            policy, round_ = self._calls.pop(result.call)
            worker = result.call.worker
            if isinstance(result.error, WorkerDiedError):
                round_.incarnations.pop(worker, None)
                round_.broken = True
                self._revive(worker, result.call.incarnation, f"{result.error}: {self._lost(policy, round_, worker)}")
            elif (updated := result.unwrap()) is not None:
                if updated.broken or updated.fingerprint is None:
                    round_.broken = True
                else:
                    round_.fingerprints[worker] = updated.fingerprint
            elif result.call.method == "finish":
                self._ask(worker, policy, round_)
            if worker in round_.to_begin:
                round_.to_begin.discard(worker)
                if self._store is not None and not round_.to_begin:
                    say_whether(self._store, round_.seat.name, not round_.broken)
        now = self.runtime.now()
        for call, (policy, round_) in [item for item in self._calls.items() if item[1][1].deadline <= now]:
            why = f"{self.runtime.status()[call.worker].name} has not ended an update within {self._timeout_s:g} s"
            self._revive(call.worker, call.incarnation, f"{why}: {self._lost(policy, round_, call.worker)}")

    def num_shards(self, policy: str) -> int:
        """Into how many parts its minibatches are cut; the learner gets the whole where its algorithm mixes rows."""
        return 1 if self._algorithms[policy].mixes_rows else self._num_shards or len(self._allocation[policy]) + 1

    def learned(self, policy: str, rows: int) -> None:
        """Says that an update has ended; after so many of them workers are shared out anew.

        Args:
            rows: that it learned from.
        """
        self._experience[policy] += rows
        self._updates += 1
        if self._allocator is not None and self._updates % self._allocator.period == 0:
            before, self._allocation = self._allocation, self._allocator.allocate(self._experience)
            if self._allocation != before:
                _log.info("gradient workers are shared out anew: %s", self._allocation)
            self._experience.clear()

    def resize(self, num_workers: int) -> None:
        """Lets workers join or leave, between two updates; what is learned stays the same, bit for bit.

        One that joins takes part as soon as it is there, and wherever the runtime has room for it.

        Args:
            num_workers: how many there are from now on, beside the learner.

        Raises:
            ConfigError: there is no fixed number of shards, at least one for each and one for the learner; or an
                allocator shares the workers out.
        """
        if self._allocator is not None or not 0 <= num_workers < (self._num_shards or 0):
            raise ConfigError(
                f"{num_workers} gradient workers beside a learner need num_shards, at least {num_workers + 1} (it is "
                f"{self._num_shards}), and no allocator"
            )
        if num_workers and self._store is None:
            self._store = listening_store(self.runtime.address, self._timeout_s)
        before = len(self._workers)
        for worker in self._workers[num_workers:]:
            self.runtime.stop(worker)
        new = self._started(range(before, num_workers), self._needs)
        self._workers, self._joining = self._workers[:num_workers] + new, self._joining | {*new}
        self._allocation = {name: list(range(num_workers)) for name in self._algorithms}
        _log.info("learners: %d, of %d before", num_workers + 1, before + 1)

    def _started(self, numbers: range, resources: Mapping[str, float] | PlacementGroup) -> list[str]:
        factory = host_factory(self._algorithms)
        return [
            self.runtime.start(
                factory(number + 1),  # the run is the first
                name="grad-worker",
                resources=resources,
                role=f"learner {number + 2} of {numbers.stop + 1}",
            )
            for number in numbers
        ]

    def metrics(self) -> dict[str, float]:
        """Learners that are there, their learner included, and ends of them so far."""
        statuses = self.runtime.status()
        there = [worker for worker in self._workers if statuses[worker].state in ("idle", "busy")]
        return {"learners/there": 1 + len(there), "learners/lost": self.lost}

    def close(self) -> None:
        """Ends the workers; the runtime stays."""
        for exchange in self._exchanges.values():
            exchange.close()
        for worker in self._workers:
            self.runtime.stop(worker)
        self._workers, self._calls, self._rounds, self._exchanges = [], {}, {}, {}

    # -- groups

    def _ready(self, policy: str) -> list[str]:
        """Workers of a policy that can begin: not those that come back, or have not left their last group."""
        if self._algorithms[policy].mixes_rows:
            return []
        if self._allocation[policy] and not self._workers:
            raise ConfigError("these learners were closed, as at the end of a run; make the trainer anew to go on")
        late = {call.worker for call, (name, one) in self._calls.items() if self._rounds.get(name) is not one}
        ready, statuses = [], self.runtime.status()
        for worker in (self._workers[number] for number in self._allocation[policy]):
            status = statuses[worker]
            if status.state == "dead":
                self._revive(worker, status.incarnation, f"{status.cause}: a learner is lost between updates")
            elif worker not in late and (
                status.state not in ("starting", "waiting") or not (status.incarnation or worker in self._joining)
            ):
                ready.append(worker)
        return ready

    def _seat(self, policy: str, incarnations: dict[str, int]) -> GroupSeat:
        """Of rank 0, in the group of the last update if that has the same ranks."""
        shards, size = self.num_shards(policy), len(incarnations) + 1
        seat, before = self._last.get(policy, (None, None))
        if seat is None or before != incarnations or seat.num_shards != shards:
            self.regrouped += policy in self._versions and self._versions[policy] & 0xFFFFFFFF > 0
            name = f"{policy}/{next(self._numbers)}"
            host, port = ("", 0) if self._store is None else (self._store.host, self._store.port)
            seat = GroupSeat(host, port, name, 0, size, shards, self._timeout_s)
        return seat

    def _ask(self, worker: str, policy: str, round_: _Round) -> None:
        if self.runtime.status()[worker].incarnation != round_.incarnations.get(worker):
            round_.incarnations.pop(worker, None)  # it died at another policy's update
            round_.broken = True
            return
        self._calls[self.runtime.call(worker, "finish", policy, _PATIENCE_S)] = policy, round_

    def _lost(self, policy: str, round_: _Round, worker: str) -> str:
        """What the end of a worker means for an update."""
        rank, size, name = round_.ranks[worker], round_.seat.size, "" if policy == POLICY else f" of {policy!r}"
        return (
            f"the learner of rank {rank} of {size} is lost in update {round_.update}{name}, and rank 0 makes its rest"
        )

    def _revive(self, worker: str, incarnation: int, said: str) -> None:
        """Restarts a worker, if that has not happened to this incarnation yet; says once that it ended."""
        if self.runtime.status()[worker].incarnation != incarnation:
            return
        fault = WorkerFault(self.runtime.status()[worker].name, incarnation, said, "restart")
        try:
            self.runtime.restart(worker)
        except WorkerDiedError as error:
            fault = replace(fault, what=f"{said}; {error}", handled="drop")
        if self._told.get(worker) != incarnation:
            self._told[worker] = incarnation
            self.faults.append(fault)
            self.lost += 1
            _log.warning("%s", fault)


def require_gradients(algorithms: Mapping[str, Algorithm[Any, Any]]) -> dict[str, GradientAlgorithm[Any, Any]]:
    """The algorithms, if gradient workers can compute for them.

    Raises:
        ConfigError: one states no losses.
    """
    found: dict[str, GradientAlgorithm[Any, Any]] = {}
    for name, algorithm in algorithms.items():
        if not isinstance(algorithm, GradientAlgorithm):
            raise ConfigError(
                f"policy {name!r} learns by {type(algorithm).__name__}, which makes updates of a kind of its own, so "
                "that gradient workers cannot compute them. Leave gradient workers out (a policy host can make whole "
                "updates elsewhere), or use an algorithm that states losses, such as PPO or A2C in its place"
            )
        found[name] = algorithm
    return found
