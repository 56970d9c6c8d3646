"""Tests of `palaestra.ops.statistics`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import merge, moments_of, standardize, variance

bounded = settings(max_examples=25, deadline=None, derandomize=True)


def test_standardize_matches_its_definition():
    numbers, keep = [1.0, 4.0, 100.0, 7.0], [True, True, False, True]
    deviation = math.sqrt(((1 - 4) ** 2 + 0 + (7 - 4) ** 2) / 3)
    expected = torch.tensor([-3 / deviation, 0.0, 0.0, 3 / deviation])
    assert_close(standardize(torch.tensor(numbers), torch.tensor(keep)), expected)
    assert_close(standardize(torch.tensor(numbers), torch.tensor(keep).float()), expected)


@bounded
@given(seed=st.integers(0, 10**6), shift=st.floats(-10, 10), scale=st.floats(0.1, 100))
def test_standardized_rows_have_mean_zero_and_deviation_one(seed, shift, scale):
    generator = torch.Generator().manual_seed(seed)
    x = shift + scale * torch.randn(16, 3, generator=generator, dtype=torch.float64)
    valid = torch.rand(16, 3, generator=generator) < 0.7
    y = standardize(x, valid)
    assert y[valid].mean().item() == pytest.approx(0.0, abs=1e-9)
    assert y[valid].std(correction=0).item() == pytest.approx(1.0, abs=1e-6)


def test_standardize_ignores_rows_that_may_not_be_learned_from():
    """ALF-25, ALF-26: the mutant that forgets the mask is shifted by the zeros that stand at episode ends."""
    x, valid = torch.tensor([5.0, 7.0, 0.0, 0.0]), torch.tensor([True, True, False, False])
    assert standardize(x, valid).tolist() == [-1.0, 1.0, 0.0, 0.0]
    assert standardize(torch.tensor([5.0, 7.0, torch.nan, torch.inf]), valid).tolist() == [-1.0, 1.0, 0.0, 0.0]
    assert (standardize(x, torch.ones(4))[:2] > 0).all()


@pytest.mark.parametrize("keep", [[False, False, False], [False, True, False], []])
def test_standardize_of_one_row_or_none_is_zero(keep):
    rows = torch.tensor([1.0, 2.0, 3.0])[: len(keep)]
    assert standardize(rows, torch.tensor(keep)).tolist() == [0.0] * len(keep)


def test_standardize_of_a_constant_is_zero():
    assert standardize(torch.full((8,), 2.0), torch.ones(8)).tolist() == [0.0] * 8


@pytest.mark.parametrize("count", [3, 2048, 100_000])
@pytest.mark.parametrize("number", [10.1, -0.3, 1e-30, 3e7])
def test_standardize_of_a_constant_is_zero_although_its_mean_is_rounded(number, count):
    """The mean of 2,048 times 10.1 is no 10.1; and one digit more or less at the end is rounding, too."""
    x, valid = torch.full((count,), number), torch.ones(count)
    assert not standardize(x, valid).any()
    x[1] = torch.nextafter(x[1], torch.tensor(torch.inf))
    assert not standardize(x, valid).any()
    x[-1], valid[-1] = 900.0, 0.0
    assert not standardize(x, valid).any()


def test_standardize_keeps_what_is_more_than_rounding():
    x = 1000 + torch.tensor([0.0, 1.0, 2.0, 3.0]) * 2**-12  # single precision counts in steps of 2**-14 there
    assert_close(standardize(x, torch.ones(4)), standardize(torch.arange(4.0), torch.ones(4)), rtol=1e-3, atol=0)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_standardize_does_not_hide_what_is_not_finite(number):
    assert standardize(torch.tensor([1.0, number]), torch.ones(2)).isnan().all()
    assert standardize(torch.full((2,), number), torch.ones(2)).isnan().all()


def test_moments_are_those_of_the_rows():
    x = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))
    moments = moments_of(x, dims=(0, 1))
    rows = x.double().reshape(30, 3)
    assert moments.count.item() == 30
    assert_close(moments.mean, rows.mean(0))
    assert_close(variance(moments), rows.var(0, correction=0))
    assert_close(moments_of(rows).mean, moments.mean)


def test_moments_are_kept_in_float64():
    assert {x.dtype for x in moments_of(torch.ones(3, 2, dtype=torch.uint8))} == {torch.float64}


def test_the_variance_survives_a_large_offset():
    # In float32, or as mean of squares minus square of mean, nothing would be left of the variance of 2/3.
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) + 1e9
    assert variance(moments_of(x)).item() == pytest.approx(2 / 3)
    assert variance(merge(moments_of(x[:1]), moments_of(x[1:]))).item() == pytest.approx(2 / 3)
    assert (x.square().mean() - x.mean().square()).item() != pytest.approx(2 / 3, rel=0.1)


@bounded
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_merging_in_any_grouping_gives_the_whole(seed, cuts):
    generator = torch.Generator().manual_seed(seed)
    x = 100 * torch.rand(1, 2, generator=generator) + torch.randn(40, 2, generator=generator)
    pieces = [moments_of(piece) for piece in x.tensor_split(sorted(cuts))]  # some are empty
    from_left, from_right = pieces[0], pieces[-1]
    for piece in pieces[1:]:
        from_left = merge(from_left, piece)
    for piece in pieces[-2::-1]:
        from_right = merge(piece, from_right)
    while len(pieces) > 1:  # neighbours first
        pieces = [merge(*pieces[i : i + 2]) if i + 1 < len(pieces) else pieces[i] for i in range(0, len(pieces), 2)]
    for result in (from_left, from_right, pieces[0]):
        for ours, whole in zip(result, moments_of(x), strict=True):
            assert_close(ours, whole, rtol=1e-12, atol=1e-12)


def test_merging_with_an_empty_stream_changes_nothing():
    moments, empty = moments_of(torch.tensor([1.0, 5.0])), moments_of(torch.empty(0))
    for result in (merge(moments, empty), merge(empty, moments)):
        assert all(torch.equal(left, right) for left, right in zip(result, moments, strict=True))
    assert [x.item() for x in merge(empty, empty)] == [0.0, 0.0, 0.0]
    assert variance(empty).item() == 0.0


def test_merging_is_not_averaging():
    """The mutant that averages means is wrong as soon as the pieces differ in size."""
    small, large = moments_of(torch.tensor([0.0])), moments_of(torch.tensor([4.0, 4.0, 4.0]))
    assert merge(small, large).mean.item() == 3.0
    assert variance(merge(small, large)).item() == 3.0


@pytest.mark.usefixtures("unchecked_shapes")
def test_statistics_name_both_arrays_when_shapes_differ():
    with pytest.raises(ShapeError, match=r"x has shape \[4\] and valid has shape \[4, 1\]; both must be \[N\]"):
        standardize(torch.ones(4), torch.ones(4, 1))
    with pytest.raises(
        ShapeError, match=r"a_mean has shape \[2\] and b_mean has shape \[3\]; both must be of one shape"
    ):
        merge(moments_of(torch.ones(4, 2)), moments_of(torch.ones(4, 3)))
