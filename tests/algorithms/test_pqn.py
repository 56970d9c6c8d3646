"""Tests of `palaestra.algorithms.pqn`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import PQN, PQNConfig
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from palaestra.nn import NetworkConfig
from tests.algorithms.parts import collected, first_minibatch
from tests.algorithms.test_sarsa import FIRST, LAST, MID, unroll

GAMMA = 0.5


def linear(**settings):
    """Two actions whose values are the two numbers of the observation; of `unroll`, row t's best is 20 + t."""
    config = PQNConfig(network=NetworkConfig(hidden_sizes=()), gamma=GAMMA, **settings)
    algorithm = PQN(TensorSpec((2,)), DiscreteSpec(num=2), config)
    with torch.no_grad():
        for parameter in algorithm.model.component["q"].parameters():
            parameter.copy_(torch.eye(2) if parameter.ndim == 2 else torch.zeros_like(parameter))
    return algorithm


def test_the_target_mixes_the_best_values_ahead():
    """Gallici et al. 2025, section 4.2: R(t) = r + gamma (lambda R(t + 1) + (1 - lambda) max Q), whatever was done."""
    target = linear(trace_decay=0.25).preprocess(unroll([MID] * 4, [1.0] * 4), None).target[:, 0].tolist()
    last = 3 + GAMMA * 23
    middle = 2 + GAMMA * (0.25 * last + 0.75 * 22)
    assert target == pytest.approx([1 + GAMMA * (0.25 * middle + 0.75 * 21), middle, last])


def test_a_termination_is_worth_its_reward_and_a_truncation_the_best_of_its_last_observation():
    """ALF-25, ALF-26."""
    algorithm = linear(trace_decay=0.9)
    ended = algorithm.preprocess(unroll([MID, LAST, FIRST, MID], [1.0, 0.0, 1.0, 1.0]), None)
    cut = algorithm.preprocess(unroll([MID, LAST, FIRST, MID], [1.0, 1.0, 1.0, 1.0]), None)
    assert ended.target[0, 0].item() == 1.0
    assert cut.target[0, 0].item() == pytest.approx(1 + GAMMA * 21)
    assert cut.valid[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_the_loss_is_half_the_mean_square_of_the_errors():
    """Algorithm 1, with targets held fixed while the unroll is gone through."""
    algorithm, collector = collected("pqn", "masked")
    batch = first_minibatch(algorithm, collector.buffer)
    terms, seen, *_ = algorithm.losses(batch)
    q = algorithm.policy.q_values(batch.observation)
    errors = [(q[i, batch.action[i]] - batch.target[i]) ** 2 for i in range(len(q)) if batch.valid[i]]
    assert_close(terms["q"], 0.5 * torch.stack(errors).mean())
    assert set(seen) == {"q_mean"}
    assert list(algorithm.model.optimizers) == ["q"]


@torch.no_grad()
def test_forbidden_actions_are_no_ones_best():
    """A mask: the target takes the best of what is allowed."""
    algorithm, collector = collected("pqn", "masked", trace_decay=0.0, gamma=1.0)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    target = algorithm.preprocess(drawn, collector.buffer).target
    q, mask = algorithm.policy.q_values(drawn.observation), drawn.observation.action_mask.bool()
    for t, lane in drawn.valid.nonzero().tolist():
        ahead = 0.0 if drawn.discount[t + 1, lane] == 0 else float(q[t + 1, lane][mask[t + 1, lane]].max())
        assert target[t, lane].item() == pytest.approx(float(drawn.reward[t + 1, lane]) + ahead, rel=1e-4, abs=1e-5)


def test_layers_are_normalised_by_default_and_then_not_noisy():
    assert PQNConfig().network.layer_norm
    for layer_norm in (False, True):
        config = PQNConfig(network=NetworkConfig(noisy=True, layer_norm=layer_norm))
        with pytest.raises(ConfigError, match=r"leave network\.noisy off"):
            PQN(TensorSpec((2,)), DiscreteSpec(num=2), config)
