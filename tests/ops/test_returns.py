"""Tests of `palaestra.ops.returns`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import n_step_end, valid_starts
from tests.ops.per_step import discounted_returns, lambda_returns, n_step_returns, n_step_targets
from tests.ops.trajectories import (
    FIRST,
    GAMMA,
    LAST,
    MID,
    ignoring_ends,
    lambda_reference,
    n_step_reference,
    n_step_window_reference,
    random_trajectory,
    table,
    truncation_as_termination,
)

bounded = settings(max_examples=25, deadline=None, derandomize=True)


def window(reward, discount, step_type):
    return (
        torch.tensor(reward, dtype=torch.float64)[:, None],
        torch.tensor(discount, dtype=torch.float64)[:, None],
        torch.tensor(step_type)[:, None],
    )


def valid_windows(seed, n, num_rows=60):
    """Windows of n + 1 rows whose row 0 is a valid start, cut from a random stream: arrays of shape [n+1, N]."""
    _, reward, discount, step_type = random_trajectory(seed, num_rows, 3)
    starts = [(t, lane) for t, lane in valid_starts(step_type).nonzero().tolist() if t + n <= num_rows]
    return tuple(torch.stack([x[t : t + n + 1, lane] for t, lane in starts], 1) for x in (reward, discount, step_type))


def test_discounted_returns_are_the_sum_in_the_book():
    trajectory = random_trajectory(0, 30, 3)
    expected = n_step_reference(trajectory, 10**6)
    value, reward, discount, step_type = trajectory
    assert_close(discounted_returns(reward, discount, step_type, value), expected)


def test_discounted_returns_without_a_bootstrap_add_up_the_rewards_that_were_seen():
    trajectory = random_trajectory(1, 30, 3)
    _, reward, discount, step_type = trajectory
    expected = n_step_reference(trajectory._replace(value=torch.zeros_like(reward)), 10**6)
    assert_close(discounted_returns(reward, discount, step_type), expected)


def test_discounted_returns_do_not_look_past_an_end():
    """ALF-25, TS-22: the mutant that knows no ends adds the next episode's rewards."""
    reward, discount = torch.ones(6, 1), torch.ones(6, 1)
    step_type = torch.tensor([FIRST, MID, LAST, FIRST, MID, MID])[:, None]
    assert discounted_returns(reward, discount, step_type).squeeze().tolist() == [2, 1, 0, 2, 1]
    assert discounted_returns(reward, discount, torch.ones_like(step_type)).squeeze().tolist() == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_lambda_returns_are_the_mean_of_n_step_returns(lambda_):
    for trajectory in (table(), random_trajectory(2, 25, 3)):
        assert_close(lambda_returns(*trajectory, lambda_=lambda_), lambda_reference(trajectory, lambda_))


@bounded
@given(seed=st.integers(0, 10**6), num_steps=st.integers(1, 16), lambda_=st.floats(0, 1))
def test_lambda_returns_are_the_mean_of_n_step_returns_on_any_stream(seed, num_steps, lambda_):
    trajectory = random_trajectory(seed, num_steps, 2)
    assert_close(lambda_returns(*trajectory, lambda_=lambda_), lambda_reference(trajectory, lambda_))


def test_lambda_returns_lie_between_one_step_and_the_full_return():
    trajectory = random_trajectory(3, 20, 2)
    value, reward, discount, step_type = trajectory
    assert_close(lambda_returns(*trajectory, lambda_=0.0), n_step_returns(*trajectory, n=1))
    assert_close(lambda_returns(*trajectory, lambda_=1.0), discounted_returns(reward, discount, step_type, value))


def test_lambda_returns_do_not_look_past_an_end():
    """ALF-25, ALF-26: the mutants differ in the rows that lead to the end."""
    right = lambda_returns(*table(), lambda_=0.9)
    assert (right - lambda_returns(*ignoring_ends(table()), lambda_=0.9)).abs()[4].item() > 1
    assert (right - lambda_returns(*truncation_as_termination(table()), lambda_=0.9)).abs()[4].item() > 1


def test_returns_are_differentiable():
    value, reward, discount, step_type = random_trajectory(4, 6, 2)
    inputs = tuple(x.requires_grad_() for x in (value, reward, discount))
    lambda_ = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda v, r, d, x: lambda_returns(v, r, d, step_type, lambda_=x), (*inputs, lambda_)
    )
    assert torch.autograd.gradcheck(lambda v, r, d: discounted_returns(r, d, step_type, v), inputs)
    assert torch.autograd.gradcheck(lambda v, r, d: n_step_returns(v, r, d, step_type, n=3), inputs)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 29, 30, 31])
def test_n_step_returns_match_the_sum_in_the_book(n):
    """TS-21, TS-22."""
    trajectory = random_trajectory(5, 30, 3)
    assert_close(n_step_returns(*trajectory, n=n), n_step_reference(trajectory, n))


@bounded
@given(seed=st.integers(0, 10**6), num_steps=st.integers(1, 16), n=st.integers(1, 20))
def test_n_step_returns_match_the_sum_in_the_book_on_any_stream(seed, num_steps, n):
    trajectory = random_trajectory(seed, num_steps, 2)
    assert_close(n_step_returns(*trajectory, n=n), n_step_reference(trajectory, n))


def test_n_step_returns_with_n_of_the_whole_unroll_are_discounted_returns():
    trajectory = random_trajectory(6, 20, 2)
    value, reward, discount, step_type = trajectory
    assert_close(n_step_returns(*trajectory, n=20), discounted_returns(reward, discount, step_type, value))


def test_n_step_returns_do_not_look_past_an_end():
    """TS-22: Tianshou's documented example does not respect done; a mutant like it differs."""
    right = n_step_returns(*table(), n=3)
    assert right[0].item() == pytest.approx(1 + GAMMA * 2)
    assert right[3].item() == pytest.approx(3 + GAMMA * 4 + GAMMA**2 * 60)
    assert (right - n_step_returns(*ignoring_ends(table()), n=3)).abs()[3].item() > 1


def test_two_step_targets_are_those_of_the_dqn_example():
    """TS-21: G = r₁ + γ r₂ + γ² max Q(x₂)."""
    arguments = window([9, 1, 2], [GAMMA] * 3, [MID, MID, MID])
    result = n_step_targets(*arguments)
    assert result.reward.item() == pytest.approx(1 + GAMMA * 2)
    assert result.bootstrap.item() == pytest.approx(GAMMA**2)
    assert result.steps.item() == 2


def test_n_step_targets_stop_at_a_termination_inside_the_window():
    """TS-22, ALF-25: no bootstrap, and nothing of the next episode; the mutant that ignores the end differs."""
    reward, discount, step_type = window(
        [9, 1, 2, 0, 50], [GAMMA, GAMMA, 0, GAMMA, GAMMA], [MID, MID, LAST, FIRST, MID]
    )
    result = n_step_targets(reward, discount, step_type)
    assert (result.reward.item(), result.bootstrap.item(), result.steps.item()) == (
        pytest.approx(1 + GAMMA * 2),
        0.0,
        2,
    )
    mutant = n_step_targets(reward, discount.clamp(min=GAMMA), torch.ones_like(step_type))
    assert mutant.reward.item() > result.reward.item() + 30


def test_n_step_targets_bootstrap_from_a_truncation_inside_the_window():
    """TS-22, ALF-26."""
    result = n_step_targets(*window([9, 1, 2, 0, 50], [GAMMA] * 5, [MID, MID, LAST, FIRST, MID]))
    assert result.reward.item() == pytest.approx(1 + GAMMA * 2)
    assert result.bootstrap.item() == pytest.approx(GAMMA**2)
    assert result.steps.item() == 2


def test_n_step_targets_stop_before_a_broken_fragment():
    result = n_step_targets(*window([9, 1, 2, 0, 50], [GAMMA] * 5, [MID, MID, MID, FIRST, MID]))
    assert result.reward.item() == pytest.approx(1 + GAMMA * 2)
    assert result.bootstrap.item() == pytest.approx(GAMMA**2)
    assert result.steps.item() == 2


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_n_step_targets_match_the_sum_in_the_book(n, seed):
    """TS-14, TS-22."""
    arguments = valid_windows(seed, n)
    reward, discount, steps = n_step_window_reference(*arguments)
    result = n_step_targets(*arguments)
    assert_close(result.reward, reward, check_dtype=False)
    assert_close(result.bootstrap, discount, check_dtype=False)
    assert torch.equal(result.steps, steps)
    assert torch.equal(n_step_end(arguments[2]), steps)


def test_n_step_targets_and_n_step_returns_agree():
    trajectory = random_trajectory(7, 40, 1)
    returns = n_step_returns(*trajectory, n=3).squeeze(-1)
    value, reward, discount, step_type = (x.squeeze(-1) for x in trajectory)
    for t in valid_starts(step_type)[:37].nonzero().squeeze(-1).tolist():
        result = n_step_targets(*(x[t : t + 4, None] for x in (reward, discount, step_type)))
        target = result.reward + result.bootstrap * value[t + result.steps]
        assert target.item() == pytest.approx(returns[t].item())


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("beginning", [[LAST, FIRST], [MID, FIRST], [LAST, MID]])
def test_a_window_that_begins_at_an_end_has_no_target(n, beginning):
    """A sampler never draws one; if it did, nothing of the next episode would be learned."""
    rows = beginning + [MID] * (n - 1)
    result = n_step_targets(*window([7, 3, 5, 5][: n + 1], [GAMMA] * (n + 1), rows))
    assert (result.reward.item(), result.bootstrap.item(), result.steps.item()) == (0.0, 0.0, 1)


def test_n_step_targets_do_not_read_rows_after_the_end():
    reward, discount, step_type = window([9, 1, 2, 0, 50], [GAMMA] * 5, [MID, MID, LAST, FIRST, MID])
    clean = n_step_targets(reward, discount, step_type)
    reward[3:], discount[3:] = torch.nan, torch.nan
    for left, right in zip(clean, n_step_targets(reward, discount, step_type), strict=True):
        assert torch.equal(left, right)


@pytest.mark.usefixtures("unchecked_shapes")
def test_returns_name_both_arrays_when_shapes_differ():
    ones, step_type = torch.ones(5, 2), torch.ones(5, 2, dtype=torch.int32)
    with pytest.raises(ShapeError, match=r"reward has shape \[4, 2\] and discount has shape \[5, 2\]; both must be"):
        discounted_returns(ones[:4], ones, step_type)
    with pytest.raises(ShapeError, match=r"reward has shape \[5, 2\] and value has shape \[2\]; both must be"):
        discounted_returns(ones, ones, step_type, ones[0])
    with pytest.raises(ShapeError, match=r"value has shape \[4, 2\] and reward has shape \[5, 2\]; both must be"):
        lambda_returns(ones[:4], ones, ones, step_type, lambda_=0.5)
    with pytest.raises(ShapeError, match=r"value has shape \[5, 2\] and step_type has shape \[4, 2\]; both must be"):
        n_step_returns(ones, ones, ones, step_type[:4], n=2)
    with pytest.raises(ShapeError, match=r"reward has shape \[5, 2\] and step_type has shape \[3, 2\]; both must be"):
        n_step_targets(ones, ones, step_type[:3])
    with pytest.raises(ShapeError, match=r"reward has shape \[1, 2\]; at least two rows \[n\+1, N\] are needed"):
        n_step_targets(ones[:1], ones[:1], step_type[:1])


def test_n_of_n_step_returns_must_be_positive():
    ones = torch.ones(3, 1)
    with pytest.raises(ValueError, match="n is 0; at least 1 step is needed"):
        n_step_returns(ones, ones, ones, ones.int(), n=0)
