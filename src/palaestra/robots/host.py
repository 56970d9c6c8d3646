"""`AgentHost`: agents in another process, and what is exchanged with the process of their tasks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import torch

from palaestra.robots.agent import Agent
from palaestra.robots.building import AgentFactory
from palaestra.robots.communicator import Communicator, Kind
from palaestra.robots.crew import Crew, Gate
from palaestra.rollout import Episode, RequestError

__all__ = ["BLOCKING", "AgentHost", "HostAnswer", "HostReport", "HostRequest"]

BLOCKING = ("predict", "learn", "await")
"""Kinds of requests after which an agent asks nothing until it is answered."""
_GATHER_S = 0.0005


class HostRequest(NamedTuple):
    """What an agent asks of a task."""

    ticket: int
    """Names the answer."""
    task: str
    """Who is asked."""
    kind: Kind
    """What for."""
    agent_id: int
    """Who asks."""
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
    """How the agents of a host are."""

    requests: list[HostRequest]
    """Since the last report, in order."""
    parked: set[int]
    """Agents that are kept."""
    errors: dict[int, str]
    """What agents died of."""
    steps: int
    """Actions executed so far."""
    episodes: list[Episode] = field(default_factory=list)
    """Since the last report."""


@final
class AgentHost:
    """Runs agents in threads of a worker, and trades their requests for answers.

    Args:
        factory: makes the agents.
        lives: how often each was begun, by its number.
        timeout_s: seconds after which an agent that has no answer fails.
    """

    def __init__(self, factory: AgentFactory, lives: Mapping[int, int], timeout_s: float) -> None:
        torch.set_num_threads(1)
        self._factory, self._timeout_s = factory, timeout_s
        self._gate = Gate()
        self._tickets = itertools.count()
        self._lock = threading.Lock()
        self._outbox: list[HostRequest] = []
        self._waiting: dict[int, Future[Any]] = {}
        self._crew = Crew(self._make_agent, lives, self._gate)

    def exchange(self, answers: Sequence[HostAnswer], grants: Mapping[int, int], wait_s: float) -> HostReport:
        """Hands out answers and permissions, and brings back what agents ask meanwhile.

        Args:
            answers: to requests of earlier reports.
            grants: actions that agents may execute besides; see `Gate.grant`.
            wait_s: how long to wait for something to report.
        """
        for ticket, value, error in answers:
            with self._lock:
                future = self._waiting.pop(ticket)
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(RequestError(error))
        if grants:
            self._gate.grant(grants)
        self._wait(wait_s)
        episodes = self._crew.take_episodes()
        with self._gate.changed, self._lock:
            requests, self._outbox = self._outbox, []
            errors = {number: str(error) for number, error in self._crew.errors.items()}
            return HostReport(requests, set(self._gate.parked), errors, self._gate.steps, episodes)

    def _wait(self, wait_s: float) -> None:
        """Until every agent waits or is kept; once there are requests, only a moment longer."""
        deadline, found = time.monotonic() + wait_s, False
        with self._gate.changed:
            while True:
                with self._lock:
                    blocked = len({r.agent_id for r in self._outbox if r.kind in BLOCKING})
                    outbox = len(self._outbox)
                if blocked >= len(self._crew.busy):
                    return
                if outbox and not found:
                    found, deadline = True, min(deadline, time.monotonic() + _GATHER_S)
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._gate.changed.wait(left)

    def _make_agent(self, number: int, life: int) -> Agent:
        def line_to(name: str) -> Communicator:
            return Communicator(number, name, partial(self._send, name), timeout_s=self._timeout_s)

        return self._factory.make(number, line_to, life=life, permission=self._gate)

    def _send(self, task: str, kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        ticket = next(self._tickets)
        with self._lock:
            self._outbox.append(HostRequest(ticket, task, kind, agent_id, payload))
            if kind in ("store", "await"):
                answer.set_result(None)
            else:
                self._waiting[ticket] = answer
        with self._gate.changed:
            self._gate.changed.notify_all()
        return answer
