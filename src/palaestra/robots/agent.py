"""`Agent`: the control flow of one robot, and the environment as it sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import numpy as np
import torch

from palaestra.core import PalaestraError, StepType, TimeStep
from palaestra.envs import SingleEnvironment
from palaestra.robots.helpers import AgentHelper
from palaestra.robots.rows import info_row
from palaestra.rollout import Episode, EpisodeTracker

__all__ = ["Agent", "AgentEnvironment", "AgentError", "AgentStopped", "Permission"]


class AgentError(PalaestraError, RuntimeError):
    """An agent failed; the message names it, and the cause is what happened."""

    exit_code = 3


class AgentStopped(Exception):  # noqa: N818 - no error: it leads out of an episode that is not to go on
    """Raised in an agent where it would act, once its robot stops."""


class Permission(Protocol):
    """Who lets agents act."""

    def enter(self, agent_id: int) -> None:
        """Waits until the agent may execute one action.

        Args:
            agent_id: who asks.

        Raises:
            AgentStopped: it never will.
        """
        ...

    def keeps(self, agent_id: int) -> bool:
        """Whether the agent would have to wait now.

        Args:
            agent_id: who asks.
        """
        ...

    def hold(self, agent_id: int) -> None:
        """The same for what comes before an action, and does not count.

        Args:
            agent_id: who asks.

        Raises:
            AgentStopped: it never will.
        """
        ...


@final
class AgentEnvironment:
    """One environment for one agent: counts its steps, keeps its episodes' statistics, and lets it act when it may.

    Args:
        env: with all its layers.
        agent_id: of the agent.
        permission: asked before every action; `None` always gives it.
    """

    def __init__(self, env: SingleEnvironment, agent_id: int = 0, permission: Permission | None = None) -> None:
        self.env = env
        self.env_steps = 0
        """Actions executed."""
        self.episodes = 0
        """Episodes begun."""
        self.finished: list[Episode] = []
        """Episodes that have ended."""
        self.before_kept: list[Callable[[], None]] = []
        """Called before the agent is kept: its helpers' `finish`."""
        self._agent_id, self._permission = agent_id, permission
        self._tracker = EpisodeTracker(1)

    def reset(self) -> TimeStep:
        """Begins an episode.

        Raises:
            EnvError: the environment failed.
            AgentStopped: the robot stops.
        """
        self.hold()
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
        if self._permission is not None:
            self._finish()
            self._permission.enter(self._agent_id)
        self.env_steps += 1
        return self._seen(self.env.step(action))

    def hold(self) -> None:
        """Waits where the robot is kept, before anything is asked of its tasks.

        Raises:
            AgentStopped: the robot stops.
        """
        if self._permission is not None:
            self._finish()
            self._permission.hold(self._agent_id)

    def _finish(self) -> None:
        """Whoever is kept learns nothing in the background."""
        if self._permission is not None and self._permission.keeps(self._agent_id):
            for finish in self.before_kept:
                finish()

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
