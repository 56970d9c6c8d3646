"""Tests of `palaestra.nn.blocks`, and of noisy and distributional action values."""

import math

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ConfigError, TensorSpec
from palaestra.nn import MLP, Network, NetworkConfig, NoisyMLP, QNetwork, ReturnDistribution, bfloat16_products

VECTOR = TensorSpec((4,))
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, 4, generator=GENERATOR)


def signed_root(e):
    return math.copysign(math.sqrt(abs(e)), e)


def test_a_noisy_layer_is_the_papers_equation():
    """Fortunato et al. 2018, equations (9) to (11): every weight has the product of two signed roots as its noise."""
    mlp = NoisyMLP(4, (), 3)
    noise = torch.randn(4 + 3, generator=GENERATOR)
    left, right = ([signed_root(e) for e in part.tolist()] for part in noise.split([4, 3]))
    mean, scale = mlp.mean.layers[0], mlp.scale[0]
    weight = mean.weight + scale.weight * torch.tensor(right)[:, None] * torch.tensor(left)
    bias = mean.bias + scale.bias * torch.tensor(right)
    assert_close(mlp(X, noise), X @ weight.T + bias)


def test_rows_with_noise_of_their_own_are_rows_computed_alone():
    mlp = NoisyMLP(4, (8, 8), 3)
    noise = torch.randn(6, mlp.noise_size, generator=GENERATOR)
    together = mlp(X, noise)
    assert_close(together, torch.stack([mlp(x, e) for x, e in zip(X, noise, strict=True)]))
    assert not torch.allclose(together, mlp(X, noise[0]))


def test_without_noise_it_is_its_mean_layers_and_zero_noise_is_the_same():
    mlp = NoisyMLP(4, (8,), 3, activation="tanh")
    twin = MLP(4, (8,), 3, activation="tanh")
    twin.load_state_dict(mlp.mean.state_dict())
    assert_close(mlp(X), twin(X))
    assert_close(mlp(X, torch.zeros(mlp.noise_size)), twin(X))


def test_it_starts_as_the_paper_says():
    """Section 3.2: the mean uniform within 1 / sqrt(inputs), the scale 0.5 / sqrt(inputs)."""
    mlp = NoisyMLP(16, (), 500)
    assert mlp.mean.layers[0].weight.abs().max() <= 0.25
    assert mlp.mean.layers[0].weight.abs().max() > 0.24
    assert (mlp.scale[0].weight == 0.125).all()
    assert (mlp.scale[0].bias == 0.125).all()


def test_without_an_output_layer_it_ends_with_the_activation():
    mlp = NoisyMLP(4, (8,), None)
    assert (mlp(X, torch.randn(mlp.noise_size, generator=GENERATOR)) >= 0).all()
    assert mlp.out_size == 8


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("leading", [(), (5,), (2, 5)], ids=str)
def test_noisy_action_values_take_any_leading_dimensions(dueling, leading):
    q = QNetwork(VECTOR, 3, NetworkConfig(hidden_sizes=(8, 8), dueling=dueling, noisy=True))
    x, noise = torch.randn(*leading, 4), torch.randn(*leading, q.noise_size)
    assert q(x, noise).shape == (*leading, 3)
    assert not torch.allclose(q(x, noise), q(x))
    assert_close(q(x, torch.zeros(q.noise_size)), q(x))


def test_every_noise_number_counts():
    """A mutant that hands all streams the same numbers would leave some without effect."""
    q = QNetwork(VECTOR, 3, NetworkConfig(hidden_sizes=(8, 8), dueling=True, noisy=True, activation="tanh"))
    noise = torch.randn(q.noise_size, generator=GENERATOR).requires_grad_()
    (gradient,) = torch.autograd.grad(q(X, noise).square().sum(), noise)
    assert (gradient != 0).all()


def test_networks_without_noisy_layers_need_no_noise():
    assert QNetwork(VECTOR, 3).noise_size == 0
    with pytest.raises(ConfigError, match="use it with QNetwork only"):
        Network(VECTOR, 2, NetworkConfig(noisy=True))


# -- distributions of returns


@pytest.mark.parametrize("kind", ["atoms", "quantiles", "implicit"])
@pytest.mark.parametrize("leading", [(), (5,), (2, 5)], ids=str)
def test_distributional_values_take_any_leading_dimensions(kind, leading):
    network = ReturnDistribution(kind, 7).network(VECTOR, 3, NetworkConfig(hidden_sizes=(8, 8)))
    x = torch.randn(*leading, 4)
    assert network(x).shape == (*leading, 3)
    fraction = (torch.rand(*leading, 7),) if kind == "implicit" else ()
    assert network.outputs(x, *fraction).shape == (*leading, 3, 7)


def test_values_are_the_means_of_the_distributions():
    atoms = ReturnDistribution("atoms", 3, -1.0, 3.0).network(VECTOR, 2, NetworkConfig())
    outputs = torch.tensor([[[0.0, 0.0, 0.0], [-99.0, 0.0, 0.0]]])
    assert_close(atoms.values(outputs), torch.tensor([[1.0, 2.0]]))
    assert_close(atoms(X), atoms.values(atoms.outputs(X)))
    quantiles = ReturnDistribution("quantiles", 4).network(VECTOR, 2, NetworkConfig())
    assert_close(quantiles(X), quantiles.outputs(X).mean(-1))
    assert quantiles.support.tolist() == [0.125, 0.375, 0.625, 0.875]


def test_dueling_is_done_atom_by_atom():
    """Hessel et al. 2018: the advantages of every atom have mean 0 over the actions."""
    config = NetworkConfig(hidden_sizes=(8, 8), dueling=True)
    network = ReturnDistribution("atoms", 5).network(VECTOR, 3, config)
    value = network.head.value(network.head.mlp(X))  # [N, Q]
    assert_close(network.outputs(X).mean(-2), value)


def test_the_implicit_network_is_the_papers_equation():
    """Dabney et al. 2018, equation (4), fraction by fraction."""
    network = ReturnDistribution("implicit", 4).network(VECTOR, 3, NetworkConfig(hidden_sizes=(8, 6)))
    fraction = torch.rand(6, 5, generator=GENERATOR)
    for j in range(5):
        cosines = torch.stack([(math.pi * i * fraction[:, j]).cos() for i in range(64)], -1)
        code = torch.relu(network.embedding(cosines))
        assert_close(network.outputs(X, fraction)[..., j], network.head(network.torso(X) * code))
    assert_close(network(X), network.outputs(X, network.support.expand(6, 4)).mean(-1))


@pytest.mark.parametrize("option", [{"dueling": True}, {"noisy": True}])
def test_the_implicit_network_refuses_what_it_does_not_have(option):
    with pytest.raises(ConfigError, match="C51 and QR-DQN can be"):
        ReturnDistribution("implicit", 4).network(VECTOR, 3, NetworkConfig(**option))


@pytest.mark.parametrize(
    "distribution", [("quantiles", 0), ("atoms", 1), ("atoms", 5, 1.0, 1.0), ("atoms", 5, 2.0, 1.0)]
)
def test_impossible_distributions_are_refused(distribution):
    with pytest.raises(ConfigError, match="at least 1 quantile, or 2 atoms"):
        ReturnDistribution(*distribution).network(VECTOR, 3, NetworkConfig())


def test_values_stay_in_single_precision_where_products_do_not():
    mlp = NoisyMLP(4, (8,), 2)
    with torch.no_grad(), bfloat16_products(torch.device("cpu")):
        mlp.mean.layers[-1].weight.zero_()
        mlp.mean.layers[-1].bias.fill_(501.0)
        for parameter in mlp.scale.parameters():
            parameter.zero_()
        assert mlp(torch.zeros(1, 4), torch.randn(1, mlp.noise_size)).tolist() == [[501.0, 501.0]]
