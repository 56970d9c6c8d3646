"""`HostedCrew`: agents in worker processes or Ray actors, driven through a runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, final

from palaestra.core import PalaestraError
from palaestra.robots.agent import AgentError
from palaestra.robots.building import AgentFactory
from palaestra.robots.host import AgentHost, HostAnswer, HostReport, HostRequest
from palaestra.robots.wrapper import ComputationWrapper
from palaestra.rollout import Clients, Episode
from palaestra.runtime import Call, Result, Runtime

__all__ = ["HostedCrew"]

_LONG_S, _SHORT_S = 0.5, 0.001


class _Host:
    """What is known here of a host: who lives there, and what is to be sent next."""

    def __init__(self, worker: str, numbers: set[int]) -> None:
        self.worker, self.numbers = worker, numbers
        self.answers: list[HostAnswer] = []
        self.grants: dict[int, int] = {}
        self.parked: set[int] = set()
        self.blocked: dict[int, int] = {}  # ticket of the answer that an agent waits for
        self.later: dict[int, int] = {}  # ticket of what an agent learns in the background
        self.steps = 0
        self.call: Call | None = None

    @property
    def runs(self) -> bool:
        """Whether one of its agents may ask something without being sent anything."""
        return bool(self.numbers - self.parked - set(self.blocked))


@final
class HostedCrew:
    """Runs agents in workers of a runtime; one thread here trades their requests for answers.

    Args:
        factory: makes agents; is sent to the workers.
        lives: how often each agent was begun, by its number.
        wrappers: of the tasks, by name.
        runtime: where workers live; used by this crew's thread alone, and left open.
        num_workers: that the agents are shared out over.

    Raises:
        ConfigError: the factory cannot be sent.
    """

    def __init__(
        self,
        factory: AgentFactory,
        lives: Mapping[int, int],
        wrappers: Mapping[str, ComputationWrapper],
        runtime: Runtime,
        num_workers: int,
    ) -> None:
        self._factory, self._wrappers, self._runtime = factory, dict(wrappers), runtime
        self._timeout_s = next(iter(self._wrappers.values())).config.timeout_s
        self._callers: Clients = next(iter(self._wrappers.values())).clients
        self.errors: dict[int, AgentError] = {}
        """What agents died of."""
        self._changed = threading.Condition()
        self._hosts: list[_Host] = []
        self._begun: list[dict[int, int]] = []  # agents that wait for a host
        self._gone_steps = 0  # of hosts that are no more
        self._episodes: list[Episode] = []
        self._stopping = False
        numbers = sorted(lives)
        for number in numbers:
            self._callers.connect(number)
        for worker in range(min(num_workers, len(numbers))):
            self._begun.append({number: lives[number] for number in numbers[worker::num_workers]})
        self._thread = threading.Thread(target=self._pump, name="agents' hosts", daemon=True)
        self._numbers = set(numbers)
        self._failure: BaseException | None = None
        self._thread.start()

    # -- what a collector asks for; see `Crew`

    @property
    def steps(self) -> int:
        """Actions executed so far."""
        with self._changed:
            return self._gone_steps + sum(host.steps for host in self._hosts)

    @property
    def busy(self) -> list[int]:
        """Agents that are neither kept nor dead."""
        with self._changed:
            kept = {number for host in self._hosts for number in host.parked - set(host.grants)}
            return sorted(self._numbers - kept - set(self.errors))

    def settled(self) -> bool:
        """Whether every agent is kept, or has failed."""
        if self._failure is not None:
            raise AgentError(f"the thread that serves the agents' hosts failed: {self._failure}") from self._failure
        return not self.busy

    def wait(self, timeout_s: float) -> None:
        """Waits until all are settled, or one has failed.

        Args:
            timeout_s: at most so long.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            known = len(self.errors)
            while not self.settled() and len(self.errors) == known and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def grant(self, steps: Mapping[int, int]) -> None:
        """Lets agents execute so many more actions; see `Gate.grant`.

        Args:
            steps: by agent.
        """
        with self._changed:
            for host in [*self._hosts]:
                mine = {number: count for number, count in steps.items() if number in host.numbers}
                host.grants |= mine
                freed = host.parked & {number for number, count in mine.items() if count}
                host.parked -= freed
                self._callers.absent(-len(freed))
            self._granted = dict(steps)
            self._changed.notify_all()

    def begin(self, number: int, life: int) -> None:
        """Begins an agent that has failed anew, in a worker of its own.

        Args:
            number: of the agent.
            life: how often it was begun before.
        """
        with self._changed:
            self.errors.pop(number, None)
            self._callers.connect(number)
            self._begun.append({number: life})
            self._changed.notify_all()

    def take_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call."""
        with self._changed:
            taken, self._episodes = self._episodes, []
        return sorted(taken, key=lambda episode: episode.env_id)

    def stop(self, timeout_s: float) -> list[int]:
        """Ends all workers, with whatever their agents are doing.

        Args:
            timeout_s: how long it may take.

        Returns:
            Nobody: what does not end is killed.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return []

    # -- the thread; the runtime is its alone

    _granted: Mapping[int, int] = {}

    def _pump(self) -> None:
        try:
            while not self._stopping:
                self._start_hosts()
                self._call_hosts()
                self._take_reports()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            for number in self._numbers:
                self._callers.disconnect(number)
            closing = [self._runtime.call(host.worker, "close") for host in self._hosts]
            self._runtime.wait(closing, timeout_s=0.3)
            for host in self._hosts:
                self._runtime.stop(host.worker, timeout_s=0.1)

    def _start_hosts(self) -> None:
        with self._changed:
            begun, self._begun = self._begun, []
        for lives in begun:
            factory = partial(AgentHost, self._factory, lives, self._timeout_s)
            name = f"agents {', '.join(map(str, lives))}"
            host = _Host(self._runtime.start(factory, name=name), set(lives))
            with self._changed:
                host.grants = {number: self._granted[number] for number in lives if number in self._granted}
                self._hosts.append(host)

    def _call_hosts(self) -> None:
        with self._changed:
            for host in self._hosts:
                if host.call is None and (host.answers or host.grants or host.runs):
                    wait_s = _SHORT_S if host.blocked else _LONG_S
                    host.call = self._runtime.call(host.worker, "exchange", host.answers, host.grants, wait_s)
                    host.answers, host.grants = [], {}

    def _take_reports(self) -> None:
        with self._changed:
            calls = {host.call: host for host in self._hosts if host.call is not None}
            if not calls:
                if not self._stopping and not self._begun:
                    self._changed.wait(_LONG_S)
                return
            idle = any(host.call is None and host.blocked for host in self._hosts)
        results = self._runtime.wait(calls, at_least=1, timeout_s=_SHORT_S if idle else 0.05)
        for result in results:
            host = calls[result.call]
            host.call = None
            if result.error is None:
                self._take_report(host, result.value)
            else:
                self._bury(host, result)

    def _take_report(self, host: _Host, report: HostReport) -> None:
        with self._changed:
            newly = (report.parked - set(host.grants)) - host.parked
            host.parked |= newly
            host.steps = report.steps
            self._episodes += report.episodes
            died = {number: text for number, text in report.errors.items() if number in host.numbers}
            for number, text in died.items():
                self._lose(host, number, AgentError(text))
            self._changed.notify_all()
        self._callers.absent(len(newly))
        for request in report.requests:
            self._forward(host, request)

    def _forward(self, host: _Host, request: HostRequest) -> None:
        try:
            answer = self._wrappers[request.task].submit(request.kind, request.agent_id, request.payload)
        except PalaestraError as error:
            answer = Future()
            answer.set_exception(error)
        if request.kind == "store":
            answer.result()
            return
        with self._changed:
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
        told = HostAnswer(request.ticket, None if error else answer.result(), str(error) if error else None)
        with self._changed:
            host.answers.append(told)
            for waiting in (host.blocked, host.later):
                if waiting.get(request.agent_id) == request.ticket:
                    del waiting[request.agent_id]
            self._changed.notify_all()

    def _bury(self, host: _Host, result: Result) -> None:
        """A worker is gone, with all its agents."""
        with self._changed:
            for number in sorted(host.numbers):
                error = AgentError(f"agent {number} is gone: {result.error}")
                error.__cause__ = result.error
                self._lose(host, number, error)
            self._hosts.remove(host)
            self._gone_steps += host.steps
            self._changed.notify_all()

    def _lose(self, host: _Host, number: int, error: AgentError) -> None:
        self._callers.absent(-(number in host.parked))
        self._callers.disconnect(number)
        host.numbers.discard(number)
        host.parked.discard(number)
        host.blocked.pop(number, None)
        self.errors[number] = error
