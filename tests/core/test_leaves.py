"""Tests of `palaestra.core`: what a list may become, and what is said about rows that do not exist."""

import numpy as np
import pytest

from palaestra.core import Batch, ShapeError


@pytest.mark.parametrize("mixed", [[1, None], (0.5, np.cos), [[1, 2], [3, None]], [np.float32(1), {1}]], ids=str)
def test_numbers_beside_something_else_are_refused(mixed):
    """TS-03, REQUIREMENTS section 6: no array of objects where numbers are meant; text beside numbers becomes text."""
    with pytest.raises(TypeError, match=r"field 'x' mixes \[.*\]; give numbers alone \(NaN for one that is missing\)"):
        Batch(x=mixed)
    with pytest.raises(ShapeError, match="field 'x' cannot be joined: field 'x' mixes"):
        Batch.stack([Batch(x=1.0), Batch(x=None)])
    assert Batch(x=[None, None]).x.dtype == object  # nothing is lost where there is no number
    for joined in (Batch.cat([Batch(x=np.ones(2))] * 2), Batch.stack([Batch(x=1), Batch(x=2.5)]), Batch(x=[1, 2.5])):
        assert joined.x.dtype.kind == "f"


@pytest.mark.parametrize("index", [np.array([9]), np.array([-4])], ids=str)
def test_rows_that_do_not_exist_are_named(index):
    with pytest.raises(IndexError, match=r"out of bounds .*\(field 'x' of shape \(3,\)"):
        Batch(x=np.arange(3))[index]
