"""The statistics of the benchmarks' reports."""

import math

import pytest

from benchmarks.numbers import mean_interval, ratios, spread, t_quantile


def test_a_ratio_is_taken_within_a_round_so_that_a_slow_round_changes_nothing():
    assert ratios([30.0, 15.0, 31.0], [10.0, 5.0, 10.0]) == [3.0, 3.0, 3.1]
    assert spread([3.0, 3.0, 3.1]) == (3.0, 3.0, 3.1)


def test_sides_with_different_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_the_interval_is_students():
    mean, half = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5))


def test_one_value_has_no_interval():
    assert mean_interval([7.0]) == (7.0, None)


def test_the_table_of_t_goes_down_towards_the_normal_quantile():
    quantiles = [t_quantile(df) for df in range(1, 30)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[-1] > 1.96
    with pytest.raises(ValueError, match="2 to 30 values, not 31"):
        t_quantile(30)
