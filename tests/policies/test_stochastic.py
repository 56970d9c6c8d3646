"""Tests of `palaestra.policies.stochastic`."""

import pytest
import torch

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, MultiBinarySpec, TensorSpec
from palaestra.nn import NetworkConfig
from palaestra.policies import (
    CategoricalPolicy,
    CompositePolicy,
    EpsilonGreedy,
    GaussianPolicy,
    ValueGreedyPolicy,
    stochastic_policy,
)

CONFIG = NetworkConfig(hidden_sizes=(8,))


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (DiscreteSpec(num=2), CategoricalPolicy),
        (BoundedSpec((2,)), GaussianPolicy),
        (MultiBinarySpec((2,)), CompositePolicy),
        ({"a": DiscreteSpec(num=2)}, CompositePolicy),
    ],
    ids=["2", "box", "switches", "dict"],
)
def test_the_policy_fits_the_action_space(space, kind):
    policy = stochastic_policy(TensorSpec((4,)), space, CONFIG, normalize=True)
    assert type(policy) is kind
    assert policy.network_config is CONFIG
    assert policy.normalizer is not None


def test_compiled_collection_does_not_pass_by_the_choice_of_a_subclass():
    for kind, exploration in ((CategoricalPolicy, None), (ValueGreedyPolicy, EpsilonGreedy(2, 0.1))):
        own = type("Own", (kind,), {"choose": lambda self, *given: kind.choose(self, *given)})  # noqa: B023
        policies = [one.build(TensorSpec((4,)), DiscreteSpec(num=2), exploration=exploration) for one in (kind, own)]
        assert [policy.acting_noise(torch.zeros(1, 4)) is None for policy in policies] == [False, True]


@pytest.mark.parametrize("space", [TensorSpec((2,), torch.int32), {"a": (TensorSpec((2,), torch.int64),)}], ids=str)
def test_a_space_that_none_takes_is_refused(space):
    with pytest.raises(ConfigError, match=r"wrap the environment so that|plain_choices"):
        stochastic_policy(TensorSpec((4,)), space, CONFIG)
