"""`DistributedPolicyManager`: policies that learn on hosts of their own, at the same time."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from palaestra.algorithms import Algorithm, UpdateInfo
from palaestra.core import POLICY, ConfigError, DataSource, NonFiniteError, RowsLostError
from palaestra.distributed.gradient_workers import GradientWorkers
from palaestra.distributed.policy_host import HostTask, Updated, host_factory
from palaestra.distributed.worker_group import WorkerFault
from palaestra.envs import EventLog
from palaestra.runtime import Call, PlacementGroup, Result, Runtime, Shared, WorkerDiedError
from palaestra.training import PolicyManager

__all__ = ["DistributedPolicyManager"]

_log = logging.getLogger(__name__)
_PATIENCE_S = 0.2  # of one question whether an update has ended
_LONGEST_UPDATE = 10  # times `timeout_s`, in which a host that says that it works has to be done


@dataclass(eq=False)
class _Job:
    """One update of one policy, until its host has answered."""

    policy: str
    source: DataSource
    task: HostTask
    drawn: Shared
    """What it learns from."""
    deadline: float = 0.0
    limit_s: float = 0.0
    """When it is over, however often its host says that it works."""
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
        resources: what each host needs, where the runtime hands out resources; or a placement group, which the gradient
            workers are in, too.

    Raises:
        ConfigError: there is no policy or no host, or the gradient workers live on another runtime.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm[Any, Any]],
        runtime: Runtime,
        *,
        num_hosts: int | None = None,
        gradient_workers: GradientWorkers | None = None,
        timeout_s: float = 600.0,
        resources: Mapping[str, float] | PlacementGroup | None = None,
    ) -> None:
        count = len(algorithms) if num_hosts is None else num_hosts
        if not algorithms or not 0 < count <= len(algorithms):
            raise ConfigError(f"{len(algorithms)} policies on {count} hosts: give a policy, and a host to each at most")
        if gradient_workers is not None and gradient_workers.runtime is not runtime:
            raise ConfigError("hosts and gradient workers need one runtime, since one process waits for all of them")
        self._algorithms, self._runtime = dict(algorithms), runtime
        self.gradient_workers = self._workers = gradient_workers
        """Compute gradients together with the hosts."""
        self._timeout_s = timeout_s
        self.hosts: dict[str, str] = {}
        """By policy name: id of its host in the runtime."""
        for number in range(count):
            mine = {name: self._algorithms[name] for name in list(self._algorithms)[number::count]}
            role = f"policy host {number + 1} of {count}"
            host = runtime.start(host_factory(mine)(number), name="policy-host", resources=resources, role=role)
            self.hosts |= dict.fromkeys(mine, host)
        self.lost = 0
        """Hosts that died or were silent so far; each is replaced, as often as the runtime allows."""
        self.faults = EventLog()
        """The same, newest last; a run puts its own list here."""
        self._versions = dict.fromkeys(self._algorithms, 0)
        self._held: dict[str, tuple[int, int]] = {}
        """By policy: the state version that its host has, and the incarnation of the host that has it."""
        self.spans: dict[str, tuple[float, float]] = {}
        """By policy: when its last update began and ended, in `time.monotonic()` seconds of its host's machine."""

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
        """By policy name: this process's copies, with the newest weights."""
        return self._algorithms

    def update(self, sources: Mapping[str, DataSource]) -> Mapping[str, UpdateInfo | NonFiniteError]:
        """One update of each named policy, all at the same time; other policies stay as they are.

        Returns:
            What each update did, or why it was not applied.

        Raises:
            WorkerDiedError: a host died more often than it may; with the first cause.
            RemoteError: an update failed.
        """
        jobs: dict[str, _Job] = {}
        for name, source in sources.items():
            with contextlib.suppress(RowsLostError):  # there will be rows again
                jobs[name] = self._job(name, source)
        for job in jobs.values():
            self._begin(job)
        while any(job.updated is None for job in jobs.values()):
            asked = {job.call: job for job in jobs.values() if job.call is not None}
            calls = [*asked, *(() if self._workers is None else self._workers.calls)]
            results = self._runtime.wait(calls, at_least=1, timeout_s=self._patience_s(asked.values()))
            if self._workers is not None:  # first: an update that begins again asks them for all that is left
                self._workers.take(results)
            for result in results:
                if result.call in asked:
                    self._heard(asked[result.call], result)
            self._replace_silent(asked)
        return {name: self._finish(job) for name, job in jobs.items()}

    # -- one update

    def _job(self, name: str, source: DataSource) -> _Job:
        algorithm = self._algorithms[name]
        drawn = Shared(source.draw(algorithm.plan, algorithm.minibatch_generator))
        generator = algorithm.minibatch_generator.get_state()
        return _Job(name, source, HostTask(self._versions[name], generator, algorithm.progress), drawn)

    def _begin(self, job: _Job) -> None:
        host, name, task = self.hosts[job.policy], job.policy, job.task
        if self._workers is not None:
            task = task._replace(seat=self._workers.begin(name, task, job.drawn))
        incarnation, state = self._incarnation(host), None
        if self._held.pop(name, None) != (task.version, incarnation):
            state = self._algorithms[name].state_tensors()
        job.deadline = self._runtime.now() + self._timeout_s
        job.limit_s = self._runtime.now() + _LONGEST_UPDATE * self._timeout_s
        job.call = self._runtime.call(host, "update", name, task, job.drawn, state)

    def _heard(self, job: _Job, result: Result) -> None:
        job.call = None
        if isinstance(result.error, WorkerDiedError):
            self._replace(result.call, str(result.error))
            self._begin_again(job)
            return
        answer = result.unwrap()
        if answer is None and self._incarnation(result.call.worker) != result.call.incarnation:
            self._begin_again(job)  # it was replaced meanwhile, for the sake of another of its policies
        elif answer is None:
            job.deadline = min(self._runtime.now() + self._timeout_s, job.limit_s)  # it works
            job.call = self._runtime.call(result.call.worker, "finish", job.policy, _PATIENCE_S)
        else:
            job.updated = answer
            self._held[job.policy] = (job.task.version + 1, result.call.incarnation)

    def _begin_again(self, job: _Job) -> None:
        if self._workers is not None:
            self._workers.settle(job.policy, None, broken=True)
        self._begin(job)

    def _incarnation(self, host: str) -> int:
        return self._runtime.status()[host].incarnation

    def _replace(self, call: Call, why: str) -> None:
        """Restarts the host that was called and says so, unless that has happened already for another policy."""
        if self._incarnation(call.worker) != call.incarnation:
            return
        mine = [name for name, host in self.hosts.items() if host == call.worker]
        numbers = {name: self._algorithms[name].policy_version + 1 for name in mine}
        updates = ", ".join(f"{number}{'' if name == POLICY else f' of {name!r}'}" for name, number in numbers.items())
        title = self._runtime.status()[call.worker].name
        fault = WorkerFault(title, call.incarnation, f"{why}: update {updates} begins again", "restart")
        self.lost += 1
        try:
            self._runtime.restart(call.worker, why.removeprefix(f"{title} "))
        except WorkerDiedError as error:
            self.faults.append(replace(fault, what=f"{fault.what}; {error}", handled="raise"))
            raise
        self.faults.append(fault)
        _log.warning("%s", fault)

    def _finish(self, job: _Job) -> UpdateInfo | NonFiniteError:
        updated, algorithm = job.updated, self._algorithms[job.policy]
        assert updated is not None and updated.state is not None and updated.result is not None
        algorithm.load_state_tensors({**updated.state, **algorithm.acting_tensors()})  # acting happens here
        self._versions[job.policy] += 1
        for indices, priority in updated.write_backs:
            job.source.write_back(indices, priority)
        if self._workers is not None:
            assert updated.fingerprint is not None
            self._workers.settle(job.policy, updated.fingerprint, broken=bool(updated.broken), why=updated.broken)
        self.spans[job.policy] = updated.began_s, updated.ended_s
        if self._workers is not None and isinstance(updated.result, UpdateInfo):
            self._workers.learned(job.policy, updated.result.rows_trained)
        return updated.result

    def _patience_s(self, jobs: Iterable[_Job]) -> float:
        deadline = min((job.deadline for job in jobs), default=self._runtime.now() + self._timeout_s)
        patience_s = max(0.0, deadline - self._runtime.now())
        return patience_s if self._workers is None else min(patience_s, self._workers.patience_s)

    def _replace_silent(self, asked: Mapping[Call, _Job]) -> None:
        for call, job in asked.items():
            if job.call == call and job.deadline <= self._runtime.now():
                title = self._runtime.status()[call.worker].name
                self._replace(call, f"{title} did not answer within {self._timeout_s:g} s")  # its calls fail

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint; the hosts get it with their next updates.

        Args:
            state: from `state`.
        """
        super().load_state(state)
        self._held.clear()

    def metrics(self) -> dict[str, float]:
        """Hosts that were lost so far; and learners, where there are gradient workers."""
        return {"hosts/lost": self.lost, **({} if self._workers is None else self._workers.metrics())}

    def close(self) -> None:
        """Ends the hosts and the gradient workers; the runtime stays."""
        for host in dict.fromkeys(self.hosts.values()):
            self._runtime.stop(host)
        if self._workers is not None:
            self._workers.close()
