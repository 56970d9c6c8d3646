"""Tests of `palaestra.core.spec`."""

import json

import numpy as np
import pytest
import torch

from palaestra.core import (
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecError,
    TensorSpec,
    numpy_dtype,
    spec_from_json,
    spec_leaves,
    spec_to_json,
    torch_dtype,
)

INF = np.inf
BOX = BoundedSpec((2,), minimum=np.array([-1.0, 0.1]), maximum=np.array([INF, 1 / 3]))

SPECS = {
    "tensor": TensorSpec((3, 4), torch.float64),
    "scalar": TensorSpec(()),
    "box": BOX,
    "pixels": BoundedSpec((2, 2), torch.uint8, np.array(0), np.array(255)),
    "unbounded": BoundedSpec((1,)),
    "long": BoundedSpec((1,), torch.int64, np.array([-(2**63)]), np.array([2**63 - 1])),
    "unbounded integers": BoundedSpec((2,), torch.int32),
    "booleans": BoundedSpec((2,), torch.bool, np.array(False), np.array([True, False])),
    "discrete": DiscreteSpec(num=5, start=-2),
    "multi-discrete": MultiDiscreteSpec(nvec=(2, 3)),
    "multi-binary": MultiBinarySpec((4,)),
    "nothing": {},
}


@pytest.mark.parametrize("name", SPECS)
def test_specs_come_back_from_json_text(name):
    """ALF-42: exact bounds, also infinite ones and those that no float holds."""
    spec = {"a": SPECS[name], "b": (SPECS[name], {"c": BOX})}
    back = spec_from_json(json.loads(json.dumps(spec_to_json(spec), allow_nan=False)))
    assert back == spec
    if isinstance(SPECS[name], BoundedSpec):
        assert back["a"].minimum.dtype == numpy_dtype(SPECS[name].dtype)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "FutureSpec", "shape": [], "dtype": "float32"},
        {"kind": "TensorSpec", "shape": [], "dtype": "load"},
        {"kind": "TensorSpec", "shape": []},
        {"kind": "DiscreteSpec", "shape": [], "dtype": "int64", "num": 0, "start": 0},
        {"kind": "dict", "items": 3},
        [],
    ],
    ids=str,
)
def test_json_that_describes_no_spec_is_refused(data):
    """F12: a name from a file is looked up among dtypes only."""
    with pytest.raises(SpecError):
        spec_from_json(data)


def test_specs_compare_by_value():
    assert BoundedSpec((2,), minimum=np.array([-1.0, 0.1]), maximum=np.array([INF, 1 / 3])) == BOX
    assert BoundedSpec((2,), minimum=np.array([-1.0, 0.2]), maximum=np.array([INF, 1 / 3])) != BOX
    assert TensorSpec((2,)) != BoundedSpec((2,))
    assert len({BOX, BOX, TensorSpec((2,))}) == 2
    assert DiscreteSpec(num=2) != DiscreteSpec(num=2, start=1)


def test_bounds_are_copied_and_fit_the_dtype():
    low = np.zeros(2)
    spec = BoundedSpec((2,), minimum=low, maximum=np.ones(2))
    low[0] = 5
    assert spec.minimum.tolist() == [0, 0]
    assert spec.minimum.dtype == np.float32
    assert not spec.minimum.flags.writeable
    assert SPECS["unbounded integers"].maximum.tolist() == [2**31 - 1] * 2
    assert (SPECS["pixels"].bounded, BOX.bounded) == (True, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BoundedSpec((2,), minimum=np.zeros(3)), r"of shape \(2,\) was given a minimum of shape \(3,\)"),
        (lambda: BoundedSpec((1,), minimum=np.ones(1), maximum=np.zeros(1)), "minimum .* exchange them"),
        (lambda: TensorSpec(3), r"TensorSpec was given shape 3; give a tuple"),
        (lambda: TensorSpec((2,), np.float32), "give a torch dtype"),
        (lambda: DiscreteSpec(4), "DiscreteSpec was given shape 4"),
        (lambda: DiscreteSpec((2,), num=3), r"shape \(2,\) and num 3; its shape is \(\)"),
        (lambda: DiscreteSpec(num=0), "num 0; its shape is .* at least one category"),
        (lambda: MultiDiscreteSpec(nvec=(2, 0)), "every choice needs at least one category"),
    ],
)
def test_impossible_specs_are_refused(make, message):
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize(
    ("spec", "value", "problem"),
    [
        (TensorSpec((2,)), np.zeros(2, np.float32), None),
        (TensorSpec((2,)), torch.zeros(2, requires_grad=True), None),
        (TensorSpec((2,)), np.zeros(3, np.float32), "shape (3,), expected (2,)"),
        (TensorSpec((2,)), np.zeros(2), "dtype float64, expected float32"),
        (TensorSpec((2,)), np.array([0, np.nan], np.float32), "value nan, expected finite numbers"),
        (BOX, np.array([0, 0.5], np.float32), "value 0.5 at index (1,), expected 0.1"),
        (DiscreteSpec(num=3, start=1), np.int64(3), None),
        (DiscreteSpec(num=3, start=1), np.int64(0), "value 0, expected 1 to 3"),
        (MultiDiscreteSpec(nvec=(2, 3)), np.array([1, 3]), "value 3 at index (1,), expected 0 to 2"),
        (MultiBinarySpec((2,)), np.array([0, 2], np.int8), "value 2 at index (1,), expected 0 to 1"),
    ],
)
def test_a_value_that_does_not_fit_is_explained(spec, value, problem):
    """ALF-43."""
    found = spec.problem(value)
    assert found is None if problem is None else found.startswith(problem)


def test_sizes_are_those_that_a_network_sees():
    assert (BOX.encoded_size, DiscreteSpec(num=5).encoded_size) == (2, 5)
    assert (MultiDiscreteSpec(nvec=(2, 3)).encoded_size, MultiDiscreteSpec(nvec=(2, 3)).size) == (5, 2)
    assert TensorSpec(()).size == 1


def test_leaves_have_one_path_each():
    assert list(spec_leaves({"a": (BOX, {"b": BOX}), "c": BOX})) == ["a.0", "a.1.b", "c"]
    assert spec_leaves(BOX) == {"": BOX}
    with pytest.raises(SpecError, match=r"two leaves have the path 'a\.b'; rename the key that contains a dot"):
        spec_leaves({"a": {"b": BOX}, "a.b": BOX})


def test_dtypes_have_counterparts_or_say_so():
    for dtype in (torch.float32, torch.uint8, torch.bool, torch.int64):
        assert torch_dtype(numpy_dtype(dtype)) == dtype
    with pytest.raises(SpecError, match="has no torch counterpart"):
        torch_dtype(np.dtype("U3"))
    with pytest.raises(SpecError, match=r"torch.bfloat16 has no numpy counterpart"):
        numpy_dtype(torch.bfloat16)


def test_a_spec_of_stacked_frames_says_how_many_and_survives_json():
    """DESIGN.md section 4: buffers store the newest frame only."""
    limits = {"minimum": np.array(0), "maximum": np.array(255)}
    stack = BoundedSpec((4, 8, 8), torch.uint8, stacked=4, **limits)
    assert spec_from_json(spec_to_json(stack)).stacked == 4
    assert spec_from_json(spec_to_json(stack)) == stack
    assert stack != BoundedSpec((4, 8, 8), torch.uint8, **limits)
    assert TensorSpec((4, 2)).stacked == 1


@pytest.mark.parametrize(("stacked", "shape"), [(4, (3, 8, 8)), (0, (0, 8)), (-1, (8,)), (2, ())])
def test_stacked_frames_that_are_not_in_the_first_axis_are_refused(stacked, shape):
    with pytest.raises(SpecError, match=f"stacked={stacked} and shape .* so its length is that number"):
        TensorSpec(shape, stacked=stacked)


def test_a_spec_of_pictures_is_shown_in_one_line():
    """A refusal named all 3,888 bounds of a small one, twice."""
    picture = BoundedSpec((36, 36, 3), torch.uint8, np.array(0), np.array(255))
    assert repr(picture) == "BoundedSpec(shape=(36, 36, 3), dtype=torch.uint8, minimum=0, maximum=255)"
    mixed = BoundedSpec((2, 9), minimum=np.array(-np.inf), maximum=np.arange(18.0).reshape(2, 9))
    assert repr(mixed).endswith("minimum=-inf, maximum=[ 0.,  1.,  2., ..., 15., 16., 17.])")
