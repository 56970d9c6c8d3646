"""Tests of `gae` and `vtrace`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import VTraceClip, valid_starts
from tests.ops.per_step import discounted_returns, gae, lambda_returns, vtrace
from tests.ops.trajectories import (
    FIRST,
    GAMMA,
    LAST,
    MID,
    gae_reference,
    ignoring_ends,
    random_trajectory,
    table,
    truncation_as_termination,
    vtrace_reference,
)

bounded = settings(max_examples=25, deadline=None, derandomize=True)


def log_ratios(seed, num_steps, num_lanes):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_steps, num_lanes, generator=generator, dtype=torch.float64)


def column(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype)[:, None]


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_gae_matches_the_sum_in_the_paper(lambda_):
    """TS-14, ALF-23..26."""
    for trajectory in (table(), random_trajectory(0, 37, 3)):
        assert_close(gae(*trajectory, lambda_=lambda_), gae_reference(trajectory, lambda_))


@bounded
@given(seed=st.integers(0, 10**6), num_steps=st.integers(1, 20), lambda_=st.floats(0, 1))
def test_gae_matches_the_sum_in_the_paper_on_any_stream(seed, num_steps, lambda_):
    trajectory = random_trajectory(seed, num_steps, 2)
    assert_close(gae(*trajectory, lambda_=lambda_), gae_reference(trajectory, lambda_))


def test_gae_is_zero_when_the_value_is_exact():
    # Reward 1 forever is worth 1 / (1 - gamma); an exact critic leaves no advantage, whatever lambda.
    ones = torch.ones(7, 1)
    advantage = gae(ones / (1 - GAMMA), ones, GAMMA * ones, ones.int(), lambda_=0.7)
    assert_close(advantage, torch.zeros(6, 1), atol=1e-5, rtol=0)


def test_gae_with_lambda_one_is_the_return_minus_the_value():
    trajectory = random_trajectory(1, 30, 3)
    value, reward, discount, step_type = trajectory
    returns = discounted_returns(reward, discount, step_type, value)
    assert_close(gae(*trajectory, lambda_=1.0), returns - value[:-1])


def test_gae_with_lambda_zero_is_the_one_step_error():
    trajectory = random_trajectory(2, 30, 3)
    value, reward, discount, step_type = trajectory
    error = (reward[1:] + discount[1:] * value[1:] - value[:-1]) * valid_starts(step_type)
    assert_close(gae(*trajectory, lambda_=0.0), error)


def test_gae_plus_the_value_is_the_lambda_return():
    trajectory = random_trajectory(3, 30, 3)
    assert_close(gae(*trajectory, lambda_=0.6) + trajectory.value[:-1], lambda_returns(*trajectory, lambda_=0.6))


def test_gae_bootstraps_from_the_final_observation_of_a_truncated_episode():
    """ALF-26. Reward 1, then a time limit at a state worth 10: 1 + 0.9 * 10 - 0 = 10."""
    arguments = (
        column(0, 10, 99),
        column(0, 1, 0),
        column(1, 1, 1) * GAMMA,
        column(FIRST, LAST, FIRST, dtype=torch.int32),
    )
    assert gae(*arguments, lambda_=0.95)[0].item() == pytest.approx(10.0)


def test_gae_does_not_bootstrap_from_a_terminated_episode():
    """ALF-25. The value of the final observation, 10, is not used."""
    arguments = (
        column(0, 10, 99),
        column(0, 1, 0),
        column(GAMMA, 0, GAMMA),
        column(FIRST, LAST, FIRST, dtype=torch.int32),
    )
    assert gae(*arguments, lambda_=0.95)[0].item() == pytest.approx(1.0)


def test_gae_does_not_look_past_a_last_step():
    """ALF-25, ALF-26: change every later reward and nothing before moves; the mutant that ignores the end moves."""
    trajectory = table()
    later = trajectory.reward.clone()
    later[6:] += 100.0
    changed = trajectory._replace(reward=later)
    assert torch.equal(gae(*trajectory, lambda_=0.9)[:6], gae(*changed, lambda_=0.9)[:6])
    mutant = gae(*ignoring_ends(trajectory), lambda_=0.9)[:6] - gae(*ignoring_ends(changed), lambda_=0.9)[:6]
    assert (mutant[3:].abs() > 1).all()


def test_gae_ignores_a_broken_fragment_but_learns_what_led_to_it():
    """A crashed environment: MID, MID, FIRST. Row 1 is not trained; row 0 bootstraps from it."""
    step_type = column(FIRST, MID, FIRST, MID, dtype=torch.int32)
    advantage = gae(column(1, 2, 4, 8), column(0, 1, 0, 1), column(1, 1, 1, 1) * 0.5, step_type, lambda_=1.0)
    assert advantage.squeeze().tolist() == [1 + 0.5 * 2 - 1, 0.0, 1 + 0.5 * 8 - 4]


def test_gae_takes_lambda_as_a_tensor():
    trajectory = random_trajectory(4, 12, 2)
    lambda_ = torch.tensor(0.7, dtype=torch.float64)
    assert torch.equal(gae(*trajectory, lambda_=lambda_), gae(*trajectory, lambda_=0.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_keep_their_dtype_and_have_no_gradient(dtype):
    value, reward, discount, step_type = random_trajectory(5, 12, 2)
    value, reward, discount = value.to(dtype).requires_grad_(), reward.to(dtype), discount.to(dtype)
    log_ratio = torch.zeros(12, 2, dtype=dtype, requires_grad=True)
    for result in (
        gae(value, reward, discount, step_type, lambda_=0.9),
        *vtrace(value, reward, discount, step_type, log_ratio),
    ):
        assert result.dtype == dtype
        assert not result.requires_grad


@pytest.mark.parametrize(("rho_clip", "c_clip"), [(1.0, 1.0), (2.0, 0.5), (0.7, 3.0)])
@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_vtrace_matches_the_sum_in_the_paper(rho_clip, c_clip, lambda_):
    for trajectory in (table(), random_trajectory(6, 25, 3)):
        log_ratio = log_ratios(0, *trajectory.value[:-1].shape)
        target, advantage = vtrace_reference(trajectory, log_ratio, rho_clip=rho_clip, c_clip=c_clip, lambda_=lambda_)
        result = vtrace(*trajectory, log_ratio, clip=VTraceClip(rho_clip, c_clip, lambda_))
        assert_close(result.target, target)
        assert_close(result.advantage, advantage)


@bounded
@given(seed=st.integers(0, 10**6), num_steps=st.integers(1, 16), lambda_=st.floats(0, 1))
def test_vtrace_on_policy_is_the_lambda_return_and_its_advantage_is_gae(seed, num_steps, lambda_):
    trajectory = random_trajectory(seed, num_steps, 2)
    result = vtrace(*trajectory, torch.zeros(num_steps, 2, dtype=torch.float64), clip=VTraceClip(lambda_=lambda_))
    assert_close(result.target, lambda_returns(*trajectory, lambda_=lambda_))
    assert_close(result.advantage, gae(*trajectory, lambda_=lambda_))


def test_vtrace_ignores_rows_that_the_acting_policy_would_never_visit():
    """A ratio of 0 leaves the value where it is."""
    trajectory = random_trajectory(7, 10, 2)
    result = vtrace(*trajectory, torch.full((10, 2), -torch.inf, dtype=torch.float64))
    assert torch.equal(result.target, trajectory.value[:-1])
    assert result.advantage.abs().max().item() == 0.0


def test_vtrace_does_not_look_past_a_last_step():
    """ALF-25, ALF-26: the mutant that ignores ends carries a later reward back."""
    trajectory = table()
    later = trajectory.reward.clone()
    later[6:] += 100.0
    changed, log_ratio = trajectory._replace(reward=later), torch.zeros(10, 1, dtype=torch.float64)
    for before, after in zip(vtrace(*trajectory, log_ratio), vtrace(*changed, log_ratio), strict=True):
        assert torch.equal(before[:6], after[:6])
    mutant = vtrace(*ignoring_ends(trajectory), log_ratio).target - vtrace(*ignoring_ends(changed), log_ratio).target
    assert (mutant[3:6].abs() > 1).all()


def test_vtrace_bootstraps_from_a_truncated_end_only():
    """ALF-26: the mutant that takes a time limit for a termination loses 0.9 * 60."""
    trajectory, log_ratio = table(), torch.zeros(10, 1, dtype=torch.float64)
    right, wrong = vtrace(*trajectory, log_ratio), vtrace(*truncation_as_termination(trajectory), log_ratio)
    assert right.target[4].item() == pytest.approx(4 + GAMMA * 60)
    assert wrong.target[4].item() == pytest.approx(4.0)


def test_vtrace_without_bounds_is_finite_where_an_error_of_zero_meets_an_overflowing_ratio():
    reward, kinds = torch.tensor([[0.0], [1.0], [0.0]]), torch.tensor([[0], [1], [1]], dtype=torch.int32)
    given = torch.zeros(3, 1), reward, torch.ones(3, 1), kinds, torch.full((2, 1), 89.0)
    found = vtrace(*given, gamma=0.9, clip=VTraceClip(math.inf, 1.0, 1.0))
    assert found.target.isfinite().all() and found.advantage.isfinite().all()
    assert found.target[0] > 1e30 and found.target[1] == 0


def test_vtrace_does_not_read_the_ratio_of_a_row_that_may_not_be_learned_from():
    trajectory = random_trajectory(8, 20, 2)
    log_ratio = log_ratios(1, 20, 2)
    poisoned = torch.where(valid_starts(trajectory.step_type), log_ratio, torch.nan)
    assert poisoned.isnan().any()
    for clean, other in zip(vtrace(*trajectory, log_ratio), vtrace(*trajectory, poisoned), strict=True):
        assert torch.equal(clean, other)


@pytest.mark.usefixtures("unchecked_shapes")
def test_gae_names_both_arrays_when_lengths_differ():
    step_type = torch.ones(5, 2, dtype=torch.int32)
    message = r"value has shape \[5, 2\] and reward has shape \[4, 2\]; both must be \[T\+1, B\]"
    with pytest.raises(ShapeError, match=message):
        gae(torch.ones(5, 2), torch.ones(4, 2), torch.ones(5, 2), step_type, lambda_=0.9)
    with pytest.raises(ShapeError, match=r"value has shape \[5, 2\] and discount has shape \[5\]"):
        gae(torch.ones(5, 2), torch.ones(5, 2), torch.ones(5), step_type, lambda_=0.9)
    with pytest.raises(ShapeError, match=r"value has shape \[1, 2\]; at least two time steps"):
        gae(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), step_type[:1], lambda_=0.9)
    one = torch.tensor(1.0)
    with pytest.raises(ShapeError, match=r"value has shape \[\]; at least two time steps"):
        gae(one, one, one, one.int(), lambda_=0.9)
    assert gae(torch.ones(5), torch.ones(5), torch.ones(5), step_type[:, 0], lambda_=0.9).shape == (4,)


@pytest.mark.usefixtures("unchecked_shapes")
def test_vtrace_names_both_arrays_when_lengths_do_not_differ_by_one():
    ones, step_type = torch.ones(5, 2), torch.ones(5, 2, dtype=torch.int32)
    message = (
        r"value has shape \[5, 2\] and log_ratio has shape \[5, 2\]; value must be \[T\+1, B\] and log_ratio \[T, B\]"
    )
    with pytest.raises(ShapeError, match=message):
        vtrace(ones, ones, ones, step_type, ones)
