"""Tests of `palaestra.policies.value_greedy`."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.core import Batch, BoundedSpec, ConfigError, DiscreteSpec, MultiBinarySpec, TensorSpec, TimeStep
from palaestra.nn import NetworkConfig
from palaestra.policies import EpsilonGreedy, Phase, ValueGreedyPolicy

VECTOR = TensorSpec((3,))
Q = torch.tensor([[1.0, 3.0, 2.0], [-5.0, -6.0, -7.0]])


def policy_for(action_spec, observation_spec=VECTOR, **options):
    """Its observation is its action values."""

    class Values(nn.Module):
        def forward(self, observation):
            return observation if isinstance(observation, torch.Tensor) else observation.x

    return ValueGreedyPolicy(Values(), observation_spec, action_spec, **options)


def test_the_most_valuable_action_is_taken():
    policy = policy_for(DiscreteSpec(num=3))
    assert policy.q_values(Q) is Q
    for phase in Phase:
        for deterministic in (False, True):
            step = policy.act(TimeStep(observation=Q), phase=phase, deterministic=deterministic)
            assert step.action.tolist() == [1, 0]


def test_the_most_valuable_allowed_action_is_taken():
    policy = policy_for(DiscreteSpec(num=3), {"x": VECTOR, "action_mask": MultiBinarySpec((3,))})
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]])
    assert policy.greedy(Batch(x=Q, action_mask=mask)).tolist() == [2, 1]


def test_exploration_acts_only_while_collecting():
    """TS-17."""
    policy = policy_for(DiscreteSpec(num=3), exploration=EpsilonGreedy(3, 1.0))
    step = TimeStep(observation=Q[:1].expand(200, 3))
    assert set(policy.act(step, phase=Phase.COLLECT).action.tolist()) == {0, 1, 2}
    assert (policy.act(step, phase=Phase.COLLECT, deterministic=True).action == 1).all()
    assert (policy.act(step, phase=Phase.EVAL).action == 1).all()
    assert (policy.act(step, phase=Phase.UPDATE).action == 1).all()


def test_exploration_draws_from_the_policys_generator():
    policy = policy_for(DiscreteSpec(num=3), exploration=EpsilonGreedy(3, 1.0))
    assert policy.exploration is not None
    own = policy.exploration.generator.get_state()
    before = policy.generator.get_state()
    policy.act(TimeStep(observation=Q), phase=Phase.COLLECT)
    assert torch.equal(policy.exploration.generator.get_state(), own)
    assert not torch.equal(policy.generator.get_state(), before)


def test_the_first_action_of_the_environment_need_not_be_0():
    policy = policy_for(DiscreteSpec(num=3, start=-1))
    assert policy(Q).tolist() == [0, -1]
    assert policy.raw_action_spec == DiscreteSpec(num=3)


def test_sample_is_the_greedy_action():
    """MARO-36: the document uses it so for networks of action values."""
    action, log_prob = policy_for(DiscreteSpec(num=3)).sample(Q)
    assert action.tolist() == [1, 0]
    assert log_prob.tolist() == [0.0, 0.0]


def test_nothing_is_kept_about_how_actions_were_chosen():
    policy = policy_for(DiscreteSpec(num=3))
    assert policy.behaviour_fields == ()
    assert policy.behaviour(Q, torch.tensor([0, 1])).is_empty()


def test_a_dueling_network_can_be_built():
    policy = ValueGreedyPolicy.build(VECTOR, DiscreteSpec(num=4), NetworkConfig(hidden_sizes=(8,), dueling=True))
    torso = policy.network.mlp(Q)
    advantage = policy.network.advantage(torso)
    assert_close(policy.q_values(Q), policy.network.value(torso) + advantage - advantage.mean(-1, keepdim=True))


def test_a_continuous_action_space_is_refused_with_what_fits():
    with pytest.raises(ConfigError, match=r"ValueGreedyPolicy needs a discrete action space.*GaussianPolicy"):
        policy_for(BoundedSpec((1,)))
