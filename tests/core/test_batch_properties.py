"""Properties of `Batch` that hold for any nest: every operation does to a leaf what it does to an array."""

import copy
import pickle
import tempfile
from pathlib import Path

import numpy as np
import optree
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as torch_pytree

from palaestra.core import Batch, join_state, split_state
from tests.core.nests import assert_same, batches, leaves

bounded = settings(max_examples=25, deadline=None, derandomize=True)


def plain(leaf):
    return leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf


def assert_leaves(batch, original, change):
    """Every leaf of `batch` is the changed leaf of `original`."""
    mine = leaves(batch)
    for path, leaf in leaves(original).items():
        assert isinstance(mine[path], torch.Tensor) == isinstance(leaf, torch.Tensor), path
        np.testing.assert_array_equal(plain(mine[path]), change(plain(leaf)), err_msg=path)
    assert mine.keys() == leaves(original).keys()


@bounded
@given(data=st.data())
def test_indexing_a_batch_indexes_its_leaves(data):
    """TS-05, TS-06: numbers, slices, lists and masks."""
    batch = data.draw(batches())
    rows = len(batch)
    start, stop = data.draw(st.tuples(st.integers(-rows, rows), st.integers(-rows, rows)))
    index = data.draw(
        st.one_of(
            st.integers(-rows, rows - 1),
            st.just(slice(start, stop, data.draw(st.integers(1, 3)))),
            st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=5),
            st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=5).map(np.array),
            st.lists(st.booleans(), min_size=rows, max_size=rows).map(np.array),
            st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=5).map(torch.tensor),
            st.lists(st.booleans(), min_size=rows, max_size=rows).map(torch.tensor),
        )
    )
    assert_leaves(batch[index], batch, lambda leaf: leaf[plain(index)])


@bounded
@given(data=st.data())
def test_rows_that_are_written_are_read_again(data):
    """TS-05, TS-06: a mask splits a batch in two, and writing both halves into zeros gives it back."""
    batch = data.draw(batches())
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))))
    target = batch.map(lambda leaf: leaf * 0 if plain(leaf).dtype != bool else leaf & False)
    target[mask] = batch[mask]
    target[~mask] = batch[~mask]
    assert_same(target, batch)


@bounded
@given(data=st.data(), size=st.integers(1, 4), merge_last=st.booleans())
def test_split_and_cat_are_inverse(data, size, merge_last):
    """TS-06, MARO-41."""
    batch = data.draw(batches())
    parts = list(batch.split(size, merge_last=merge_last))
    assert_same(Batch.cat(parts), batch)
    assert all(len(part) <= size for part in parts[:-1])
    assert len(parts[-1]) <= (2 * size - 1 if merge_last else size)


@bounded
@given(data=st.data(), dim=st.integers(0, 1))
def test_stack_and_index_are_inverse(data, dim):
    """TS-06."""
    first = data.draw(batches())
    batches_ = [first, first.map(lambda leaf: leaf[:]), first]
    stacked = Batch.stack(batches_, dim=dim)
    for i, batch in enumerate(batches_):
        assert_same(stacked[i] if dim == 0 else stacked[:, i], batch)
    assert_same(Batch.stack(list(first)), first)


@bounded
@given(data=st.data())
def test_trees_pickles_and_copies_give_the_same_batch(data):
    """TS-06, TS-08."""
    batch = data.draw(batches())
    assert_same(optree.tree_map(lambda leaf: leaf, batch), batch)
    assert_same(torch_pytree.tree_map(lambda leaf: leaf, batch), batch)
    assert_same(pickle.loads(pickle.dumps(batch)), batch)
    assert_same(copy.deepcopy(batch), batch)


@bounded
@given(data=st.data())
def test_files_give_back_every_bit(data):
    """TS-06: without pickle, whatever the names of the fields."""
    batch = data.draw(batches())
    batch["nothing"], batch["x.y.z"] = Batch(), "text"
    with tempfile.TemporaryDirectory() as folder:
        batch.save(Path(folder) / "batch.safetensors")
        loaded = Batch.load(Path(folder) / "batch.safetensors")
    assert_same(loaded, batch)
    assert list(loaded.keys()) == list(batch.keys())
    assert loaded["nothing"].is_empty()


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3), st.sampled_from(["$array", "a.b"])), inner),
    ),
    max_leaves=8,
)


@bounded
@given(nest=JSON, batch=batches(), rows=st.integers(0, 2))
def test_any_state_is_split_and_joined(nest, batch, rows):
    """A dict whose keys are numbers, contain dots or look like our own marks comes back as it was."""
    state = {"nest": nest, "batch": batch, "batch.a": torch.full((rows,), 7.0), "": np.zeros(rows)}
    values, arrays = split_state(state)
    back = join_state(values, arrays)
    assert back["nest"] == nest
    assert type(back["nest"]) is type(nest)
    assert_same(back["batch"], batch)
    assert_same(back["batch.a"], state["batch.a"])
    assert_same(back[""], state[""])
