"""`Communicator`: an agent's line to one task."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Literal, Protocol, TypeAlias

from palaestra.rollout import RequestError

__all__ = ["Communicator", "Kind", "Send"]

_WAITS = 20  # that a deadline is made of: time in which the whole process was stopped counts for one of them at most

Kind: TypeAlias = Literal["predict", "learn", "learn_later", "await", "store"]
"""What is asked for. `learn_later` is `learn` by an agent that does not wait; by `await` it says that it does now."""


class Send(Protocol):
    """Hands a request to a task, wherever it is."""

    def __call__(self, kind: Kind, agent_id: int, payload: Any) -> Future[Any]:
        """Asks without waiting.

        Args:
            kind: what for.
            agent_id: who asks.
            payload: what the task gets.
        """
        ...


class Communicator:
    """Sends an agent's requests to one task and brings back its own answers, and nobody else's.

    Args:
        agent_id: who asks.
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
