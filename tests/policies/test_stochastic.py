"""Tests of `palaestra.policies.stochastic`."""

import pytest

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, MultiBinarySpec, TensorSpec
from palaestra.nn import NetworkConfig
from palaestra.policies import CategoricalPolicy, GaussianPolicy, stochastic_policy

CONFIG = NetworkConfig(hidden_sizes=(8,))


@pytest.mark.parametrize(
    ("space", "kind"), [(DiscreteSpec(num=2), CategoricalPolicy), (BoundedSpec((2,)), GaussianPolicy)], ids=["2", "box"]
)
def test_the_policy_fits_the_action_space(space, kind):
    policy = stochastic_policy(TensorSpec((4,)), space, CONFIG, normalize=True)
    assert type(policy) is kind
    assert policy.network_config is CONFIG
    assert policy.normalizer is not None


def test_a_space_that_neither_takes_is_refused():
    with pytest.raises(ConfigError, match="No algorithm takes it yet"):
        stochastic_policy(TensorSpec((4,)), MultiBinarySpec((2,)), CONFIG)
