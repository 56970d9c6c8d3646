"""Tests of `palaestra.nn.network`."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, ConfigError, DiscreteSpec, TensorSpec
from palaestra.nn import GaussianNetwork, Network, NetworkConfig, QNetwork
from palaestra.ops import DiagonalGaussian

VECTOR = TensorSpec((4,))
NEST = {"x": VECTOR, "room": DiscreteSpec(num=3)}


def rows(*leading):
    return torch.randn(*leading, 4, generator=torch.Generator().manual_seed(0))


def nest(*leading):
    return Batch(x=rows(*leading), room=torch.ones(leading, dtype=torch.int64))


@pytest.mark.parametrize("leading", [(), (5,), (2, 5)], ids=str)
@pytest.mark.parametrize("dueling", [False, True])
def test_q_and_policy_networks_take_any_leading_dimensions(leading, dueling):
    """MARO-33: networks of action values and of action preferences; each row gives what it gives alone."""
    config = NetworkConfig(hidden_sizes=(8, 8))
    q = QNetwork(NEST, 3, NetworkConfig(hidden_sizes=(8, 8), dueling=dueling))
    networks = [(q, nest), (Network(NEST, 3, config), nest), (Network(VECTOR, 3, config), rows)]
    for network, made in networks:
        values, seen = network(made(*leading)), made(*leading)
        assert values.shape == (*leading, 3)
        for place in np.ndindex(leading):
            one = seen[place] if isinstance(seen, torch.Tensor) else seen.map(lambda leaf, at=place: leaf[at])
            assert_close(values[place], network(one))
        assert len(values.reshape(-1, 3).unique(dim=0)) == math.prod(leading)  # every row counts


def test_a_network_is_its_encoder_and_its_layers():
    network = Network(NEST, 2, NetworkConfig(hidden_sizes=(8,)))
    assert_close(network(nest(5)), network.mlp(network.encoder(nest(5))))


def test_dueling_values_are_the_state_value_plus_centred_advantages():
    q = QNetwork(VECTOR, 3, NetworkConfig(hidden_sizes=(8, 8), dueling=True))
    torso = q.mlp(rows(5))
    assert_close(q(rows(5)).mean(-1, keepdim=True), q.value(torso))  # advantages have mean 0
    advantage = q.advantage(torso)
    assert_close(q(rows(5)) - q(rows(5)).mean(-1, keepdim=True), advantage - advantage.mean(-1, keepdim=True))


def test_dueling_works_without_hidden_layers():
    q = QNetwork(VECTOR, 3, NetworkConfig(hidden_sizes=(), dueling=True))
    advantage = q.advantage(rows(5))
    assert_close(q(rows(5)), q.value(rows(5)) + advantage - advantage.mean(-1, keepdim=True))


def test_dueling_is_refused_where_there_are_no_action_values():
    with pytest.raises(ConfigError, match="use it with QNetwork only"):
        Network(VECTOR, 2, NetworkConfig(dueling=True))


def test_the_activation_of_the_config_is_used():
    network = Network(VECTOR, 2, NetworkConfig(hidden_sizes=(8,), activation="relu"))
    first, last = network.mlp.layers
    assert_close(network(rows(5)), last(torch.relu(first(rows(5)))))


def test_a_gaussian_network_feeds_a_distribution():
    network = GaussianNetwork(VECTOR, 2, NetworkConfig(hidden_sizes=(8,), initial_log_std=-0.5))
    mean, log_std = network(rows(2, 5))
    assert mean.shape == (2, 5, 2)
    assert log_std.tolist() == [-0.5, -0.5]
    assert_close(mean, network.mean(rows(2, 5)))
    policy, action = DiagonalGaussian(mean, log_std), torch.linspace(-1, 1, 20).reshape(2, 5, 2)
    expected = torch.distributions.Normal(mean, math.exp(-0.5)).log_prob(action).sum(-1)
    assert_close(policy.log_prob(action), expected)
    policy.log_prob(action).sum().backward()
    assert network.log_std.grad is not None
    assert network.log_std.grad.any()


def test_a_deep_copy_shares_nothing():
    for network in (Network(VECTOR, 2), QNetwork(VECTOR, 2, NetworkConfig(dueling=True)), GaussianNetwork(VECTOR, 2)):
        twin = copy.deepcopy(network)
        storages = {parameter.data_ptr() for parameter in network.parameters()}
        assert storages.isdisjoint(parameter.data_ptr() for parameter in twin.parameters())
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1.0)
        ours, theirs = network(rows(3)), twin(rows(3))
        first = ours[0] if isinstance(ours, tuple) else ours
        assert not torch.equal(first, theirs[0] if isinstance(theirs, tuple) else theirs)
