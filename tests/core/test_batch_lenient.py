"""Tests of the lenient side of `palaestra.core.Batch`: missing fields, lists of dicts, equality, changes in place."""

import numpy as np
import pytest
import torch

from palaestra.core import Batch


def test_ts_06_a_field_that_some_lack_is_zeros_there():
    """TS-06: `stack` and `cat`, nested fields and both kinds of leaves; a field reserved by an empty batch too."""
    one = Batch(a=np.ones(2), b=Batch(c=torch.ones(2, 3)), text="x")
    other = Batch(a=np.ones(2), b=Batch(d=np.ones((2, 2))), text="y")
    stacked = Batch.stack([one, other])
    assert stacked.b.c.tolist() == [[[1.0] * 3] * 2, [[0.0] * 3] * 2]
    assert stacked.b.d.tolist() == [[[0.0] * 2] * 2, [[1.0] * 2] * 2]
    joined = Batch.cat([Batch(a=np.ones(3)), Batch(a=np.ones(2), b=Batch(c=torch.ones(2, 3)))])
    assert joined.b.c.tolist() == [[0.0] * 3] * 3 + [[1.0] * 3] * 2
    reserved = Batch(a=np.ones(2), c=Batch())
    assert Batch.stack([reserved, Batch(a=np.ones(2), c=np.ones(2))]).c.tolist() == [[0, 0], [1, 1]]
    assert Batch.cat([reserved, Batch(a=np.ones(1), c=np.ones(1))]).c.tolist() == [0, 0, 1]
    assert Batch.cat([reserved, reserved]).c.is_empty()


def test_ts_06_a_list_of_dicts_becomes_a_batch():
    """TS-06: info dicts with different keys."""
    batch = Batch([{"cost": 1.0, "goal": {"x": 2}}, {"cost": 3.0, "success": 1}])
    assert batch == Batch(cost=np.array([1.0, 3.0]), goal=Batch(x=np.array([2, 0])), success=np.array([0, 1]))
    assert Batch(info=[{"a": 1}, {"b": 2}]).info == Batch(a=np.array([1, 0]), b=np.array([0, 2]))


def test_ts_06_batches_are_equal_by_value():
    """TS-06."""
    make = lambda: Batch(a=np.arange(3), b=Batch(c=torch.ones(2)), d="x")  # noqa: E731
    assert make() == make()
    for change in ({"a": np.arange(4)}, {"a": np.arange(3.0)}, {"b": Batch(c=torch.zeros(2))}, {"d": "y"}, {"e": 1}):
        assert make() != make().replace(**change)
    assert make() != Batch(a=np.arange(3))
    assert make() != 3


def test_ts_06_numbers_on_the_left_and_minus():
    """TS-06."""
    b = Batch(a=np.array([1.0, 2.0]), n=Batch(t=torch.tensor([4.0])))
    assert 2 * b == b * 2 == b + b
    assert -b == 0 - b == b * -1
    assert 1 + b == b + 1
    assert (8 / b).n.t.tolist() == [2.0]


def test_ts_06_a_field_is_taken_out():
    """TS-06: `pop`."""
    b = Batch(a=np.ones(5))
    assert (b.pop("a").shape, b.pop("a", 3), b.is_empty()) == ((5,), 3, True)
    with pytest.raises(KeyError):
        b.pop("a")


def test_ts_06_one_part_is_everything():
    """TS-06: `split(-1)`."""
    (part,) = Batch(a=np.arange(5)).split(-1)
    assert part == Batch(a=np.arange(5))


def test_ts_06_split_shuffles_as_it_is_told():
    """TS-06: `split(size, shuffle, merge_last)`."""
    data = Batch(a=np.arange(64), b=torch.arange(64))
    assert [part.a.tolist() for part in data.split(48, False, True)] == [list(range(64))]
    kept = data.split(64, shuffle=False, generator=torch.Generator())
    assert next(kept).a.tolist() == list(range(64))
    (first,), (second,) = data.split(64, shuffle=True), data.split(64, shuffle=True)
    assert sorted(first.a.tolist()) == list(range(64))
    assert first.a.tolist() == first.b.tolist()
    assert first.a.tolist() != second.a.tolist()  # seeds of their own
    same = [next(data.split(64, True, generator=torch.Generator().manual_seed(1))) for _ in range(2)]
    assert same[0] == same[1]


def test_ts_06_shape_is_what_all_leaves_have():
    """TS-06: `shape`, nested and with scalars; a field of that name is still there."""
    assert Batch(a=np.zeros((4, 3)), b=torch.zeros(4, 2, 5)).shape == [4, 2]
    assert Batch(a=np.zeros((4, 3)), b={"c": np.zeros(4)}).shape == [4]
    assert (Batch().shape, Batch(a=np.zeros(2), b=3).shape) == ([], [])
    named = Batch(shape=np.ones(2))
    assert (named["shape"].tolist(), named.shape) == ([1, 1], [2])


def test_ts_06_a_batch_of_empty_batches_is_empty_if_they_are_looked_into():
    """TS-06: `is_empty()`."""
    reserved = Batch(a=Batch(), b=Batch(c=Batch()))
    assert (Batch().is_empty(), reserved.is_empty(), reserved.is_empty(recurse=True)) == (True, False, True)
    assert not Batch(a=np.zeros(0)).is_empty(True)
