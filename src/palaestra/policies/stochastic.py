"""The stochastic policy that fits an action space."""

from __future__ import annotations

from palaestra.core import DiscreteSpec, SpecTree
from palaestra.nn import NetworkConfig
from palaestra.policies.categorical import CategoricalPolicy
from palaestra.policies.gaussian import GaussianPolicy

__all__ = ["stochastic_policy"]


def stochastic_policy(
    observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, *, normalize: bool = False
) -> CategoricalPolicy | GaussianPolicy:
    """A categorical policy for discrete actions, a Gaussian one for a box.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment.
        config: of its network.
        normalize: whether observations are normalised by running statistics.

    Raises:
        ConfigError: the action space is neither.
    """
    kind = CategoricalPolicy if isinstance(action_spec, DiscreteSpec) else GaussianPolicy
    return kind.build(observation_spec, action_spec, config, normalize=normalize)
