"""Tests of encoders of the user's own: `NetworkConfig.encoder`, `OwnEncoder`, `encoder_of`."""

import copy

import pytest
import torch
from torch import nn

from palaestra.core import Batch, ConfigError, DiscreteSpec, TensorSpec
from palaestra.nn import (
    EnsembleNetwork,
    GaussianNetwork,
    ImplicitQuantileNetwork,
    Network,
    NetworkConfig,
    OwnEncoder,
    QNetwork,
    ReturnDistribution,
    ReturnNetwork,
    with_memory,
    with_shared_features,
)

MATRIX = TensorSpec((2, 3))


class Net(nn.Module):
    """Takes matrices, and nothing but one batch of them."""

    def __init__(self, observation_spec) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(observation_spec.size, 5), nn.LayerNorm(5))

    def forward(self, observation):
        assert observation.shape[1:] == (2, 3)
        assert observation.dtype == torch.float32
        return self.body(observation)


def make(observation_spec) -> nn.Module:
    return Net(observation_spec)


NAMED = f"{__name__}:Net"
CONFIG = NetworkConfig(encoder=Net, hidden_sizes=(4,))
ATOMS = ReturnDistribution("atoms", 3)


@pytest.mark.parametrize("option", [NAMED, Net, make, lambda spec: Net(spec), Net(MATRIX)])
def test_a_class_a_function_a_module_and_a_name_are_the_network_below_the_layers(option):
    network = Network(MATRIX, 7, NetworkConfig(encoder=option))
    assert isinstance(network.encoder, OwnEncoder)
    assert isinstance(network.encoder.module, Net)
    assert network.mlp.in_size == 5
    for leading in [(8,), (4, 8), ()]:
        network.train(len(leading) > 0)
        assert network(torch.randn(*leading, 2, 3)).shape == (*leading, 7)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (lambda: Network(MATRIX, 7, CONFIG), (8, 7)),
        (lambda: QNetwork(MATRIX, 7, CONFIG), (8, 7)),
        (lambda: QNetwork(MATRIX, 7, NetworkConfig(encoder=Net, dueling=True, noisy=True, hidden_sizes=())), (8, 7)),
        (lambda: EnsembleNetwork(MATRIX, 7, 3, CONFIG), (3, 8, 7)),
        (lambda: ReturnNetwork(MATRIX, 7, CONFIG, ATOMS), (8, 7)),
        (lambda: ImplicitQuantileNetwork(MATRIX, 7, CONFIG, ReturnDistribution("implicit", 3)), (8, 7)),
        (lambda: with_memory(MATRIX, CONFIG, lambda spec, config: Network(spec, 7, config)), (8, 7)),
        (lambda: with_shared_features(MATRIX, CONFIG, lambda spec, config: Network(spec, 7, config)), (8, 7)),
        (lambda: Network(MATRIX, 7, NetworkConfig(encoder=Net, hidden_sizes=())), (8, 7)),
    ],
)
def test_every_network_has_the_own_encoder_once(network, shape):
    network = network()
    assert sum(isinstance(module, Net) for module in network.modules()) == 1
    assert network(torch.randn(8, 2, 3)).shape == shape


def test_gaussian_critic_and_recurrent_networks_take_it():
    mean, _ = GaussianNetwork(MATRIX, 2, CONFIG)(torch.randn(8, 2, 3))
    assert mean.shape == (8, 2)
    critics = EnsembleNetwork(MATRIX, 1, 2, CONFIG, action_size=3)
    assert critics(torch.randn(8, 2, 3), torch.zeros(8, 3)).shape == (2, 8, 1)
    config = NetworkConfig(encoder=Net, recurrent="gru", recurrent_size=6)
    network = with_memory(MATRIX, config, lambda spec, config: Network(spec, 7, config))
    output, _ = network(torch.randn(4, 8, 2, 3), network.initial_state(8), torch.zeros(4, 8, dtype=torch.bool))
    assert output.shape == (4, 8, 7)


class Dict(nn.Module):
    def __init__(self, observation_spec) -> None:
        super().__init__()
        assert list(observation_spec) == ["position", "room"]
        self.rooms = nn.Embedding(3, 4)

    def forward(self, observation):
        assert list(observation.keys()) == ["position", "room"]
        return torch.cat((observation["position"], self.rooms(observation["room"] - 5)), -1)


def test_nested_observations_come_as_a_batch_without_the_mask():
    spec = {"position": TensorSpec((2,)), "room": DiscreteSpec(num=3, start=5), "action_mask": TensorSpec((2,))}
    encoder = OwnEncoder(spec, Dict)
    assert encoder.out_size == 6
    observation = Batch(
        position=torch.zeros(4, 8, 2, dtype=torch.float64),
        room=torch.full((4, 8), 6),
        action_mask=torch.ones(4, 8, 2),
    )
    assert encoder(observation).shape == (4, 8, 6)


def test_a_module_is_copied_for_every_network_and_a_class_is_called_again():
    module = Net(MATRIX)
    first, second = (Network(MATRIX, 1, NetworkConfig(encoder=module)) for _ in range(2))
    weights = [network.encoder.module.body[1].weight for network in (first, second)]
    assert torch.equal(weights[0], weights[1])
    assert len({id(weight) for weight in [*weights, module.body[1].weight]}) == 3
    first, second = (Network(MATRIX, 1, CONFIG) for _ in range(2))
    assert not torch.equal(first.encoder.module.body[1].weight, second.encoder.module.body[1].weight)
    assert copy.deepcopy(first)(torch.zeros(2, 2, 3)).shape == (2, 1)


class Counting(nn.Flatten):
    """Counts its calls in training."""

    calls = 0

    def forward(self, input):
        self.calls += self.training
        return super().forward(input)


def test_the_call_that_finds_the_size_is_not_one_of_training():
    encoder = OwnEncoder(MATRIX, Counting())
    assert encoder.module.calls == 0
    assert all(module.training for module in encoder.modules())


def test_each_part_has_its_own_encoder():
    config = NetworkConfig(encoder={"value": Net}, recurrent="lstm")
    policy, value, mixer = config.parts("policy", "value", team="mixer")
    assert (policy.encoder, value.encoder, mixer.encoder) == (None, Net, None)
    assert config.has_separate_encoders
    policy, mixer = CONFIG.parts("policy", team="mixer")
    assert (policy.encoder, mixer.encoder) == (Net, None)
    assert value.on_features() == NetworkConfig()
    with pytest.raises(ConfigError, match="an encoder for 'valeu' — did you mean 'value'"):
        NetworkConfig(encoder={"valeu": Net}).parts("policy", "value")
    with pytest.raises(ConfigError, match="are policy, value"):
        NetworkConfig(encoder={"actor": Net}).parts("policy", "value")


class Scales(nn.Module):
    def __init__(self, spec) -> None:
        super().__init__()

    def forward(self, observation):
        return observation.div_(255).flatten(1)


class Doubles(nn.Module):
    def forward(self, observation):
        return observation.flatten(1).double()


def unannotated(spec):
    return nn.Flatten()


class Raises(nn.Module):
    def __init__(self, spec) -> None:
        super().__init__()

    def forward(self, observation):
        raise KeyError("position")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("no_such_module:Net", "the module 'no_such_module', which cannot be imported"),
        (f"{__name__}:Nett", "has no 'Nett' — did you mean 'Net'"),
        (f"{__name__}:NAMED", "an nn.Module is needed: a class, or a function that makes one"),
        ("collections:OrderedDict", "an nn.Module is needed: a class, or a function that makes one"),
        (lambda spec: "net", "made a str; an nn.Module is needed"),
        (lambda: Net(MATRIX), "is made from the observation spec alone, here .* raised TypeError"),
        (Raises, "called with two observations of zeros.* raised KeyError: 'position'"),
        (lambda spec: nn.Identity(), r"gave \[2, 2, 3\] for two observations; it must give one row of features"),
        (lambda spec: nn.Flatten(0), r"gave \[12\] for two observations"),
        ({"policy": Net}, "encoders are given for the parts policy, but this network is a single part"),
        (Scales, "changes what it is given in place, which lies in the replay buffer"),
        (lambda spec: Doubles(), r"gave torch\.float64; it must give torch\.float32"),
        (f"{__name__}:unannotated", "is a function that does not say that it makes a module"),
    ],
)
def test_what_is_no_encoder_is_refused_with_what_was_found(option, words):
    with pytest.raises(ConfigError, match=words):
        Network(MATRIX, 1, NetworkConfig(encoder=option))


@pytest.mark.parametrize("option", ["Net", 3, dict, {"policy": "Net"}, {"policy": int}])
def test_a_configuration_refuses_what_can_be_no_encoder(option):
    with pytest.raises(ConfigError, match=r"the encoder"):
        NetworkConfig(encoder=option)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (nn.BatchNorm1d(4), "mixes the rows"),
        (nn.Dropout(0.1), "draws from"),
        (nn.LSTM(4, 4, 2, dropout=0.1), "draws from"),
    ],
)
def test_parts_that_no_run_could_repeat_are_refused(part, why):
    with pytest.raises(ConfigError, match=f"{type(part).__name__}, 1, which {why}"):
        OwnEncoder(TensorSpec((4,)), nn.Sequential(nn.Linear(4, 4), part))


def test_a_part_that_learns_its_size_from_the_first_rows_is_refused_like_others():
    """An encoder is looked at before it has seen any."""
    lazy = lambda spec: nn.Sequential(nn.Linear(spec.size, 4), nn.LazyBatchNorm1d())  # noqa: E731
    with pytest.raises(ConfigError, match="LazyBatchNorm1d, 1, which mixes the rows"):
        OwnEncoder(TensorSpec((4,)), lazy)


class Frozen(nn.BatchNorm1d):
    """A part of a network that was trained elsewhere."""

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize("part", [Frozen(4), nn.Dropout(0.0), nn.LayerNorm(4)])
def test_parts_that_do_the_same_in_training_are_taken(part):
    assert OwnEncoder(TensorSpec((4,)), nn.Sequential(nn.Linear(4, 4), part)).out_size == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_encoder_sees_single_precision_whatever_the_environment_gives(dtype):
    encoder = OwnEncoder(TensorSpec((2, 3), dtype), make)
    assert encoder(torch.ones(4, 2, 3, dtype=dtype)).shape == (4, 5)


def test_a_key_with_a_dot_is_one_key():
    spec = {"a.b": TensorSpec((2,)), "c": TensorSpec(())}
    encoder = OwnEncoder(spec, lambda spec: Dotted())
    assert encoder(Batch.of({"a.b": torch.ones(4, 5, 2), "c": torch.zeros(4, 5)})).shape == (4, 5, 2)


class Dotted(nn.Module):
    def forward(self, observation):
        return observation["a.b"]


class _Recurrent(nn.Module):
    """A recurrent layer in an encoder, called as a user might."""

    def __init__(self, layer, shape):
        super().__init__()
        self.layer, self.shape = layer, shape

    def forward(self, x):
        out = self.layer(x.reshape(len(x), *self.shape))
        out = out[0] if isinstance(out, tuple) else out
        return out[:, -1] if out.ndim == 3 else out


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LSTM(4, 8), (4,)),
        (nn.GRU(4, 8, batch_first=True), (1, 4)),
        (nn.LSTMCell(4, 8), (4,)),
        (nn.GRUCell(4, 8), (4,)),
    ],
)
def test_an_own_memory_that_would_begin_anew_at_every_observation_is_refused(layer, shape):
    with pytest.raises(ConfigError, match=f"has a {type(layer).__name__} .* remembers nothing.*network.recurrent"):
        OwnEncoder(TensorSpec((4,)), _Recurrent(layer, shape))


def test_recurrent_layers_along_what_one_observation_holds_are_taken():
    encoder = OwnEncoder(TensorSpec((4,)), _Recurrent(nn.GRU(2, 8, batch_first=True), (2, 2)))
    assert encoder(torch.zeros(3, 4)).shape == (3, 8)
