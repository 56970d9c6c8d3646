"""Tests of `palaestra.nn.network`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from palaestra.nn import MLP, EnsembleNetwork, NetworkConfig

RELU = NetworkConfig(hidden_sizes=(8, 8), activation="relu")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("config", [RELU, NetworkConfig(hidden_sizes=(8,)), NetworkConfig(hidden_sizes=())])
def test_each_member_is_the_network_that_an_mlp_with_its_weights_would_be(config):
    ensemble = EnsembleNetwork(TensorSpec((4,)), 2, 3, config, action_size=1)
    observation, action = torch.randn(5, 4, generator=generator()), torch.randn(5, 1, generator=generator())
    found = ensemble(observation, action)
    assert found.shape == (3, 5, 2)
    for k in range(3):
        mlp = MLP(5, config.hidden_sizes, 2, activation=config.activation)
        for layer, (weight, bias) in zip(
            mlp.layers, [list(layer.parameters()) for layer in ensemble.layers], strict=True
        ):
            layer.weight.data.copy_(weight[k].T)
            layer.bias.data.copy_(bias[k, 0])
        assert_close(found[k], mlp(torch.cat((observation, action), -1)))


def test_members_start_different_and_learn_apart():
    ensemble = EnsembleNetwork(TensorSpec((4,)), 1, 2, RELU)
    observation = torch.randn(6, 4, generator=generator())
    values = ensemble(observation)
    assert not torch.allclose(values[0], values[1])
    gradients = torch.autograd.grad(values[0].sum(), [layer.weight for layer in ensemble.layers])
    assert all(gradient[0].any() and not gradient[1].any() for gradient in gradients)


@pytest.mark.parametrize("members", [torch.tensor([2, 0]), slice(1, 3)])
def test_some_members_can_be_asked_alone(members):
    ensemble = EnsembleNetwork(TensorSpec((4,)), 1, 3, RELU)
    observation = torch.randn(6, 4, generator=generator())
    assert_close(ensemble(observation, members=members), ensemble(observation)[members])


def test_any_leading_dimensions_and_encoded_observations_are_taken():
    ensemble = EnsembleNetwork(DiscreteSpec(num=4), 2, 3, RELU, action_size=1)
    assert ensemble(torch.zeros(7, 5, dtype=torch.int64), torch.zeros(7, 5, 1)).shape == (3, 7, 5, 2)


@pytest.mark.parametrize(
    ("members", "config", "message"), [(0, RELU, "at least 1"), (2, NetworkConfig(dueling=True), "dueling")]
)
def test_what_no_ensemble_can_be_is_refused(members, config, message):
    with pytest.raises(ConfigError, match=message):
        EnsembleNetwork(TensorSpec((4,)), 1, members, config)


@pytest.mark.parametrize("layers", [{"block": "xqc"}, {"batch_norm": True}, {}])
def test_answers_for_some_rows_are_those_for_all_with_moments_of_all(layers):
    networks = EnsembleNetwork(TensorSpec((3,)), 5, 2, NetworkConfig(hidden_sizes=(8, 8), **layers), action_size=2)
    minibatch, moments, again = (torch.randn(6, 3), torch.randn(6, 2)), [], []

    answers = networks(*minibatch, moments=moments)

    assert_close(networks(*minibatch, moments=again, rows=slice(4, None)), answers[:, 4:])
    assert_close(again, moments)
