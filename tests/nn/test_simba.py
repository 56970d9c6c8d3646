"""Tests of residual blocks, in one network and in ensembles."""

import dataclasses

import pytest
import torch
from torch.nn.functional import layer_norm, linear
from torch.testing import assert_close

from palaestra.core import ConfigError, TensorSpec, seeded_initialisation
from palaestra.nn import MLP, CoreModel, EnsembleNetwork, Network, NetworkConfig, OptimizerOption, QNetwork
from palaestra.nn.network import mlp_of
from palaestra.nn.world_model import SymexpHead

SIMBA = NetworkConfig(hidden_sizes=(6, 6), activation="relu", block="simba")


def rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shaken(*modules):
    """Modules whose normalisations are no longer those of the start, the same in each."""
    for module in modules:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.1)
    return modules


def test_layers_are_those_of_a_plain_transcription():
    """Lee et al. 2025, section 4: embed, blocks that add to their input, normalise, then the last layer."""
    (mlp,) = shaken(MLP(4, (6, 6), 2, activation="relu", layers="simba"))
    weights = {name: value.detach() for name, value in mlp.named_parameters()}
    x = rows(5, 4)
    h = linear(x, weights["layers.0.weight"], weights["layers.0.bias"])
    for number in (1, 2):
        block = {name.removeprefix(f"layers.{number}."): value for name, value in weights.items()}
        inside = layer_norm(h, (6,), block["norm.weight"], block["norm.bias"])
        inside = linear(inside, block["up.weight"], block["up.bias"]).relu()
        assert inside.shape == (5, 24)
        h = h + linear(inside, block["down.weight"], block["down.bias"])
    h = layer_norm(h, (6,), weights["layers.3.weight"], weights["layers.3.bias"])
    assert_close(mlp.hidden(x), h)
    assert_close(mlp(x), linear(h, weights["layers.4.weight"], weights["layers.4.bias"]))
    assert len(mlp.layers) == 5


def test_weights_start_as_in_the_papers_code():
    """Orthogonal at both ends, He's normal in blocks, biases 0."""
    first, block, _, last = MLP(6, (64,), 3, activation="relu", layers="simba", out_gain=0.01).layers
    assert_close(first.weight.T @ first.weight, torch.eye(6), atol=1e-5, rtol=0)
    assert_close(last.weight @ last.weight.T, 1e-4 * torch.eye(3), atol=1e-7, rtol=1e-3)
    assert block.up.weight.std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.05)
    assert block.down.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    assert not any(layer.bias.any() for layer in (first, block.up, block.down, last))


def test_an_ensemble_of_blocks_is_its_members():
    with seeded_initialisation(3):
        ensemble = EnsembleNetwork(TensorSpec((4,)), 2, 3, SIMBA)
    with seeded_initialisation(3):
        members = [mlp_of(4, (6, 6), 2, SIMBA) for _ in range(3)]
    shaken(ensemble, *members)
    x = rows(7, 4)
    assert_close(ensemble(x), torch.stack([member(x) for member in members]))
    assert_close(ensemble(x, members=slice(1, 2))[0], members[1](x))


def sphere(x):
    return x / x.norm(dim=-1, keepdim=True)


def test_layers_of_the_second_version_are_those_of_a_plain_transcription():
    """Lee et al. 2025 (SimbaV2), sections 4.1 to 4.3, with the numbers of its code."""
    mlp = MLP(4, (6, 6), 2, activation="relu", layers="simba2")
    weights = {name: value.detach() for name, value in mlp.named_parameters()}
    x, gain = rows(5, 4), (2 / 6) ** 0.5
    for name in (name for name in weights if name.endswith("weight")):
        assert_close(weights[name].norm(dim=1), torch.ones(len(weights[name])))
    h = sphere(torch.cat([x, torch.full((5, 1), 3.0)], -1))
    h = sphere(linear(h, weights["layers.0.linear.weight"]) * gain)
    for number in (1, 2):
        inside = (linear(h, weights[f"layers.{number}.up.weight"]) * gain / 2).relu()
        assert inside.shape == (5, 24)
        h = sphere(h + (sphere(linear(inside, weights[f"layers.{number}.down.weight"])) - h) / 3)
    assert_close(mlp.hidden(x), h)
    assert_close(mlp(x), linear(linear(h, weights["layers.3.first.weight"]), weights["layers.3.last.weight"]))
    assert_close(weights["layers.1.share.factor"], torch.full((6,), 6**-0.5))
    assert_close(weights["layers.1.scale.factor"], torch.full((24,), gain / 2))


def test_the_length_of_an_input_is_not_lost():
    mlp = MLP(4, (6,), 2, activation="relu", layers="simba2")
    assert not torch.allclose(mlp(rows(5, 4)), mlp(10 * rows(5, 4)))


def test_an_ensemble_of_the_second_version_is_its_members():
    config = dataclasses.replace(SIMBA, block="simba2")
    with seeded_initialisation(3):
        ensemble = EnsembleNetwork(TensorSpec((4,)), 2, 3, config)
    with seeded_initialisation(3):
        members = [mlp_of(4, (6, 6), 2, config) for _ in range(3)]
    shaken(ensemble, *members)
    x = rows(7, 4)
    assert_close(ensemble(x), torch.stack([member(x) for member in members]))
    assert_close(ensemble(x, members=slice(1, 2))[0], members[1](x))


def test_every_weight_of_the_second_version_has_length_1_after_a_step():
    network = EnsembleNetwork(TensorSpec((4,)), 2, 3, dataclasses.replace(SIMBA, block="simba2"))
    model = CoreModel({"critic": network}, {"critic": OptimizerOption("adam", {"lr": 0.1})})
    before = {name: value.clone() for name, value in network.named_parameters()}
    model.step((network(rows(7, 4)) ** 2).sum())
    for name, value in network.named_parameters():
        assert not torch.equal(value, before[name])
        if name.endswith("weight"):
            assert_close(value.norm(dim=1), torch.ones_like(value.norm(dim=1)))


def test_another_head_sees_the_normalised_features():
    network = Network(TensorSpec((4,)), 2, SIMBA)
    assert_close(network.hidden(rows(5, 4)).mean(-1), torch.zeros(5), atol=1e-5, rtol=0)
    assert network.hidden_size == 6


@pytest.mark.parametrize("sizes", [(), (6,), (6, 6)])
def test_action_values_may_be_dueling_and_have_any_number_of_blocks(sizes):
    if sizes:
        q = QNetwork(TensorSpec((4,)), 3, dataclasses.replace(SIMBA, hidden_sizes=sizes, dueling=True))
        assert_close(q(rows(5, 4)).mean(-1, keepdim=True), q.value(q.mlp(rows(5, 4))))
    assert QNetwork(TensorSpec((4,)), 3, dataclasses.replace(SIMBA, hidden_sizes=sizes))(rows(2, 5, 4)).shape == (
        2,
        5,
        3,
    )


def test_impossible_blocks_are_named():
    with pytest.raises(ConfigError, match=r"blocks of the sizes \[8, 6\] were asked for"):
        MLP(4, (8, 6), 2, layers="simba")
    with pytest.raises(ConfigError, match=r"network\.block is 'simbaa'; it must be simba, simba2, xqc or flash"):
        NetworkConfig(block="simbaa")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="layer_norm and block normalise the same units twice"):
        NetworkConfig(block="simba", layer_norm=True)
    with pytest.raises(ConfigError, match="noisy=True and simba"):
        QNetwork(TensorSpec((4,)), 2, dataclasses.replace(SIMBA, noisy=True))


def test_dreamers_numbers_start_at_zero_with_layers_on_a_sphere_too():
    head = SymexpHead(4, 127, 20_000.0, NetworkConfig(hidden_sizes=(64, 64), block="simba2"))
    assert head.mean(head(torch.randn(5, 4))).abs().max() < 1e-3
