"""Tests of `palaestra.ops.targets`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import double_q_target, greedy_action, q_target, td_target

ONLINE = torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 0.0]])
TARGET = torch.tensor([[30.0, 20.0, 10.0], [40.0, 50.0, 60.0]])
REWARD = torch.tensor([1.0, 2.0])
DISCOUNT = torch.tensor([0.5, 0.0])
MASK = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.int8)


def best(row, mask):
    return max((q, a) for a, q in enumerate(row) if mask is None or mask[a])[1]


def masks(mask):
    return [None, None] if mask is None else mask.tolist()


def reference(choose, value, mask=None):
    """Van Hasselt et al. 2016, equation (4), row by row."""
    rows = zip(REWARD.tolist(), DISCOUNT.tolist(), choose.tolist(), value.tolist(), masks(mask), strict=True)
    return torch.tensor([r + d * q[best(c, m)] for r, d, c, q, m in rows])


def test_td_target_bootstraps_by_the_discount():
    """ALF-25, ALF-26, ALF-22: the mutant that ignores the termination adds the value of the final observation."""
    next_value = torch.tensor([10.0, 10.0])
    assert td_target(next_value, REWARD, DISCOUNT).tolist() == [6.0, 2.0]
    assert td_target(next_value, REWARD, torch.full((2,), 0.5)).tolist() == [6.0, 7.0]


@pytest.mark.parametrize("mask", [None, MASK, MASK.bool()])
def test_double_q_target_chooses_with_one_network_and_values_with_the_other(mask):
    target = double_q_target(ONLINE, TARGET, REWARD, DISCOUNT, mask)
    assert_close(target, reference(ONLINE, TARGET, mask))
    assert not torch.equal(target, q_target(TARGET, REWARD, DISCOUNT, mask))


@pytest.mark.parametrize("mask", [None, MASK])
def test_q_target_takes_the_best_action(mask):
    assert_close(q_target(ONLINE, REWARD, DISCOUNT, mask), reference(ONLINE, ONLINE, mask))


def test_double_q_target_with_one_network_is_the_q_target():
    assert torch.equal(double_q_target(TARGET, TARGET, REWARD, DISCOUNT), q_target(TARGET, REWARD, DISCOUNT))


def test_a_forbidden_action_is_never_bootstrapped_from():
    """The mutant without the mask takes the best action, 5."""
    allowed, everything = q_target(ONLINE, REWARD, DISCOUNT, MASK), q_target(ONLINE, REWARD, DISCOUNT)
    assert allowed[0].item() == 1 + 0.5 * 3
    assert everything[0].item() == 1 + 0.5 * 5


def test_a_terminated_row_ignores_its_action_values_even_where_nothing_is_allowed():
    """ALF-25: after an end environments often allow no action; the target is the reward, not NaN."""
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert double_q_target(ONLINE, TARGET, REWARD, torch.zeros(2), nothing).tolist() == [1.0, 2.0]
    assert q_target(ONLINE, REWARD, torch.zeros(2), nothing).tolist() == [1.0, 2.0]


def test_where_an_episode_is_cut_off_and_nothing_is_allowed_the_best_of_all_actions_counts():
    """At a time limit of a game that is over for its mask; the first action, 1 and 4, is not the best of row 0."""
    nothing, bootstrap = torch.zeros(2, 3, dtype=torch.bool), torch.tensor([0.5, 0.25])
    assert q_target(ONLINE, REWARD, bootstrap, nothing).tolist() == [1 + 0.5 * 5, 2 + 0.25 * 4]
    assert double_q_target(ONLINE, TARGET, REWARD, bootstrap, nothing).tolist() == [1 + 0.5 * 20, 2 + 0.25 * 40]
    mixed = torch.tensor([[0, 0, 0], [0, 0, 1]])
    assert q_target(ONLINE, REWARD, bootstrap, mixed).tolist() == [1 + 0.5 * 5, 2.0]


def test_the_mutant_that_ignores_the_end_overestimates():
    """ALF-25: row 1 terminated."""
    right = double_q_target(ONLINE, TARGET, REWARD, DISCOUNT)
    mutant = double_q_target(ONLINE, TARGET, REWARD, torch.full((2,), 0.5))
    assert right[1].item() == 2.0
    assert mutant[1].item() == 22.0


@pytest.mark.parametrize("mask", [None, MASK])
def test_the_greedy_action_is_the_best_allowed_one(mask):
    expected = [best(row, m) for row, m in zip(ONLINE.tolist(), masks(mask), strict=True)]
    assert greedy_action(ONLINE, mask).tolist() == expected
    assert greedy_action(ONLINE).tolist() == [1, 0]  # the mutant without the mask
    assert greedy_action(ONLINE, torch.zeros(2, 3)).tolist() == [1, 0]  # where none is allowed, all are


def test_targets_accept_sequences():
    sequence = [x.expand(4, *x.shape) for x in (ONLINE, TARGET, REWARD, DISCOUNT)]
    assert torch.equal(double_q_target(*sequence), double_q_target(ONLINE, TARGET, REWARD, DISCOUNT).expand(4, 2))


@pytest.mark.usefixtures("unchecked_shapes")
def test_targets_name_both_arrays_when_shapes_do_not_fit():
    with pytest.raises(
        ShapeError, match=r"next_value has shape \[2, 1\] and reward has shape \[2\]; both must be \[N\]"
    ):
        td_target(torch.ones(2, 1), REWARD, DISCOUNT)
    with pytest.raises(ShapeError, match=r"next_q_online has shape \[2, 2\] and next_q_target has shape \[2, 3\]"):
        double_q_target(ONLINE[:, :2], TARGET, REWARD, DISCOUNT)
    with pytest.raises(
        ShapeError, match=r"next_q has shape \[2, 3\] and reward has shape \[2, 1\]; next_q must be \[N, A\]"
    ):
        q_target(ONLINE, REWARD[:, None], DISCOUNT[:, None])
    with pytest.raises(ShapeError, match=r"q has shape \[2, 3\] and action_mask has shape \[3\]"):
        q_target(ONLINE, REWARD, DISCOUNT, MASK[0])
