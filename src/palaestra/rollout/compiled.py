"""`CompiledStep`: acting and stepping as one graph, where the environments are tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor

from palaestra.core import Batch, ConfigError, TensorSpec, TimeStep
from palaestra.envs import Environment, TensorEnvironment
from palaestra.envs.tensor import LaneTensors
from palaestra.nn import compiled_method
from palaestra.policies import NetworkPolicy, Policy

__all__ = ["CompiledStep"]


class _Given(NamedTuple):
    """What a step depends on, besides weights."""

    lanes: LaneTensors
    observation: Tensor
    noise: Tensor
    """Of `NetworkPolicy.acting_noise`."""


@final
class CompiledStep:
    """A policy draws actions and a `TensorEnvironment` executes them, in one compiled graph without Python between.

    The same functions are compiled that act and step otherwise, and the same random numbers are drawn, so actions are
    the same, and observations up to rounding.

    Args:
        env: where to act.
        policy: how to act.
    """

    def __init__(self, env: TensorEnvironment, policy: NetworkPolicy) -> None:
        self.env, self.policy = env, policy
        self._graph: Callable[[Any], Any] | None = None
        self._attributes = env.given_attributes

    @classmethod
    def of(cls, env: Environment, policy: Policy) -> Self | None:
        """For a policy that can act with random numbers drawn before, in environments of tensors.

        Args:
            env: where to act.
            policy: how to act.

        Returns:
            `None` where either is something else.
        """
        if not isinstance(env, TensorEnvironment) or not isinstance(policy, NetworkPolicy):
            return None
        if policy.device.type != env.device.type or not isinstance(policy.observation_spec, TensorSpec):
            return None
        zeros = torch.zeros(1, *policy.observation_spec.shape, dtype=policy.observation_spec.dtype, device=env.device)
        return None if policy.acting_noise(zeros) is None else cls(env, policy)

    def unroll(self, time_step: TimeStep, rows: int, stop: Callable[[], bool]) -> tuple[Batch, TimeStep]:
        """Acts and steps.

        Args:
            time_step: the newest one of every lane.
            rows: steps.
            stop: asked before each step; ends the unroll early.

        Returns:
            What `ReplayBuffer.extend` takes: fields of time steps [T+1, B, ...], `action`, `policy_info` and
            `policy_version` [T, B, ...], or an empty batch where it was stopped at once; and the newest time step.

        Raises:
            ConfigError: the policy has another exploration by now, with which it cannot act so.
        """
        env = self.env
        if env.given_attributes is not self._attributes:  # which the graph has as constants
            self._graph, self._attributes = None, env.given_attributes
        draw = self.policy.acting_noise(time_step.observation)
        if draw is None:
            raise ConfigError(
                "the policy's exploration has changed since collector.compile(); compile before, or after"
            )
        fields = [(*time_step[:5],)]
        actions: list[Tensor] = []
        behaviour: list[dict[str, Tensor]] = []
        lanes, observation, step = env.lanes, time_step.observation, self._graph
        while len(actions) < rows and not stop():
            given = _Given(lanes, observation, draw())
            if step is None:
                step = self._graph = compiled_method(self, CompiledStep._step, given)
            lanes, action, described, after = step(given)
            observation = after[3]
            actions.append(action)
            behaviour.append(described)
            fields.append(after)
        env.lanes = lanes
        newest = TimeStep(*fields[-1], env_id=time_step.env_id)
        if not actions:
            return Batch(), newest
        columns = zip(TimeStep._fields, zip(*fields, strict=True), strict=False)
        version = torch.full((len(actions), env.batch_size), self.policy.version, dtype=torch.int32)
        acted: dict[str, Any] = {"action": torch.stack(actions), "policy_version": version}
        if behaviour[0]:
            acted["policy_info"] = Batch.of({key: torch.stack([b[key] for b in behaviour]) for key in behaviour[0]})
        return Batch.of({name: torch.stack(column) for name, column in columns} | acted), newest

    def _step(self, given: _Given) -> tuple[LaneTensors, Tensor, dict[str, Tensor], tuple[Tensor, ...]]:
        """One graph."""
        action, described = self.policy.act_with(given.observation, given.noise)
        lanes, fields = self.env.advanced(given.lanes, self.policy.env_action(action))
        return lanes, action, described, fields
