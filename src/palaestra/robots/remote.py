"""Agents in worker processes or Ray actors: `AgentHost` runs there, `RemoteAgentGroup` drives the hosts."""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, final

import torch

from palaestra.robots.agent import Agent, AgentError, AgentFactory, AgentFailure, AgentGroup, Permission
from palaestra.robots.serving import Communicator, ComputationWrapper, Kind
from palaestra.rollout import Episode, RequestError
from palaestra.runtime import Call, Runtime

__all__ = ["AgentHost", "HostAnswer", "HostReport", "HostRequest", "RemoteAgentGroup"]

_BLOCKING = ("predict", "learn", "await")  # requests after which an agent asks nothing until it is answered
_GATHER_S, _LONG_S, _SHORT_S, _CLOSING_S = 0.0005, 0.5, 0.001, 5.0


class HostRequest(NamedTuple):
    """What an agent asks of a task."""

    ticket: int
    """Names the answer."""
    task: str
    """The task's name."""
    kind: Kind
    """What for."""
    agent_id: int
    """The agent."""
    payload: Any
    """What the task gets."""


class HostAnswer(NamedTuple):
    """What a task answered."""

    ticket: int
    """Of the request."""
    value: Any
    """The answer."""
    error: str | None = None
    """Why there is none."""


@dataclass(frozen=True)
class HostReport:
    """Status of a host's agents."""

    requests: list[HostRequest]
    """Since the last report, in order."""
    paused: set[int]
    """Agents that wait until they may act."""
    errors: dict[int, AgentFailure]
    """Why agents ended."""
    steps: int
    """Actions executed so far."""
    allowance: dict[int, int]
    """Actions that each agent may still execute."""
    episodes: list[Episode]
    """Since the last report."""
    carried: dict[int, Mapping[str, Any]]
    """See `AgentGroup.take_carried`."""


@final
class AgentHost:
    """Runs agents in threads of a worker, and exchanges their requests for answers.

    Args:
        factory: makes the agents.
        incarnations: how often each was started before, by its number.
        timeout_s: seconds after which an agent that has no answer fails.
    """

    def __init__(self, factory: AgentFactory, incarnations: Mapping[int, int], timeout_s: float) -> None:
        torch.set_num_threads(1)
        self._factory, self._timeout_s = factory, timeout_s
        self._tickets, self._lock = itertools.count(), threading.Lock()
        self._outbox, self._waiting = list[HostRequest](), dict[int, Future[Any]]()
        self._group = AgentGroup(self._make_agent)
        self._group.start(incarnations)

    def exchange(self, answers: Sequence[HostAnswer], allowed: Mapping[int, int], wait_s: float) -> HostReport:
        """Hands out answers and permissions, and brings back what agents ask meanwhile.

        Args:
            answers: to requests of earlier reports.
            allowed: actions that agents may execute besides; see `AgentGroup.allow`.
            wait_s: how long to wait for something to report.
        """
        for ticket, value, error in answers:
            with self._lock:
                future = self._waiting.pop(ticket)
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(RequestError(error))
        self._group.allow(allowed)
        self._wait(wait_s)
        group = self._group
        with group.changed, self._lock:
            requests, self._outbox = self._outbox, []
            paused, allowance, episodes = set(group.paused), dict(group.allowance), group.take_episodes()
            errors, carried = dict(group.errors), group.take_carried()
            return HostReport(requests, paused, errors, group.steps, allowance, episodes, carried)

    def close(self) -> None:
        """Leads all agents out of their episodes, and lets them close; those that wait for an answer get an error."""
        deadline = time.monotonic() + _CLOSING_S
        while self._group.stop(_SHORT_S) and time.monotonic() < deadline:
            with self._lock:
                waiting, self._waiting = list(self._waiting.values()), {}
            for answer in waiting:
                answer.set_exception(RequestError("the robot has stopped"))

    def _wait(self, wait_s: float) -> None:
        """Until every agent waits or pauses; once there are requests, only a little longer."""
        deadline, found = time.monotonic() + wait_s, False
        with self._group.changed:
            while True:
                with self._lock:
                    blocked, outbox = {r.agent_id for r in self._outbox if r.kind in _BLOCKING}, bool(self._outbox)
                if len(blocked) >= len(self._group.busy):
                    return
                if outbox and not found:
                    found, deadline = True, min(deadline, time.monotonic() + _GATHER_S)
                if (left := deadline - time.monotonic()) <= 0:
                    return
                self._group.changed.wait(left)

    def _make_agent(self, agent_id: int, incarnation: int, permission: Permission) -> Agent:
        def communicator(task: str) -> Communicator:
            return Communicator(agent_id, task, partial(self._send, task), timeout_s=self._timeout_s)

        return self._factory.make(agent_id, communicator, incarnation=incarnation, permission=permission)

    def _send(self, task: str, kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        answer, ticket = Future[Any](), next(self._tickets)
        with self._lock:
            self._outbox.append(HostRequest(ticket, task, kind, agent_id, payload))
            if kind in ("store", "await"):
                answer.set_result(None)
            else:
                self._waiting[ticket] = answer
        with self._group.changed:
            self._group.changed.notify_all()
        return answer


@dataclass(eq=False)
class _Host:
    """A host's agents, and what is to be sent to it next."""

    worker: str
    numbers: set[int]
    answers: list[HostAnswer] = field(default_factory=list)
    allowed: dict[int, int] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    blocked: dict[int, int] = field(default_factory=dict)
    """By agent, the ticket of the answer that it waits for."""
    later: dict[int, int] = field(default_factory=dict)
    """By agent, the ticket of what it learns in the background."""
    steps: int = 0
    call: Call | None = None

    @property
    def runs(self) -> bool:
        """Whether one of its agents may ask something without being sent anything."""
        return bool(self.numbers - self.paused - set(self.blocked))


@final
class RemoteAgentGroup:
    """Runs agents in workers of a runtime; one thread here exchanges their requests for answers.

    For a collector it does what `AgentGroup` does.

    Args:
        factory: makes agents; is sent to the workers.
        wrappers: of the tasks, by name.
        runtime: where workers live; used by this group's thread alone, and left open.
        num_workers: that the agents are shared out over.

    Raises:
        ConfigError: the factory cannot be sent.
    """

    def __init__(
        self, factory: AgentFactory, wrappers: Mapping[str, ComputationWrapper], runtime: Runtime, num_workers: int
    ) -> None:
        self._factory, self._wrappers = factory, dict(wrappers)
        self._runtime, self._num_workers = runtime, num_workers
        wrapper = next(iter(self._wrappers.values()))
        self._timeout_s, self._clients = wrapper.config.timeout_s, wrapper.clients
        self.errors: dict[int, AgentFailure] = {}
        """Why agents ended."""
        self.changed = threading.Condition()
        """Notified when agents have paused, ended or failed."""
        self.carried = dict(factory.carried)
        """See `AgentGroup.carried`."""
        self._numbers, self._hosts, self._episodes = set[int](), list[_Host](), list[Episode]()
        self._to_start: list[dict[int, int]] = []  # incarnations of agents that wait for a host
        self._allowance: dict[int, int] = {}  # what agents may still do, for those who take the place of others
        self._ended_steps, self._stopping = 0, False  # steps of hosts that have ended
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # -- for a collector; see `AgentGroup`

    @property
    def steps(self) -> int:
        """Actions executed so far."""
        with self.changed:
            return self._ended_steps + sum(host.steps for host in self._hosts)

    @property
    def busy(self) -> list[int]:
        """Agents that neither pause nor have failed."""
        if self._failure is not None:
            raise AgentError(f"the thread that serves the agents' hosts failed: {self._failure}") from self._failure
        with self.changed:
            paused = {one for host in self._hosts for one in host.paused if not host.allowed.get(one)}  # 0: it stays
            return sorted(self._numbers - paused - set(self.errors))

    def start(self, incarnations: Mapping[int, int]) -> None:
        """Starts agents, shared out over workers; one that has failed gets a new worker.

        Args:
            incarnations: how often each was started before, by its number.
        """
        numbers = sorted(incarnations)
        with self.changed:
            for number in numbers:
                self.errors.pop(number, None)
                self._clients.connect(number)
            self._numbers |= set(numbers)
            for worker in range(min(self._num_workers, len(numbers))):
                self._to_start.append({number: incarnations[number] for number in numbers[worker :: self._num_workers]})
            self.changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="agents' hosts", daemon=True)
            self._thread.start()

    def allow(self, steps: Mapping[int, int]) -> None:
        """Lets agents execute so many more actions; see `AgentGroup.allow`.

        Args:
            steps: by agent.
        """
        with self.changed:
            for host in self._hosts:
                mine = {number: count for number, count in steps.items() if number in host.numbers}
                host.allowed |= mine
                freed = host.paused & {number for number, count in mine.items() if count}
                host.paused -= freed
                self._clients.absent(-len(freed))
            for number, count in steps.items():
                self._allowance[number] = self._allowance.get(number, 0) + count if count else 0
            self.changed.notify_all()

    def give_up(self, numbers: Sequence[int], why: str) -> None:
        """Ends the workers of agents that hang; all agents of these workers have failed then.

        Args:
            numbers: of the agents.
            why: for people.
        """
        with self.changed:
            for host in [one for one in self._hosts if not one.numbers.isdisjoint(numbers)]:
                self._remove(host, AgentError(why), numbers)

    def take_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call."""
        with self.changed:
            taken, self._episodes = self._episodes, []
        return sorted(taken, key=lambda episode: episode.env_id)

    def stop(self, timeout_s: float) -> list[int]:
        """Ends all workers, with whatever their agents are doing.

        Args:
            timeout_s: how long it may take.

        Returns:
            No agent: what does not end is killed.
        """
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return []

    # -- the thread; only it uses the runtime

    def _serve(self) -> None:
        try:
            while not self._stopping:
                self._start_hosts()
                self._call_hosts()
                self._take_reports()
                self._end_hosts_without_agents()
        except BaseException as error:
            with self.changed:
                self._failure = error
                self.changed.notify_all()
        finally:
            for number in self._numbers:
                self._clients.disconnect(number)
            closing = [self._runtime.call(host.worker, "close") for host in self._hosts]
            self._runtime.wait(closing, timeout_s=_CLOSING_S + 0.3)
            for host in self._hosts:
                self._runtime.stop(host.worker, timeout_s=0.1)

    def _start_hosts(self) -> None:
        with self.changed:
            to_start, self._to_start = self._to_start, []
        for incarnations in to_start:
            agents = replace(self._factory, carried={number: self.carried.get(number, {}) for number in incarnations})
            factory = partial(AgentHost, agents, incarnations, self._timeout_s)
            name = f"agents {', '.join(map(str, incarnations))}"
            host = _Host(self._runtime.start(factory, name=name), set(incarnations))
            with self.changed:
                host.allowed = {number: self._allowance.get(number, 0) for number in incarnations}
                self._hosts.append(host)

    def _call_hosts(self) -> None:
        with self.changed:
            for host in self._hosts:
                if host.call is None and host.numbers and (host.answers or host.allowed or host.runs):
                    wait_s = _SHORT_S if host.blocked else _LONG_S
                    host.call = self._runtime.call(host.worker, "exchange", host.answers, host.allowed, wait_s)
                    host.answers, host.allowed = [], {}

    def _take_reports(self) -> None:
        with self.changed:
            calls = {host.call: host for host in self._hosts if host.call is not None}
            if not calls:
                if not self._stopping and not self._to_start:
                    self.changed.wait(_LONG_S)
                return
            idle = any(host.call is None and host.blocked for host in self._hosts)
        results = self._runtime.wait(calls, at_least=1, timeout_s=_SHORT_S if idle else 0.05)
        for result in results:
            host = calls[result.call]
            host.call = None
            if result.error is None:
                self._take_report(host, result.value)
            else:
                self._remove(host, result.error)

    def _take_report(self, host: _Host, report: HostReport) -> None:
        with self.changed:
            newly = {one for one in report.paused - host.paused if one in host.numbers and not host.allowed.get(one)}
            host.paused |= newly
            host.steps = report.steps
            self._episodes += report.episodes
            self.carried |= report.carried
            for number in host.numbers & set(report.allowance):
                left, more = report.allowance[number], host.allowed.get(number)  # on its way; 0 takes back
                self._allowance[number] = left if more is None else left + more if more else 0
            for number in host.numbers & set(report.errors):
                self._lose(host, number, report.errors[number])
            self.changed.notify_all()
        self._clients.absent(len(newly))
        for request in report.requests:
            self._forward(host, request)

    def _forward(self, host: _Host, request: HostRequest) -> None:
        if request.agent_id not in host.numbers:  # it was lost, and another takes its place
            return
        try:
            answer = self._wrappers[request.task].submit(request.kind, request.agent_id, request.payload)
        except Exception as error:
            answer = Future()
            answer.set_exception(error)
        with self.changed:
            if request.kind == "store":
                if error := answer.exception():
                    self._lose(host, request.agent_id, AgentError(f"what it sent could not be stored: {error}"))
                return
            if request.kind == "await":
                if request.agent_id in host.later:
                    host.blocked[request.agent_id] = host.later[request.agent_id]
                return
            if request.kind == "learn_later":
                host.later[request.agent_id] = request.ticket
            else:
                host.blocked[request.agent_id] = request.ticket
        answer.add_done_callback(partial(self._answered, host, request))

    def _answered(self, host: _Host, request: HostRequest, answer: Future[Any]) -> None:
        error = answer.exception()
        answered = HostAnswer(request.ticket, None if error else answer.result(), str(error) if error else None)
        with self.changed:
            host.answers.append(answered)
            for waiting in (host.blocked, host.later):
                if waiting.get(request.agent_id) == request.ticket:
                    del waiting[request.agent_id]
            self.changed.notify_all()

    def _remove(self, host: _Host, cause: Exception, failed: Sequence[int] | None = None) -> None:
        """A worker is gone, or is given up, with all its agents."""
        with self.changed:
            host.call = None
            for number in sorted(host.numbers):
                error = AgentError(f"agent {number} is gone: {cause}")
                error.__cause__, error.of_another = cause, failed is not None and number not in failed
                self._lose(host, number, error)
            self.changed.notify_all()

    def _end_hosts_without_agents(self) -> None:
        """Agents that are restarted get a worker of their own."""
        with self.changed:
            empty = [host for host in self._hosts if not host.numbers and host.call is None]
            for host in empty:
                self._hosts.remove(host)
                self._ended_steps += host.steps
        for host in empty:
            self._runtime.stop(host.worker, timeout_s=0.1)

    def _lose(self, host: _Host, number: int, error: AgentFailure) -> None:
        self._clients.absent(-(number in host.paused))
        self._clients.disconnect(number)
        host.numbers.discard(number)
        host.paused.discard(number)
        host.blocked.pop(number, None)
        self.errors[number] = error
