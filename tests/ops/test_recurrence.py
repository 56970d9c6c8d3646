"""Tests of `palaestra.ops.linear`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import reverse_linear_recurrence, reverse_linear_steps

bounded = settings(max_examples=25, deadline=None, derandomize=True)


def loop(a, b, initial):
    x, rows = initial, []
    for t in reversed(range(a.shape[0])):
        x = a[t] + b[t] * x
        rows.append(x)
    return torch.stack(rows[::-1]) if rows else a


def coefficients(seed, num_rows, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(num_rows, 3, generator=generator, dtype=dtype)
    b = torch.randn(num_rows, 3, generator=generator, dtype=dtype)
    return a, b * (torch.rand(num_rows, 3, generator=generator) < 0.7), torch.randn(3, generator=generator, dtype=dtype)


@bounded
@given(seed=st.integers(0, 10**6), num_rows=st.integers(1, 40))
def test_the_recurrence_is_the_loop_over_time(seed, num_rows):
    a, b, initial = coefficients(seed, num_rows)
    assert_close(reverse_linear_recurrence(a, b, initial), loop(a, b, initial))
    assert_close(reverse_linear_recurrence(a, b), loop(a, b, torch.zeros(3, dtype=a.dtype)))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 64, 100, 127, 128, 129])
def test_the_recurrence_works_for_lengths_that_are_no_powers_of_two(num_rows):
    a, b, initial = coefficients(0, num_rows, torch.float32)
    assert_close(reverse_linear_recurrence(a, b, initial), loop(a, b, initial), atol=1e-4, rtol=1e-4)


def test_a_zero_factor_separates_exactly():
    # The rows before the zero are bit-equal whatever comes after it, however large.
    a, b, initial = coefficients(1, 20, torch.float32)
    b[11] = 0.0
    changed = torch.cat((a[:12], 1e30 * torch.ones_like(a[12:])))
    before, after = reverse_linear_recurrence(a, b, initial), reverse_linear_recurrence(changed, b, initial)
    assert torch.equal(before[:12], after[:12])
    assert not torch.equal(before[12:], after[12:])
    assert torch.equal(before[11], a[11])


def test_tiny_factors_do_not_lose_the_sum():
    # A quotient of cumulative products would divide by 0 here: 0.01 ** 128 is no float32.
    a, b = torch.ones(128), torch.full((128,), 0.01)
    assert_close(reverse_linear_recurrence(a, b)[:100], torch.full((100,), 1 / 0.99))


def test_gradients_flow_through_the_recurrence():
    a, b, initial = (x.requires_grad_() for x in coefficients(2, 7))
    assert torch.autograd.gradcheck(reverse_linear_recurrence, (a, b, initial))


def test_the_recurrence_changes_no_argument():
    a, b, initial = coefficients(3, 9)
    copies = a.clone(), b.clone(), initial.clone()
    reverse_linear_recurrence(a, b, initial)
    assert all(torch.equal(x, y) for x, y in zip((a, b, initial), copies, strict=True))


@bounded
@given(seed=st.integers(0, 10**6), num_rows=st.integers(1, 20), n=st.integers(1, 25))
def test_n_steps_are_n_rounds_of_the_definition(seed, num_rows, n):
    a, b, initial = coefficients(seed, num_rows)
    x = torch.cat((torch.randn(num_rows, 3, dtype=a.dtype, generator=torch.Generator().manual_seed(n)), initial[None]))
    expected = x
    for _ in range(n):
        expected = torch.cat((a + b * expected[1:], x[-1:]))
    assert_close(reverse_linear_steps(a, b, x, n=n), expected[:-1])


@pytest.mark.usefixtures("unchecked_shapes")
def test_recurrences_name_both_arrays_when_shapes_do_not_fit():
    with pytest.raises(ShapeError, match=r"a has shape \[3, 2\] and b has shape \[4, 2\]; both must be \[T, \.\.\.\]"):
        reverse_linear_recurrence(torch.ones(3, 2), torch.ones(4, 2))
    with pytest.raises(ShapeError, match=r"a has shape \[3, 2\] and initial has shape \[3\]; initial must be \[2\]"):
        reverse_linear_recurrence(torch.ones(3, 2), torch.ones(3, 2), torch.ones(3))
    with pytest.raises(ShapeError, match=r"a has shape \[3\] and x has shape \[3\]; x must have one row more than a"):
        reverse_linear_steps(torch.ones(3), torch.ones(3), torch.ones(3), n=1)


def test_n_must_be_positive():
    with pytest.raises(ValueError, match="n is 0; at least 1 step is needed"):
        reverse_linear_steps(torch.ones(3), torch.ones(3), torch.ones(4), n=0)
