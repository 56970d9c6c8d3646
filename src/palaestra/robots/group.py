"""`AgentGroup`: agents at work, each in a thread of its own, as far as they are allowed to act."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, final

from palaestra.core import PalaestraError
from palaestra.robots.agent import Agent, AgentError, AgentStopped
from palaestra.rollout import Episode

__all__ = ["AgentGroup", "MakeAgent"]


class MakeAgent(Protocol):
    """Makes an agent for a group."""

    def __call__(self, agent_id: int, *, incarnation: int, permission: Any) -> Agent:
        """See `AgentFactory.make`.

        Args:
            agent_id: its number.
            incarnation: how often it was started before.
            permission: for its environment.
        """
        ...


@final
class AgentGroup:
    """Runs agents in threads; each executes as many actions as it is allowed, and then pauses.

    Args:
        make_agent: makes an agent.
        on_pause: called with +1 when an agent pauses, and with -n when n agents continue.
        on_end: called with an agent's number when its thread has ended, for whatever reason.
    """

    def __init__(
        self,
        make_agent: MakeAgent,
        *,
        on_pause: Callable[[int], None] = lambda change: None,
        on_end: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.changed = threading.Condition()
        """Notified when an agent has paused, ended or failed."""
        self.paused: set[int] = set()
        """Agents that wait until they may act."""
        self.steps = 0
        """Actions executed so far."""
        self.errors: dict[int, AgentError] = {}
        """Why agents ended."""
        self.agents: dict[int, Agent] = {}
        """By number."""
        self._make_agent, self._on_pause, self._on_end = make_agent, on_pause, on_end
        self._allowance: dict[int, int] = {}
        self._stopping = False
        self._threads: dict[int, threading.Thread] = {}

    # -- for the agents' threads

    def _wait_for_permission(self, agent_id: int, acts: bool, before_pause: Callable[[], None]) -> None:
        """Pauses an agent that has used up its allowance; counts the action that follows."""
        if self._allowance.get(agent_id, 0) <= 0:
            before_pause()  # a paused agent learns nothing in the background
        with self.changed:
            if self._allowance.get(agent_id, 0) <= 0 and not self._stopping:
                self.paused.add(agent_id)
                self._on_pause(+1)
                self.changed.notify_all()
                while agent_id in self.paused and not self._stopping:
                    self.changed.wait()
            if self._stopping:
                raise AgentStopped
            if acts:
                self._allowance[agent_id] -= 1
                self.steps += 1

    def _run(self, number: int, agent: Agent) -> None:
        error: AgentError | None = None
        try:
            while True:
                before = agent.env.episodes
                agent.run_one_episode()
                if agent.env.episodes == before:
                    raise AgentError("run_one_episode returned without calling self.env.reset()")
        except AgentStopped:
            pass
        except BaseException as cause:
            text = str(cause) if isinstance(cause, PalaestraError) else f"{type(cause).__name__}: {cause}"
            episode, step = agent.env.episodes, agent.env.env_steps
            error = AgentError(f"agent {number} failed in its episode {episode}, env step {step}: {text}")
            error.__cause__ = cause
        self._on_end(number)
        with self.changed:
            if error is not None:
                self.errors[number] = error
            self.changed.notify_all()

    # -- for a collector

    def start(self, incarnations: Mapping[int, int]) -> None:
        """Makes agents, or makes those again that have failed, and starts their threads.

        Args:
            incarnations: how often each was started before, by its number.
        """
        for number, incarnation in incarnations.items():
            finished = self.agents[number].env.finished if number in self.agents else []
            permission = partial(self._wait_for_permission, number)
            self.agents[number] = self._make_agent(number, incarnation=incarnation, permission=permission)
            self.agents[number].env.finished = finished
        with self.changed:
            for number in incarnations:
                self.errors.pop(number, None)
                self.paused.discard(number)
        for number in incarnations:  # once all are connected, so that batches wait for the slower ones
            thread = threading.Thread(
                target=self._run, args=(number, self.agents[number]), name=f"agent {number}", daemon=True
            )
            self._threads[number] = thread
            thread.start()

    def allow(self, steps: Mapping[int, int]) -> None:
        """Lets agents execute so many more actions; 0 takes back what was not used.

        Args:
            steps: by agent.
        """
        with self.changed:
            for agent_id, count in steps.items():
                self._allowance[agent_id] = self._allowance.get(agent_id, 0) + count if count else 0
            freed = self.paused & {agent_id for agent_id, count in steps.items() if count}
            self.paused -= freed
            if freed:  # told here, since those that wake up first must not think that the others still pause
                self._on_pause(-len(freed))
            self.changed.notify_all()

    @property
    def busy(self) -> list[int]:
        """Agents that neither pause nor have failed."""
        with self.changed:
            return sorted(set(self.agents) - self.paused - set(self.errors))

    def take_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call; no agent may be busy."""
        taken: list[Episode] = []
        for _, agent in sorted(self.agents.items()):
            taken += agent.env.finished
            agent.env.finished = []
        return taken

    def stop(self, timeout_s: float = 0.0) -> list[int]:
        """Leads all agents out of their episodes.

        Args:
            timeout_s: how long it may take.

        Returns:
            Agents that are still busy: their environment, or a task, has not answered.
        """
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return [number for number, thread in self._threads.items() if thread.is_alive()]
