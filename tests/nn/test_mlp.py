"""Tests of `palaestra.nn.blocks`."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.core import ConfigError, TensorSpec, seeded_initialisation
from palaestra.nn import MLP, EnsembleNetwork, NetworkConfig
from palaestra.nn.network import mlp_of

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}


def sequential(mlp):
    """The same layers as PyTorch's container runs them."""
    modules = []
    for index, layer in enumerate(mlp.layers):
        modules.append(layer)
        if index < mlp.num_activations:
            modules.append(ACTIVATIONS[mlp.activation]())
    return nn.Sequential(*modules)


def gradients(module, parameters, x):
    return torch.autograd.grad(module(x).square().sum(), list(parameters))


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("out_size", [2, None])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_and_gradients_are_those_of_a_sequential(activation, out_size):
    mlp = MLP(4, (16, 8), out_size, activation=activation)
    x = rows(3, 5, 4)  # any leading dimensions
    assert_close(mlp(x), sequential(mlp)(x))
    for ours, theirs in zip(
        gradients(mlp, mlp.parameters(), x), gradients(sequential(mlp), mlp.parameters(), x), strict=True
    ):
        assert_close(ours, theirs)


def test_the_input_is_left_alone():
    mlp, x = MLP(4, (8,), activation="relu"), rows(6, 4)
    before = x.clone()
    mlp(x)
    assert torch.equal(x, before)


def test_an_mlp_without_layers_passes_its_input_through():
    mlp, x = MLP(4, ()), rows(6, 4)
    assert mlp(x) is x
    assert mlp.out_size == 4


def test_the_gradient_of_the_input_is_right():
    mlp = MLP(3, (4,), 2).double()
    assert torch.autograd.gradcheck(mlp, rows(5, 3).double().requires_grad_())


def other_weights(mlp):
    return {name: value + 0.1 for name, value in mlp.state_dict().items()}


def test_loaded_weights_are_used():
    mlp = MLP(4, (8,), 2)
    for assign in (False, True):
        mlp.load_state_dict(other_weights(mlp), assign=assign)
        assert_close(mlp(rows(3, 4)), sequential(mlp)(rows(3, 4)))


def test_a_deep_copy_shares_nothing_and_equals():
    mlp = MLP(4, (8,), 2)
    twin = copy.deepcopy(mlp)
    assert torch.equal(mlp(rows(3, 4)), twin(rows(3, 4)))
    twin.load_state_dict(other_weights(twin))
    assert not torch.equal(mlp(rows(3, 4)), twin(rows(3, 4)))
    assert_close(twin(rows(3, 4)), sequential(twin)(rows(3, 4)))


def test_another_dtype_is_followed():
    mlp = MLP(4, (8,), 2).to(torch.float64)
    assert mlp(rows(3, 4).double()).dtype == torch.float64


def test_weights_given_for_one_call_are_used():
    mlp = MLP(4, (8,), 2)
    weights = other_weights(mlp)
    called = torch.func.functional_call(mlp, weights, (rows(3, 4),))
    mlp.load_state_dict(weights)
    assert_close(called, mlp(rows(3, 4)))


def test_it_compiles_to_one_graph_that_follows_the_weights():
    mlp = MLP(4, (8, 8), 2)
    compiled = torch.compile(lambda x: mlp(x), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        for ours, theirs in zip(
            gradients(compiled, mlp.parameters(), rows(6, 4)), gradients(mlp, mlp.parameters(), rows(6, 4)), strict=True
        ):
            assert_close(ours, theirs)
        mlp.load_state_dict(other_weights(mlp))


def test_two_networks_made_one_after_another_differ_and_the_same_object_is_shared():
    """PARL-27, PARL-28."""
    one, two = MLP(4, (8,), 2), MLP(4, (8,), 2)
    x = rows(3, 4)
    assert not torch.equal(one(x), two(x))
    assert torch.equal(one(x), one(x))
    left, right = nn.ModuleDict({"shared": one}), nn.ModuleDict({"shared": one})
    assert torch.equal(left["shared"](x), right["shared"](x))


def test_the_same_seed_gives_the_same_weights():
    def make():
        with seeded_initialisation(7):
            return MLP(4, (8,), 2)

    assert torch.equal(make()(rows(3, 4)), make()(rows(3, 4)))


def test_tanh_layers_start_orthogonal_with_their_gains():
    mlp = MLP(8, (8,), 4, out_gain=0.01)
    first, last = mlp.layers
    assert_close(first.weight @ first.weight.T, 2 * torch.eye(8))  # gain √2
    assert_close(last.weight @ last.weight.T, 1e-4 * torch.eye(4))
    assert not first.bias.any()
    assert not last.bias.any()


def test_relu_layers_start_as_pytorch_does_unless_asked():
    with seeded_initialisation(0):
        mlp = MLP(8, (8,), 4, activation="relu", out_gain=0.5)
    with seeded_initialisation(0):
        first, last = nn.Linear(8, 8), nn.Linear(8, 4)
    assert torch.equal(mlp.layers[0].weight, first.weight)
    assert torch.equal(mlp.layers[1].weight, last.weight * 0.5)
    asked = MLP(8, (8,), 4, activation="relu", init="orthogonal").layers[0]
    assert_close(asked.weight @ asked.weight.T, math.sqrt(2) ** 2 * torch.eye(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_sizes": (0,)}, r"layer sizes \[4, 0, 2\]; each must be at least 1"),
        ({"hidden_sizes": (8,), "activation": "tahn"}, "unknown activation 'tahn' — did you mean 'tanh'"),
        ({"hidden_sizes": (8,), "init": "orthogonl"}, "unknown initialisation 'orthogonl' — did you mean 'orthogonal'"),
    ],
    ids=["size", "activation", "init"],
)
def test_impossible_settings_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        MLP(4, out_size=2, **arguments)


def test_normalised_layers_have_units_of_mean_0_and_variance_1_in_every_row():
    """Ba et al. 2016, equation (4), before the activation; the last layer has none."""
    mlp = MLP(4, (16, 8), 2, activation="relu", layers="layer_norm")
    x = rows(5, 4) * 100
    units = mlp.layers[0](x)
    assert_close(units.mean(-1), torch.zeros(5), atol=1e-5, rtol=0)
    assert_close(units.var(-1, unbiased=False), torch.ones(5), atol=1e-3, rtol=0)
    assert_close(mlp(x), sequential(mlp)(x))
    assert not hasattr(mlp.layers[-1], "gain")
    assert {name for name, _ in mlp.named_parameters()} >= {"layers.0.gain", "layers.1.shift"}


def test_an_ensemble_of_normalised_layers_is_its_members():
    config = NetworkConfig(hidden_sizes=(6, 5), activation="tanh", layer_norm=True)
    with seeded_initialisation(3):
        ensemble = EnsembleNetwork(TensorSpec((4,)), 2, 3, config)
    with seeded_initialisation(3):
        members = [mlp_of(4, (6, 5), 2, config) for _ in range(3)]
    with torch.no_grad():
        for parameter in [*ensemble.parameters()]:
            parameter.add_(0.1)
        for parameter in [parameter for member in members for parameter in member.parameters()]:
            parameter.add_(0.1)
    x = rows(7, 4)
    assert_close(ensemble(x), torch.stack([member(x) for member in members]))
    assert_close(ensemble(x, members=slice(1, 2))[0], members[1](x))
