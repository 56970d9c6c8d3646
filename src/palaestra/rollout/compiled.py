"""`CompiledStep`: acting and stepping as one graph, where the environments are tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor

from palaestra.core import Batch, TimeStep
from palaestra.envs import Environment, TensorEnvironment
from palaestra.envs.tensor import LaneTensors
from palaestra.nn import compiled_method
from palaestra.policies import Policy, StochasticPolicy

__all__ = ["CompiledStep"]


class _Given(NamedTuple):
    """What a step depends on, besides weights."""

    lanes: LaneTensors
    observation: Tensor
    noise: Tensor
    """Of `Categorical.noise` or `DiagonalGaussian.noise`."""


@final
class CompiledStep:
    """A policy draws actions and a `TensorEnvironment` executes them, in one compiled graph without Python between.

    The same functions are compiled that act and step otherwise, and the same random numbers are drawn, so actions are
    the same, and observations up to rounding.

    Args:
        env: where to act.
        policy: how to act.
    """

    def __init__(self, env: TensorEnvironment, policy: StochasticPolicy) -> None:
        self.env, self.policy = env, policy
        self._graph: Callable[[Any], Any] | None = None
        self._attributes = env.given_attributes

    @classmethod
    def of(cls, env: Environment, policy: Policy) -> Self | None:
        """For a policy without memory and exploration that draws from one distribution, in environments of tensors.

        Args:
            env: where to act.
            policy: how to act.

        Returns:
            `None` where either is something else.
        """
        if not isinstance(env, TensorEnvironment) or not isinstance(policy, StochasticPolicy):
            return None
        own = type(policy).choose is not StochasticPolicy.choose
        if own or policy.state_spec or policy.exploration is not None or policy.device.type != env.device.type:
            return None
        observation = torch.zeros(1, *policy.observation_spec.shape, device=policy.device)
        return cls(env, policy) if hasattr(policy.distribution(observation), "sample_from") else None

    def unroll(self, time_step: TimeStep, rows: int, stop: Callable[[], bool]) -> tuple[Batch, TimeStep]:
        """Acts and steps.

        Args:
            time_step: the newest one of every lane.
            rows: steps.
            stop: asked before each step; ends the unroll early.

        Returns:
            What `ReplayBuffer.extend` takes: fields of time steps [T+1, B, ...], `action`, `policy_info` and
            `policy_version` [T, B, ...], or an empty batch where it was stopped at once; and the newest time step.
        """
        env, generator = self.env, self.policy.generator
        if env.given_attributes is not self._attributes:  # which the graph has as constants
            self._graph, self._attributes = None, env.given_attributes
        drawn = self.policy.distribution(time_step.observation)  # whose noise depends on its shape alone
        fields = [(*time_step[:5],)]
        actions: list[tuple[Tensor, Tensor]] = []
        lanes, observation, step = env.lanes, time_step.observation, self._graph
        while len(actions) < rows and not stop():
            given = _Given(lanes, observation, drawn.noise(generator))
            if step is None:
                step = self._graph = compiled_method(self, CompiledStep._step, given)
            lanes, acted, after = step(given)
            observation = after[3]
            actions.append(acted)
            fields.append(after)
        env.lanes = lanes
        newest = TimeStep(*fields[-1], env_id=time_step.env_id)
        if not actions:
            return Batch(), newest
        columns = zip(TimeStep._fields, zip(*fields, strict=True), strict=False)
        action, log_prob = (torch.stack(column) for column in zip(*actions, strict=True))
        version = torch.full((len(actions), env.batch_size), self.policy.version, dtype=torch.int32)
        acted = {"action": action, "policy_info": Batch.of({"log_prob": log_prob}), "policy_version": version}
        return Batch.of({name: torch.stack(column) for name, column in columns} | acted), newest

    def _step(self, given: _Given) -> tuple[LaneTensors, tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        """One graph."""
        distribution = self.policy.distribution(given.observation)
        action = distribution.sample_from(given.noise)
        lanes, fields = self.env.advanced(given.lanes, self.policy.env_action(action))
        return lanes, (action, distribution.log_prob(action)), fields
