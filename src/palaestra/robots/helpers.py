"""`AgentHelper`: an agent's side of one task: what it asks, stores and learns from."""

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any, Protocol, final

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, ConfigError, OnPolicy, SpecTree, StepType, TimeStep, as_array, tree_leaves
from palaestra.envs.contract.nest import flatten, leaf_dtypes, to_batched, unflatten
from palaestra.robots.serving import Communicator
from palaestra.robots.task import TaskSpec

__all__ = ["AgentHelper", "OffPolicyHelper", "OnPolicyHelper"]


class Clock(Protocol):
    """What helpers read the time from: the agent's environment."""

    env_steps: int
    """Actions executed."""
    episodes: int
    """Episodes begun."""

    def wait(self) -> None:
        """Waits while the robot is paused."""
        ...


class AgentHelper(ABC):
    """What an agent does with one task: `predict` blocks, `store_data` may learn, `learn` blocks.

    It belongs to the thread that begins its episodes. A task that is to learn beside the agent has
    `learning="background"`: then it learns in a thread of its own, and pauses with the robot.

    A task sees a stream of time steps, which need not be the environment's: a task that decides every tenth step sees
    the reward of ten. `predict(step)` begins an episode where `step` is FIRST, or none is running, and remembers its
    choice. `store_data(step)` says what came of it; on this very step the next choice is made, if no episode begins.

    Args:
        clock: of the agent.
    """

    def __init__(self, spec: TaskSpec, communicator: Communicator, clock: Clock) -> None:
        self.spec, self.communicator, self.clock = spec, communicator, clock
        self.action: Any = None
        """The newest choice as the policy sampled it, [1, ...]: what another task may store."""
        self.metrics: dict[str, float] | None = None
        """Of the newest update that it waited for."""
        self._choice: Any = None  # the newest answer that was not stored yet
        self._row: TimeStep | None = None  # the newest of the stream, which the next choice belongs to
        self._seen: Any = None  # the observation of the newest prediction
        self._state_before: Any = None
        self._hidden: Any = None
        self._asked = (-1, -1)  # episode and env step of the newest prediction
        self._rows = 0  # stored since learning was last asked for
        self._pending: Future[Any] | None = None
        self._thread: threading.Thread | None = None  # that begins episodes
        self._misuse: ConfigError | None = None

    # -- for agents

    @property
    def due(self) -> bool:
        """Whether the task's period is over since its newest prediction, or an episode has begun."""
        episode, step = self._asked
        if episode != self.clock.episodes:
            return True
        period = self.spec.period_steps
        return period is not None and self.clock.env_steps - step >= period

    def begin(self, time_step: TimeStep) -> None:
        """Begins an episode of this task's stream; `predict` does so for a FIRST step.

        Args:
            time_step: bare; it is FIRST in the stream, whatever it is in the environment.
        """
        self._require_own_thread("begin")
        self._choice, self._hidden = None, None
        self._row = time_step_row(time_step._replace(step_type=StepType.FIRST), self.spec.observation_spec)
        self.open_stream(self._row)

    def predict(self, time_step: TimeStep) -> Any:
        """Asks the task and waits.

        Args:
            time_step: bare; of its fields the observation and the step type count.

        Returns:
            The action, as a bare environment takes it.

        Raises:
            RequestError: the task failed, has stopped, or does not answer.
            AgentStopped: the robot stops.
            ConfigError: another thread uses this helper.
        """
        self._require_own_thread("predict")
        self.clock.wait()
        over = self._row is None or bool(self._row.last)
        if time_step.first or (over and not time_step.last):
            self.begin(time_step)
        row = time_step_row(time_step, self.spec.observation_spec)
        self._seen = row.observation
        inputs: dict[str, Any] = {"observation": row.observation, "step_type": row.step_type}
        if self.spec.state_spec:
            if self._hidden is None:  # a memory begins in its initial state, wherever the environment is
                inputs["step_type"] = torch.full_like(row.step_type, StepType.FIRST)
                self._hidden = {k: torch.zeros(1, *s.shape, dtype=s.dtype) for k, s in self.spec.state_spec.items()}
            self._state_before = inputs["state"] = Batch.of(dict(self._hidden.items()))
        self._choice = answer = self.communicator.predict(inputs)
        self._asked = (self.clock.episodes, self.clock.env_steps)
        self._hidden, self.action = answer["state"], answer["action"]
        return bare_action(answer["env_action"], self.spec.action_spec)

    def store_data(self, time_step: TimeStep, *, action: Any = None) -> None:
        """Stores what came of the newest choice; learns, if the task learns while storing and is due to.

        Args:
            time_step: bare; what followed, with the reward of the choice.
            action: [1, ...] instead of the task's own choice, for a task that only watches; see `ModelTask`.

        Raises:
            ConfigError: nothing was chosen since the last one, or on another observation than that one's; an action is
                given to a task that stores how it chose; or another thread uses this helper.
            RequestError: learning failed.
        """
        self._require_own_thread("store_data")
        if action is not None and (stored := ", ".join(self.spec.info_spec)):
            raise ConfigError(
                f"store_data of the task {self.spec.name!r} was given an action, but its algorithm learns from its own "
                f"choices: it stores their {stored}. Leave the action out; or watch by a ModelTask, or an algorithm "
                "that replays"
            )
        choice = self._choice if action is None else {"action": action, "version": torch.zeros(1, dtype=torch.int64)}
        if choice is None:
            why = "was called without a prediction since the last call; call predict before it, or give the action"
            raise ConfigError(f"store_data of the task {self.spec.name!r} {why}")
        if action is None:
            self.require_seen()
        self._row = time_step_row(time_step, self.spec.observation_spec)
        self.append(choice, self._row, self._state_before)
        self._choice = None
        self._rows += 1
        if self.spec.learning != "agent" and self._rows >= self.spec.plan.unroll_length:  # pyright: ignore[reportAttributeAccessIssue]
            self.learn()

    def learn(self) -> dict[str, float] | None:
        """Asks the task to learn from what is stored, and waits unless it learns in the background.

        Returns:
            The metrics of the update; `None` where there is too little to learn from, or it learns in the background.

        Raises:
            RequestError: learning failed.
            ConfigError: another thread than the agent's calls it.
        """
        if not self._rows:
            return None
        self._require_own_thread("learn")
        self._rows = 0
        self.finish()
        data = self.learning_data()
        if self.spec.learning == "background":
            self._pending = self.communicator.learn_later(data)
            return None
        self.metrics = self.communicator.learn(data)
        return self.metrics

    def finish(self) -> None:
        """Waits for learning in the background.

        Raises:
            RequestError: it failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            self.metrics = self.communicator.finish(pending)

    def _require_own_thread(self, what: str) -> None:
        """Rows that one thread stores while another draws them would be lost, doubled or mixed.

        The agent's own thread is told as well: an error of another one would not end the run.
        """
        here = threading.current_thread()
        self._thread = self._thread or here
        if here is not self._thread:
            self._misuse = ConfigError(
                f"{what} of the task {self.spec.name!r} was called in the thread {here.name!r}, but its helper is for "
                f"the agent's own, {self._thread.name!r}. Give the task learning='background', which learns in another "
                "thread while the agent goes on; or learning='agent', and call learn between the agent's steps"
            )
        if self._misuse is not None:
            raise self._misuse

    def require_seen(self) -> None:
        """Refuses a choice that was made on another observation than that of the row which it would be stored in.

        Raises:
            ConfigError: says what to do.
        """
        if self._row is None:
            return
        pairs = zip(tree_leaves(self._row.observation), tree_leaves(self._seen), strict=True)
        if not all(torch.equal(stored, seen) for stored, seen in pairs):
            raise ConfigError(
                f"predict of the task {self.spec.name!r} was given another observation than its newest row has, which "
                "the action would be stored in. Give predict the step that store_data was given last; or call begin "
                "with the new one before, which begins an episode of the task"
            )

    # -- what the two kinds do with rows

    @abstractmethod
    def open_stream(self, row: TimeStep) -> None:
        """Begins a stream.

        Args:
            row: [1].
        """

    @abstractmethod
    def append(self, choice: Any, row: TimeStep, state: Any) -> None:
        """Completes the newest row.

        Args:
            choice: what the task answered.
            row: [1] that followed.
            state: the hidden state before the choice; `None` without.
        """

    @abstractmethod
    def learning_data(self) -> Any:
        """What goes with a request to learn."""


@final
class OnPolicyHelper(AgentHelper):
    """Keeps the newest rows and sends them away with every request to learn.

    Args:
        clock: of the agent.
    """

    def __init__(self, spec: TaskSpec, communicator: Communicator, clock: Clock) -> None:
        super().__init__(spec, communicator, clock)
        self._buffer = ReplayBuffer(
            None,
            1,
            observation_spec=spec.observation_spec,
            action_spec=spec.raw_action_spec,
            info_spec=spec.info_spec,
            reward_spec=spec.reward_spec,
            state_spec=spec.state_spec or None,
        )

    def open_stream(self, row: TimeStep) -> None:
        self._buffer.open(row)

    def append(self, choice: Any, row: TimeStep, state: Any) -> None:
        buffer = self._buffer
        buffer.append(choice["action"], row, policy_version=int(choice["version"]), state=state)
        if buffer.info_fields:
            buffer.write_info(choice["info"].map(lambda leaf: leaf[None]), 1)

    def learning_data(self) -> Any:
        """A copy of the rows; the next one discards them."""
        unroll = self._buffer.draw(self.spec.plan, torch.default_generator)
        return unroll.map(lambda leaf: leaf.clone())


@final
class OffPolicyHelper(AgentHelper):
    """Hands every row to the task's replay buffer, where this agent has a lane.

    Args:
        clock: of the agent.
    """

    def open_stream(self, row: TimeStep) -> None:
        self.communicator.store((None, row))

    def append(self, choice: Any, row: TimeStep, state: Any) -> None:
        self.communicator.store((choice["action"], row, int(choice["version"]), state))

    def learning_data(self) -> None:
        """Nothing: all is stored already."""


def helper_for(spec: TaskSpec, communicator: Communicator, clock: Clock) -> AgentHelper:
    """The helper that a task names, or that its plan asks for.

    Args:
        clock: of the agent.
    """
    kind = spec.helper or (OnPolicyHelper if isinstance(spec.plan, OnPolicy) else OffPolicyHelper)
    return kind(spec, communicator, clock)


def _row(leaf: Any, dtype: Any) -> np.ndarray:
    """[1, ...] a copy; of tensors without a gradient: nothing differentiable passes from one task to another."""
    return np.array(as_array(leaf), dtype)[None]


def time_step_row(time_step: TimeStep, spec: SpecTree) -> TimeStep:
    """A bare time step with a leading dimension of 1, with its own storage.

    Args:
        time_step: bare.
        spec: of its observation.

    Raises:
        SpecError: an entry of the observation is missing.
    """
    leaves = zip(flatten(time_step.observation, spec), leaf_dtypes(spec), strict=True)
    return TimeStep(
        step_type=torch.tensor([int(time_step.step_type)], dtype=torch.int32),
        reward=torch.from_numpy(_row(time_step.reward, np.float32)),
        discount=torch.tensor([float(time_step.discount)]),
        observation=to_batched([_row(leaf, dtype) for leaf, dtype in leaves], spec),
    )


def bare_action(action: Any, spec: SpecTree) -> Any:
    """The one action of a batch, as a bare environment takes it.

    Args:
        action: tensors [1, ...].
        spec: of the bare action.
    """
    leaves = zip(flatten(action, spec), leaf_dtypes(spec), strict=True)
    return unflatten((np.asarray(leaf[0], dtype)[()] for leaf, dtype in leaves), spec)
