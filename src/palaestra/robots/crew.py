"""`Crew`: agents at work, each in a thread of its own, as far as they are let."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import final

from palaestra.core import PalaestraError
from palaestra.robots.agent import Agent, AgentError, AgentStopped

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
        """Waits until the agent may execute one action; see `Permission`.

        Args:
            agent_id: who asks; -1 - id where it does not act, but must not go on once the robot stops.

        Raises:
            AgentStopped: the robot stops.
        """
        with self.changed:
            if agent_id >= 0 and self._allowance.get(agent_id, 0) <= 0 and not self._stopping:
                self._park(agent_id)
            if self._stopping:
                raise AgentStopped
            if agent_id >= 0:
                self._allowance[agent_id] -= 1
                self.steps += 1

    def _park(self, agent_id: int) -> None:
        self.parked.add(agent_id)
        self._parks(+1)
        self.changed.notify_all()
        while self._allowance.get(agent_id, 0) <= 0 and not self._stopping:
            self.changed.wait()
        self._parks(-1)

    def _parks(self, change: int) -> None:
        if self._on_park is not None:
            self._on_park(change)

    def grant(self, steps: Mapping[int, int]) -> None:
        """Lets agents execute so many more actions; 0 or less takes back what was not used.

        Args:
            steps: by agent.
        """
        with self.changed:
            for agent_id, count in steps.items():
                if count > 0:
                    self._allowance[agent_id] = self._allowance.get(agent_id, 0) + count
                    self.parked.discard(agent_id)
                else:
                    self._allowance[agent_id] = 0
            self.changed.notify_all()

    def left(self) -> dict[int, int]:
        """Actions that every agent may still execute."""
        with self.changed:
            return dict(self._allowance)

    def stop(self) -> None:
        """Lets everybody out, who then raises `AgentStopped`."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()


@final
class Crew:
    """Runs agents in threads.

    Args:
        agents: by number.
        gate: that their environments ask.
        on_end: called with an agent's number when its thread has ended, for whatever reason.
    """

    def __init__(
        self, agents: Mapping[int, Agent], gate: Gate, on_end: Callable[[int], None] | None = None
    ) -> None:
        self.agents, self.gate = dict(agents), gate
        self.errors: dict[int, AgentError] = {}
        """What agents died of."""
        self._on_end = on_end
        self._threads = {
            number: threading.Thread(target=self._live, args=(number, agent), name=f"agent {number}", daemon=True)
            for number, agent in self.agents.items()
        }

    @property
    def living(self) -> set[int]:
        """Agents that have not failed."""
        return set(self.agents) - set(self.errors)

    def start(self) -> None:
        """Starts all threads; nobody acts before the gate lets it."""
        for thread in self._threads.values():
            thread.start()

    def settled(self) -> bool:
        """Whether every living agent is kept at the gate."""
        return self.living <= self.gate.parked

    def finish_learning(self) -> None:
        """Waits for what agents learn in the background; they must be kept at the gate.

        Raises:
            RequestError: learning failed.
        """
        for number in sorted(self.living):
            for helper in self.agents[number].helpers.values():
                helper.finish()

    def stop(self, timeout_s: float = 1.5) -> list[int]:
        """Leads all agents out of their episodes.

        Args:
            timeout_s: how long it may take.

        Returns:
            Agents that are still busy: their environment has not answered.
        """
        self.gate.stop()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads.values():
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return [number for number, thread in self._threads.items() if thread.is_alive()]

    def _live(self, number: int, agent: Agent) -> None:
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
            with self.gate.changed:
                self.errors[number] = error
        finally:
            if self._on_end is not None:
                self._on_end(number)
            with self.gate.changed:
                self.gate.changed.notify_all()


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, PalaestraError) else f"{type(error).__name__}: {error}"
