"""Tests of `palaestra.nn.batch_norm`, and of networks made of it."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ConfigError, TensorSpec, seeded_initialisation
from palaestra.nn import BatchNorm, CoreModel, EnsembleNetwork, Network, NetworkConfig, QNetwork
from palaestra.nn.network import mlp_of

CONFIG = NetworkConfig(hidden_sizes=(6, 5), activation="relu", batch_norm=True)


def rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shaken(*modules):
    """Modules whose gains, shifts and running averages are no longer those of the start, the same in each."""
    with torch.no_grad():
        for module in modules:
            for number, tensor in enumerate([*module.parameters(), *module.buffers()]):
                if tensor.is_floating_point():
                    tensor.add_(0.1 * (1 + number % 3))
    return modules


def test_a_minibatch_is_normalised_as_pytorch_does_gradients_included():
    """Ioffe and Szegedy 2015, algorithm 1."""
    mine, theirs = BatchNorm(4), torch.nn.BatchNorm1d(4, eps=1e-3)
    x = (rows(32, 4) * 3 + 7).requires_grad_()
    y = rows(32, 4, seed=1)
    given = torch.autograd.grad((mine(x, []) * y).sum(), [x, mine.gain, mine.shift])
    expected = torch.autograd.grad((theirs(x) * y).sum(), [x, theirs.weight, theirs.bias])
    for one, other in zip(given, expected, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_running_averages_move_only_when_they_are_told_and_then_by_a_hundredth():
    norm, x, moments = BatchNorm(3), rows(50, 3) * 2 + 5, []
    norm(x, moments)
    assert not norm.mean.any() and int(norm.steps) == 0
    norm.follow(*moments)
    assert_close(norm.mean, 0.01 * x.mean(0))
    assert_close(norm.variance, 0.99 + 0.01 * x.var(0, correction=0))
    assert int(norm.steps) == 1


def test_single_rows_are_normalised_by_the_running_averages():
    (norm,) = shaken(BatchNorm(3))
    x = rows(2, 4, 3)
    assert_close(norm(x), norm.gain * (x - norm.mean) / (norm.variance + 1e-3).sqrt() + norm.shift)
    assert_close(norm(x[0, 0]), norm(x)[0, 0])


@pytest.mark.parametrize(("offset", "scale"), [(0.1, 1.2), (100.0, 50.0), (-20.0, 0.01)])
def test_after_the_warm_up_a_minibatch_is_corrected_towards_the_running_averages(offset, scale):
    """Ioffe 2017, algorithm 1, with r in [1/3, 3] and d in [-5, 5]; within them the result is that of single rows."""
    (norm,) = shaken(BatchNorm(3))
    norm.steps.fill_(100_000)
    x = rows(64, 3) * scale + offset
    mean, std = x.mean(0), (x.var(0, correction=0) + 1e-3).sqrt()
    running = (norm.variance + 1e-3).sqrt()
    r, d = (std / running).clamp(1 / 3, 3), ((mean - norm.mean) / running).clamp(-5, 5)
    moments = []
    given = norm(x, moments)
    assert_close(given, norm.gain * ((x - mean) / std * r + d) + norm.shift, rtol=1e-4, atol=1e-4)
    assert torch.allclose(given, norm(x), atol=1e-3) == (scale == 1.2)
    norm.steps.fill_(99_999)
    assert_close(norm(x, []), norm.gain * (x - mean) / std + norm.shift, rtol=1e-4, atol=1e-4)


def test_every_layer_of_a_network_normalises_its_inputs():
    """The layers of CrossQ's code: input, then each hidden layer's activations."""
    (network,) = shaken(Network(TensorSpec((4,)), 2, CONFIG))
    x, moments = rows(16, 4), []
    given = network(x, moments)
    hidden, seen = x, []
    for number, layer in enumerate(network.mlp.layers):
        mean, variance = hidden.mean(0), hidden.var(0, correction=0)
        seen += [mean, variance]
        normal = layer.norm.gain * (hidden - mean) / (variance + 1e-3).sqrt() + layer.norm.shift
        hidden = normal @ layer.weight.T + layer.bias
        hidden = hidden.relu() if number < 2 else hidden
    assert_close(given, hidden)
    assert_close(moments, seen)
    assert not any(moment.requires_grad for moment in moments)


def test_an_ensemble_with_batch_normalisation_is_its_members():
    with seeded_initialisation(3):
        ensemble = EnsembleNetwork(TensorSpec((4,)), 2, 3, CONFIG)
    with seeded_initialisation(3):
        members = [mlp_of(4, (6, 5), 2, CONFIG) for _ in range(3)]
    x, moments, of_members = rows(7, 4), [], [[], [], []]
    values = [member(x, found) for member, found in zip(members, of_members, strict=True)]
    assert_close(ensemble(x, moments=moments), torch.stack(values))
    for number, found in enumerate(of_members):
        assert_close([moment[number, 0] for moment in moments], found)
    model = CoreModel({"critics": ensemble})
    model.follow({"critics": moments})
    for member, found in zip(members, of_members, strict=True):
        CoreModel({"critic": member}).follow({"critic": found})
    assert_close(ensemble(x), torch.stack([member(x) for member in members]))
    assert_close(ensemble(x, members=slice(1, 2))[0], members[1](x))


def test_networks_without_batch_normalisation_have_no_moments():
    network, moments = Network(TensorSpec((4,)), 2, NetworkConfig(layer_norm=True)), []
    assert torch.equal(network(rows(5, 4), moments), network(rows(5, 4)))
    assert moments == []


def test_what_cannot_be_normalised_together_is_refused():
    with pytest.raises(ConfigError, match="layer_norm and batch_norm normalise the same units twice"):
        NetworkConfig(layer_norm=True, batch_norm=True)
    with pytest.raises(ConfigError, match="noisy=True and batch_norm"):
        QNetwork(TensorSpec((4,)), 2, NetworkConfig(noisy=True, batch_norm=True))
