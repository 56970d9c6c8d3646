"""Tests of `palaestra.policies.stochastic`."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, TensorSpec, TimeStep
from palaestra.nn import NetworkConfig
from palaestra.policies import CategoricalPolicy, GaussianNoise, GaussianPolicy, Phase

VECTOR = TensorSpec((4,))
SMALL = NetworkConfig(hidden_sizes=(8,))


def box(low, high, dtype=torch.float32):
    low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    return BoundedSpec(low.shape, dtype, low, high)


def policy_for(action_spec, **options):
    return GaussianPolicy.build(VECTOR, action_spec, dataclasses.replace(SMALL, **options))


def test_actions_are_drawn_from_the_distribution():
    policy = policy_for(TensorSpec((2,)), initial_log_std=-1.0)
    observation = torch.zeros(20_000, 4)
    action = policy.act(TimeStep(observation=observation), phase=Phase.COLLECT).action
    assert_close(action.mean(0), policy.distribution(observation).mean[0].detach(), atol=0.02, rtol=0)
    assert_close(action.std(0), torch.full((2,), -1.0).exp(), atol=0.02, rtol=0)


def test_deterministic_actions_are_the_mean():
    policy, observation = policy_for(TensorSpec((2,))), torch.randn(5, 4)
    action = policy.act(TimeStep(observation=observation), phase=Phase.COLLECT, deterministic=True).action
    assert torch.equal(action, policy.distribution(observation).mean)


def test_raw_actions_are_rescaled_and_clipped_to_the_bounds():
    policy = policy_for(box([-2.0, 0.0], [2.0, 10.0]))
    raw = torch.tensor([[0.0, 0.0], [1.0, -1.0], [0.5, 0.5], [7.0, -7.0]])
    assert policy.env_action(raw).tolist() == [[0.0, 5.0], [2.0, 0.0], [1.0, 7.5], [2.0, 0.0]]
    assert raw[0].tolist() == [0.0, 0.0]  # untouched


def test_unbounded_actions_pass_through():
    for spec in (TensorSpec((2,)), BoundedSpec((2,))):
        raw = torch.tensor([[-7.0, 1e6]])
        assert torch.equal(policy_for(spec).env_action(raw), raw)


def test_dimensions_with_one_bound_are_clipped_but_not_rescaled():
    policy = policy_for(box([0.0, -np.inf, -4.0], [np.inf, 3.0, 4.0]))
    raw = torch.tensor([[-1.0, 9.0, 0.5], [2.0, -9.0, 0.5]])
    assert policy.env_action(raw).tolist() == [[0.0, 3.0, 2.0], [2.0, -9.0, 2.0]]


def test_the_environment_gets_its_own_shape_and_dtype():
    policy = policy_for(box(np.full((2, 3), -1.0), np.full((2, 3), 1.0), torch.float64))
    assert policy.raw_action_spec == TensorSpec((6,))
    raw = policy.act(TimeStep(observation=torch.zeros(5, 4)), phase=Phase.COLLECT).action
    assert raw.shape == (5, 6)
    action = policy.env_action(raw)
    assert (action.shape, action.dtype) == ((5, 2, 3), torch.float64)
    assert policy(np.zeros(4)).shape == (2, 3)


def test_bounds_close_to_the_largest_float_do_not_overflow():
    largest = float(np.finfo(np.float32).max)
    action = policy_for(box([-largest], [largest])).env_action(torch.tensor([[0.0], [0.5]]))
    assert action.isfinite().all()


def test_bounds_are_not_part_of_the_state():
    assert set(policy_for(box([-1.0], [1.0])).state_dict()) == set(policy_for(TensorSpec((1,))).state_dict())


def test_a_start_of_the_standard_deviation_is_refused_where_none_is_learned_apart():
    with pytest.raises(ConfigError, match=r"initial_log_std=-2.0 .*CategoricalPolicy has none"):
        CategoricalPolicy.build(VECTOR, DiscreteSpec(num=2), NetworkConfig(initial_log_std=-2.0))


def test_behaviour_is_the_log_density_of_the_raw_action():
    policy, observation = policy_for(box([-2.0], [2.0]), initial_log_std=-0.3), torch.randn(3, 5, 4)
    raw = 3 * torch.randn(3, 5, 1)  # many are clipped; the density is that of the raw action
    behaviour = policy.behaviour(observation, raw)
    assert tuple(behaviour.keys()) == policy.behaviour_fields
    mean, log_std = policy.network(observation)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw).sum(-1)
    assert_close(behaviour.log_prob, expected)


def test_noise_is_added_only_while_collecting():
    policy = policy_for(TensorSpec((2,)))
    policy.exploration = GaussianNoise(std=5.0)
    step = TimeStep(observation=torch.zeros(2_000, 4))
    spread = {phase: policy.act(step, phase=phase).action.std().item() for phase in Phase}
    assert spread[Phase.COLLECT] > 4
    assert spread[Phase.EVAL] < 1.2
    assert spread[Phase.UPDATE] < 1.2


def test_sample_gives_actions_and_their_log_probabilities():
    """MARO-36."""
    policy, observation = policy_for(TensorSpec((2,))), torch.randn(7, 4)
    action, log_prob = policy.sample(observation)
    mean, log_std = policy.network(observation)
    assert_close(log_prob, torch.distributions.Normal(mean, log_std.exp()).log_prob(action).sum(-1))
    assert not torch.equal(action, mean)


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (DiscreteSpec(num=2), "CategoricalPolicy, ValueGreedyPolicy"),
        (box([0], [3], torch.int64), "No policy takes boxes of integers"),
        ({"a": TensorSpec((1,))}, "CompositePolicy"),
    ],
    ids=str,
)
def test_other_action_spaces_are_refused_with_what_fits(space, advice):
    with pytest.raises(ConfigError, match=f"GaussianPolicy needs a continuous action space.*{advice}"):
        policy_for(space)
