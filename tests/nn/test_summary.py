"""Tests of `palaestra.nn.summary`."""

import pytest
import torch
from torch import nn

from palaestra.core import TensorSpec
from palaestra.nn import (
    CoreModel,
    EnsembleNetwork,
    Network,
    NetworkConfig,
    OptimizerOption,
    QNetwork,
    model_summary,
    network_summary,
    with_memory,
)

VECTOR = TensorSpec((4,))
NETWORKS = {
    "4 → 64 → 64 → 2, 4,610 parameters": lambda: Network(VECTOR, 2),
    "4 → 16 → 8 → 1 | 16 → 8 → 2": lambda: QNetwork(VECTOR, 2, NetworkConfig(hidden_sizes=(16, 8), dueling=True)),
    "4 → noisy 8 → noisy 2": lambda: QNetwork(VECTOR, 2, NetworkConfig(hidden_sizes=(8,), noisy=True)),
    "4 → 8 → block 8 → 2": lambda: Network(VECTOR, 2, NetworkConfig(hidden_sizes=(8,), block="simba")),
    "4 → 3 x 8 → 3 x block 8 → 3 x 1": lambda: EnsembleNetwork(
        VECTOR, 1, 3, NetworkConfig(hidden_sizes=(8,), block="simba")
    ),
    "7 → 3 x 8 → 3 x 1, ": lambda: EnsembleNetwork(VECTOR, 1, 3, NetworkConfig(hidden_sizes=(8,)), action_size=3),
    "4 → GRU 6 → 8 → 2": lambda: with_memory(
        VECTOR, NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6), lambda s, c: Network(s, 2, c)
    ),
    "Flatten → 4 → 8 → 2": lambda: Network(VECTOR, 2, NetworkConfig(hidden_sizes=(8,), encoder=lambda s: nn.Flatten())),
    "NatureCNN 4x36x36 → 5 → 2": lambda: Network(
        TensorSpec((4, 36, 36), torch.uint8), 2, NetworkConfig(hidden_sizes=(), image_size=5)
    ),
    "NatureCNN 4x36x36 → 5 | 8 → 2": lambda: Network(
        {"camera": TensorSpec((4, 36, 36), torch.uint8), "speed": TensorSpec((3,))},
        2,
        NetworkConfig(hidden_sizes=(), image_size=5),
    ),
    "2 → 3 → 2 | 2 → 3 → 1": lambda: nn.ModuleDict(
        {name: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, size)) for name, size in (("policy", 2), ("value", 1))}
    ),
    "Conv1d | 3 → 2": lambda: nn.Sequential(nn.Conv1d(1, 1, 2), nn.Linear(3, 2)),
}


@pytest.mark.parametrize("text", NETWORKS)
def test_layers_are_shown_in_their_order_and_streams_beside_each_other(text):
    assert network_summary(NETWORKS[text]()).startswith(text)


def test_networks_that_learn_are_named_and_targets_and_single_numbers_left_out():
    class Number(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.zeros(()))

    parts = {"q": nn.Linear(3, 2), "target": nn.Linear(3, 2), "temperature": Number()}
    options = {name: OptimizerOption("sgd", {"lr": 0.1}) for name in ("q", "temperature")}
    assert model_summary(CoreModel(parts, options)) == {"q": "3 → 2, 8 parameters"}
    assert model_summary(CoreModel({"policy": nn.Linear(3, 2)})) == {"policy": "3 → 2, 8 parameters"}
