"""Tests of `palaestra.deployment.json_nests`."""

import json

import numpy as np
import pytest
import torch

from palaestra.core import BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, TensorSpec, tree_leaves
from palaestra.deployment.json_nests import JsonNest
from palaestra.envs import space_from_spec

SPECS = {
    "vector": TensorSpec((3,)),
    "number": TensorSpec(()),
    "empty": TensorSpec((0,)),
    "double": TensorSpec((2, 2), torch.float64),
    "flags": TensorSpec((2,), torch.bool),
    "box": BoundedSpec((2,), minimum=np.array([-1, 0]), maximum=np.array([1, np.inf])),
    "picture": BoundedSpec((2, 3, 3), torch.uint8, minimum=np.array(0), maximum=np.array(255)),
    "discrete": DiscreteSpec(num=3, start=-1),
    "choices": MultiDiscreteSpec(nvec=(2, 5)),
    "switches": MultiBinarySpec((3,)),
    "dict": {"camera": TensorSpec((2,)), "inner": {"door": DiscreteSpec(num=2)}},
    "tuple": (TensorSpec((2,)), {"x": DiscreteSpec(num=2)}),
}


def sampled(spec, count):
    space = space_from_spec(spec)
    space.seed(0)
    values = [space.sample() for _ in range(count)]
    return [value.astype(bool) for value in values] if spec == SPECS["flags"] else values  # Gymnasium has none of bool


def as_json(value):
    if isinstance(value, dict):
        return {key: as_json(child) for key, child in value.items()}
    return [as_json(child) for child in value] if isinstance(value, tuple) else np.asarray(value).tolist()


@pytest.mark.parametrize("name", SPECS)
def test_what_was_written_is_read_back_bit_for_bit(name):
    nest, values = JsonNest(SPECS[name]), [as_json(value) for value in sampled(SPECS[name], 4)]
    rows = nest.read(json.loads(json.dumps(values)), many=True)
    tensors = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows.map(torch.from_numpy)
    assert nest.write(tensors) == values
    assert all(leaf.shape[0] == 4 for leaf in tree_leaves(tensors))
    assert nest.size == sum(leaf[0].numel() for leaf in tree_leaves(tensors))


@pytest.mark.parametrize("name", SPECS)
def test_the_schema_takes_what_is_read(name):
    jsonschema = pytest.importorskip("jsonschema")
    nest = JsonNest(SPECS[name])
    schema = json.loads(json.dumps(nest.schema(), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    for value in sampled(SPECS[name], 4):
        assert valid(as_json(value))
    for wrong in (None, "x", {"y": 1}, [[[[1]]]], [1] * 9):
        assert not valid(wrong)
        with pytest.raises(ValueError, match="observation"):
            nest.read([wrong])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("vector", [1, 2, None], r"observation\[2\] is None; numbers of float32 are needed"),
        ("vector", [1, 2, 3e38 * 10], r"observation\[2\] is not finite as float32"),
        ("vector", [1, 2, 10**400], "has a number that float32 cannot hold"),
        ("vector", "abc", "observation is 'abc'; a list of 3 is needed"),
        ("vector", ["x" * 10**6, 2, 3], r"observation\[0\] is 'xxx"),
        ("number", [1], "observation is a list with 1 entries; numbers of float32 are needed"),
        ("flags", [1, 0], r"observation\[0\] is 1; true or false of bool are needed"),
        ("box", [0, -0.5], r"observation\[1\] is -0.5; it must lie in \[0.0, inf\]"),
        ("picture", [[[0] * 3] * 3, [[0] * 3, [0] * 3, [0, 0, 256]]], "has a number that uint8 cannot hold"),
        ("picture", [[[0] * 3] * 3, [[0] * 3, [0] * 3, [0, 0, 1.0]]], r"observation\[1\]\[2\]\[2\] is 1.0; whole"),
        ("picture", [[[0] * 3] * 3, [[0] * 3] * 2], r"observation\[1\] has 2 entries; it needs 3"),
        ("discrete", 2, r"observation is 2; it must lie in \[-1, 1\]"),
        ("discrete", True, "observation is True; whole numbers of int64 are needed"),
        ("choices", [1, 5], r"observation\[1\] is 5; it must lie in \[0, 4\]"),
        ("dict", {"camera": [1, 2]}, "observation lacks 'inner'"),
        ("dict", {"camera": [1, 2], "inner": {"door": 0, "x": 1}}, "observation.inner has the unknown key 'x'"),
        ("dict", {"camera": [1, 2], "inner": {"door": 2}}, "observation.inner.door is 2"),
        ("tuple", [[1, 2]], "observation has 1 entries; it needs 2"),
        ("tuple", [[1, 2], {"x": 7}], r"observation\[1\].x is 7"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(name, value, said):
    with pytest.raises(ValueError, match=said):
        JsonNest(SPECS[name]).read([value])


def test_the_first_wrong_of_many_is_named():
    with pytest.raises(ValueError, match=r"observation\[1\]\[2\] is '3'"):
        JsonNest(SPECS["vector"]).read([[1, 2, 3], [1, 2, "3"]], many=True)


def test_values_of_another_dtype_are_written_as_those_of_the_spec():
    (row,) = JsonNest(TensorSpec((2,), torch.int64)).write(torch.tensor([[1.0, 2.0]]))
    assert json.dumps(row) == "[1, 2]"
