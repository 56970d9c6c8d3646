"""Tests of `palaestra.ops.losses`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import (
    approximate_kl,
    clipped_surrogate,
    expectile_loss,
    explained_variance,
    huber,
    masked_mean,
    policy_gradient,
    quantile_huber,
    squared_errors,
)

bounded = settings(max_examples=25, deadline=None, derandomize=True)
numbers = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.booleans()), min_size=1, max_size=12)


def tensors(rows):
    x, y, valid = zip(*rows, strict=True)
    return torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64), torch.tensor(valid)


@pytest.mark.parametrize("delta", [0.5, 1.0, 2.0])
def test_huber_is_quadratic_within_delta_and_linear_beyond(delta):
    error = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = [0.5 * e * e if abs(e) <= delta else delta * (abs(e) - delta / 2) for e in error.tolist()]
    assert_close(huber(error, delta=delta), torch.tensor(expected, dtype=torch.float64))


def test_huber_limits_the_gradient_to_delta():
    # The squared error, its mutant, has gradients of 10 here.
    error = torch.tensor([-10.0, 0.25, 10.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(huber(error, delta=2.0).sum(), error)
    assert gradient.tolist() == [-2.0, 0.25, 2.0]


def test_huber_refuses_a_delta_that_is_not_positive():
    with pytest.raises(ValueError, match=r"delta is 0\.0; it must be positive"):
        huber(torch.ones(2), delta=0.0)


def test_squared_errors_are_the_mean_of_each_member_added_up():
    prediction = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.linspace(-1, 1, 5, dtype=torch.float64)
    loss = squared_errors(prediction, target)
    assert_close(loss, sum(((row - target) ** 2).sum() / 5 for row in prediction))
    (gradient,) = torch.autograd.grad(loss, prediction)
    assert_close(gradient, 2 * (prediction.detach() - target) / 5)  # of a member it is the same whatever their number


@pytest.mark.usefixtures("unchecked_shapes")
def test_squared_errors_refuse_rows_that_are_not_the_targets():
    # Broadcast in silence, [2, 5] members and a target [2] or [5, 1] would be another loss.
    for target in (torch.zeros(2), torch.zeros(5, 1)):
        with pytest.raises(ShapeError, match=r"prediction has shape \[2, 5\] and target has shape .* must be \[K, N\]"):
            squared_errors(torch.zeros(2, 5), target)


def test_policy_gradient_raises_the_probability_of_better_actions():
    log_prob, advantage = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([3.0, -1.0], requires_grad=True)
    loss = policy_gradient(log_prob, advantage)
    assert loss.tolist() == [3.0, -2.0]
    loss.sum().backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [-3.0, 1.0]
    assert advantage.grad is None


@bounded
@given(rows=numbers, epsilon=st.floats(0.05, 0.5))
def test_clipped_surrogate_is_equation_seven(rows, epsilon):
    log_ratio, advantage, _ = tensors(rows)
    expected = []
    for log, a in zip(log_ratio.tolist(), advantage.tolist(), strict=True):
        ratio = math.exp(log)
        expected.append(-min(ratio * a, min(max(ratio, 1 - epsilon), 1 + epsilon) * a))
    result = clipped_surrogate(log_ratio, advantage, epsilon=epsilon)
    assert_close(result, torch.tensor(expected, dtype=torch.float64))
    assert_close(clipped_surrogate(log_ratio, advantage, epsilon=torch.tensor(epsilon, dtype=torch.float64)), result)


def test_clipped_surrogate_has_no_gradient_once_the_policy_moved_far_enough():
    # (ratio, advantage): up and good, down and bad have moved enough; the other two must be corrected.
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, -1.0, 1.0], requires_grad=True)
    clipped_surrogate(log_ratio, advantage, epsilon=0.2).sum().backward()
    assert log_ratio.grad is not None
    assert_close(log_ratio.grad, torch.tensor([0.0, 0.0, 1.5, -0.5]))
    assert advantage.grad is None


def test_clipped_surrogate_at_the_acting_policy_has_the_policy_gradient():
    log_prob, advantage = torch.randn(8, requires_grad=True), torch.linspace(-1, 1, 8)
    (clipped,) = torch.autograd.grad(
        clipped_surrogate(log_prob - log_prob.detach(), advantage, epsilon=0.2).sum(), log_prob
    )
    (plain,) = torch.autograd.grad(policy_gradient(log_prob, advantage).sum(), log_prob)
    assert_close(clipped, plain)


@bounded
@given(rows=numbers)
def test_masked_mean_is_the_mean_of_the_valid_rows(rows):
    x, _, valid = tensors(rows)
    chosen = [number for number, _, keep in rows if keep]
    expected = torch.tensor(sum(chosen) / len(chosen) if chosen else 0.0, dtype=torch.float64)
    assert_close(masked_mean(x, valid), expected)
    assert_close(masked_mean(x, valid.double()), expected)


def test_masked_mean_ignores_rows_that_may_not_be_learned_from():
    """ALF-25, ALF-26: weight 0 means gradient 0, even next to a NaN; the plain mean is the mutant."""
    x = torch.tensor([1.0, torch.nan, 3.0], requires_grad=True)
    valid = torch.tensor([1.0, 0.0, 1.0])
    mean = masked_mean(x, valid)
    (gradient,) = torch.autograd.grad(mean, x)
    assert mean.item() == 2.0
    assert gradient.tolist() == [0.5, 0.0, 0.5]
    assert x.mean().isnan()


def test_masked_mean_of_nothing_is_zero():
    x = torch.ones(3, requires_grad=True)
    mean = masked_mean(x, torch.zeros(3, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(mean, x)
    assert mean.item() == 0.0
    assert gradient.tolist() == [0.0, 0.0, 0.0]


def test_explained_variance_is_one_for_a_perfect_value_and_zero_for_a_constant_one():
    target, valid = torch.tensor([1.0, 2.0, 4.0, 900.0]), torch.tensor([True, True, True, False])
    assert explained_variance(target, target, valid).item() == 1.0
    assert explained_variance(torch.full((4,), 7.0), target, valid).item() == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(-target, target, valid).item() == pytest.approx(-3.0)


def test_explained_variance_matches_its_definition():
    generator = torch.Generator().manual_seed(0)
    value, target = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    valid = torch.rand(50, generator=generator) < 0.7
    error, chosen = (target - value)[valid], target[valid]
    expected = 1 - error.var(correction=0) / chosen.var(correction=0)
    assert_close(explained_variance(value, target, valid), expected)
    unmasked = 1 - (target - value).var(correction=0) / target.var(correction=0)
    assert abs(unmasked.item() - expected.item()) > 1e-3  # the mutant that forgets the mask


def test_explained_variance_of_targets_that_do_not_vary_is_zero():
    assert explained_variance(torch.randn(4), torch.full((4,), 2.0), torch.ones(4)).item() == 0.0
    assert explained_variance(torch.randn(4), torch.randn(4), torch.zeros(4)).item() == 0.0
    assert explained_variance(torch.empty(0), torch.empty(0), torch.empty(0)).item() == 0.0
    assert explained_variance(torch.arange(2048.0), torch.full((2048,), 10.1), torch.ones(2048)).item() == 0.0


def test_approximate_kl_is_the_expectation_of_the_exact_one():
    # Weighting each action by the acting policy's probability gives the divergence itself.
    acting, learning = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.4, 0.4, 0.2])
    log_ratio = (learning / acting).log()
    counts = torch.tensor([2, 3, 5])
    estimate = approximate_kl(log_ratio.repeat_interleave(counts), torch.ones(10))
    assert estimate.item() == pytest.approx((acting * (acting / learning).log()).sum().item(), abs=1e-6)


@bounded
@given(rows=numbers)
def test_approximate_kl_is_never_negative(rows):
    log_ratio, _, valid = tensors(rows)
    assert approximate_kl(log_ratio, valid).item() >= 0.0


def test_approximate_kl_leaves_out_rows_that_are_not_valid():
    assert approximate_kl(torch.tensor([0.0, 5.0]), torch.tensor([True, False])).item() == 0.0
    assert approximate_kl(torch.tensor([0.0, 5.0]), torch.tensor([True, True])).item() > 1.0


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda a, b: policy_gradient(a, b), ("log_prob", "advantage")),
        (lambda a, b: clipped_surrogate(a, b, epsilon=0.2), ("log_ratio", "advantage")),
        (lambda a, b: masked_mean(a, b), ("x", "valid")),
        (lambda a, b: explained_variance(a, b, a), ("value", "target")),
        (lambda a, b: approximate_kl(a, b), ("x", "valid")),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_losses_name_both_arrays_when_shapes_differ(call, names):
    # [N] against [N, 1] would broadcast to [N, N]: the classic slip.
    message = rf"{names[0]} has shape \[4\] and {names[1]} has shape \[4, 1\]; both must be \[N\]"
    with pytest.raises(ShapeError, match=message):
        call(torch.ones(4), torch.ones(4, 1))


def test_the_expectile_keeps_the_precision_of_its_errors():
    loss = expectile_loss(torch.tensor([3.0, -3.0], dtype=torch.float64), expectile=0.9)
    assert loss.tolist() == [0.9 * 9, (1 - 0.9) * 9]


def test_quantile_losses_of_sequences_are_those_of_their_rows():
    """Targets are centred row by row, whatever the leading dimensions are."""
    quantile, target = torch.randn(3, 4, 5), 100 * torch.randn(3, 4, 6)
    fraction = torch.linspace(0.1, 0.9, 5)
    rows = quantile_huber(quantile.flatten(0, 1), target.flatten(0, 1), fraction)
    assert torch.allclose(quantile_huber(quantile, target, fraction).flatten(), rows)


def test_a_ratio_beyond_single_precision_spoils_no_gradient():
    """One row that does not count, whose action has become e^100 times as likely, would make the whole update NaN."""
    log_ratio = torch.tensor([100.0, 100.0, 100.0], requires_grad=True)
    loss = clipped_surrogate(log_ratio, torch.tensor([1.0, 0.0, -1.0]), epsilon=0.2)
    loss.sum().backward()
    assert loss[:2].tolist() == pytest.approx([-1.2, 0.0])
    assert loss.isfinite().all() and log_ratio.grad is not None and log_ratio.grad.isfinite().all()
