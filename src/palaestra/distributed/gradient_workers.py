"""Gradients computed by workers, each of a part of every minibatch, and who computes for which policy."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from palaestra.algorithms import Algorithm, GradientAlgorithm, Gradients, StepResult, UpdateInfo
from palaestra.core import Batch, ConfigError, DataSource, did_you_mean, shards
from palaestra.distributed.config import AllocationMode
from palaestra.policies import Phase
from palaestra.runtime import Call, Result, Runtime, Shared, WorkerDiedError

__all__ = ["GradWorker", "GradientWorkers", "LossState", "TrainerAllocator", "require_gradients"]


class TrainerAllocator:
    """Shares gradient workers (MARO's trainers) out among policies.

    A policy's quota is its share of the workers, rounded, and at least 1. Where quotas leave workers over, those go to
    the policies that were rounded down most; where there are more quotas than workers, policies share workers. So
    every policy has a worker, and every worker a policy.

    Args:
        mode: what shares are proportional to.
        num_trainers: gradient workers, at least 1.
        policies: their names.
        agents: number of agents by policy; needed by `by-agent`.
        period: updates of any policy after which workers are shared out anew.

    Raises:
        ConfigError: the mode is unknown, there is no worker or no policy, or a policy's agents are missing.

    Examples:
        >>> allocator = TrainerAllocator("by-experience", 4, ["buyer", "seller"])
        >>> allocator.allocate({"buyer": 100, "seller": 300})
        {'buyer': [0], 'seller': [1, 2, 3]}
    """

    def __init__(
        self,
        mode: AllocationMode,
        num_trainers: int,
        policies: Sequence[str],
        *,
        agents: Mapping[str, int] | None = None,
        period: int = 10,
    ) -> None:
        if mode not in get_args(AllocationMode):
            raise ConfigError(f"unknown allocation mode {mode!r}{did_you_mean(mode, get_args(AllocationMode))}")
        if period < 1:
            raise ConfigError(f"period is {period}; give at least 1 update")
        if num_trainers < 1 or not policies:
            raise ConfigError(
                f"{num_trainers} gradient workers cannot be shared among {len(policies)} policies; both need at least 1"
            )
        if mode == "by-agent" and (missing := [name for name in policies if (agents or {}).get(name, 0) < 1]):
            raise ConfigError(f"by-agent needs the number of agents of every policy, at least 1; missing for {missing}")
        self.mode: AllocationMode = mode
        """What shares are proportional to."""
        self.num_trainers, self.period = num_trainers, period
        """Gradient workers; updates after which they are shared out anew."""
        self._policies, self._agents = list(policies), dict(agents or {})

    def allocate(self, experience: Mapping[str, float] | None = None) -> dict[str, list[int]]:
        """Which workers each policy has.

        Args:
            experience: rows learned from lately, by policy; only `by-experience` looks at it. Without any, all policies
                are alike.

        Returns:
            Numbers of workers, by policy.
        """
        names, workers = self._policies, self.num_trainers
        weights = self._weights(experience or {})
        shares = {name: workers * weights[name] / sum(weights.values()) for name in names}
        quota = {name: max(1, round(shares[name])) for name in names}
        while sum(quota.values()) < workers:
            most = max(names, key=lambda name: shares[name] - quota[name])
            quota[most] += 1
        while sum(quota.values()) > workers and (larger := [name for name in names if quota[name] > 1]):
            least = min(larger, key=lambda name: shares[name] - quota[name])
            quota[least] -= 1
        allocation: dict[str, list[int]] = {}
        following = 0
        for name in names:
            allocation[name] = [(following + i) % workers for i in range(quota[name])]
            following += quota[name]
        return allocation

    def _weights(self, experience: Mapping[str, float]) -> dict[str, float]:
        if self.mode == "by-agent":
            return {name: float(self._agents[name]) for name in self._policies}
        if self.mode == "by-experience" and any(experience.get(name, 0) > 0 for name in self._policies):
            return {name: float(experience.get(name, 0)) for name in self._policies}
        return dict.fromkeys(self._policies, 1.0)


class LossState(NamedTuple):
    """All that the losses of an algorithm depend on, besides the minibatch."""

    version: int
    """Distinct for every state of a policy; a worker that has it loads nothing."""
    model: dict[str, Any]
    """Parameters and buffers."""
    normalizer: dict[str, Any]
    """Of observations; empty where there is none."""
    num_gradient_steps: int
    """Which loss terms are due depends on it."""
    progress: float
    """Where schedules are, in [0, 1]."""

    @classmethod
    def of(cls, algorithm: GradientAlgorithm[Any], version: int) -> LossState:
        """The state that an algorithm is in.

        Args:
            algorithm: which.
            version: of the state.
        """
        normalizer = algorithm.policy.normalizer
        return cls(
            version,
            dict(algorithm.model.state_dict()),
            {} if normalizer is None else dict(normalizer.state_dict()),
            algorithm.num_gradient_steps,
            algorithm.progress,
        )

    def load_into(self, algorithm: GradientAlgorithm[Any]) -> None:
        """Puts an algorithm of the same configuration into this state.

        Args:
            algorithm: which.
        """
        algorithm.model.load_state_dict(self.model)
        if algorithm.policy.normalizer is not None:
            algorithm.policy.normalizer.load_state_dict(self.normalizer)
        algorithm.num_gradient_steps = self.num_gradient_steps
        algorithm.set_progress(self.progress)


def learner_factory(kind: Callable[[dict[str, Any]], Any], algorithms: Mapping[str, Algorithm[Any]]) -> Any:
    """What makes a worker that learns, with copies of algorithms on the devices that they are on.

    They are sent as they are on the CPU, and so is everything that follows; a worker places what arrives.

    Args:
        kind: of worker.
        algorithms: by policy name.
    """
    sent = {name: one if one.device.type == "cpu" else copy.deepcopy(one).to("cpu") for name, one in algorithms.items()}
    return functools.partial(_placed, kind, sent, {name: str(one.device) for name, one in algorithms.items()})


def _placed(
    kind: Callable[[dict[str, Any]], Any], algorithms: Mapping[str, Algorithm[Any]], devices: Mapping[str, str]
) -> Any:
    return kind({name: one.to(devices[name]) for name, one in algorithms.items()})


class GradWorker:
    """A stateless worker: what it answers depends on nothing but the state and the shard that it was sent.

    Args:
        algorithms: by policy name; they are the worker's own from now on.
    """

    def __init__(self, algorithms: Mapping[str, GradientAlgorithm[Any]]) -> None:
        self._algorithms = dict(algorithms)
        self._versions: dict[str, int] = {}

    def gradients(self, policy: str, state: LossState, shard: Batch) -> Gradients:
        """Gradients of a policy's losses.

        Args:
            policy: its name.
            state: of its algorithm.
            shard: a minibatch, or a part of one.
        """
        algorithm = self._algorithms[policy]
        if self._versions.get(policy) != state.version:
            self._versions.pop(policy, None)
            state.load_into(algorithm)
            self._versions[policy] = state.version
        with algorithm.policy.in_phase(Phase.UPDATE):
            return algorithm.gradients(algorithm.on_device(shard))


_log = logging.getLogger(__name__)
_MAX_DEATHS = 4  # of workers at one and the same task


@dataclass(eq=False)
class _Task:
    """One shard of one gradient step: a state version and a part of a minibatch."""

    policy: str
    number: int
    state: Shared
    shard: Batch
    deadline: float = 0.0
    deaths: int = 0


@dataclass(eq=False)
class _Step:
    """A gradient step that some shards are missing of."""

    state: LossState
    gradients: list[Gradients | None]
    tasks: list[_Task] = field(default_factory=list)


class GradientWorkers:
    """Splits every minibatch over `GradWorker`s. A task that a worker died of is given to another one.

    A policy's minibatches are cut into as many shards as it has workers, alive or not, so what is learned does not
    depend on deaths; where an algorithm mixes rows, one worker gets them whole. Gradients are added in the order of the
    shards: with `num_shards`, what is learned does not depend on the number of workers either. Where no worker is left
    alive, this process computes.

    Args:
        algorithms: by policy name; each must be a `GradientAlgorithm`.
        runtime: where the workers live.
        num_workers: how many; at least 1.
        allocator: shares them out among policies; by default every policy has all of them.
        num_shards: of each minibatch, for all policies; by default one for each worker of a policy.
        timeout_s: a worker that has not answered by then is ended, and its task is given to another one.
        resources: what each worker needs, where the runtime hands out resources.

    Raises:
        ConfigError: an algorithm states no losses or is compiled, or the allocator is for another number of workers.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm[Any]],
        runtime: Runtime,
        num_workers: int,
        *,
        allocator: TrainerAllocator | None = None,
        num_shards: int | None = None,
        timeout_s: float = 120.0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        if num_workers < 1 or (num_shards is not None and num_shards < num_workers):
            raise ConfigError(
                f"num_workers={num_workers}, num_shards={num_shards}: give at least 1 worker, and a shard for each"
            )
        if allocator is not None and allocator.num_trainers != num_workers:
            raise ConfigError(f"the allocator shares out {allocator.num_trainers} workers, but there are {num_workers}")
        self._algorithms = require_gradients(algorithms)
        self.runtime = runtime
        """Where the workers live."""
        self.reassigned = 0
        """Tasks that were given to another worker, because theirs had died."""
        self._allocator, self._num_shards, self._timeout_s = allocator, num_shards, timeout_s
        factory = learner_factory(GradWorker, self._algorithms)
        self._workers = [runtime.start(factory, name="grad-worker", resources=resources) for _ in range(num_workers)]
        self._allocation = {name: list(range(num_workers)) for name in self._algorithms}
        if allocator is not None:
            self._allocation = allocator.allocate()
        for name, workers in self._allocation.items():
            if self._algorithms[name].mixes_rows and len(workers) > 1:
                _log.warning(
                    "policy %r normalises the rows of a minibatch by the whole of it (network.batch_norm), so that one "
                    "of its %d gradient workers gets all of them, and the others do nothing for it",
                    name,
                    len(workers),
                )
        self._experience: Counter[str] = Counter()
        self._updates = 0
        self._versions = itertools.count()
        self._tasks: dict[Call, _Task] = {}
        self._steps: dict[str, _Step] = {}
        self._spare: GradWorker | None = None

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Numbers of the workers that each policy has."""
        return {name: list(workers) for name, workers in self._allocation.items()}

    # -- updates that are driven here

    def update(self, policy: str, source: DataSource) -> UpdateInfo:
        """An update of this process's copy of a policy's algorithm, with gradients from the workers.

        Args:
            policy: its name.
            source: what it learns from.

        Raises:
            NonFiniteError: a gradient is NaN or infinite.
        """
        algorithm = self._algorithms[policy]

        def step(minibatch: Batch) -> StepResult:
            self.ask(policy, LossState.of(algorithm, self.version()), self.cut(policy, minibatch))
            return algorithm.apply_shards([algorithm.on_device(part) for part in self._awaited(policy)])

        info = algorithm.update(source, step)
        self.learned(policy, info.rows_trained)
        return info

    def _awaited(self, policy: str) -> list[Gradients]:
        while True:
            results = self.runtime.wait(self.calls, at_least=1, timeout_s=self.patience_s)
            done = self.take(results)
            if policy in done:
                return done[policy]

    # -- updates that are driven elsewhere

    def version(self) -> int:
        """A version that no state had before."""
        return next(self._versions)

    def num_shards(self, policy: str) -> int:
        """Into how many parts its minibatches are cut; one worker gets the whole where its algorithm mixes rows.

        Args:
            policy: its name.
        """
        return 1 if self._algorithms[policy].mixes_rows else self._num_shards or len(self._allocation[policy])

    def cut(self, policy: str, minibatch: Batch) -> list[Batch]:
        """The shards of a minibatch.

        Args:
            policy: its name.
            minibatch: of an update.
        """
        return shards(minibatch, self._algorithms[policy].plan, self.num_shards(policy))

    def ask(self, policy: str, state: LossState, parts: Sequence[Batch]) -> None:
        """Begins a gradient step; `take` says when it has ended.

        Args:
            policy: its name.
            state: of its algorithm.
            parts: shards of the minibatch.
        """
        shared, workers = Shared(state), self._allocation[policy]
        self._steps[policy] = _Step(state, [None] * len(parts))
        for number, shard in enumerate(parts):
            task = _Task(policy, number, shared, shard)
            self._steps[policy].tasks.append(task)
            self._hand_out(task, self._workers[workers[number % len(workers)]])

    @property
    def calls(self) -> list[Call]:
        """Whose results `take` waits for."""
        return list(self._tasks)

    @property
    def patience_s(self) -> float:
        """Seconds until a worker has had its task for too long."""
        deadline = min((task.deadline for task in self._tasks.values()), default=time.monotonic() + self._timeout_s)
        return max(0.0, deadline - time.monotonic())

    def take(self, results: Iterable[Result]) -> dict[str, list[Gradients]]:
        """Takes answers in, hands tasks of dead workers to others, and ends workers that take too long.

        Args:
            results: of any calls; others than `calls` are left out.

        Returns:
            By policy, the gradients of all shards of steps that have ended, in the order of the shards.

        Raises:
            RemoteError: a worker failed at a task.
            WorkerDiedError: several workers died of the same task.
        """
        for result in results:
            if (task := self._tasks.pop(result.call, None)) is None:
                continue
            died = isinstance(result.error, WorkerDiedError)
            if died:
                self._revive(result.call.worker)
            step = self._steps.get(task.policy)
            if step is None or task not in step.tasks:
                continue  # given up
            if died:
                self._pass_on(task, result)
            else:
                step.gradients[task.number] = result.unwrap()
        now = time.monotonic()
        for call in [call for call, task in self._tasks.items() if task.deadline <= now]:
            _log.warning("%s has not answered within %g s and is ended", call.worker, self._timeout_s)
            self._revive(call.worker)  # its calls fail
        done = {name: step for name, step in self._steps.items() if all(part is not None for part in step.gradients)}
        for name in done:
            del self._steps[name]
        return {name: [part for part in step.gradients if part is not None] for name, step in done.items()}

    def forget(self, policy: str) -> None:
        """Gives up a gradient step that was begun, if there is one; answers that still come are dropped.

        Args:
            policy: its name.
        """
        self._steps.pop(policy, None)

    def learned(self, policy: str, rows: int) -> None:
        """Says that an update has ended; after so many of them workers are shared out anew.

        Args:
            policy: its name.
            rows: that it learned from.
        """
        self._experience[policy] += rows
        self._updates += 1
        if self._allocator is not None and self._updates % self._allocator.period == 0:
            before, self._allocation = self._allocation, self._allocator.allocate(self._experience)
            if self._allocation != before:
                _log.info("gradient workers are shared out anew: %s", self._allocation)
            self._experience.clear()

    def close(self) -> None:
        """Ends the workers; the runtime stays."""
        for worker in self._workers:
            self.runtime.stop(worker)
        self._workers, self._tasks, self._steps = [], {}, {}

    # -- tasks

    def _hand_out(self, task: _Task, worker: str) -> None:
        """To this worker if it can begin, else to one that can and has least to do, else to this process."""
        if not self._ready(worker):
            load = Counter(call.worker for call in self._tasks)
            others = [other for other in self._workers if self._ready(other)]
            if not others:
                self._compute_here(task)
                return
            worker = min(others, key=lambda other: load[other])
        task.deadline = time.monotonic() + self._timeout_s
        self._tasks[self.runtime.call(worker, "gradients", task.policy, task.state, task.shard)] = task

    def _ready(self, worker: str) -> bool:
        status = self.runtime.status()[worker]
        return status.state in ("idle", "busy") or (status.state == "starting" and status.incarnation == 0)

    def _pass_on(self, task: _Task, result: Result) -> None:
        task.deaths += 1
        if task.deaths >= _MAX_DEATHS:
            raise WorkerDiedError(
                f"{task.deaths} gradient workers died of the same task of policy {task.policy!r}: {result.error}"
            )
        self.reassigned += 1
        _log.warning("a gradient worker died and its task is given to another one: %s", result.error)
        self._hand_out(task, result.call.worker)

    def _revive(self, worker: str) -> None:
        status = self.runtime.status()[worker]
        if status.state == "waiting" or (status.state == "starting" and status.incarnation > 0):
            return
        try:
            self.runtime.restart(worker)
        except WorkerDiedError as error:
            _log.warning("%s", error)

    def _compute_here(self, task: _Task) -> None:
        _log.warning("no gradient worker is alive; this process computes the gradients of policy %r", task.policy)
        if self._spare is None:
            self._spare = GradWorker(copy.deepcopy(self._algorithms))
        step = self._steps[task.policy]
        step.gradients[task.number] = self._spare.gradients(task.policy, step.state, task.shard)


def require_gradients(algorithms: Mapping[str, Algorithm[Any]]) -> dict[str, GradientAlgorithm[Any]]:
    """The algorithms, if gradient workers can compute for them.

    Args:
        algorithms: by policy name.

    Raises:
        ConfigError: one states no losses, or is compiled.
    """
    found: dict[str, GradientAlgorithm[Any]] = {}
    for name, algorithm in algorithms.items():
        if not isinstance(algorithm, GradientAlgorithm):
            raise ConfigError(
                f"policy {name!r} learns by {type(algorithm).__name__}, which makes updates of a kind of its own, so "
                "that gradient workers cannot compute them. Leave gradient workers out (a policy host can make whole "
                "updates elsewhere), or use an algorithm that states losses, such as PPO or A2C in its place"
            )
        found[name] = algorithm
    return found
