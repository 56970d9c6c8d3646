"""The statistics of the benchmarks' reports."""

import math

import numpy as np
import pytest

from benchmarks.numbers import difference, mean_interval, ratios, sample, spread


def test_a_ratio_is_taken_within_a_round_so_that_a_slow_round_changes_nothing():
    assert ratios([30.0, 15.0, 31.0], [10.0, 5.0, 10.0]) == [3.0, 3.0, 3.1]
    assert spread([3.0, 3.0, 3.1]) == (3.0, 3.0, 3.1)


def test_sides_with_different_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_the_interval_is_students():
    mean, half = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.7764 * math.sqrt(2.5) / math.sqrt(5), rel=1e-4)


def test_one_value_has_no_interval():
    assert mean_interval([7.0]) == (7.0, None)


def test_the_interval_of_a_difference_holds_it_in_95_of_100_cases():
    """Three seeds beside four, of other spreads; a stratified percentile bootstrap holds it in about 80."""
    generator = np.random.default_rng(0)
    held = {"welch": 0, "bootstrap": 0}
    for _ in range(1000):
        first, second = generator.normal(5.0, 1.0, 3), generator.normal(3.0, 2.0, 4)
        mean, half = difference(sample(first.tolist()), sample(second.tolist()))
        assert half is not None
        held["welch"] += abs(mean - 2.0) <= half
        means = [values[generator.integers(len(values), size=(200, len(values)))].mean(1) for values in (first, second)]
        low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
        held["bootstrap"] += low <= 2.0 <= high
    assert 930 <= held["welch"] <= 980
    assert held["bootstrap"] <= 880


def test_one_value_leaves_a_difference_without_interval():
    assert difference(sample([1.0]), sample([3.0, 5.0])) == (-3.0, None)
    assert difference(sample([1.0, 1.0]), sample([3.0, 3.0])) == (-2.0, 0.0)
