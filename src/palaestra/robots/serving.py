"""A task served to many agents: `ComputationWrapper`, and the `Communicator` by which an agent asks it."""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from palaestra.core import AtLeastOne, Duration, Limit, require_ranges
from palaestra.robots.task import ComputationTask
from palaestra.rollout import Clients, InferenceServer, RequestError

__all__ = ["Communicator", "ComputationWrapper", "Kind", "RobotConfig"]

_WAITS = 20  # that a deadline is made of: time in which the whole process was stopped counts for one of them at most

Kind: TypeAlias = Literal["predict", "learn", "learn_later", "await", "store"]
"""What is asked for. `learn_later` is `learn` by an agent that does not wait; by `await` it says that it does now."""


Send: TypeAlias = Callable[[Kind, int, Any], Future[Any]]
"""Hands a request to a task, here or in another process, without waiting: what for, the agent, what the task gets."""


class Communicator:
    """Sends an agent's requests to one task and brings back the answers to them.

    Args:
        agent_id: that asks.
        name: of the task, for messages.
        send: hands requests over: `ComputationWrapper.submit`, or the way to another process.
        timeout_s: seconds after which an answer that has not come is an error.
    """

    def __init__(self, agent_id: int, name: str, send: Send, *, timeout_s: float = 60.0) -> None:
        self.agent_id, self.name, self.timeout_s = agent_id, name, timeout_s
        self._send = send

    def predict(self, inputs: Any) -> Any:
        """Waits for a prediction.

        Args:
            inputs: [n, ...] as the task's input spec says.

        Raises:
            RequestError: the prediction failed, the task has stopped, or the answer did not come in time.
        """
        return self.wait(self._send("predict", self.agent_id, inputs), "a prediction")

    def learn(self, data: Any) -> Any:
        """Waits until the task has learned.

        Args:
            data: what it learns from; `None` where it is stored already.

        Raises:
            RequestError: see `predict`.
        """
        return self.wait(self._send("learn", self.agent_id, data), "learning")

    def learn_later(self, data: Any) -> Future[Any]:
        """Asks the task to learn and does not wait.

        Args:
            data: see `learn`.
        """
        return self._send("learn_later", self.agent_id, data)

    def finish(self, answer: Future[Any]) -> Any:
        """Waits for what was asked by `learn_later`.

        Args:
            answer: to come.

        Raises:
            RequestError: see `predict`.
        """
        if not answer.done():
            self._send("await", self.agent_id, None)
        return self.wait(answer, "learning")

    def store(self, row: Any) -> None:
        """Hands over a row for replay.

        Args:
            row: the arguments of `ComputationTask.store` after the agent.
        """
        self._send("store", self.agent_id, row)

    def wait(self, answer: Future[Any], what: str) -> Any:
        """The answer to a request.

        Args:
            answer: to come.
            what: it is, for the message.

        Raises:
            RequestError: it failed, or did not come in time.
        """
        for _ in range(_WAITS):
            try:
                return answer.result(self.timeout_s / _WAITS)
            except FutureTimeout:
                continue
        raise RequestError(
            f"agent {self.agent_id} waited {self.timeout_s:g} s for {what} of the task {self.name!r} in vain"
        )


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    """How a robot's agents are served; there are as many agents as environments."""

    max_batch_size: AtLeastOne[int] = 256
    """Requests in a batch at most."""
    max_wait_s: Duration[float] = 0.005
    """Seconds that predictions wait for more requests."""
    learn_min_batch_size: AtLeastOne[int | None] = None
    """Requests to learn that close a batch; by default those of all agents."""
    learn_max_wait_s: Duration[float] = 0.1
    """Seconds that requests to learn wait for more of them."""
    timeout_s: Limit[float] = 60.0
    """Seconds after which an agent that has no answer, or that has not moved, is an error."""
    steps_per_iteration: AtLeastOne[int] = 100
    """Env steps of every agent between two times at which the run is logged, evaluated and saved."""

    def __post_init__(self) -> None:
        require_ranges(self, "robot.")


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
        ...     communicator = wrapper.create_communicator(0)
        ...     answer = communicator.predict({"observation": [[0.0, 0.0]], "step_type": [0]})
        >>> answer["action"].shape
        torch.Size([1])
    """

    def __init__(
        self, name: str, task: ComputationTask, config: RobotConfig | None = None, *, clients: Clients | None = None
    ) -> None:
        config = config or RobotConfig()
        self.name, self.task, self.config = name, task, config
        self.clients = clients or Clients()
        self._spec = task.spec(name)
        self._later: dict[int, Future[Any]] = {}  # the newest `learn_later` of each agent
        self.prediction = InferenceServer(
            lambda inputs: task.predict(inputs),
            self._spec.input_spec,
            max_batch_size=config.max_batch_size,
            max_wait_s=config.max_wait_s,
            name=f"prediction of the task {name!r}",
            clients=self.clients,
        )
        """Answers `predict`."""
        self.training = InferenceServer(
            lambda requests: [task.learn(requests)] * len(requests),
            max_batch_size=config.max_batch_size,
            min_batch_size=config.learn_min_batch_size,
            max_wait_s=config.learn_max_wait_s,
            name=f"learning of the task {name!r}",
            clients=self.clients,
        )
        """Answers `learn`."""

    def create_communicator(self, agent_id: int) -> Communicator:
        """Registers an agent, if none of the robot's wrappers has, and returns its way to this task.

        Args:
            agent_id: its number.
        """
        if agent_id not in self.clients.connected:
            self.clients.connect(agent_id)
        return Communicator(agent_id, self.name, self.submit, timeout_s=self.config.timeout_s)

    def submit(self, kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        """Takes a request; see `Send`.

        Args:
            kind: what for.
            agent_id: that asks.
            payload: inputs, an unroll or a row.
        """
        if kind == "predict":
            return self.prediction.submit(agent_id, payload)
        if kind in ("store", "await"):
            if kind == "store":
                self.task.store(agent_id, *payload)
            else:
                self.clients.absent(+1)  # the agent asks nothing until then
                self._later[agent_id].add_done_callback(lambda _: self.clients.absent(-1))
            done: Future[Any] = Future()
            done.set_result(None)
            return done
        answer = self.training.submit(agent_id, payload, blocks=kind == "learn")
        if kind == "learn_later":
            self._later[agent_id] = answer
        return answer

    def run(self) -> None:
        """Starts both loops."""
        self.prediction.start()
        self.training.start()

    def settle(self) -> None:
        """Waits until nothing is predicted or learned, for agents that have failed, too.

        Raises:
            RequestError: it takes longer than `timeout_s`.
        """
        for server in (self.prediction, self.training):
            if not any(server.idle(self.config.timeout_s / _WAITS) for _ in range(_WAITS)):
                raise RequestError(
                    f"{server.name} has not ended {self.config.timeout_s:g} s (robot.timeout_s) after all agents "
                    "paused or failed; look at what it computes, or give it more time"
                )

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
