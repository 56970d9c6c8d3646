"""`Agent`: the control flow of one robot, the environment as it sees it, and the factory that puts both together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch

from palaestra.core import PalaestraError, RunSeeds, StepType, TimeStep
from palaestra.envs import SingleEnvironment
from palaestra.robots.helpers import AgentHelper, helper_for, info_row
from palaestra.robots.serving import Communicator
from palaestra.robots.task import TaskSpec
from palaestra.rollout import Episode, EpisodeTracker

__all__ = ["Agent", "AgentEnvironment", "AgentError", "AgentFactory", "AgentStopped"]


class AgentError(PalaestraError, RuntimeError):
    """An agent failed; the message names it, and the cause is what happened."""

    exit_code = 3


class AgentStopped(Exception):  # noqa: N818 - not an error: it leads out of an episode that is to end here
    """Raised in an agent where it would act, once its robot stops."""


@final
class AgentEnvironment:
    """One environment for one agent: counts its steps, keeps its episodes' statistics, and lets it act when it may.

    Args:
        env: with all its layers.
        agent_id: of the agent.
        permission: called before an action (`True`) or before tasks are asked (`False`), with what to do before a
            pause; returns once the agent may continue. `None` never makes it wait.
    """

    def __init__(
        self,
        env: SingleEnvironment,
        agent_id: int = 0,
        permission: Callable[[bool, Callable[[], None]], None] | None = None,
    ) -> None:
        self.env = env
        self.env_steps = 0
        """Actions executed."""
        self.episodes = 0
        """Episodes begun."""
        self.finished: list[Episode] = []
        """Episodes that have ended."""
        self.helpers: Mapping[str, AgentHelper] = {}
        """The agent's; an agent that pauses first waits for what they learn in the background."""
        self._agent_id, self._permission = agent_id, permission
        self._tracker = EpisodeTracker(1)

    def reset(self) -> TimeStep:
        """Begins an episode.

        Raises:
            EnvError: the environment failed.
            AgentStopped: the robot stops.
        """
        self.wait()
        self.episodes += 1
        return self._seen(self.env.reset())

    def step(self, action: Any) -> TimeStep:
        """Executes one action; under action repeat it lasts several frames (`env_info["frames"]`).

        Args:
            action: as the environment's spec says.

        Raises:
            EnvError: the environment failed.
            AgentStopped: the robot stops.
        """
        self.wait(acts=True)
        self.env_steps += 1
        return self._seen(self.env.step(action))

    def wait(self, *, acts: bool = False) -> None:
        """Waits while the robot is paused.

        Args:
            acts: whether an action follows, which is counted.

        Raises:
            AgentStopped: the robot stops.
        """
        if self._permission is not None:
            self._permission(acts, self._finish)

    def _finish(self) -> None:
        for helper in self.helpers.values():
            helper.finish()

    def _seen(self, time_step: TimeStep) -> TimeStep:
        row = TimeStep(
            step_type=torch.tensor([int(time_step.step_type)], dtype=torch.int32),
            reward=torch.from_numpy(np.array(time_step.reward, np.float32)[None]),
            env_info=info_row(time_step.env_info),
        )
        self._tracker.add(row)
        if time_step.step_type == StepType.LAST:
            self.finished += [episode._replace(env_id=self._agent_id) for episode in self._tracker.finished()]
        return time_step


class Agent(ABC):
    """One robot at work: plain Python that acts in an environment and asks tasks through one helper each.

    Subclass it and write `run_one_episode`; the same class runs in a thread, in a process or as a Ray actor.

    Args:
        env: to act in.
        helpers: one for each task, by its name.
        config: the robot's settings.
    """

    def __init__(self, env: AgentEnvironment, helpers: Mapping[str, AgentHelper], config: Any = None) -> None:
        self.env, self.helpers, self.config = env, dict(helpers), config

    @abstractmethod
    def run_one_episode(self) -> None:
        """Acts from `self.env.reset()` on until the episode has ended; called again and again."""


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

    def lane_seed(self, agent_id: int, incarnation: int) -> int:
        """The seed of an agent's environment.

        Args:
            agent_id: whose.
            incarnation: how often the agent was started before, by a resumed run or after a fault.
        """
        return RunSeeds(self.seed).integer(self.stream, agent_id + self.num_agents * incarnation)

    def make(
        self,
        agent_id: int,
        communicator: Callable[[str], Communicator],
        *,
        incarnation: int = 0,
        permission: Callable[[bool, Callable[[], None]], None] | None = None,
        helper: Callable[..., Any] = helper_for,
    ) -> Agent:
        """An agent.

        Args:
            agent_id: its number.
            communicator: makes the one to a task, by the task's name.
            incarnation: see `lane_seed`.
            permission: see `AgentEnvironment`.
            helper: makes a helper of a spec, a communicator and a clock.
        """
        single = self.make_env(agent_id)
        single.seed(self.lane_seed(agent_id, incarnation))
        env = AgentEnvironment(single, agent_id, permission)
        env.helpers = {name: helper(spec, communicator(name), env) for name, spec in self.specs.items()}
        return self.agent_class(env, env.helpers, self.config)
