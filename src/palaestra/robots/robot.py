"""`Robot`: several computation tasks, built bottom-up, and the agent that uses them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch

from palaestra.algorithms import Algorithm, AlgorithmConfig, UpdateInfo
from palaestra.core import ConfigError, DataSource, NonFiniteError, RunSeeds, SpecTree
from palaestra.envs import SingleEnvironment
from palaestra.robots.agent import Agent, AgentFactory
from palaestra.robots.task import ComputationTask, TaskSpec

__all__ = ["Robot", "task_seeds"]


def task_seeds(seeds: RunSeeds, number: int) -> RunSeeds:
    """The seeds of one of several tasks: those of the run for the first, others for each further one.

    Args:
        number: of the task, from 0.
    """
    return seeds if number == 0 else RunSeeds(seeds.integer("initialisation", number))


class Robot(ABC):
    """Computation tasks in the order in which they run, and the agent class that says how.

    Subclass it: name the agent and write `build`, from the bottom up: models, algorithms on them, tasks of these. To
    share parameters, pass the same object on; to clone, use a factory (`compat.create_algorithm_func`).

    A robot is what a trainer updates: a policy manager whose policies learn when the agents say so.

    Args:
        config: settings, a `config_class`.

    Raises:
        ConfigError: there are no tasks.
    """

    config_class: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """Its settings, which the command line shows as those of an algorithm."""
    agent_class: ClassVar[type[Agent]]
    """What its agents do."""
    unroll_length: float = 100
    """Env steps of every agent in a training iteration; the collector's `steps_per_iteration`."""

    def __init__(
        self, observation_spec: SpecTree, action_spec: SpecTree, config: Any = None, seeds: RunSeeds | None = None
    ) -> None:
        self.observation_spec, self.action_spec = observation_spec, action_spec
        self.config: Any = self.config_class() if config is None else config
        self.tasks = dict(self.build(seeds or RunSeeds(0)))
        """By name, in the order in which they run."""
        if not self.tasks:
            raise ConfigError(f"{type(self).__name__}.build returned no tasks; a robot needs at least one")
        self._share_locks()

    @abstractmethod
    def build(self, seeds: RunSeeds) -> Mapping[str, ComputationTask]:
        """Makes the tasks.

        Args:
            seeds: of the run; `task_seeds` gives those of each task.
        """

    @property
    def specs(self) -> dict[str, TaskSpec]:
        """What helpers have to know of every task."""
        return {name: task.spec(name) for name, task in self.tasks.items()}

    def agents(
        self,
        make_env: Callable[[int], SingleEnvironment],
        num_agents: int,
        *,
        seed: int,
        stream: Literal["environments", "evaluation"] = "environments",
    ) -> AgentFactory:
        """What makes the agents.

        Args:
            make_env: one environment with all its layers, by the agent's number.
            num_agents: how many there are.
            seed: of the run.
            stream: which of its seeds environments have: those of training, or of evaluation.
        """
        return AgentFactory(self.agent_class, self.config, self.specs, make_env, num_agents, seed, stream)

    def to(self, device: torch.device | str) -> Self:
        """Moves every task to a device.

        Args:
            device: see `Algorithm.to`.

        Returns:
            The robot itself.
        """
        for task in self.tasks.values():
            task.to(device)
        return self

    def sync(self) -> None:
        """Gives every reference copy the weights as they are now."""
        for task in self.tasks.values():
            task.sync()

    def _share_locks(self) -> None:
        """Tasks that share a parameter are never computed at the same time."""
        owners: dict[int, list[ComputationTask]] = {}
        for task in self.tasks.values():
            for parameter in task.algorithm.model.parameters():
                owners.setdefault(id(parameter), []).append(task)
        for shared in owners.values():
            joined = {id(task.lock) for task in shared}
            if len(joined) > 1:
                lock = threading.RLock()
                for task in self.tasks.values():
                    if id(task.lock) in joined:
                        task.lock = lock

    # -- a policy manager

    @property
    def algorithms(self) -> dict[str, Algorithm[Any, Any]]:
        """Of the tasks, by name."""
        return {name: task.algorithm for name, task in self.tasks.items()}

    def update(self, sources: Mapping[str, DataSource]) -> dict[str, list[UpdateInfo | NonFiniteError]]:
        """Every update of the tasks since the last call: agents ask for them, not the trainer.

        Args:
            sources: ignored.
        """
        made: dict[str, list[UpdateInfo | NonFiniteError]] = {}
        for name, task in self.tasks.items():
            with task.lock:
                made[name], task.updates = task.updates, []
        return made

    def set_progress(self, progress: float) -> None:
        """Moves everything that follows a schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        for task in self.tasks.values():
            with task.lock:
                task.algorithm.set_progress(progress)
                if task.buffer is not None:
                    task.buffer.set_progress(progress)

    def state(self) -> dict[str, Any]:
        """Everything that tasks know, for a checkpoint; replay buffers are saved beside it."""
        states: dict[str, Any] = {}
        for name, task in self.tasks.items():
            with task.lock:
                states[name] = {"algorithm": task.algorithm.state_tensors(), "task": task.state()}
        return states

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of an equal robot.
        """
        for name, task in self.tasks.items():
            task.algorithm.load_state_tensors(state[name]["algorithm"])
            task.load_state(state[name]["task"])

    def close(self) -> None:  # noqa: B027 - tasks live in this process
        """Frees nothing: tasks live in this process."""
