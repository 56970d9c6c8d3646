"""`Agent`: the control flow of one robot, with its environment and factory; and `AgentGroup`: many of them at work."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, final

import numpy as np
import torch

from palaestra.core import NonFiniteError, PalaestraError, RunSeeds, SpecError, TimeStep, computing_thread, episode_seed
from palaestra.core.errors import EnvError
from palaestra.envs import Fault, SingleEnvironment
from palaestra.envs.contract.attributes import with_carried
from palaestra.envs.contract.boundary import ActionReader, Boundary
from palaestra.envs.contract.nest import leaf_arrays
from palaestra.envs.contract.rows import Specs, batched_info, numeric_infos
from palaestra.envs.supervision.faults import ANY_FAULT, Incident
from palaestra.envs.supervision.watchdog import ROLL_OUT_WORKERS, Watched, keep_process
from palaestra.robots.helpers import AgentHelper, helper_for
from palaestra.robots.serving import Communicator
from palaestra.robots.task import TaskSpec
from palaestra.rollout import Episode, EpisodeTracker

__all__ = ["Agent", "AgentEnvironment", "AgentError", "AgentFactory", "AgentStopped"]

_log = logging.getLogger(__name__)
Permission: TypeAlias = Callable[[bool, Callable[[], None]], None]
"""Called before an action (`True`) or before tasks are asked (`False`), with what to do before a pause; returns once
the agent may continue."""


class AgentError(PalaestraError, RuntimeError):
    """An agent failed; the message names it, and the cause is what happened."""

    exit_code = 3
    of_another = False
    """Whether it was ended with its worker, in which another one failed."""


AgentFailure: TypeAlias = AgentError | NonFiniteError
"""Why an agent ended: NaN and infinity of its environment keep their class, and so their exit code."""


class AgentStopped(Exception):  # noqa: N818 - not an error: it leads out of an episode that is to end here
    """Raised in an agent where it would act, once its robot stops."""


@final
class AgentEnvironment:
    """One environment for one agent: counts its steps, keeps its episodes' statistics, and lets it act when it may.

    Args:
        env: with all its layers.
        agent_id: of the agent.
        permission: see `Permission`; `None` never makes it wait.
    """

    def __init__(self, env: SingleEnvironment, agent_id: int = 0, permission: Permission | None = None) -> None:
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
        self._calls = _calls(agent_id)
        self._tracker = EpisodeTracker(1)
        self._spec, self._steps = env.observation_spec, 0  # of the episode
        self._boundary = Boundary(self._spec, env.reward_spec.size, 1, strict=False, first=agent_id)
        self._reader = ActionReader(Specs(self._spec, env.action_spec, env.reward_spec), 1)
        self._newest: Any = None  # observation, which says by its mask what is allowed

    def reset(self) -> TimeStep:
        """Begins an episode.

        Raises:
            EnvError: the environment failed.
            NonFiniteError: its observation or reward is NaN or infinite.
            AgentStopped: the robot stops.
        """
        self.wait()
        self.episodes += 1
        return self._seen(self._calls.call(0, self.env.reset))

    def step(self, action: Any) -> TimeStep:
        """Executes one action; under action repeat it lasts several frames (`env_info["frames"]`).

        Args:
            action: as the environment's spec says.

        Raises:
            SpecError: the action is NaN, outside its space, or forbidden by its mask.
            ShapeError: the action has another shape than its space.
            EnvError: the environment failed.
            NonFiniteError: its observation or reward is NaN or infinite.
            AgentStopped: the robot stops.
        """
        if self._newest is not None and (wrong := self._reader.unfit(action, self._newest)):  # else none is executed
            place = f"step {self._steps + 1} of its episode {self.episodes}"
            raise SpecError(f"the action of agent {self._agent_id} in {place} has {wrong}")
        self.wait(acts=True)
        self.env_steps += 1
        return self._seen(self._calls.call_step(0, self.env.step, action))

    def wait(self, *, acts: bool = False) -> None:
        """Waits while the robot is paused.

        Args:
            acts: whether an action follows, which is counted.

        Raises:
            AgentStopped: the robot stops.
        """
        if self._permission is not None:
            self._permission(acts, self._finish)

    def close(self) -> None:
        """Closes the environment.

        Raises:
            EnvError: it cannot be closed.
        """
        if failure := self._calls.closed(0, self.env):
            raise EnvError(f"environment {self._agent_id} {failure.what}: {failure.detail}")

    def _finish(self) -> None:
        for helper in self.helpers.values():
            helper.finish()

    def _seen(self, time_step: TimeStep) -> TimeStep:
        self._steps = 0 if time_step.first else self._steps + 1
        reward = np.array(time_step.reward, np.float32)[None]
        arrays = [leaf[None] for leaf in leaf_arrays(time_step.observation, self._spec)]
        for failure in self._boundary.not_finite(arrays, reward):  # before an agent, a task or a buffer sees it
            state = self.env.state_dict()
            number = int(state["episode"][0])
            place = number, episode_seed(int(state["lane_seed"][0]), number), self._steps, time_step.prev_action
            raise Fault.of(Incident(failure), place, handled="raise", first_id=self._agent_id).error()
        if self.env_steps % self._boundary.period == 0:
            self._boundary.out_of_place(arrays)
        self._newest = None if time_step.last else time_step.observation
        row = TimeStep(
            step_type=torch.tensor([int(time_step.step_type)], dtype=torch.int32),
            reward=torch.from_numpy(reward),
            env_info=batched_info(numeric_infos([time_step.env_info]), 1),
        )
        self._tracker.add(row)
        episodes = self._tracker.finished() if time_step.last else self._tracker.reported()
        self.finished.extend(episode._replace(env_id=self._agent_id) for episode in episodes)
        return time_step


def _calls(agent_id: int) -> Watched:
    """Lets an agent's environment act, which cannot end the process; how long it may take is for the robot to say."""
    keep_process()
    calls = Watched(ANY_FAULT, agent_id, None, watched=False)
    calls.elsewhere = ROLL_OUT_WORKERS
    return calls


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


@dataclass(frozen=True)
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
    carried: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What layers of environments, such as `NormalizeReward`, carry into the first episode, by agent."""

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
        permission: Permission | None = None,
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

        def seeded() -> SingleEnvironment:
            single = self.make_env(agent_id)
            single.seed(self.lane_seed(agent_id, incarnation))
            return single

        carried = self.carried.get(agent_id)
        single = _calls(agent_id).made(0, lambda: with_carried(seeded(), carried, seeded))
        env = AgentEnvironment(single, agent_id, permission)
        env.helpers = {name: helper(spec, communicator(name), env) for name, spec in self.specs.items()}
        return self.agent_class(env, env.helpers, self.config)


@final
class AgentGroup:
    """Runs agents in threads; each executes as many actions as it is allowed, and then pauses.

    Args:
        make_agent: makes an agent of its number, how often it was started before, and a permission; see `AgentFactory`.
        on_pause: called with +1 when an agent pauses, and with -n when n agents continue.
        on_end: called with an agent's number when its thread has ended, for whatever reason.
    """

    def __init__(
        self,
        make_agent: Callable[[int, int, Permission], Agent],
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
        self.errors: dict[int, AgentFailure] = {}
        """Why agents ended."""
        self.agents: dict[int, Agent] = {}
        """By number."""
        self._make_agent, self._on_pause, self._on_end = make_agent, on_pause, on_end
        self.allowance: dict[int, int] = {}
        """By agent, the actions that it may still execute."""
        self._stopping, self._known = False, dict[int, Mapping[str, Any]]()
        self._threads: dict[int, threading.Thread] = {}

    # -- for the agents' threads

    def wait_for_permission(self, agent_id: int, acts: bool, before_pause: Callable[[], None]) -> None:
        """Pauses an agent that has used up its allowance; counts the action that follows."""
        finished = False
        while True:
            with self.changed:
                pauses = self.allowance.get(agent_id, 0) <= 0 and not self._stopping
                if pauses and finished:
                    self.paused.add(agent_id)
                    self._on_pause(+1)
                    self.changed.notify_all()
                    while agent_id in self.paused and not self._stopping:
                        self.changed.wait()
                if self._stopping:
                    raise AgentStopped
                if finished or not pauses:
                    if acts:
                        self.allowance[agent_id] -= 1
                        self.steps += 1
                    return
            before_pause()  # a paused agent learns nothing in the background
            finished = True

    def _run(self, number: int, agent: Agent) -> None:
        error: AgentFailure | None = None
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
            kind = NonFiniteError if isinstance(cause, NonFiniteError) else AgentError
            error = kind(f"agent {number} failed in its episode {episode}, env step {step}: {text}")
            error.__cause__ = cause
        self._on_end(number)
        try:
            agent.env.close()  # in the thread that stepped it, and before another takes its place
        except Exception as another:
            _log.warning("the environment of agent %d cannot be closed: %s", number, another)
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
        made: list[int] = []
        for number, incarnation in incarnations.items():
            permission = partial(self.wait_for_permission, number)
            before = self.agents.get(number)
            try:
                self.agents[number] = self._make_agent(number, incarnation, permission)
            except Exception as error:
                if before is None:
                    raise
                with self.changed:
                    self.errors[number] = AgentError(f"agent {number} cannot be made again: {error}")
                continue
            if before is not None:
                self.agents[number].env.finished = before.env.finished
            made.append(number)
        with self.changed:
            for number in made:
                self.errors.pop(number, None)
                self.paused.discard(number)
        for number in made:  # once all are connected, so that batches wait for the slower ones
            thread = computing_thread(self._run, number, self.agents[number], name=f"agent {number}")
            self._threads[number] = thread
            thread.start()

    def allow(self, steps: Mapping[int, int]) -> None:
        """Lets agents execute so many more actions; 0 takes back what was not used.

        Args:
            steps: by agent.
        """
        with self.changed:
            for agent_id, count in steps.items():
                self.allowance[agent_id] = self.allowance.get(agent_id, 0) + count if count else 0
            freed = self.paused & {agent_id for agent_id, count in steps.items() if count}
            self.paused -= freed
            if freed:  # at once: those that wake up first must not think that the others still pause
                self._on_pause(-len(freed))
            self.changed.notify_all()

    @property
    def busy(self) -> list[int]:
        """Agents that neither pause nor have failed."""
        with self.changed:
            return sorted(set(self.agents) - self.paused - set(self.errors))

    @property
    def carried(self) -> dict[int, Mapping[str, Any]]:
        """What layers of environments carried into the running episodes, by agent; most carry nothing."""
        return {number: one.env.env.carried for number, one in self.agents.items() if one.env.env.carried}

    def take_carried(self) -> dict[int, Mapping[str, Any]]:
        """`carried`, of episodes that began since the last call."""
        known, self._known = self._known, self.carried
        return {number: one for number, one in self._known.items() if one is not known.get(number)}

    def take_episodes(self) -> list[Episode]:
        """Episodes that have ended since the last call; agents may be busy with others."""
        taken: list[Episode] = []
        for _, agent in sorted(self.agents.items()):
            while agent.env.finished:
                taken.append(agent.env.finished.pop(0))
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
