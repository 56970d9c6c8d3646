"""Tests of `palaestra.training.learning`: which evaluation counts as the best."""

from types import SimpleNamespace
from typing import Any

import pytest

from palaestra.rollout import Evaluation
from palaestra.training.learning import is_best


def best(mean, won, rival_at, *, before: float | None = 2.0, best_at: int | None = 100, learns=False):
    """Of an evaluation after one that was made at env step 100 and had a mean return of 2."""
    evaluation = Evaluation(mean, 0.0, (mean, mean), 1.0, 1, [], True, [mean], against_best=won, rival_at=rival_at)
    algorithm: Any = SimpleNamespace(rewards=SimpleNamespace(learns=learns))
    return is_best(evaluation, before, best_at, {"policy": algorithm})


@pytest.mark.parametrize(
    ("mean", "won", "rival_at", "expected"),
    [
        (1.0, None, None, False),
        (2.0, None, None, True),
        (2.0 - 1e-10, None, None, True),
        (3.0, None, None, True),
        (1.0, 0.75, 100, True),
        (3.0, 0.25, 100, False),
        (1.0, 0.5, 100, False),
        (3.0, 0.5, 100, True),
        (3.0, 0.75, 50, False),
    ],
)
def test_the_best_has_won_against_the_best_before_it_or_earned_as_much(mean, won, rival_at, expected):
    """Who has won against others, that were the best when its games began, has not."""
    assert best(mean, won, rival_at) is expected


def test_the_newest_is_the_best_where_no_other_can_be_compared_with_it():
    """Before the first, after one that is not a number, and with constraints, of which returns say nothing."""
    assert best(1.0, None, None, before=None)
    assert best(1.0, None, None, before=float("nan"))
    assert best(1.0, 0.25, 50, learns=True)
    assert best(1.0, 0.75, 50, best_at=None)
