"""Tests of the kinds of layers that `NetworkConfig` offers, in every algorithm."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import ALGORITHMS
from palaestra.nn import NormalizedLinear, ResidualBlock, SphereBlock
from palaestra.nn.ensemble import EnsembleBlock
from palaestra.testing.algorithms import different, parameters
from tests.algorithms.parts import TINY, any_kind, collected


@pytest.mark.parametrize("block", ["simba", "simba2"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_with_residual_blocks(name, block):
    network = dataclasses.replace(TINY["network"], hidden_sizes=(8, 8), block=block)
    kind = any_kind(name)
    if kind.startswith("recurrent"):
        network = dataclasses.replace(network, recurrent="gru", recurrent_size=6)
    algorithm, collector = collected(name, kind, network=network, noise_std=1.0)  # of evolution strategies
    before = parameters(algorithm)
    algorithm.update(collector.buffer)
    kinds = ResidualBlock | SphereBlock | EnsembleBlock
    blocks = [key for key, part in algorithm.model.named_modules() if isinstance(part, kinds)]
    moved = different(before, parameters(algorithm))
    trained = {key.split(".")[1] for key in blocks} & set(algorithm.model.optimizers)
    assert trained and all(any(key.startswith(f"component.{one}.") for key in moved) for one in trained)
    for key, part in algorithm.model.named_modules():
        for weight, dim in getattr(part, "unit_vectors", {}).items():
            if key.split(".")[1] in trained:
                length = part.get_parameter(weight).norm(dim=dim)
                assert_close(length, torch.ones_like(length))


def test_implicit_quantiles_have_the_layers_that_were_asked_for():
    algorithm, _ = collected("iqn", "discrete", network=dataclasses.replace(TINY["network"], layer_norm=True))
    assert any(isinstance(part, NormalizedLinear) for part in algorithm.model.modules())
