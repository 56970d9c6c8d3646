"""Tests of `palaestra.core.Batch`: fields, conversion, rows and arithmetic."""

import copy
import math
import pickle

import numpy as np
import optree
import pytest
import torch
from torch.utils import _pytree as torch_pytree

from palaestra.core import Batch, ExperienceSet, ShapeError
from palaestra.core.time_step import TimeStep
from tests.core.nests import assert_same


class Layout(Batch):
    """A typed layout."""

    observation: torch.Tensor
    action: torch.Tensor


def test_the_first_snippet_of_tianshou():
    """TS-02, TS-03: a list becomes an array; mixed text becomes objects; the printed tree is the documented one."""
    data = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    assert isinstance(data.b, np.ndarray)
    assert data.b.tolist() == [5, 5]
    data.b = np.array([3, 4, 5])
    assert str(data) == (
        "Batch(\n"
        "    a: 4,\n"
        "    b: array([3, 4, 5]),\n"
        "    c: '2312312',\n"
        "    d: array(['a', '-2', '-3'], dtype=object),\n"
        ")"
    )


def test_the_second_snippet_of_tianshou():
    """TS-04, TS-05: a dict becomes a Batch, numpy and torch live together, arithmetic reaches every leaf."""
    data = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    assert isinstance(data.obs, Batch)
    data[:, 1] += 6
    assert str(data[-1]) == (
        "Batch(\n    obs: Batch(\n             index: array([0., 6., 0.]),\n         ),\n    act: tensor([0., 6.]),\n)"
    )
    assert data.obs.index.tolist() == [[0, 6, 0], [0, 6, 0]]


def test_fields_are_read_set_listed_and_removed():
    """TS-06."""
    data = Batch({"a": 1}, b=2)
    data["c"] = [3.0]
    data.update({"a": 5}, d=(1, 2))
    assert list(data.keys()) == ["a", "b", "c", "d"]
    assert dict(data.items()).keys() == {"a", "b", "c", "d"}
    assert data.values()[:2] == [5, 2]
    assert (data.get("a"), data.get("z"), data.get("z", 7)) == (5, None, 7)
    assert "c" in data
    del data.c
    assert "c" not in data
    assert Batch().is_empty()
    assert not data.is_empty()
    assert repr(Batch()) == "Batch()"


def test_replace_shares_the_other_fields():
    """TS-06."""
    data = Layout(torch.zeros(2), torch.ones(2))
    changed = data.replace(action=torch.zeros(2))
    assert isinstance(changed, Layout)
    assert changed.observation is data.observation
    assert data.action.sum() == 2


def test_any_name_can_be_a_field():
    """TS-06: an environment may well have a key "map"; methods stay methods, and the field is read by item."""
    data = Batch({"map": np.arange(3), "keys": np.ones(3), "of": np.zeros(3), "self": np.ones(3)}, other=np.ones(3))
    assert data["map"].tolist() == [0, 1, 2]
    assert set(data.keys()) == {"map", "keys", "of", "self", "other"}
    assert (data[1:] + 1).map(lambda leaf: leaf * 2)["map"].tolist() == [4, 6]
    assert Batch.cat([data, data])["keys"].shape == (6,)
    with pytest.raises(TypeError, match=r"'map' is a method of Batch; write batch\['map'\]"):
        data.map = 3


def test_missing_fields_are_named_with_a_suggestion():
    data = Batch(observation=1, action=2)
    with pytest.raises(AttributeError, match="Batch has no field 'acton' — did you mean 'action'"):
        _ = data.acton
    with pytest.raises(KeyError, match="no field 'acton' — did you mean 'action'"):
        _ = data["acton"]
    assert not hasattr(data, "__array_interface__")


def test_values_are_converted_where_they_are_set():
    """TS-02..04: one rule for construction, assignment, items and `update`."""
    tensors = [torch.zeros(2), torch.ones(2)]
    for make in (
        lambda value: Batch(x=value),
        lambda value: Batch({"x": value}),
        lambda value: set_attribute(Batch(), value),
        lambda value: set_item(Batch(), value),
    ):
        assert torch.equal(make(tensors).x, torch.stack(tensors))
        assert make([{"y": 1}, {"y": 2}]).x.y.tolist() == [1, 2]
        assert isinstance(make({"y": {"z": 1}}).x.y, Batch)
        assert make(["left", "right"]).x.dtype == object
        assert make([]).x.shape == (0,)
        assert make(None).x is None
    assert Batch(step=TimeStep(step_type=np.zeros(2))).step.step_type.shape == (2,)


def set_attribute(batch, value):
    batch.x = value
    return batch


def set_item(batch, value):
    batch["x"] = value
    return batch


@pytest.mark.parametrize("ragged", [[[1, 2], [3]], [torch.zeros(2), torch.zeros(3)], [np.zeros(2), np.zeros(3)]])
def test_a_ragged_list_is_refused_with_its_field(ragged):
    with pytest.raises(ShapeError, match="field 'x' is ragged"):
        Batch(x=ragged)


def test_a_value_without_a_name_is_refused():
    with pytest.raises(TypeError, match=r"one mapping, or fields by name; \['ndarray'\] came without a name"):
        Batch(np.zeros(3))
    with pytest.raises(TypeError, match="came without a name"):
        Batch({"a": 1}, {"b": 2})


def test_a_layout_takes_its_fields_by_place_or_name_and_no_others():
    by_place, by_name = Layout(torch.zeros(1), torch.ones(1)), Layout(action=torch.ones(1), observation=torch.zeros(1))
    assert_same(by_place, by_name)
    with pytest.raises(TypeError, match=r"Layout needs the fields \['observation', 'action'\]: missing \['action'\]"):
        Layout(torch.zeros(1))
    with pytest.raises(TypeError, match=r"unknown \['weight'\]"):
        Layout(torch.zeros(1), torch.ones(1), weight=1)
    with pytest.raises(TypeError, match=r"but 3 values were given"):
        Layout(1, 2, 3)
    with pytest.raises(TypeError, match=r"was given \['observation'\] twice"):
        Layout(1, 2, observation=3)


def test_layouts_inherit_fields_and_stay_what_they_are():
    class Longer(Layout):
        action: np.ndarray  # a narrower type is the same field
        reward: torch.Tensor

    batch = Longer(torch.zeros(4), torch.ones(4), torch.ones(4))
    for other in (batch[1:], batch + 1, Longer.cat([batch, batch]), batch.map(torch.clone), batch.to_numpy()):
        assert type(other) is Longer
        assert list(other.keys()) == ["observation", "action", "reward"]


def test_a_layout_cannot_declare_a_method_or_a_default():
    with pytest.raises(TypeError, match=r"Bad declares the fields \['map'\], which are methods or have defaults"):
        type("Bad", (Batch,), {"__annotations__": {"map": int}})
    with pytest.raises(TypeError, match=r"Bad declares the fields \['weight'\]"):
        type("Bad", (Batch,), {"__annotations__": {"weight": float}, "weight": 1.0})


def test_of_takes_fields_as_they_are():
    fields = {"a": [1, 2], "b": {"c": 1}}
    batch = Layout.of(fields)
    assert batch.a is fields["a"]
    fields["d"] = 1
    assert "d" not in batch


def test_len_is_the_common_number_of_rows():
    """TS-06."""
    assert len(Batch(a=np.zeros((4, 2)), b=torch.zeros(4), c={"d": np.zeros(4)}, scalar=1, empty={})) == 4
    assert len(Batch(a=np.zeros((0, 2)))) == 0
    with pytest.raises(TypeError, match="its fields are scalars"):
        len(Batch(a=1, b="text"))
    with pytest.raises(ShapeError, match=r"the fields have lengths \{'a': 2, 'b.c': 3\}"):
        len(Batch(a=[1, 2], b={"c": [1, 2, 3]}))


@pytest.mark.parametrize(
    "index",
    [
        1,
        -1,
        slice(None),
        slice(1, 3),
        slice(0, 4, 2),
        [0, 2],
        np.array([3, 0, 0]),
        torch.tensor([3, 0, 0]),
        np.array([True, False, True, False]),
        torch.tensor([True, False, True, False]),
        np.int64(2),
        (slice(None), 1),
        (..., 0),
        None,
    ],
    ids=str,
)
def test_every_index_means_the_same_for_both_kinds_of_leaves(index):
    """TS-05, TS-06: rows, slices, masks and lists, on numpy and torch alike."""
    values = np.arange(12.0).reshape(4, 3)
    rows = Batch(a=values, b=torch.from_numpy(values.copy()), c={"d": values})[index]
    plain = index.numpy() if isinstance(index, torch.Tensor) else index
    for leaf in (rows.a, rows.b.numpy(), rows.c.d):
        np.testing.assert_array_equal(leaf, values[plain])


def test_indexing_errors_name_the_leaf():
    data = Batch(a=torch.zeros(4, 2), b={"c": np.zeros(2)})
    with pytest.raises(IndexError, match=r"out of bounds.* \(field 'b.c' of shape \(2,\), index 3\)"):
        data[3]
    with pytest.raises(TypeError, match=r"not subscriptable \(field 'n' 4, index 0\)"):
        Batch(n=4)[0]
    with pytest.raises(TypeError, match=r"text has no rows \(field 'c' 'abc', index 0\)"):
        Batch(c="abc")[0]
    with pytest.raises(ValueError, match=r"step must be greater than zero \(field 'a'"):
        data[::-1]
    with pytest.raises(IndexError, match=r"\(field 'a' of shape \(4, 2\), index of shape \(3,\)\)"):
        data[np.array([True, False, True])]


def test_rows_are_written_in_place():
    """TS-05, TS-06."""
    data = Batch(a=np.zeros((3, 2)), b={"c": torch.zeros(3, dtype=torch.int64)})
    array = data.a
    data[1] = Batch(a=np.ones(2), b={"c": 5})
    data[0] = {"a": torch.full((2,), 7.0), "b": {"c": np.array(9)}}
    assert data.a is array
    assert data.a.tolist() == [[7, 7], [1, 1], [0, 0]]
    assert data.b.c.tolist() == [9, 5, 0]
    data[np.array([True, False, True])] = 3
    assert data.b.c.tolist() == [3, 5, 3]
    with pytest.raises(ShapeError, match=r"rows with the fields \['a'\] cannot be written to a Batch of \['a', 'b'\]"):
        data[0] = Batch(a=np.ones(2))


def test_arithmetic_reaches_every_leaf():
    """TS-05, TS-06."""
    data = Batch(a=np.array([1.0, 2.0]), b={"c": torch.tensor([3.0, 4.0])}, n=2)
    assert (data + 1).b.c.tolist() == [4, 5]
    assert (data - data).a.tolist() == [0, 0]
    assert (data * 2).n == 4
    assert (data / 2).b.c.tolist() == [1.5, 2]
    array, inner = data.a, data.b
    data += 1
    data -= Batch(a=0, b={"c": 1}, n=1)
    data *= 2
    data /= 4
    assert data.a is array
    assert data.b is inner
    assert (data.a.tolist(), data.b.c.tolist(), data.n) == ([1, 1.5], [1.5, 2], 1)
    with pytest.raises(ShapeError, match=r"different fields: \['a', 'b', 'n'\] and \['a'\]"):
        data + Batch(a=1)
    with pytest.raises(ShapeError, match=r"different fields: \['c'\] and \['d'\]"):
        data += Batch(a=1, b={"d": 1}, n=1)


def test_map_walks_several_batches_side_by_side():
    left, right = Batch(a=1, b={"c": 2}), Batch(b={"c": 20}, a=10)
    assert dict(left.map(lambda x, y: x + y, right).b.items()) == {"c": 22}
    with pytest.raises(ShapeError, match=r"different fields: \['c'\] and int"):
        left.map(max, Batch(a=1, b=3))


def test_joining_names_what_does_not_fit():
    """TS-06."""
    data = Batch(a=torch.zeros(2), b={"c": np.zeros(2)})
    with pytest.raises(ShapeError, match="no batches were given"):
        Batch.cat([])
    layout = type("Layout", (Batch,), {"__annotations__": {"x": np.ndarray}})
    with pytest.raises(ShapeError, match=r"different fields: \['x'\] and \['y'\]"):
        Batch.stack([layout(x=np.zeros(2)), Batch(y=np.zeros(2))])
    with pytest.raises(ShapeError, match="field 'a' cannot be joined"):
        Batch.stack([Batch(a=np.zeros(3)), Batch(a=torch.zeros(2), b={"d": np.zeros(2)})])
    with pytest.raises(ShapeError, match=r"different fields: \['c'\] and ndarray"):
        Batch.cat([data, Batch(a=torch.zeros(2), b=np.zeros(2))])
    with pytest.raises(ShapeError, match="field 'a' cannot be joined"):
        Batch.stack([data, Batch(a=torch.zeros(3), b={"c": np.zeros(2)})])
    with pytest.raises(ShapeError, match="field 'a' cannot be joined"):
        Batch.cat([data, Batch(a=np.zeros(3), b={"c": np.zeros(2)})])


def test_scalars_and_text_stack_to_arrays():
    """TS-06."""
    rows = Batch.stack([Batch(n=1, t="a"), Batch(n=2, t="long")])
    assert rows.n.tolist() == [1, 2]
    assert rows.t.dtype == object
    assert rows.t.tolist() == ["a", "long"]
    assert Batch.stack([Batch(a=torch.zeros(2, 3))] * 4, dim=1).a.shape == (2, 4, 3)


def test_split_gives_every_row_once():
    """TS-06: like Tianshou's `split(size, shuffle, merge_last)`."""
    data = Batch(a=np.arange(10), b=torch.arange(10))
    assert [part.a.tolist() for part in data.split(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(part) for part in data.split(4, merge_last=True)] == [4, 6]
    assert [len(part) for part in data.split(5, merge_last=True)] == [5, 5]
    assert [len(part) for part in data.split(99, merge_last=True)] == [10]
    shuffled = list(data.split(3, generator=torch.Generator().manual_seed(0)))
    assert all(part.a.tolist() == part.b.tolist() for part in shuffled)
    order = [i for part in shuffled for i in part.a.tolist()]
    assert order != sorted(order)
    assert sorted(order) == list(range(10))
    with pytest.raises(ValueError, match="parts of 0 rows"):
        data.split(0)


def test_leaves_change_between_numpy_and_torch():
    """TS-06: memory is shared where it can be, and floating-point leaves alone are cast."""
    data = Batch(a=np.zeros((2, 2)), b={"c": np.arange(2)}, n=3, flag=True)
    tensors = data.to_torch(torch.float32)
    assert (tensors.a.dtype, tensors.b.c.dtype, tensors.n.dtype) == (torch.float32, torch.int64, torch.int64)
    assert tensors.flag.dtype == torch.bool
    shared = data.to_torch()
    data.a[0, 0] = 8
    assert shared.a[0, 0] == 8
    assert shared.to_numpy().a.base is not None
    assert Batch(w=torch.ones(2, requires_grad=True)).to_numpy().w.tolist() == [1, 1]
    assert Batch(w=torch.ones(2, dtype=torch.bfloat16)).to_numpy().w.dtype == np.float32
    with pytest.raises(TypeError, match=r"a leaf of dtype object .* cannot become a tensor"):
        Batch(d=("a", -2)).to_torch()


@pytest.mark.parametrize(
    "awkward", [np.arange(4)[::-1], np.broadcast_to(np.zeros(1), (4,)), np.arange(4, dtype=">i4")], ids=str
)
def test_memory_that_torch_cannot_share_is_copied(awkward):
    assert Batch(a=awkward).to_torch().a.tolist() == awkward.tolist()


def test_pickle_and_deepcopy_keep_everything_and_share_nothing():
    """TS-06, TS-08."""
    data = ExperienceSet(np.zeros((3, 2)), [1, 2, 3], torch.ones(3), np.ones((3, 2)), {"map": np.arange(3)})
    for twin in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert type(twin) is ExperienceSet
        assert_same(data, twin)
        twin.states[0] = 9
        assert data.states[0, 0] == 0
    shallow = copy.copy(data)
    assert shallow.states is data.states
    shallow.states = None
    assert data.states is not None


def test_batches_are_nodes_of_optree():
    layout = Layout(torch.zeros(2), torch.ones(2))
    data = Batch(b=layout, a={"c": np.arange(2)})
    leaves, structure = optree.tree_flatten(data)
    assert [type(leaf) for leaf in leaves] == [np.ndarray, torch.Tensor, torch.Tensor]
    back = optree.tree_unflatten(structure, leaves)
    assert type(back) is Batch
    assert type(back.b) is Layout
    assert optree.tree_map(lambda x: x + 1, data).a.c.tolist() == [1, 2]
    assert optree.tree_paths(data) == [("a", "c"), ("b", "action"), ("b", "observation")]


def test_batches_are_nodes_of_torch_pytrees():
    data = Batch(b=Layout(torch.zeros(2), torch.ones(2)), a=1)
    leaves, spec = torch_pytree.tree_flatten(data)
    assert len(leaves) == 3
    assert type(torch_pytree.tree_unflatten(leaves, spec).b) is Layout
    paths = [torch_pytree.keystr(path) for path, _ in torch_pytree.tree_flatten_with_path(data)[0]]
    assert paths == ["['a']", "['b']['action']", "['b']['observation']"]


def test_batches_pass_through_compiled_code_as_they_are():
    """One graph: reading, indexing, mapping and building a batch break nothing."""

    def loss(batch: Batch) -> Layout:
        rows = batch[1:].map(lambda leaf: leaf * 2)
        return Layout.of({"observation": rows.observation.x + 1, "action": batch["action"]})

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    batch = Batch(observation={"x": torch.arange(4.0)}, action=torch.ones(4))
    result = compiled(batch)
    assert type(result) is Layout
    assert torch.equal(result.observation, loss(batch).observation)


def test_iteration_gives_rows():
    rows = list(Batch(a=np.arange(3), b={"c": torch.arange(3)}))
    assert [int(row.a) + int(row.b.c) for row in rows] == [0, 2, 4]


def test_whatever_else_is_kept_as_an_object():
    marker = math.cos
    assert Batch(x=marker).x is marker
