"""Whole unrolls: state values, advantages, running statistics, and the policy that acted."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palaestra import policies
from palaestra.core import Batch, DataSource, SpecTree, StepType
from palaestra.nn import Network, NetworkConfig
from palaestra.ops import Moments, gae, merge, moments_of, standardize, variance

_BatchT = TypeVar("_BatchT", bound=Batch)


class AdvantageBatch(Batch):
    """Rows of an unroll; every field is [T, B, ...], [T, N, ...] or [N, ...]."""

    observation: Any
    action: Any
    advantage: Tensor
    value: Tensor
    """Before the update."""
    value_target: Tensor
    valid: Tensor


@final
class StateValue:
    """What states are worth to a policy: V(x).

    Where the policy encodes its observations (pictures, own encoders, recurrent cells), the value looks at the same
    features and helps to train them, unless an encoder of its own is configured.

    Args:
        policy: whose features are shared.
        config: of the networks; the parts are "policy" and "value".
        shares: whether features may be shared at all.
    """

    def __init__(
        self,
        policy: policies.StochasticPolicy,
        observation_spec: SpecTree,
        config: NetworkConfig,
        *,
        shares: bool = True,
    ) -> None:
        _, layers = config.parts("policy", "value")
        self._policy, self._shares = policy, shares and not config.has_separate_encoders
        if self._shares and policy.splits:
            self.network = Network(policy.feature_spec, 1, layers.on_features())
        else:
            self.network = Network(observation_spec, 1, dataclasses.replace(layers, recurrent=None))

    def __call__(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Tensor:
        """State values.

        Args:
            observation: [..., obs], not yet normalised.
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            [...] in units of return.
        """
        features = self._policy.features(observation, state, first)[0] if self._shares else None
        return self.of(features, observation)

    def of(self, features: Any, observation: Any) -> Tensor:
        """State values, where the policy's features are known already.

        Args:
            features: of the policy.
            observation: [..., obs], not yet normalised; what a value with an encoder of its own looks at.

        Returns:
            [...] in units of return.
        """
        return self.network(features if self._shares else self._policy.normalize(observation)).squeeze(-1)


@torch.no_grad()
def advantages(
    algorithm: Any,
    batch: Any,
    layout: type[_BatchT] = AdvantageBatch,
    unit: Tensor | None = None,
    source: DataSource | None = None,
) -> _BatchT:
    """Adds generalised advantages and value targets to an unroll.

    Args:
        algorithm: has `value`; its configuration says `gamma`, `gae_lambda` and `standardize_advantage`.
        batch: an unroll [T+1, B].
        layout: of what is returned.
        unit: returns that the number 1 of `value` stands for; `None` is 1. Advantages are in units of return, values
            and their targets in those of `value`.
        source: where the unroll came from; ranks that learn from it together share out its lanes by `by_lanes`.

    Returns:
        Fields [T, B, ...] of `AdvantageBatch`, those that `state_of` needs, and `log_prob` where it is stored.
    """
    by_lanes = getattr(source, "by_lanes", None) or _whole
    value = by_lanes(lambda part: algorithm.value(part.observation, *state_of(part)), batch)  # [T+1, B]
    value = value if unit is None else value * unit
    gamma, lambda_ = algorithm.value_of("gamma"), algorithm.value_of("gae_lambda")
    advantage = gae(value, batch.reward, batch.discount, batch.step_type, gamma=gamma, lambda_=lambda_)  # [T, B]
    target = value[:-1] + advantage
    fields = {
        "observation": batch.observation[:-1],
        "action": batch.action,
        "advantage": standardize(advantage, batch.valid) if algorithm.config.standardize_advantage else advantage,
        "value": value[:-1] if unit is None else value[:-1] / unit,
        "value_target": target if unit is None else target / unit,
        "valid": batch.valid,
        **state_fields(batch),
    }
    if "log_prob" in algorithm.stored_fields:
        fields["log_prob"] = batch.policy_info.log_prob
    return layout.of(fields)


def _whole(function: Callable[[Any], Tensor], unroll: Any) -> Tensor:
    return function(unroll)


class RunningMoments(nn.Module):
    """Moments of all numbers so far, as buffers."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "mean", "m2"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @property
    def moments(self) -> Moments:
        """The moments now."""
        return Moments(self.count, self.mean, self.m2)

    @torch.no_grad()
    def merge(self, numbers: Tensor) -> None:
        """Takes numbers into account from now on.

        Args:
            numbers: [N].
        """
        for name, value in merge(self.moments, moments_of(numbers))._asdict().items():
            getattr(self, name).copy_(value)


class ReturnScale(RunningMoments):
    """The standard deviation of all returns so far: the unit of a value that learns returns of about 1."""

    def forward(self) -> Tensor:
        """0-dim, greater than 0; 1 before the first returns."""
        return torch.where(self.count > 0, (variance(self.moments) + 1e-8).sqrt(), 1.0).float()


class _Distribution(nn.Module):
    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Any) -> Any:
        return self.policy.distribution(observation)


@final
class FixedPolicy:
    """A stochastic policy as it is now: its distributions have no gradient, and do not change with the policy.

    (Some distributions hold parameters themselves, such as the logarithm of a standard deviation, so detaching what
    `distribution` computes would not be enough.)

    Args:
        policy: a stochastic one.
    """

    def __init__(self, policy: policies.Policy) -> None:
        self._module = _Distribution(policy)
        self._fixed = {name: value.detach().clone() for name, value in self._module.named_parameters()}

    @torch.no_grad()
    def distribution(self, observation: Any) -> Any:
        """What the policy would have said when this object was made.

        Args:
            observation: raw, leaves [..., *observation].
        """
        return functional_call(self._module, self._fixed, (observation,))


def state_of(batch: Batch) -> tuple[Any, ...]:
    """The hidden state with which sequences begin, and where episodes begin in them: arguments of a policy's methods.

    Args:
        batch: sequences with `step_type` [T, N]; `state` [T, N, ...] is there where the policy has a hidden state.

    Returns:
        `(state, first)`, or `()` for a policy without a hidden state.
    """
    return (batch["state"][0], batch["step_type"] == StepType.FIRST) if "state" in vars(batch) else ()


def state_fields(batch: Batch) -> dict[str, Any]:
    """What a minibatch of an unroll needs for `state_of`.

    Args:
        batch: an unroll [T+1, B].

    Returns:
        Fields [T, B, ...]; none for a policy without a hidden state.
    """
    return {"state": batch["state"], "step_type": batch["step_type"][:-1]} if "state" in batch else {}
