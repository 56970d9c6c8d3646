"""`DistributedPolicyManager` and `PolicyHost`: policies that learn on hosts of their own, at the same time."""

import logging
import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palaestra.algorithms import Algorithm, Gradients, StepResult, UpdateInfo
from palaestra.core import Batch, ConfigError, DataSource, NonFiniteError, Plan, computing_thread, shards
from palaestra.distributed.gradient_workers import GradientWorkers, LossState, learner_factory
from palaestra.runtime import Call, Result, Runtime, WorkerDiedError
from palaestra.training import PolicyManager

__all__ = ["DistributedPolicyManager", "PolicyHost"]


class HostTask(NamedTuple):
    """One update, as a driver asks a host for it."""

    version: int
    """Number of the state that the update starts from."""
    state: dict[str, Any] | None
    """That state, for a host that does not have it; else `None`."""
    drawn: Batch
    """What the driver drew from the policy's source."""
    generator: Tensor
    """State of `Algorithm.minibatch_generator` after the draw."""
    progress: float
    """Where schedules are, in [0, 1]."""
    num_shards: int
    """Into how many parts minibatches are cut for gradient workers; 0 where the host computes gradients itself."""


class ShardedStep(NamedTuple):
    """A host needs the gradients of a minibatch to continue."""

    state: LossState
    """Of the algorithm; its version is counted by the host."""
    parts: list[Batch]
    """Shards of the minibatch."""


class Updated(NamedTuple):
    """An update has ended."""

    result: UpdateInfo | NonFiniteError
    """What it did, or why it stopped."""
    state: dict[str, Any]
    """`Algorithm.state_tensors` after it; what the acting policy draws from means nothing here."""
    write_backs: list[tuple[Tensor, Tensor]]
    """Row numbers and priorities, in the order in which they were written back."""
    began_s: float
    """`time.monotonic()` of this machine when it began."""
    ended_s: float
    """And when it ended."""


class PolicyHost:
    """Keeps the algorithms and optimizers of policies, and learns from what it is sent.

    Args:
        algorithms: by policy name; they are the host's own from now on.
    """

    def __init__(self, algorithms: Mapping[str, Algorithm[Any]]) -> None:
        self._algorithms = dict(algorithms)
        self._versions: dict[str, int] = {}
        self._running: dict[str, _Running] = {}

    def update(self, policy: str, task: HostTask) -> ShardedStep | Updated:
        """Begins an update: all of it, or up to the first minibatch that gradient workers have to see.

        Args:
            policy: its name.
            task: what to do.
        """
        algorithm = self._algorithms[policy]
        known = self._versions.pop(policy, None)
        if task.state is not None:
            algorithm.load_state_tensors(task.state)
        elif known != task.version:
            raise RuntimeError(f"this host has version {known} of policy {policy!r}, not {task.version}")
        algorithm.set_progress(task.progress)
        algorithm.minibatch_generator.set_state(task.generator)
        self._give_up(policy)
        running = self._running[policy] = _Running(algorithm, task)
        if task.num_shards:
            running.thread.start()
            return self._answer(policy)
        try:
            return self._ended(policy, algorithm.update(running.source))
        except NonFiniteError as error:
            return self._ended(policy, error)

    def step(self, policy: str, gradients: Sequence[Gradients]) -> ShardedStep | Updated:
        """Takes the gradient step that an update waits for, and continues to the next one.

        Args:
            policy: its name.
            gradients: of all shards of the minibatch, in their order.
        """
        self._running[policy].gradients.put(gradients)
        return self._answer(policy)

    def _answer(self, policy: str) -> ShardedStep | Updated:
        answer = self._running[policy].answers.get()
        if isinstance(answer, ShardedStep):
            return answer
        if isinstance(answer, UpdateInfo | NonFiniteError):
            return self._ended(policy, answer)
        del self._running[policy]
        raise answer

    def _give_up(self, policy: str) -> None:
        """Ends an update whose result is no longer wanted."""
        if policy in self._running:
            self._running.pop(policy).gradients.put(None)

    def __del__(self) -> None:
        for policy in list(self._running):
            self._give_up(policy)

    def _ended(self, policy: str, result: UpdateInfo | NonFiniteError) -> Updated:
        running = self._running.pop(policy)
        self._versions[policy] = running.task.version + 1
        state = self._algorithms[policy].state_tensors()
        return Updated(result, state, running.source.write_backs, running.began_s, time.monotonic())


class _Drawn:
    """A data source that has been drawn from already."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.write_backs: list[tuple[Tensor, Tensor]] = []

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        return self._batch

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        self.write_backs.append((indices, priority))


class _GivenUpError(Exception):
    """An update that waits for gradients will get none."""


class _Running:
    """An update that has begun; in a thread of its own where it waits for gradients from elsewhere."""

    def __init__(self, algorithm: Algorithm[Any], task: HostTask) -> None:
        self.source, self.task, self.began_s = _Drawn(task.drawn), task, time.monotonic()
        self.gradients = queue.SimpleQueue[Sequence[Gradients] | None]()
        """What the update waits for; `None` ends it."""
        self.answers = queue.SimpleQueue[ShardedStep | UpdateInfo | Exception]()
        """What it asks for, and at last what it did or why it failed."""
        self.thread = computing_thread(self._update, algorithm)

    def _update(self, algorithm: Any) -> None:
        def step(minibatch: Batch) -> StepResult:
            parts = shards(minibatch, algorithm.plan, self.task.num_shards)
            self.answers.put(ShardedStep(LossState.of(algorithm, 0), parts))
            gradients = self.gradients.get()
            if gradients is None:
                raise _GivenUpError
            return algorithm.apply_shards([algorithm.on_device(part) for part in gradients])

        try:
            self.answers.put(algorithm.update(self.source, step))
        except Exception as error:
            self.answers.put(error)


_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """One update of one policy, until its host has answered."""

    policy: str
    source: DataSource
    task: HostTask
    deadline: float = 0.0
    incarnation: int = 0
    """Of the host that was asked."""
    call: Call | None = None
    updated: Updated | None = None


class DistributedPolicyManager(PolicyManager):
    """Policies spread over hosts, which learn at the same time: MARO's manager of that name.

    Data is drawn here, with the generators of this process's copies of the algorithms, and sent to the host of the
    policy. The host answers with everything that its next update depends on, so this process always has the newest
    weights, and a host that dies is replaced by one that starts where the last complete update ended and is given the
    same data again: nothing is lost, and nothing is learned twice. What is learned equals `SimplePolicyManager`'s bit
    for bit.

    Args:
        algorithms: by policy name; these become this process's copies. They are changed only through the manager.
        runtime: where the hosts live. Over a `ProcessRuntime` this is MARO's `SimplePolicyManager(parallel=True)`.
        num_hosts: among which the policies are dealt out in turn; one for each policy by default.
        gradient_workers: on the same runtime; compute the gradients of all hosts. They are closed with the manager.
        timeout_s: a host that has not answered by then is replaced.
        resources: what each host needs, where the runtime hands out resources.

    Raises:
        ConfigError: there is no policy or no host, or the gradient workers live on another runtime.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm[Any]],
        runtime: Runtime,
        *,
        num_hosts: int | None = None,
        gradient_workers: GradientWorkers | None = None,
        timeout_s: float = 600.0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        count = len(algorithms) if num_hosts is None else num_hosts
        if not algorithms or not 0 < count <= len(algorithms):
            raise ConfigError(f"{len(algorithms)} policies on {count} hosts: give a policy, and a host to each at most")
        if gradient_workers is not None and gradient_workers.runtime is not runtime:
            raise ConfigError("hosts and gradient workers need one runtime, since one process waits for all of them")
        self._algorithms, self._runtime = dict(algorithms), runtime
        self._workers, self._timeout_s = gradient_workers, timeout_s
        self._hosts: dict[str, str] = {}
        for number in range(count):
            mine = {name: self._algorithms[name] for name in list(self._algorithms)[number::count]}
            host = runtime.start(learner_factory(PolicyHost, mine), name="policy-host", resources=resources)
            self._hosts |= dict.fromkeys(mine, host)
        self._versions = dict.fromkeys(self._algorithms, 0)
        self._held: dict[str, tuple[int, int]] = {}
        """By policy: the state version that its host has, and the incarnation of the host that has it."""
        self.spans: dict[str, tuple[float, float]] = {}
        """By policy: when its last update began and ended, in `time.monotonic()` seconds of its host's machine."""

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any]]:
        """By policy name: this process's copies, with the newest weights."""
        return self._algorithms

    @property
    def hosts(self) -> Mapping[str, str]:
        """By policy name: id of its host in the runtime."""
        return self._hosts

    def update(self, sources: Mapping[str, DataSource]) -> Mapping[str, UpdateInfo | NonFiniteError]:
        """One update of each named policy, all at the same time; other policies stay as they are.

        Args:
            sources: what each learns from.

        Returns:
            What each update did, or why it was not applied.

        Raises:
            WorkerDiedError: a host died more often than it may; with the first cause.
            RemoteError: an update failed.
        """
        jobs = {name: _Job(name, source, self._task(name, source)) for name, source in sources.items()}
        for job in jobs.values():
            self._begin(job)
        while any(job.updated is None for job in jobs.values()):
            asked = {job.call: job for job in jobs.values() if job.call is not None}
            calls = [*asked, *(() if self._workers is None else self._workers.calls)]
            results = self._runtime.wait(calls, at_least=1, timeout_s=self._patience_s(asked.values()))
            for result in results:
                if result.call in asked:
                    self._heard(asked[result.call], result)
            if self._workers is not None:
                for name, gradients in self._workers.take(results).items():
                    self._step(jobs[name], gradients)
            self._replace_silent(asked)
        return {name: self._finish(job) for name, job in jobs.items()}

    # -- one update

    def _task(self, name: str, source: DataSource) -> HostTask:
        algorithm = self._algorithms[name]
        drawn = source.draw(algorithm.plan, algorithm.minibatch_generator)
        generator = algorithm.minibatch_generator.get_state()
        num_shards = 0 if self._workers is None else self._workers.num_shards(name)
        return HostTask(self._versions[name], None, drawn, generator, algorithm.progress, num_shards)

    def _begin(self, job: _Job) -> None:
        host, name, task = self._hosts[job.policy], job.policy, job.task
        job.incarnation = self._incarnation(host)
        if self._held.get(name) != (task.version, job.incarnation):
            task = task._replace(state=self._algorithms[name].state_tensors())
        job.deadline = time.monotonic() + self._timeout_s
        job.call = self._runtime.call(host, "update", name, task)

    def _heard(self, job: _Job, result: Result) -> None:
        job.call = None
        if isinstance(result.error, WorkerDiedError):
            _log.warning("a policy host died and is replaced: %s", result.error)
            self._replace(result.call)
            self._begin_again(job)
            return
        answer = result.unwrap()
        if isinstance(answer, ShardedStep):
            assert self._workers is not None
            state = answer.state._replace(version=self._workers.version())
            self._workers.ask(job.policy, state, answer.parts)
        else:
            job.updated = answer
            self._held[job.policy] = (job.task.version + 1, result.call.incarnation)

    def _step(self, job: _Job, gradients: Sequence[Gradients]) -> None:
        host = self._hosts[job.policy]
        if (
            self._incarnation(host) != job.incarnation
        ):  # it was replaced meanwhile, for the sake of another of its policies
            self._begin_again(job)
            return
        job.deadline = time.monotonic() + self._timeout_s
        job.call = self._runtime.call(host, "step", job.policy, gradients)

    def _begin_again(self, job: _Job) -> None:
        if self._workers is not None:
            self._workers.forget(job.policy)
        self._begin(job)

    def _incarnation(self, host: str) -> int:
        return self._runtime.status()[host].incarnation

    def _replace(self, call: Call) -> None:
        """Restarts the host that was called, unless that has happened already."""
        if self._incarnation(call.worker) == call.incarnation:
            self._runtime.restart(call.worker)

    def _finish(self, job: _Job) -> UpdateInfo | NonFiniteError:
        updated, algorithm = job.updated, self._algorithms[job.policy]
        assert updated is not None
        acting = algorithm.policy.generator.get_state()  # acting happens here, so here is its generator
        algorithm.load_state_tensors({**updated.state, "generator.acting": acting})
        self._versions[job.policy] += 1
        for indices, priority in updated.write_backs:
            job.source.write_back(indices, priority)
        self.spans[job.policy] = updated.began_s, updated.ended_s
        if self._workers is not None and isinstance(updated.result, UpdateInfo):
            self._workers.learned(job.policy, updated.result.rows_trained)
        return updated.result

    def _patience_s(self, jobs: Iterable[_Job]) -> float:
        deadline = min((job.deadline for job in jobs), default=time.monotonic() + self._timeout_s)
        patience_s = max(0.0, deadline - time.monotonic())
        return patience_s if self._workers is None else min(patience_s, self._workers.patience_s)

    def _replace_silent(self, asked: Mapping[Call, _Job]) -> None:
        for call, job in asked.items():
            if job.call == call and job.deadline <= time.monotonic():
                _log.warning("%s has not answered within %g s and is replaced", call.worker, self._timeout_s)
                self._replace(call)  # its calls fail

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint; the hosts get it with their next updates.

        Args:
            state: from `state`.
        """
        super().load_state(state)
        self._held.clear()

    def close(self) -> None:
        """Ends the hosts and the gradient workers; the runtime stays."""
        for host in dict.fromkeys(self._hosts.values()):
            self._runtime.stop(host)
        if self._workers is not None:
            self._workers.close()
