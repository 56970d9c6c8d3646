"""Tests of `palaestra.nn.recurrent`."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, ConfigError, ShapeError, TensorSpec
from palaestra.nn import Network, NetworkConfig, QNetwork, RecurrentNetwork, with_memory

SPEC = {"x": TensorSpec((3,)), "y": (TensorSpec((2,)),)}
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru", "attention"])


def network(kind):
    config = NetworkConfig(hidden_sizes=(8,), recurrent=kind, recurrent_size=8, attention_window=3)
    return with_memory(SPEC, config, lambda spec, config: QNetwork(spec, 2, config))


def observations(*leading):
    draw = torch.Generator().manual_seed(0)
    y = Batch.of({"0": torch.randn(*leading, 2, generator=draw)})
    return Batch.of({"x": torch.randn(*leading, 3, generator=draw), "y": y})


@KINDS
def test_a_sequence_is_its_rows_one_after_another(kind):
    net, sequence = network(kind), observations(6, 4)
    outputs, last = net(sequence, net.initial_state(4), torch.zeros(6, 4, dtype=torch.bool))
    state = net.initial_state(4)
    for t in range(6):
        row, state = net(sequence[t], state)
        assert_close(row, outputs[t])
    assert_close(dict(state.items()), dict(last.items()))


@KINDS
def test_nothing_is_remembered_across_the_beginning_of_an_episode(kind):
    net, sequence = network(kind), observations(5, 2)
    first = torch.zeros(5, 2, dtype=torch.bool)
    first[3, 0] = True
    changed = sequence.replace(x=sequence["x"].clone())
    changed["x"][:3] += 1.0
    before, _ = net(sequence, net.initial_state(2), first)
    after, _ = net(changed, net.initial_state(2), first)
    assert torch.equal(before[3:, 0], after[3:, 0])
    assert not torch.equal(before[3:, 1], after[3:, 1])  # the other lane goes on and remembers


@KINDS
def test_the_state_spec_is_what_states_look_like(kind):
    net = network(kind)
    state = net.initial_state(7)
    assert {key: tuple(leaf.shape) for key, leaf in state.items()} == {
        key: (7, *spec.shape) for key, spec in net.state_spec.items()
    }
    assert set(net.state_spec) == {"lstm": {"hidden", "cell"}, "gru": {"hidden"}, "attention": {"seen", "length"}}[kind]


def test_the_span_of_a_configuration_reaches_the_gates():
    """Of 64 steps: a unit that forgets least keeps 63/64 of what it holds; without a span all keep a half."""
    for span, most in ((64, 1 - 1 / 64), (1, 0.5)):
        config = NetworkConfig(recurrent="gru", recurrent_size=512, recurrent_span=span)
        memory: Any = with_memory(SPEC, config, lambda spec, config: QNetwork(spec, 2, config)).memory
        keeps = memory.cells.bias_ih_l0.detach()[512:1024].sigmoid()
        assert keeps.max().item() == pytest.approx(most, abs=2e-3)


def test_a_state_that_was_forgotten_is_an_error():
    with pytest.raises(ShapeError, match=r"hand over initial_state\(batch_size\)"):
        network("gru")(observations(2), ())


def test_without_a_memory_the_network_is_the_plain_one():
    plain = with_memory(SPEC, NetworkConfig(), lambda spec, config: Network(spec, 2, config))
    assert type(plain) is Network


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recurrent": "lsmt"}, "recurrent is 'lsmt'; it must be lstm, gru, attention or own"),
        ({"recurrent": "gru", "recurrent_size": 0}, "recurrent_size is 0"),
        ({"recurrent": "lstm", "recurrent_span": 0}, "recurrent_span is 0"),
        ({"recurrent": "attention", "attention_window": 0}, "attention_window is 0"),
        ({"recurrent": "attention", "attention_heads": 3}, "attention_heads 3, which does not divide it"),
        ({"recurrent": "gru", "noisy": True}, "leave out one of them"),
    ],
)
def test_impossible_memories_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        RecurrentNetwork(SPEC, NetworkConfig(**changes), lambda spec, config: QNetwork(spec, 2, config))


def test_a_network_alone_refuses_a_memory():
    """So no algorithm drops in silence what its configuration asks for."""
    for make in (lambda config: Network(SPEC, 2, config), lambda config: QNetwork(SPEC, 2, config)):
        with pytest.raises(ConfigError, match=r"this network cannot have a memory"):
            make(NetworkConfig(recurrent="lstm"))
