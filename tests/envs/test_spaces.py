"""Tests of `palaestra.envs.contract.spaces`."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.core import (
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecError,
    TensorSpec,
    spec_leaves,
)
from palaestra.envs import space_from_spec, spec_from_space

SPACES = {
    "box": spaces.Box(np.array([-1, 0]), np.array([1, 5]), dtype=np.float32),
    "pixels": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "double": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "discrete": spaces.Discrete(4, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))}),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_space_goes_to_a_spec_and_back(name):
    assert space_from_spec(spec_from_space(SPACES[name])) == SPACES[name]


@pytest.mark.parametrize("name", SPACES)
def test_samples_of_a_space_fit_its_spec(name):
    space = SPACES[name]
    space.seed(0)
    spec = spec_from_space(space)
    if isinstance(spec, TensorSpec):
        assert [spec.problem(space.sample()) for _ in range(20)] == [None] * 20
    else:
        assert list(spec_leaves(spec)) == ["a", "b.0", "b.1"]


def test_specs_keep_the_dtype_and_bounds_of_the_space():
    """ALF-42."""
    spec = spec_from_space(SPACES["double"])
    assert spec == BoundedSpec((3,), torch.float64)
    assert not spec.bounded
    assert spec_from_space(SPACES["pixels"]).dtype == torch.uint8
    assert spec_from_space(SPACES["discrete"]) == DiscreteSpec(num=4, start=2)
    assert spec_from_space(SPACES["multi_discrete"]) == MultiDiscreteSpec(nvec=(3, 2))
    assert spec_from_space(SPACES["multi_binary"]) == MultiBinarySpec((2, 2))


def test_an_unbounded_spec_becomes_the_widest_box():
    assert space_from_spec(TensorSpec((2,))) == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert space_from_spec(TensorSpec((), torch.int32)).low == np.iinfo(np.int32).min


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "pad it"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), r"is a MultiDiscrete of shape \(2, 2\); here .*plain_choices"),
        (spaces.MultiDiscrete([2, 3], start=[0, 1]), "with a choice that starts at 1; here all .*plain_choices"),
    ],
    ids=["text", "sequence", "graph", "matrix", "start"],
)
def test_a_space_without_fixed_arrays_is_named_with_the_way_out(space, words):
    with pytest.raises(SpecError, match=words) as caught:
        spec_from_space(spaces.Dict({"inner": space}), "observation_space")
    assert "observation_space.inner" in str(caught.value)


def test_actions_are_advised_of_wrappers_of_actions():
    for name, wrapper in (("action_space", "ActionWrapper"), ("observation_space", "ObservationWrapper")):
        with pytest.raises(SpecError, match=f"in a gymnasium.{wrapper}"):
            spec_from_space(spaces.Text(5), name)


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Dict({"a": spaces.Tuple(())})])
def test_actions_without_parts_are_refused_and_observations_are_not(space):
    with pytest.raises(SpecError, match="has no parts: an action needs something to decide"):
        spec_from_space(space, "action_space")
    assert not spec_leaves(spec_from_space(space, "observation_space"))


def test_bounds_of_a_dtype_that_cannot_hold_a_million_are_compared_without_a_warning():
    spec = spec_from_space(spaces.Box(-1, 1, (2,), np.float16), "action_space")
    assert (spec.minimum.dtype, spec.bounded) == (np.float16, True)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=2, dtype=np.int32), spaces.MultiDiscrete([2, 3], dtype=np.int32)]
)
def test_spaces_of_whole_numbers_keep_their_dtype(space):
    again = space_from_spec(spec_from_space(space))
    assert again == space
    assert again.dtype == np.int32
