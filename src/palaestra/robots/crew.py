"""`Crew`: agents at work, each in a thread of its own, as far as they are let."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import final

from palaestra.core import PalaestraError
from palaestra.robots.agent import Agent, AgentError, AgentStopped
from palaestra.rollout import Episode

__all__ = ["Crew", "Gate"]


@final
class Gate:
    """Lets agents execute so many actions, and then keeps them where they are.

    Args:
        on_park: called with +1 when an agent is kept, and with -1 when it goes on.
    """

    def __init__(self, on_park: Callable[[int], None] | None = None) -> None:
        self.changed = threading.Condition()
        """Notified when an agent is kept, has ended or has failed."""
        self.parked: set[int] = set()
        """Agents that are kept."""
        self.steps = 0
        """Actions let through."""
        self._allowance: dict[int, int] = {}
        self._on_park, self._stopping = on_park, False

    def enter(self, agent_id: int) -> None:
        """Waits until the agent may execute one action, which is then counted; see `Permission`.

        Args:
            agent_id: who asks.

        Raises:
            AgentStopped: the robot stops.
        """
        with self.changed:
            self._hold(agent_id)
            self._allowance[agent_id] -= 1
            self.steps += 1

    def keeps(self, agent_id: int) -> bool:
        """Whether the agent would have to wait now.

        Args:
            agent_id: who asks.
        """
        return self._allowance.get(agent_id, 0) <= 0

    def hold(self, agent_id: int) -> None:
        """The same for what comes before an action, and does not count.

        Args:
            agent_id: who asks.

        Raises:
            AgentStopped: the robot stops.
        """
        with self.changed:
            self._hold(agent_id)

    def _hold(self, agent_id: int) -> None:
        if self.keeps(agent_id) and not self._stopping:
            self._park(agent_id)
        if self._stopping:
            raise AgentStopped

    def _park(self, agent_id: int) -> None:
        self.parked.add(agent_id)
        self._tell(+1)
        self.changed.notify_all()
        while agent_id in self.parked and not self._stopping:
            self.changed.wait()

    def _tell(self, change: int) -> None:
        if change and self._on_park is not None:
            self._on_park(change)

    def grant(self, steps: Mapping[int, int]) -> None:
        """Lets agents execute so many more actions; 0 takes back what was not used.

        Args:
            steps: by agent.
        """
        with self.changed:
            for agent_id, count in steps.items():
                self._allowance[agent_id] = self._allowance.get(agent_id, 0) + count if count else 0
            freed = self.parked & {agent_id for agent_id, count in steps.items() if count}
            self.parked -= freed
            self._tell(-len(freed))  # here, since those who wake up first must not think that the others sleep
            self.changed.notify_all()

    def stop(self) -> None:
        """Lets everybody out, who then raises `AgentStopped`."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()


@final
class Crew:
    """Runs agents in threads.

    Args:
        make_agent: an agent by its number and how often it was begun anew.
        numbers: of the agents.
        gate: that their environments ask.
        on_end: called with an agent's number when its thread has ended, for whatever reason.
    """

    def __init__(
        self,
        make_agent: Callable[[int, int], Agent],
        numbers: Mapping[int, int],
        gate: Gate,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        self.gate = gate
        self.errors: dict[int, AgentError] = {}
        """What agents died of."""
        self._make_agent, self._on_end = make_agent, on_end
        self.agents: dict[int, Agent] = {}
        """By number."""
        self._threads: dict[int, threading.Thread] = {}
        made = [(number, self._make(number, life)) for number, life in numbers.items()]
        for number, agent in made:  # once all are connected, so that batches wait for the slower ones
            self._start(number, agent)

    def begin(self, number: int, life: int) -> None:
        """Makes an agent that has failed anew, and starts its thread.

        Args:
            number: of the agent.
            life: how often it was begun before.
        """
        finished = self.agents[number].env.finished
        agent = self._make(number, life)
        agent.env.finished = finished
        with self.gate.changed:
            self.errors.pop(number, None)
            self.gate.parked.discard(number)
        self._start(number, agent)

    def _make(self, number: int, life: int) -> Agent:
        self.agents[number] = self._make_agent(number, life)
        return self.agents[number]

    def _start(self, number: int, agent: Agent) -> None:
        thread = threading.Thread(target=self._live, args=(number, agent), name=f"agent {number}", daemon=True)
        self._threads[number] = thread
        thread.start()

    def settled(self) -> bool:
        """Whether every agent is kept at the gate, or has failed."""
        return not self.busy

    def wait(self, timeout_s: float) -> None:
        """Waits until all are settled, or one has failed.

        Args:
            timeout_s: at most so long.
        """
        deadline = time.monotonic() + timeout_s
        with self.gate.changed:
            known = len(self.errors)
            while not self.settled() and len(self.errors) == known and (left := deadline - time.monotonic()) > 0:
                self.gate.changed.wait(left)

    def take_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call; the agents must be settled."""
        taken: list[Episode] = []
        for _, agent in sorted(self.agents.items()):
            taken += agent.env.finished
            agent.env.finished = []
        return taken

    @property
    def steps(self) -> int:
        """Actions executed so far."""
        return self.gate.steps

    @property
    def busy(self) -> list[int]:
        """Agents that are neither kept nor dead."""
        with self.gate.changed:
            return sorted(set(self.agents) - self.gate.parked - set(self.errors))

    def grant(self, steps: Mapping[int, int]) -> None:
        """See `Gate.grant`.

        Args:
            steps: by agent.
        """
        self.gate.grant(steps)

    def stop(self, timeout_s: float) -> list[int]:
        """Leads all agents out of their episodes.

        Args:
            timeout_s: how long it may take.

        Returns:
            Agents that are still busy: their environment, or a task, has not answered.
        """
        self.gate.stop()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return [number for number, thread in self._threads.items() if thread.is_alive()]

    def _live(self, number: int, agent: Agent) -> None:
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
            episode, step = agent.env.episodes, agent.env.env_steps
            error = AgentError(f"agent {number} failed in its episode {episode}, env step {step}: {_told(cause)}")
            error.__cause__ = cause
        if self._on_end is not None:
            self._on_end(number)
        with self.gate.changed:
            if error is not None:
                self.errors[number] = error
            self.gate.changed.notify_all()


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, PalaestraError) else f"{type(error).__name__}: {error}"
