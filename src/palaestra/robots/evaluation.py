"""Evaluation of robots: episodes of one agent whose tasks neither explore nor learn."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, final

from palaestra.core import ConfigError, TimeStep
from palaestra.policies import Phase, Policy
from palaestra.robots.agent import AgentError, AgentFactory
from palaestra.robots.helpers import AgentHelper
from palaestra.robots.serving import Communicator, Kind
from palaestra.robots.task import act
from palaestra.rollout import Evaluation, evaluation_noise, evaluation_of, pack

__all__ = ["evaluate_robot"]

_PATIENCE = 10


@final
class _Spectator(AgentHelper):
    """Asks and stores nothing."""

    def open_stream(self, row: TimeStep) -> None:
        """Nothing is stored."""

    def append(self, choice: Any, row: TimeStep, state: Any) -> None:
        """Nothing is stored."""

    def learn(self) -> None:
        """Nothing is learned."""

    def learning_data(self) -> None:
        """Nothing is sent."""


def evaluate_robot(
    factory: AgentFactory, policies: Mapping[str, Policy], *, episodes: int = 20, generator_seed: int = 0
) -> Evaluation:
    """Runs episodes of one agent after another, in the calling thread.

    Args:
        factory: makes the agents; each plays an equal share of the episodes.
        policies: of the tasks, by name; they act in `Phase.EVAL`.
        episodes: how many.
        generator_seed: of the policies' noise where they sample.

    Raises:
        ConfigError: a task has no policy.
        AgentError: agents return again and again before their episode has ended.
    """
    if missing := sorted(set(factory.specs) - set(policies)):
        raise ConfigError(f"the tasks {missing} have no policy to evaluate; given are {sorted(policies)}")
    finished = []
    with evaluation_noise(dict.fromkeys(policies.values(), generator_seed)):
        for number in range(min(factory.num_agents, episodes)):
            agent = factory.make(number, lambda name: _communicator(name, policies[name], factory), helper=_Spectator)
            quota = episodes // factory.num_agents + (number < episodes % factory.num_agents)
            for _ in range(_PATIENCE * quota):
                if len(agent.env.finished) < quota:
                    agent.run_one_episode()
            if len(agent.env.finished) < quota:
                raise AgentError(f"run_one_episode returned {_PATIENCE * quota} times, most before its episode's end")
            finished += agent.env.finished[:quota]
            agent.env.env.close()
    seeds = [factory.lane_seed(number, 0) for number in range(factory.num_agents)]
    return evaluation_of(finished, seeds, deterministic=True)


def _communicator(name: str, policy: Policy, factory: AgentFactory) -> Communicator:
    spec = factory.specs[name].input_spec

    def send(kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(act(policy, pack([payload], spec), phase=Phase.EVAL) if kind == "predict" else None)
        return answer

    return Communicator(0, name, send)
