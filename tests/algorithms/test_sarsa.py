"""Tests of `palaestra.algorithms.sarsa`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import Sarsa, SarsaConfig
from palaestra.buffers import Unroll
from palaestra.core import Batch, ConfigError, DiscreteSpec, TensorSpec
from palaestra.nn import NetworkConfig

FIRST, MID, LAST = 0, 1, 2
GAMMA, EPSILON = 0.5, 0.2


def linear(**settings):
    """Two actions whose values are the two numbers of the observation."""
    config = SarsaConfig(network=NetworkConfig(hidden_sizes=()), gamma=GAMMA, epsilon=EPSILON, **settings)
    algorithm = Sarsa(TensorSpec((2,)), DiscreteSpec(num=2), config)
    with torch.no_grad():
        for parameter in algorithm.model.component["q"].parameters():
            parameter.copy_(torch.eye(2) if parameter.ndim == 2 else torch.zeros_like(parameter))
    return algorithm


def unroll(kinds, discounts):
    """Rewards 1, 2, 3, ...; values (10, 20), (11, 21), ...; always action 0."""
    steps = len(kinds)
    q = torch.arange(steps, dtype=torch.float32)[:, None] + torch.tensor([10.0, 20.0])
    return Unroll.of(
        {
            "step_type": torch.tensor(kinds, dtype=torch.int32)[:, None],
            "reward": torch.arange(steps, dtype=torch.float32)[:, None],
            "discount": torch.tensor(discounts)[:, None],
            "observation": q[:, None],
            "action": torch.zeros(steps - 1, 1, dtype=torch.int64),
            "policy_info": Batch(),
            "policy_version": torch.zeros(steps - 1, 1, dtype=torch.int32),
            "valid": torch.tensor([float(kind != LAST) for kind in kinds[:-1]])[:, None],
        }
    )


def expectation(t):
    return EPSILON * (15.0 + t) + (1 - EPSILON) * (20.0 + t)


def test_the_target_is_the_value_of_the_action_that_was_taken_next():
    """Sutton and Barto (6.7): the greedy action would give 1 + 0.5 * 21; after the newest row nothing was taken yet."""
    target = linear(trace_decay=0.0).preprocess(unroll([MID] * 3, [1.0] * 3), None).target
    assert_close(target[:, 0], torch.tensor([1 + GAMMA * 11.0, 2 + GAMMA * expectation(2)]))


def test_a_termination_is_worth_its_reward_and_a_truncation_the_expectation_of_its_last_observation():
    """ALF-25, ALF-26: no action is taken on a LAST row, so its value is that of the epsilon-greedy policy."""
    algorithm = linear(trace_decay=0.0)
    ended = algorithm.preprocess(unroll([MID, LAST, FIRST, MID], [1.0, 0.0, 1.0, 1.0]), None)
    cut = algorithm.preprocess(unroll([MID, LAST, FIRST, MID], [1.0, 1.0, 1.0, 1.0]), None)
    assert ended.target[0, 0].item() == 1.0
    assert cut.target[0, 0].item() == pytest.approx(1 + GAMMA * expectation(1))
    assert ended.valid[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_a_trace_decay_of_1_is_the_sum_of_the_rewards():
    """Sutton and Barto (12.18): with lambda 1 only the value at the end of the unroll is bootstrapped from."""
    target = linear(trace_decay=1.0).preprocess(unroll([MID] * 3, [1.0] * 3), None).target
    last = 2 + GAMMA * expectation(2)
    assert_close(target[:, 0], torch.tensor([1 + GAMMA * last, last]))


def test_it_values_its_own_exploration():
    """With another epsilon the same data has another target; Q-learning's would be the same."""
    algorithm = linear(trace_decay=0.0)
    data = unroll([MID] * 3, [1.0] * 3)
    before = algorithm.preprocess(data, None).target
    algorithm.policy.exploration.strength = 1.0
    after = algorithm.preprocess(data, None).target
    assert after[1, 0].item() == 2 + GAMMA * 17.0
    assert after[1, 0] < before[1, 0]


def test_without_exploration_it_values_the_best_action():
    algorithm = linear(trace_decay=0.0)
    algorithm.policy.exploration = None
    assert algorithm.preprocess(unroll([MID] * 3, [1.0] * 3), None).target[1, 0].item() == 2 + GAMMA * 22.0


def test_noisy_layers_are_refused():
    config = SarsaConfig(network=NetworkConfig(noisy=True))
    with pytest.raises(ConfigError, match=r"leave network\.noisy off"):
        Sarsa(TensorSpec((2,)), DiscreteSpec(num=2), config)


def test_all_actions_count_where_none_is_marked_at_a_time_limit(monkeypatch):
    """Masks of LAST rows may be empty; what was cut off is worth what it would be worth, and not 0."""
    algorithm, mask = linear(trace_decay=0.0), torch.ones(4, 1, 2, dtype=torch.bool)
    mask[1] = False
    monkeypatch.setattr(algorithm.policy, "action_mask", lambda observation: mask)
    cut = algorithm.preprocess(unroll([MID, LAST, FIRST, MID], [1.0] * 4), None)
    assert cut.target[0, 0].item() == pytest.approx(1 + GAMMA * expectation(1))
