"""The stochastic policy that fits an action space."""

from __future__ import annotations

from palaestra.core import BoundedSpec, DiscreteSpec, SpecTree, TensorSpec
from palaestra.nn import NetworkConfig
from palaestra.policies.categorical import CategoricalPolicy
from palaestra.policies.composite import CompositePolicy
from palaestra.policies.gaussian import GaussianPolicy
from palaestra.policies.network_policy import StochasticPolicy

__all__ = ["stochastic_policy"]


def stochastic_policy(
    observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, *, normalize: bool = False
) -> StochasticPolicy:
    """A categorical policy for one discrete choice, a Gaussian one for a box, a composite one for everything else.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment.
        config: of its network.
        normalize: whether observations are normalised by running statistics.

    Raises:
        ConfigError: a leaf of the action space is neither discrete nor a tensor of floats.
    """
    kind = {DiscreteSpec: CategoricalPolicy, TensorSpec: GaussianPolicy, BoundedSpec: GaussianPolicy}
    policy = kind.get(type(action_spec), CompositePolicy)
    return policy.build(observation_spec, action_spec, config, normalize=normalize)
