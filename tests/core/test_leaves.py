"""Tests of `palaestra.core`: what a list may become, what indexes both kinds of leaves, and rows that do not exist."""

import numpy as np
import pytest
import torch

from palaestra.core import Batch, ShapeError, tree_select


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


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([1]),
        torch.tensor([[2]], dtype=torch.int32),
        torch.tensor(1),
        (slice(None), torch.tensor([1])),
        (torch.tensor([0]), torch.tensor([2])),
        torch.tensor([0, 1, 1], dtype=torch.uint8),
        np.array([0, 1, 1], np.uint8),
        (slice(None), np.array([1], np.uint8)),
    ],
    ids=str,
)
def test_tensors_and_arrays_index_both_kinds_of_leaves_as_numpy_does(index):
    """numpy itself takes a tensor of one element for a number, and torch uint8 for a mask."""
    values = np.arange(9).reshape(3, 3)
    batch = Batch(a=values.copy(), b={"c": torch.from_numpy(values.copy())})
    given = index if isinstance(index, tuple) else (index,)
    place = tuple(part.numpy() if isinstance(part, torch.Tensor) else part for part in given)
    for rows in (batch[index], tree_select(batch, index)):
        assert np.array_equal(rows.a, values[place])
        assert np.array_equal(rows.b.c.numpy(), values[place])
    batch[index] = values[place] = 9
    assert batch == Batch(a=values, b={"c": torch.from_numpy(values)})


@pytest.mark.parametrize("kept", [True, False])
def test_a_mask_of_one_row_is_a_mask(kept):
    rows = Batch(a=np.ones(1), b=torch.ones(1))[torch.tensor([kept])]
    assert rows.a.tolist() == rows.b.tolist() == [1.0] * kept


def test_one_row_is_shuffled_and_none_is_no_part():
    (part,) = Batch(a=np.ones((1, 2)), b=torch.ones(1)).split(3, shuffle=True)
    assert part == Batch(a=np.ones((1, 2)), b=torch.ones(1))
    assert list(Batch(a=np.ones(0), b=torch.ones(0)).split(3)) == []


@pytest.mark.parametrize("index", [[0, 0], np.array([0, 0]), torch.tensor([0])], ids=str)
def test_an_array_without_rows_has_none_at_any_index(index):
    with pytest.raises(IndexError, match=r"array is 0-dimensional.* \(field 'x' of shape \(\)"):
        Batch(x=np.array(1.0))[index]


@pytest.mark.parametrize("index", [np.array([9]), np.array([-4])], ids=str)
def test_rows_that_do_not_exist_are_named(index):
    with pytest.raises(IndexError, match=r"out of bounds .*\(field 'x' of shape \(3,\)"):
        Batch(x=np.arange(3))[index]
