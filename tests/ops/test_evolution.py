"""Tests of `centered_ranks` and `episode_returns`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.ops import centered_ranks, episode_returns

FIRST, MID, LAST = 0, 1, 2


def test_ranks_do_not_depend_on_units():
    score = torch.tensor([5.0, -3.0, 100.0, 7.0, 0.0])
    assert_close(centered_ranks(score), torch.tensor([0.0, -0.5, 0.5, 0.25, -0.25]))
    assert_close(centered_ranks(score), centered_ranks(1000 * score - 3))


def test_equal_scores_share_their_rank_so_nothing_is_learned_from_them():
    assert_close(centered_ranks(torch.full((6,), 3.0)), torch.zeros(6))
    assert_close(centered_ranks(torch.tensor([1.0, 1.0, 2.0])), torch.tensor([-0.25, -0.25, 0.5]))


def test_ranks_keep_the_precision_of_their_scores():
    third = centered_ranks(torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64))[1]
    assert third.dtype == torch.float64
    assert abs(third - (1 / 3 - 0.5)) < 1e-16


def column(*rows: tuple[int, float]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[reward] for _, reward in rows]), torch.tensor([[kind] for kind, _ in rows])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(FIRST, 0.0), (MID, 1.0), (LAST, 2.0), (FIRST, 0.0), (LAST, 5.0)], 4.0),  # the mean of 3 and 5
        ([(MID, 9.0), (LAST, 9.0), (FIRST, 0.0), (MID, 1.0), (LAST, 1.0)], 2.0),  # the first began before
        ([(FIRST, 0.0), (LAST, 3.0), (FIRST, 0.0), (MID, 100.0), (MID, 100.0)], 3.0),  # the second goes on
        ([(MID, 1.0), (LAST, 1.0), (FIRST, 0.0), (MID, 2.0), (MID, 4.0)], 7.0),  # none is whole: all its rows
        ([(MID, 1.0), (MID, 1.0), (MID, 1.0)], 2.0),
    ],
)
def test_only_episodes_that_lie_inside_the_unroll_count(rows, expected):
    assert_close(episode_returns(*column(*rows)), torch.tensor([expected]))
