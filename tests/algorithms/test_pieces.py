"""Tests of how `palaestra.algorithms.gradient_algorithm` cuts a minibatch for the cache."""

import pytest

from palaestra.algorithms import gradient_algorithm


@pytest.mark.parametrize("rows", [4096, 4097, 6144, 10_000, 65_536, 100_003])
def test_pieces_are_of_equal_size_and_fit_the_cache(rows):
    """A mean over pieces of unequal size is not the mean over rows; what has no divisor near stays whole."""
    pieces, most = gradient_algorithm._pieces(rows), gradient_algorithm._ROWS_IN_CACHE
    near = [count for count in range(rows // most, 2 * rows // most) if rows % count == 0]
    assert rows % pieces == 0
    assert pieces == (near[0] if near else 1)
