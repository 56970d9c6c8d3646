"""Robots for tests."""

import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

from palaestra.algorithms import ALGORITHMS, AlgorithmConfig
from palaestra.core import RunSeeds
from palaestra.envs import SingleEnvironment, load
from palaestra.robots import Agent, Communicator, ComputationTask, Robot, RobotCollector, RobotConfig
from palaestra.rollout import pack

QUICK = RobotConfig(max_wait_s=20.0, learn_max_wait_s=20.0, timeout_s=20.0, steps_per_iteration=10)
"""Batches close when nobody else can ask: so results do not depend on time."""


class OneTaskAgent(Agent):
    """The plain loop of one task."""

    def run_one_episode(self) -> None:
        act = self.helpers["policy"]
        step = self.env.reset()
        while not step.last:
            step = self.env.step(act.predict(step))
            act.store_data(step)


@dataclass(frozen=True, kw_only=True)
class OneTaskConfig(AlgorithmConfig):
    """Which algorithm."""

    name: str = "dqn"
    settings: tuple[tuple[str, Any], ...] = ()


class OneTaskRobot(Robot):
    """A robot of one task with any algorithm of the library."""

    config_class = OneTaskConfig
    agent_class = OneTaskAgent
    task_settings: ClassVar[dict[str, Any]] = {}

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        kind = ALGORITHMS[self.config.name]
        settings = kind.config_class(**dict(self.config.settings))
        algorithm = kind(self.observation_spec, self.action_spec, settings, seeds)
        return {"policy": ComputationTask(algorithm, **self.task_settings)}


class GoalRobot(Robot):
    """One task with continuous actions and nested observations."""

    agent_class = OneTaskAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        algorithm = ALGORITHMS["a2c"](self.observation_spec, self.action_spec, seeds=seeds)
        return {"policy": ComputationTask(algorithm)}


def env_maker(name: str, *, limit: int | None = None, **kwargs: Any) -> Callable[[int], SingleEnvironment]:
    """Makes an environment for each agent; can be sent to another process."""
    return functools.partial(_env, name, limit, kwargs)


def _env(name: str, limit: int | None, kwargs: dict[str, Any], number: int) -> SingleEnvironment:
    return load(name, env_id=number, max_episode_steps=limit, kwargs=kwargs)


def robot_of(
    kind: type[Robot], make_env: Callable[[int], SingleEnvironment], config: Any = None, seed: int = 0
) -> Robot:
    env = make_env(0)
    return kind(env.observation_spec, env.action_spec, config, RunSeeds(seed))


def collector_of(
    robot: Robot, make_env: Callable[[int], SingleEnvironment], num_agents: int = 1, **settings: Any
) -> Any:
    attributes = {name: settings.pop(name) for name in ("on_fault", "max_restarts") if name in settings}
    collector = RobotCollector(robot, make_env, num_agents, **{"config": QUICK, **settings})
    for name, value in attributes.items():
        setattr(collector, name, value)
    return collector


class Ticks:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.env_steps = self.episodes = 0

    def wait(self) -> None:
        """Nobody is kept."""


class ToyCommunicator(Communicator):
    """Straight to a task, without servers; counts what is asked."""

    def __init__(self, task: ComputationTask, agent_id: int = 0) -> None:
        self.task, self.asked, self.sent = task, [], []
        self._agent, self._spec = agent_id, task.spec("task")

    def predict(self, inputs: Any) -> Any:
        self.asked.append("predict")
        return self.task.predict(pack([inputs], self._spec.input_spec))

    def learn(self, data: Any) -> Any:
        self.asked.append("learn")
        self.sent.append(data)
        return self.task.learn([data])

    def learn_later(self, data: Any) -> Future[Any]:
        later: Future[Any] = Future()
        later.set_result(self.learn(data))
        return later

    def finish(self, answer: Future[Any]) -> Any:
        return answer.result()

    def store(self, row: Any) -> None:
        self.task.store(self._agent, *row)
