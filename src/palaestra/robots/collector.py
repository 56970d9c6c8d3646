"""`RobotCollector`: a robot at work, as a trainer sees it; and `evaluate_robot`: episodes without learning."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, final

from palaestra.core import ConfigError, EnvError, NonFiniteError, RunSeeds, TimeStep
from palaestra.envs import EventLog, FaultPolicy, RestartBudget, SingleEnvironment
from palaestra.envs.contract.environment import Closeable
from palaestra.policies import Phase, Policy
from palaestra.robots.agent import Agent, AgentError, AgentFactory, AgentFailure, AgentGroup, Permission
from palaestra.robots.helpers import AgentHelper
from palaestra.robots.remote import RemoteAgentGroup
from palaestra.robots.robot import Robot
from palaestra.robots.serving import Communicator, ComputationWrapper, Kind, RobotConfig
from palaestra.robots.task import act
from palaestra.rollout import Clients, CollectInfo, Episode, Evaluation, evaluation_of, pack
from palaestra.rollout.evaluation import continue_evaluation, evaluation_noise
from palaestra.runtime import Runtime

__all__ = ["AgentFault", "RobotCollector", "evaluate_robot"]

_log = logging.getLogger(__name__)
_POLL_S = 0.05
_LONGEST_POLL_S = 1.0  # whatever is longer was no waiting: the whole process was stopped
_PATIENCE = 10  # returns of `run_one_episode` for each episode of an evaluation, at most
_START_S = 120.0  # that workers may take to be there


@dataclass(frozen=True, kw_only=True)
class AgentFault:
    """An agent that failed, and did not stop the run."""

    env_id: int
    """The agent, and so its environment."""
    incarnation: int
    """How often it was started before."""
    kind: Literal["raised", "non-finite"]
    """Whether something failed, or its environment emitted NaN or infinity."""
    what: str
    """What happened: agent, episode, env step and cause."""
    handled: Literal["restart", "drop"]
    """It is restarted; the run continues without it."""

    def error(self) -> AgentFailure:
        """The error that would stop a run."""
        return (NonFiniteError if self.kind == "non-finite" else AgentError)(self.what)

    def __str__(self) -> str:
        return self.what


@final
class RobotCollector(Closeable):
    """Runs a robot's agents against its tasks: `Trainer(RobotCollector(robot, ...), robot)`.

    An unroll lets every agent execute so many actions. Meanwhile tasks answer and learn as the agents ask them to; when
    it ends, all agents are kept where they are and nothing is computed, so that the run can be evaluated and saved. A
    resumed run begins new episodes, of dropped agents too, into which layers of environments carry what they carried
    into those that were running.

    Args:
        robot: whose tasks are served.
        make_env: one environment with all its layers, by the agent's number.
        num_agents: how many agents.
        seed: of the run.
        config: when batches close.
        runtime: where workers live that run the agents; by default agents are threads of this process. It is used by
            one thread of this collector, and left open.
        num_workers: that the agents are shared out over.

    Raises:
        ConfigError: there are no agents.
    """

    def __init__(
        self,
        robot: Robot,
        make_env: Callable[[int], SingleEnvironment],
        num_agents: int = 1,
        *,
        seed: int = 0,
        config: RobotConfig | None = None,
        runtime: Runtime | None = None,
        num_workers: int = 2,
    ) -> None:
        if num_agents < 1:
            raise ConfigError(f"a robot needs at least one agent; num_agents is {num_agents}")
        self.robot, self.num_lanes, self.config = robot, num_agents, config or RobotConfig()
        robot.unroll_length = self.config.steps_per_iteration
        self.env_steps = 0
        """Actions executed so far."""
        self.clients = Clients()
        """The agents, as the tasks' servers know them."""
        wrapper = partial(ComputationWrapper, config=self.config, clients=self.clients)
        self.wrappers = {name: wrapper(name, task) for name, task in robot.tasks.items()}
        """Of the tasks, by name."""
        for task in robot.tasks.values():
            task.make_buffer(num_agents)
        self.buffers = {name: task.buffer for name, task in robot.tasks.items() if task.buffer is not None}
        """Of the tasks that replay."""
        self.sources = self.buffers
        """What tasks learn from, besides what their agents send."""
        self.factory = robot.agents(make_env, num_agents, seed=seed)
        """Makes these agents."""
        self.evaluated_by = robot.agents(make_env, num_agents, seed=seed, stream="evaluation")
        """Makes agents like these, to be evaluated on seeds that never occur in training; see `evaluate_robot`."""
        self.on_fault: Literal["raise", "restart", "drop"] = "raise"
        """When an agent fails: stop; restart it; or continue without it."""
        self.max_restarts = 10
        """Of one agent within an hour; one more fault stops the run."""
        self.faults = EventLog()
        """The newest `AgentFault`s, and how many there were."""
        self._runtime, self._num_workers = runtime, num_workers
        self._incarnations, self._dropped = dict.fromkeys(range(num_agents), 0), dict[int, int]()
        self._group: AgentGroup | RemoteAgentGroup | None = None
        self._pausing = False

    @cached_property
    def _budget(self) -> RestartBudget:
        return RestartBudget(FaultPolicy(on_fault="restart", max_restarts=self.max_restarts))

    # -- what a trainer asks for

    resume: Literal["statistical"] = "statistical"
    """A resumed run begins new episodes."""

    unfinished = False
    """Never: an unroll that was paused is merely shorter."""

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Lets every agent execute so many actions, and waits until they have.

        Args:
            length: actions of each.
            random: ignored; tasks that have learned nothing yet act at random by themselves.

        Raises:
            AgentError: an agent failed, or none has moved for `timeout_s`, and `on_fault` does not help.
            NonFiniteError: an agent's environment emitted NaN or infinity, and `on_fault` does not help.
            RequestError: a task goes on computing for `timeout_s` after all agents have paused or failed.
        """
        self._pausing = False
        group, began = self._start(), time.perf_counter()
        before, busy_s = group.steps, self._busy_s()
        group.allow(dict.fromkeys(self._incarnations, int(length)))
        self._wait_until_settled(group)
        steps = group.steps - before
        self.env_steps += steps
        info = CollectInfo(steps, rows=int(length), episodes=group.take_episodes())
        info.total_s = time.perf_counter() - began
        info.inference_s = min(self._busy_s() - busy_s, info.total_s)  # of services side by side
        return info

    def _busy_s(self) -> float:
        return sum(wrapper.prediction.statistics.busy_s for wrapper in self.wrappers.values())

    def pause(self) -> None:
        """Keeps every agent before its next action, from a signal handler say."""
        self._pausing = True

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        return [] if self._group is None else self._group.take_episodes()

    def state(self) -> dict[str, Any]:
        """Env steps; by each agent's number, how often it was started before, and what its environment carries over."""
        started = {**self._dropped, **self._incarnations}.items()
        incarnations = {str(number): count for number, count in sorted(started)}
        carried = {str(number): dict(one) for number, one in self._carried.items()}
        return {"env_steps": self.env_steps, "incarnations": incarnations, "carried": carried}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave; agents begin new episodes, which none of the saved run was.

        Args:
            state: of a collector with as many agents.
        """
        self.env_steps = int(state["env_steps"])
        started = {int(number): int(count) for number, count in state["incarnations"].items()}
        most = max(started.values())  # versions before 0.2 left out dropped agents
        self._incarnations = {number: started.get(number, most) + 1 for number in range(self.num_lanes)}
        carried = {int(number): one for number, one in state.get("carried", {}).items()}
        self.factory = replace(self.factory, carried=carried)

    def metrics(self) -> dict[str, float]:
        """Batch sizes and waits of every task so far."""
        return {f"robot/{name}/{k}": v for name, wrapper in self.wrappers.items() for k, v in wrapper.metrics().items()}

    # -- the agents

    @property
    def _carried(self) -> Mapping[int, Mapping[str, Any]]:
        return {**self.factory.carried, **({} if self._group is None else self._group.carried)}

    def _start(self) -> AgentGroup | RemoteAgentGroup:
        if self._group is None:
            for wrapper in self.wrappers.values():
                wrapper.run()
            if self._runtime is None:
                clients = self.clients
                self._group = AgentGroup(self._make_agent, on_pause=clients.absent, on_end=clients.disconnect)
            else:
                self._group = RemoteAgentGroup(self.factory, self.wrappers, self._runtime, self._num_workers)
            self._group.start(self._incarnations)
        return self._group

    def _make_agent(self, agent_id: int, incarnation: int, permission: Permission) -> Agent:
        communicators = {name: wrapper.create_communicator(agent_id) for name, wrapper in self.wrappers.items()}
        communicator = communicators.__getitem__
        return self.factory.make(agent_id, communicator, incarnation=incarnation, permission=permission)

    def _wait_until_settled(self, group: AgentGroup | RemoteAgentGroup) -> None:
        moved, still_s, polled_at, begun = -1, 0.0, time.monotonic(), 0
        while group is self._group and self._unsettled(group):  # closed by another thread: nobody moves any more
            with group.changed:
                if group.busy and not self._incarnations.keys() & group.errors.keys():
                    group.changed.wait(_POLL_S)
            restarted = self._handle_errors(group)
            if self._pausing:
                group.allow(dict.fromkeys(self._incarnations, 0))
            now = group.steps + sum(wrapper.prediction.statistics.requests for wrapper in self.wrappers.values())
            still_s = still_s + min(time.monotonic() - polled_at, _LONGEST_POLL_S) if now == moved else 0.0
            moved, polled_at = now, time.monotonic()
            begun = now if restarted else begun
            limit_s = self.config.timeout_s + (0.0 if now != begun or self._runtime is None else _START_S)
            if still_s > limit_s:
                why = f"the agents {group.busy} have not moved for {limit_s:g} s (robot.timeout_s)"
                if self.on_fault == "raise" or isinstance(group, AgentGroup):
                    raise AgentError(why)
                group.give_up(group.busy, why)  # they count as failed where their workers can be ended; threads cannot
        for wrapper in self.wrappers.values():
            wrapper.settle()

    def _unsettled(self, group: AgentGroup | RemoteAgentGroup) -> bool:
        with group.changed:
            return bool(group.busy or self._incarnations.keys() & group.errors.keys())

    def _handle_errors(self, group: AgentGroup | RemoteAgentGroup) -> bool:
        """Does what `on_fault` says; returns whether an agent was restarted."""
        restarted = False
        for number, error in sorted(group.errors.items()):
            if number not in self._incarnations:
                continue
            if self.on_fault == "raise":
                raise error
            if self.on_fault == "restart" or (isinstance(error, AgentError) and error.of_another):
                fault = self._fault(number, error, "restart")
                try:
                    due = time.monotonic() + self._budget.spend(number, fault)
                except EnvError as spent:
                    raise type(error)(f"{spent}") from error
                self.faults.append(fault)
                _log.warning("%s; it is restarted", error)
                while time.monotonic() < due and not self._pausing and group is self._group:
                    time.sleep(min(_POLL_S, max(0.0, due - time.monotonic())))
                self._incarnations[number] += 1
                self.factory = replace(self.factory, carried=self._carried)
                group.start({number: self._incarnations[number]})
                restarted = True
                continue
            if len(self._incarnations) == 1:
                raise error
            _log.warning("%s; the others continue without it", error)
            self.faults.append(self._fault(number, error, "drop"))
            self._dropped[number] = self._incarnations.pop(number)
        return restarted

    def _fault(self, number: int, error: AgentFailure, handled: Literal["restart", "drop"]) -> AgentFault:
        kind = "non-finite" if isinstance(error, NonFiniteError) else "raised"
        incarnation, what = self._incarnations[number], str(error)
        return AgentFault(env_id=number, incarnation=incarnation, kind=kind, what=what, handled=handled)

    def close(self, timeout_s: float = 7.0) -> None:
        """Ends agents and tasks; what is asked already is answered. Closing twice is fine.

        Args:
            timeout_s: how long it may take; agents that are busy for longer are left behind, with a warning.
        """
        deadline = time.monotonic() + timeout_s
        group, self._group = self._group, None
        busy = [] if group is None else group.stop(timeout_s - min(1.0, timeout_s / 2))
        for wrapper in self.wrappers.values():
            try:
                wrapper.stop(max(0.05, (deadline - time.monotonic()) / 4))
            except Exception as error:
                _log.warning("%s", error)
        if group is not None and busy and (busy := group.stop(max(0.0, deadline - time.monotonic()))):
            _log.warning("the agents %s did not end within %g s and are left behind", busy, timeout_s)


@final
class _Spectator(AgentHelper):
    """Asks and stores nothing."""

    def open_stream(self, row: TimeStep) -> None:
        """Nothing is stored."""

    def append(self, choice: Any, row: TimeStep, state: Any) -> None:
        """Nothing is stored."""

    def require_seen(self) -> None:
        """No choice is stored in any row."""

    def learn(self) -> None:
        """Nothing is learned."""

    def learning_data(self) -> None:
        """Nothing is sent."""


def evaluate_robot(factory: AgentFactory, policies: Mapping[str, Policy], *, episodes: int = 20) -> Evaluation:
    """Runs episodes of one agent after another, in the calling thread.

    Args:
        factory: makes the agents; each plays an equal share of the episodes.
        policies: of the tasks, by name; they act in `Phase.EVAL`.

    Raises:
        ConfigError: a task has no policy.
        AgentError: agents return again and again before their episode has ended.
        NonFiniteError: an environment emitted NaN or infinity.
    """
    if missing := sorted(set(factory.specs) - set(policies)):
        raise ConfigError(f"the tasks {missing} have no policy to evaluate; given are {sorted(policies)}")
    finished = []
    own = RunSeeds(factory.lane_seed(0, 0))
    with evaluation_noise({policy: own.integer("acting", number) for number, policy in enumerate(policies.values())}):
        for number in range(min(factory.num_agents, episodes)):
            agent = factory.make(number, lambda name: _communicator(name, policies[name], factory), helper=_Spectator)
            quota = episodes // factory.num_agents + (number < episodes % factory.num_agents)
            with closing(agent.env):
                for _ in range(_PATIENCE * quota):
                    if len(agent.env.finished) < quota:
                        agent.run_one_episode()
            if len(agent.env.finished) < quota:
                raise AgentError(f"run_one_episode returned {_PATIENCE * quota} times, most before its episode's end")
            finished += agent.env.finished[:quota]
    seeds = [factory.lane_seed(number, 0) for number in range(factory.num_agents)]
    return evaluation_of(finished, seeds, deterministic=True)


def _communicator(name: str, policy: Policy, factory: AgentFactory) -> Communicator:
    spec = factory.specs[name].input_spec

    def send(kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        continue_evaluation()
        answer: Future[Any] = Future()
        answer.set_result(act(policy, pack([payload], spec), phase=Phase.EVAL) if kind == "predict" else None)
        return answer

    return Communicator(0, name, send)
