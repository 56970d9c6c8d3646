"""Agents with all that they need, in whichever process they live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from palaestra.core import RunSeeds
from palaestra.envs import SingleEnvironment
from palaestra.robots.agent import Agent, AgentEnvironment, Permission
from palaestra.robots.communicator import Communicator
from palaestra.robots.helpers import helper_for
from palaestra.robots.task import TaskSpec

__all__ = ["AgentFactory"]


@dataclass(frozen=True, kw_only=True)
class AgentFactory:
    """Makes the agents of a robot; can be sent to another process if its parts can."""

    agent_class: type[Agent]
    """What agents do."""
    config: Any
    """The robot's settings."""
    specs: Mapping[str, TaskSpec]
    """Of the tasks."""
    make_env: Callable[[int], SingleEnvironment]
    """One environment, with all its layers, by the agent's number."""
    num_agents: int
    """How many there are in all."""
    seed: int
    """Of the run."""
    stream: Literal["environments", "evaluation"] = "environments"
    """Which of its seeds environments have: those of training, or of evaluation."""

    def lane_seed(self, agent_id: int, life: int) -> int:
        """The seed of an agent's environment.

        Args:
            agent_id: whose.
            life: how often it was begun anew, by a resumed run or after a fault.
        """
        return RunSeeds(self.seed).integer(self.stream, agent_id + self.num_agents * life)

    def make(
        self,
        agent_id: int,
        line_to: Callable[[str], Communicator],
        *,
        life: int = 0,
        permission: Permission | None = None,
        helper: Callable[..., Any] = helper_for,
    ) -> Agent:
        """An agent.

        Args:
            agent_id: its number.
            line_to: gives its line to a task.
            life: see `lane_seed`.
            permission: asked before every action.
            helper: makes a helper of a spec, a line and a clock.
        """
        env = self.make_env(agent_id)
        env.seed(self.lane_seed(agent_id, life))
        clock = AgentEnvironment(env, agent_id, permission)
        helpers = {name: helper(spec, line_to(name), clock) for name, spec in self.specs.items()}
        clock.before_kept = [each.finish for each in helpers.values()]
        return self.agent_class(clock, helpers, self.config)
