"""`ComputationWrapper`: serves a task to many agents, with one loop for predictions and one for learning."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from palaestra.core import ConfigError
from palaestra.robots.communicator import Communicator, Kind
from palaestra.robots.task import ComputationTask
from palaestra.rollout import Clients, InferenceServer

__all__ = ["ComputationWrapper", "ServingConfig"]


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """When batches of requests close."""

    max_batch_size: int = 256
    """Requests in a batch at most."""
    max_wait_s: float = 0.005
    """Seconds that predictions wait for more requests."""
    learn_min_batch_size: int | None = None
    """Requests to learn that close a batch; by default those of all agents."""
    learn_max_wait_s: float = 0.1
    """Seconds that requests to learn wait for more of them."""
    timeout_s: float = 60.0
    """Seconds after which an agent that has no answer, or that has not moved, is an error."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ConfigError(f"robot.timeout_s is {self.timeout_s}; it must be greater than 0")


class ComputationWrapper:
    """Runs a task for many agents: a prediction loop and a training loop, each a thread.

    Args:
        name: of the task.
        task: what is served.
        config: when batches close.
        clients: the agents, shared by the wrappers of one robot.

    Examples:
        >>> from palaestra.algorithms import DQN
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> wrapper = ComputationWrapper("act", ComputationTask(DQN(TensorSpec((2,)), DiscreteSpec(num=3))))
        >>> with wrapper:
        ...     line = wrapper.create_communicator(0)
        ...     answer = line.predict({"observation": [[0.0, 0.0]], "step_type": [0]})
        >>> answer["action"].shape
        torch.Size([1])
    """

    def __init__(
        self, name: str, task: ComputationTask, config: ServingConfig | None = None, *, clients: Clients | None = None
    ) -> None:
        config = config or ServingConfig()
        self.name, self.task, self.config = name, task, config
        self.clients = clients or Clients()
        self._spec = task.spec(name)
        self._later: dict[int, Future[Any]] = {}  # the newest `learn_later` of each agent
        self.prediction = InferenceServer(
            task.predict,
            self._spec.input_spec,
            max_batch_size=config.max_batch_size,
            max_wait_s=config.max_wait_s,
            name=f"prediction of the task {name!r}",
            clients=self.clients,
        )
        """Answers `predict`."""
        self.training = InferenceServer(
            self._learn,
            max_batch_size=config.max_batch_size,
            min_batch_size=config.learn_min_batch_size,
            max_wait_s=config.learn_max_wait_s,
            name=f"learning of the task {name!r}",
            clients=self.clients,
        )
        """Answers `learn`."""

    def create_communicator(self, agent_id: int) -> Communicator:
        """Registers an agent, if none of the robot's wrappers has, and gives it a line.

        Args:
            agent_id: its number.
        """
        if agent_id not in self.clients.connected:
            self.clients.connect(agent_id)
        return Communicator(agent_id, self.name, self.submit, timeout_s=self.config.timeout_s)

    def submit(self, kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        """Takes a request; see `communicator.Send`.

        Args:
            kind: what for.
            agent_id: who asks.
            payload: inputs, an unroll or a row.
        """
        if kind == "predict":
            return self.prediction.submit(agent_id, payload)
        if kind == "store":
            self.task.store(agent_id, *payload)
            return _done()
        if kind == "await":
            later = self._later[agent_id]
            self.clients.absent(+1)  # the agent asks nothing until then
            later.add_done_callback(lambda _: self.clients.absent(-1))
            return _done()
        answer = self.training.submit(agent_id, payload, blocks=kind == "learn")
        if kind == "learn_later":
            self._later[agent_id] = answer
        return answer

    def run(self) -> None:
        """Starts both loops."""
        self.prediction.start()
        self.training.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Answers what waits, then ends both loops.

        Args:
            timeout_s: how long each may take.

        Raises:
            RequestError: a computation has not ended by then.
        """
        try:
            self.prediction.stop(timeout_s)
        finally:
            self.training.stop(timeout_s)

    def metrics(self) -> dict[str, float]:
        """Batch sizes, waits and times of both loops so far."""
        predictions, learning = self.prediction.statistics.metrics(), self.training.statistics.metrics()
        return {f"predict/{k}": v for k, v in predictions.items()} | {f"learn/{k}": v for k, v in learning.items()}

    def __enter__(self) -> Self:
        self.run()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _learn(self, requests: list[Any]) -> list[Any]:
        return [self.task.learn(requests)] * len(requests)


def _done() -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(None)
    return done
