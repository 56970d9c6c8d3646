"""Tests of `palaestra.algorithms.a2c`."""

import math

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import A2C, A2CConfig
from palaestra.algorithms.parts import AdvantageBatch
from palaestra.core import DiscreteSpec, OnPolicy, TensorSpec
from palaestra.nn import NetworkConfig
from tests.algorithms.parts import collected


def uniform(**settings):
    """A policy over two actions whose logits, and whose value, are all zero."""
    algorithm = A2C(
        TensorSpec((2,)), DiscreteSpec(num=2), A2CConfig(network=NetworkConfig(hidden_sizes=()), **settings)
    )
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            parameter.zero_()
    return algorithm


def batch(advantage, target, valid):
    shape = (len(advantage), 1)
    return AdvantageBatch.of(
        {
            "observation": torch.ones(*shape, 2),
            "action": torch.zeros(shape, dtype=torch.int64),
            "advantage": torch.tensor(advantage)[:, None],
            "value": torch.zeros(shape),
            "value_target": torch.tensor(target)[:, None],
            "valid": torch.tensor(valid)[:, None],
        }
    )


def test_the_loss_is_the_sum_of_three_means_over_valid_rows():
    """Mnih et al. 2016, algorithm S3; the row that is not valid holds other numbers."""
    data = batch([2.0, 4.0, 99.0], [1.0, 3.0, 99.0], [1.0, 1.0, 0.0])
    losses = uniform(value_cost=0.5, entropy_cost=0.1).losses(data)
    log2 = math.log(2)
    expected = log2 * 3.0 + 0.5 * (1 + 9) / 2 - 0.1 * log2
    assert losses.terms["a2c"].item() == pytest.approx(expected)


def test_the_policy_gradient_is_in_closed_form():
    """d(-log pi(0) A) / d logits = (pi - one-hot) A = (-1/2, 1/2) A for a uniform policy."""
    gradient = uniform(entropy_cost=0.0).gradients(batch([2.0], [0.0], [1.0])).values
    bias = next(value for key, value in gradient.items() if "policy" in key and key.endswith("bias"))
    assert_close(bias, torch.tensor([-1.0, 1.0]))


def test_one_update_is_one_gradient_step_on_the_whole_unroll():
    """ALF-07: the plan with defaults."""
    algorithm, collector = collected("a2c", "discrete")
    assert algorithm.plan == OnPolicy(unroll_length=12)
    info = algorithm.update(collector.buffer)
    assert info.gradient_steps == 1
    assert info.rows_trained < 12 * 3  # ends of episodes are no valid rows


def test_with_a_trace_decay_of_1_the_advantage_is_the_return_minus_the_value():
    algorithm, collector = collected("a2c", "discrete", gae_lambda=1.0, gamma=0.5)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    prepared = algorithm.preprocess(drawn, collector.buffer)
    value = algorithm.value(drawn.observation).detach()
    t, lane = next((t, b) for t, b in torch.nonzero(drawn.step_type == 2).tolist() if t >= 3)
    wanted = drawn.reward[t, lane] * 0.5**2 - value[t - 3, lane]  # Catch pays at the end only
    assert drawn.discount[t, lane] == 0
    assert_close(prepared.advantage[t - 3, lane], wanted)
