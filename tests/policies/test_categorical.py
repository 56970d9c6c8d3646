"""Tests of `palaestra.policies.stochastic`."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    SpecError,
    TensorSpec,
    TimeStep,
)
from palaestra.nn import NetworkConfig
from palaestra.policies import CategoricalPolicy, EpsilonGreedy, Phase
from palaestra.policies.actions import check_masks

VECTOR = TensorSpec((4,))
SMALL = NetworkConfig(hidden_sizes=(8,))


class Constant(nn.Module):
    """The same logits for every row."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x):
        return self.logits.expand(*x.shape[:-1], -1)


def rows(count):
    return torch.zeros(count, 4)


def test_actions_are_drawn_with_their_probabilities():
    policy = CategoricalPolicy(Constant(0.0, 1.0, -1.0), VECTOR, DiscreteSpec(num=3))
    action = policy.act(TimeStep(observation=rows(20_000)), phase=Phase.COLLECT).action
    frequency = torch.bincount(action, minlength=3) / 20_000
    assert_close(frequency, torch.tensor([0.0, 1.0, -1.0]).softmax(0), atol=0.01, rtol=0)


def test_deterministic_actions_are_the_most_probable():
    policy = CategoricalPolicy(Constant(0.0, 1.0, -1.0), VECTOR, DiscreteSpec(num=3))
    for phase in Phase:
        action = policy.act(TimeStep(observation=rows(50)), phase=phase, deterministic=True).action
        assert (action == 1).all()


def test_a_fresh_policy_is_close_to_uniform():
    policy = CategoricalPolicy.build(VECTOR, DiscreteSpec(num=3))
    assert_close(policy.distribution(torch.randn(5, 4)).probs, torch.full((5, 3), 1 / 3), atol=0.05, rtol=0)


def test_behaviour_is_the_log_probability_of_what_was_done():
    policy = CategoricalPolicy.build(VECTOR, DiscreteSpec(num=3), SMALL)
    action = torch.tensor([[0, 1], [2, 0], [1, 1]])
    observation = torch.randn(3, 2, 4)
    behaviour = policy.behaviour(observation, action)
    assert tuple(behaviour.keys()) == policy.behaviour_fields
    expected = policy.network(observation).log_softmax(-1).gather(-1, action[..., None]).squeeze(-1)
    assert_close(behaviour.log_prob, expected)


def test_sample_gives_actions_and_their_log_probabilities():
    """MARO-36."""
    policy = CategoricalPolicy.build(VECTOR, DiscreteSpec(num=3), SMALL)
    observation = torch.randn(7, 4)
    action, log_prob = policy.sample(observation)
    assert_close(log_prob, policy.network(observation).log_softmax(-1).gather(-1, action[:, None]).squeeze(-1))
    assert log_prob.requires_grad


def test_the_first_action_of_the_environment_need_not_be_0():
    policy = CategoricalPolicy(Constant(0.0, 9.0), VECTOR, DiscreteSpec(num=2, start=5))
    assert policy(rows(1)).tolist() == [6]
    assert policy.raw_action_spec == DiscreteSpec(num=2)
    action = policy.act(TimeStep(observation=rows(1)), phase=Phase.EVAL, deterministic=True).action
    assert action.tolist() == [1]


def test_observations_are_normalised_once_and_everywhere():
    policy = CategoricalPolicy.build(VECTOR, DiscreteSpec(num=3), SMALL, normalize=True)
    assert policy.normalizer is not None
    raw = 100 + 10 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    policy.normalizer.merge(policy.normalizer.increment(raw))
    logits = policy.network((raw - raw.mean(0)) / raw.std(0, correction=0))
    assert_close(policy.distribution(raw).logits, logits, atol=1e-5, rtol=1e-4)
    action = policy.act(TimeStep(observation=raw), phase=Phase.EVAL, deterministic=True).action
    assert torch.equal(action, policy.distribution(raw).mode())


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (BoundedSpec((2,)), "GaussianPolicy"),
        (MultiBinarySpec((2,)), "CompositePolicy"),
    ],
    ids=["box", "multi-binary"],
)
def test_other_action_spaces_are_refused_with_what_fits(space, advice):
    with pytest.raises(ConfigError, match=f"CategoricalPolicy needs a discrete action space.*{advice}"):
        CategoricalPolicy.build(VECTOR, space)


def test_a_mask_of_the_wrong_size_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"for 3 actions it needs the shape \(3,\)"):
        CategoricalPolicy.build({"x": VECTOR, "action_mask": MultiBinarySpec((2,))}, DiscreteSpec(num=3))


def test_only_rows_of_last_may_allow_nothing():
    mask, last = torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)
    mask[1, 2] = 0
    with pytest.raises(SpecError, match="allows no"):
        check_masks(mask, DiscreteSpec(num=4), last)
    last[1, 2] = True
    check_masks(mask, DiscreteSpec(num=4), last)


def test_exploration_chooses_among_allowed_actions():
    spec = {"x": TensorSpec((2,)), "action_mask": MultiBinarySpec((4,))}
    policy = CategoricalPolicy.build(spec, DiscreteSpec(num=4), NetworkConfig(), exploration=EpsilonGreedy(4, 1.0))
    observation = Batch(x=torch.zeros(100, 2), action_mask=torch.tensor([1, 0, 0, 1]).expand(100, 4))
    step = policy.act(TimeStep(observation=observation), phase=Phase.COLLECT)
    assert set(step.action.tolist()) == {0, 3}
