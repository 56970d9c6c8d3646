"""`ComputationTask`: one algorithm of a robot, with inputs, data and a clock of its own."""

import copy
import functools
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from palaestra.algorithms import Algorithm, UpdateInfo
from palaestra.buffers import ReplayBuffer, Sampler, Unroll, sampler_of
from palaestra.core import Batch, ConfigError, NonFiniteError, SpecTree, StepType, TensorSpec, TimeStep
from palaestra.core.plan import Offline, OnPolicy, Plan, Replay
from palaestra.policies import Phase, Policy, RandomPolicy

__all__ = ["ComputationTask", "TaskSpec"]

LearningMode: TypeAlias = Literal["store", "background", "agent"]
"""What makes a task learn: `store_data`, which waits for it; the same without waiting; or the agent, by `learn`."""
_MOST_STATES = 3  # kept of updates that were not finite, until these are asked for


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What an agent's helper has to know of a task; it can be sent to another process."""

    name: str
    """Of the task."""
    observation_spec: SpecTree
    """Of the inputs of one prediction."""
    raw_action_spec: SpecTree
    """Of an action as the policy samples it."""
    action_spec: SpecTree
    """Of an action as it is carried out."""
    state_spec: Any
    """Of the policy's hidden state; `()` without."""
    info_spec: Mapping[str, TensorSpec]
    """Of what the buffer keeps about how actions were chosen."""
    reward_spec: TensorSpec
    """Spec of a reward."""
    plan: Plan
    """The data that the algorithm wants."""
    learning: LearningMode
    """What makes it learn."""
    period_steps: int | None
    """Env steps from one prediction to the next."""
    helper: type[Any] | None = None
    """The class of agents' helpers, where it is not one of the library's."""

    @property
    def input_spec(self) -> dict[str, Any]:
        """Spec of one request row."""
        inputs: dict[str, Any] = {"observation": self.observation_spec, "step_type": TensorSpec((), torch.int32)}
        return inputs | ({"state": dict(self.state_spec)} if self.state_spec else {})


def act(
    policy: Policy, inputs: Batch, *, phase: Phase, fields: Sequence[str] = (), random: RandomPolicy | None = None
) -> Any:
    """What a policy says about packed inputs; nothing of it carries a gradient.

    Args:
        policy: chooses.
        inputs: [N, ...], see `TaskSpec.input_spec`.
        phase: what the actions are for; `EVAL` takes the most probable or most valuable ones.
        fields: of the policy's `behaviour`, to be stored.
        random: chooses instead, where nothing was learned yet.

    Returns:
        `action` and `env_action` [N, ...], `state`, `info` with the fields, and `version` [N].
    """
    state = inputs.get("state", ())
    time_step = TimeStep(step_type=inputs.step_type, observation=inputs.observation)
    with torch.no_grad():
        step = policy.act(time_step, state, phase=phase, deterministic=phase is Phase.EVAL)
        if random is not None:
            step = random.instead(policy, time_step, step)
        info = Batch()
        if fields:
            hidden = (state, time_step.first) if policy.state_spec else ()
            info = policy.behaviour(inputs.observation, step.action, *hidden)
        return {
            "action": step.action,
            "env_action": policy.env_action(step.action),
            "state": step.state,
            "info": Batch.of({name: info[name].detach() for name in fields}),
            "version": torch.full((len(inputs.step_type),), policy.version),
        }


class ComputationTask:
    """One algorithm of a robot. What needs a common gradient is one task; between tasks there is none.

    Args:
        algorithm: what is learned and how, with its model; passing the same model to two tasks shares it.
        period_steps: env steps from one prediction to the next; `None` is once an episode, and whenever the agent
            asks (on an event).
        learning: what makes it learn.
        sampler: chooses rows of the replay buffer (`HindsightSampler`, say); by default as the plan says.
        sync_every_updates: predictions come from a reference copy of the policy, which takes the weights over after so
            many updates; by default they come from the policy itself.
        reward_spec: of its rewards; a number by default.
        helper: an `AgentHelper` of your own; by default as the plan says.

    Raises:
        ConfigError: the algorithm learns from loaded data, or a number is below 1.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        *,
        period_steps: int | None = 1,
        learning: LearningMode = "store",
        sampler: Sampler | None = None,
        sync_every_updates: int | None = None,
        reward_spec: TensorSpec | None = None,
        helper: type[Any] | None = None,
    ) -> None:
        for name, value in (("period_steps", period_steps), ("sync_every_updates", sync_every_updates)):
            if value is not None and value < 1:
                raise ConfigError(f"ComputationTask({name}={value}): give at least 1, or None")
        plan, name = algorithm.plan, type(algorithm).__name__
        if isinstance(plan, Offline):
            raise ConfigError(f"{name} learns from loaded data, but a robot's tasks learn from what its agents store")
        if isinstance(plan, Replay) and (stored := ", ".join(algorithm.stored_fields)):
            raise ConfigError(f"{name} replays {stored}, which a robot's buffer does not keep")
        if plan.unroll_length != int(plan.unroll_length) or (isinstance(plan, OnPolicy) and not plan.clear):
            raise ConfigError(f"a robot's task learns after whole numbers of new rows, which {plan} does not ask for")
        self.algorithm, self.period_steps = algorithm, period_steps
        self.learning: LearningMode = learning
        self.sampler, self.reward_spec, self.helper = sampler, reward_spec or TensorSpec(()), helper
        self.sync_every_updates = sync_every_updates
        self.lock: AbstractContextManager[Any] = threading.RLock()
        """Held while the model is used; tasks that share parameters share it."""
        self.buffer: ReplayBuffer | None = None
        """Of an algorithm that replays; a lane for each agent."""
        self.rows_stored = 0
        """Rows that agents stored for replay."""
        self.predictions = 0
        """Rows predicted."""
        self.updates: list[UpdateInfo | NonFiniteError] = []
        """What was learned since it was last asked for."""
        policy = algorithm.policy
        self._fields = tuple(name for name in policy.behaviour_fields if name in algorithm.stored_fields)
        self._reference = None if sync_every_updates is None else copy.deepcopy(policy)
        if self._reference is not None:
            self._reference.exploration = policy.exploration  # which follows schedules
        self._data_lock, self._reference_lock = threading.Lock(), threading.RLock()
        self._since_sync = 0

    # -- what it is made of

    @property
    def plan(self) -> Plan:
        """The data that the algorithm wants."""
        return self.algorithm.plan

    def spec(self, name: str) -> TaskSpec:
        """What helpers have to know.

        Args:
            name: of the task.
        """
        policy = self.algorithm.policy
        return TaskSpec(
            name=name,
            observation_spec=policy.whole_spec,
            raw_action_spec=policy.raw_action_spec,
            action_spec=policy.action_spec,
            state_spec=policy.state_spec,
            info_spec={field: TensorSpec(()) for field in self._fields},
            reward_spec=self.reward_spec,
            plan=self.plan,
            learning=self.learning,
            period_steps=self.period_steps,
            helper=self.helper,
        )

    def make_buffer(self, num_agents: int) -> None:
        """Makes the replay buffer, if the plan wants one: each agent writes a lane of its own.

        Args:
            num_agents: how many.
        """
        if not isinstance(self.plan, Replay):
            return
        policy, plan = self.algorithm.policy, self.plan
        self.buffer = ReplayBuffer(
            plan.capacity_for(num_agents),
            num_agents,
            sampler=self.sampler or sampler_of(plan),
            observation_spec=policy.whole_spec,
            action_spec=policy.raw_action_spec,
            reward_spec=self.reward_spec,
            state_spec=policy.state_spec or None,
            state_period=plan.mini_batch_length,
        )

    # -- predict, store, learn, sync

    @property
    def acting_policy(self) -> Policy:
        """The policy that predictions come from: the reference copy, where there is one."""
        return self.algorithm.policy if self._reference is None else self._reference

    @functools.cached_property
    def _random(self) -> RandomPolicy:
        return RandomPolicy.of_raw_actions(self.algorithm.policy)

    @property
    def acts_randomly(self) -> bool:
        """Whether nothing can have been learned yet, so that chance explores best."""
        return isinstance(self.plan, Replay) and self.rows_stored < self.plan.learning_starts

    def predict(self, inputs: Batch) -> dict[str, Any]:
        """One forward pass for all requests.

        Args:
            inputs: [N, ...], see `TaskSpec.input_spec`.

        Returns:
            See `act`.
        """
        with self.lock if self._reference is None else self._reference_lock:
            self.predictions += len(inputs.step_type)
            random = self._random if self.acts_randomly else None
            return act(self.acting_policy, inputs, phase=Phase.COLLECT, fields=self._fields, random=random)

    def store(self, agent: int, action: Any, time_step: TimeStep, version: int = 0, state: Any = None) -> None:
        """Appends a row to an agent's lane of the replay buffer, or opens it.

        Args:
            agent: whose.
            action: [1, ...] that completes the open row; `None` begins a stream.
            time_step: [1] that followed.
            version: of the policy that acted.
            state: the hidden state that it acted with.
        """
        buffer = self.buffer
        if buffer is None:
            raise ConfigError(f"{type(self.algorithm).__name__} keeps no replay buffer, or no robot uses it yet")
        with self._data_lock:
            if action is None:
                buffer.open(time_step, [agent])
            else:
                buffer.append(action, time_step, policy_version=version, state=state, env_id=[agent])
                self.rows_stored += 1

    def to(self, device: torch.device | str) -> None:
        """Moves the algorithm to a device, and the reference copy.

        Args:
            device: see `Algorithm.to`.
        """
        self.algorithm.to(device)
        if self._reference is not None:
            self._reference.to(self.algorithm.device)

    def learn(self, unrolls: Sequence[Unroll | None]) -> dict[str, float] | None:
        """One update of the algorithm on what agents have sent, or stored.

        Args:
            unrolls: one from each agent that asks; `None` where they store for replay.

        Returns:
            The metrics of the update; `None` where too little is stored, or its gradient was not finite.
        """
        with self.lock:
            if self.buffer is None:
                return [self._update(PackedUnrolls(group)) for group in self._groups(unrolls)][-1]
            lanes = self.buffer.num_lanes
            if not self.plan.may_learn(env_steps=self.rows_stored, new_rows=self.rows_stored, num_lanes=lanes):
                return None
            return self._update(LockedBuffer(self.buffer, self._data_lock))

    def sync(self) -> None:
        """Gives the reference copy the weights as they are now."""
        with self.lock, self._reference_lock:
            if self._reference is not None:
                self._reference.load_state_dict(self.algorithm.policy.state_dict())
                self._reference.version = self.algorithm.policy.version
            self._since_sync = 0

    def _update(self, source: Any) -> dict[str, float] | None:
        try:
            info = self.algorithm.update(source)
        except NonFiniteError as error:
            if sum(isinstance(one, NonFiniteError) for one in self.updates) < _MOST_STATES:
                error.state = copy.deepcopy(self.algorithm.state_tensors())
            self.updates.append(error)
            return None
        self.updates.append(info)
        self._since_sync += 1
        if self.sync_every_updates is not None and self._since_sync >= self.sync_every_updates:
            self.sync()
        return info.metrics

    def _groups(self, unrolls: Sequence[Any]) -> list[list[Unroll]]:
        """All unrolls together; where a policy remembers, only those of equal length."""
        if not self.algorithm.policy.state_spec:
            return [list(unrolls)]
        lengths = sorted({len(unroll.valid) for unroll in unrolls})
        return [[unroll for unroll in unrolls if len(unroll.valid) == length] for length in lengths]

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """What predicting and learning depend on besides algorithm and buffer."""
        state: dict[str, Any] = {"rows_stored": self.rows_stored, "since_sync": self._since_sync}
        if self._reference is not None:
            state["reference"] = dict(self._reference.state_dict()) | {"version": self._reference.version}
            state["generator"] = self._reference.generator.get_state()
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Args:
            state: of an equal task.
        """
        self.rows_stored, self._since_sync = int(state["rows_stored"]), int(state["since_sync"])
        if self._reference is not None:
            weights = dict(state["reference"])
            self._reference.version = int(weights.pop("version"))
            self._reference.load_state_dict(weights)
            self._reference.load_generator_state(state["generator"])


class PackedUnrolls:
    """Unrolls of several agents side by side: a data source. Behind shorter ones come rows that are not valid.

    Args:
        unrolls: of one agent each, [T_i+1, 1, ...].
    """

    def __init__(self, unrolls: Sequence[Unroll]) -> None:
        steps = max(len(unroll.valid) for unroll in unrolls)
        padded = [_padded(unroll, steps - len(unroll.valid)) for unroll in unrolls]
        self._unroll: Unroll = padded[0].map(lambda *leaves: torch.cat(leaves, 1), *padded[1:])

    def draw(self, plan: Plan, generator: torch.Generator) -> Unroll:
        """All of it.

        Args:
            plan: of the algorithm.
            generator: nothing is drawn.
        """
        return self._unroll

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Unrolls have no priorities.

        Args:
            indices: ignored.
            priority: ignored.
        """


def _padded(unroll: Unroll, steps: int) -> Unroll:
    """So many more steps behind, copies of the last that are not valid, and FIRST unless it is LAST."""
    if not steps:
        return unroll

    def pad(leaf: Tensor) -> Tensor:
        return torch.cat([leaf, leaf[-1:].expand(steps, *leaf.shape[1:])])

    longer = unroll.map(pad)
    longer.valid[-steps:] = 0
    behind = longer.step_type[-steps:]
    behind[behind != StepType.LAST] = int(StepType.FIRST)
    return longer


class LockedBuffer:
    """A replay buffer that is drawn from while agents write to it.

    Args:
        buffer: what is drawn from.
        lock: held while that happens.
    """

    def __init__(self, buffer: ReplayBuffer, lock: AbstractContextManager[Any]) -> None:
        self._buffer, self._lock = buffer, lock

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """Sequences or windows; see `ReplayBuffer.draw`.

        Args:
            plan: what the algorithm wants.
        """
        with self._lock:
            return self._buffer.draw(plan, generator)

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Priorities for the buffer's sampler.

        Args:
            indices: of the batch.
            priority: one for each.
        """
        with self._lock:
            self._buffer.write_back(indices, priority)
