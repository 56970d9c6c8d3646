"""Tests of `palaestra.policies.actions` and `ActionRange.inverse`: the way back from what was executed."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra import NetworkConfig
from palaestra.core import Batch, BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, TensorSpec
from palaestra.policies import (
    ActionRange,
    CategoricalPolicy,
    CompositePolicy,
    GaussianPolicy,
    RandomPolicy,
    SquashedGaussianPolicy,
    raw_actions,
)
from palaestra.policies.actions import bounded

OBSERVATION, SMALL = TensorSpec((3,)), NetworkConfig(hidden_sizes=(4,))
BOX = BoundedSpec((2, 2), minimum=np.array([[-2.0, 0.0], [1.0, 5.0]]), maximum=np.array([[2.0, 1.0], [9.0, 6.0]]))
HALF_OPEN = BoundedSpec((2,), minimum=np.array([0.0, -np.inf]), maximum=np.array([4.0, np.inf]))
NEST = {
    "box": BOX,
    "choice": DiscreteSpec(num=3, start=2),
    "rest": (MultiDiscreteSpec(nvec=(2, 3)), MultiBinarySpec((2, 2))),
}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (SquashedGaussianPolicy, BOX),
        (GaussianPolicy, BOX),
        (GaussianPolicy, HALF_OPEN),
        (GaussianPolicy, TensorSpec((2,))),
        (CategoricalPolicy, DiscreteSpec(num=4, start=3)),
        (CompositePolicy, NEST),
    ],
)
def test_an_executed_action_leads_back_to_itself(kind, spec):
    """`env_action` undoes it, for every policy and space; `[T, B]` in front are kept."""
    policy = kind.build(OBSERVATION, spec, SMALL)
    executed = _random(spec, 12)
    raw = raw_actions(executed, spec, policy.raw_action_spec)
    assert_close(_leaves(policy.env_action(raw)), _leaves(executed))


def test_the_ends_of_a_box_are_plus_and_minus_one():
    box = BoundedSpec((1,), minimum=np.array([-2.0]), maximum=np.array([2.0]))
    executed = torch.tensor([[-2.0], [0.0], [1.0], [2.0]])
    assert raw_actions(executed, box, TensorSpec((1,))).flatten().tolist() == [-1.0, 0.0, 0.5, 1.0]


def test_a_dimension_with_one_value_is_in_the_middle():
    """Its range is 0, which nothing can be divided by."""
    box = BoundedSpec((2,), minimum=np.array([3.0, -1.0]), maximum=np.array([3.0, 1.0]))
    assert raw_actions(torch.tensor([[3.0, 0.5]]), box, TensorSpec((2,))).tolist() == [[0.0, 0.5]]


def _random(spec, rows):
    policy = RandomPolicy(OBSERVATION, spec)
    policy.generator.manual_seed(2)
    flat = policy.choose(torch.zeros(rows, 3), (), False, False).action
    fold = lambda leaf: leaf.unflatten(0, (3, rows // 3))  # noqa: E731
    return flat.map(fold) if isinstance(flat, Batch) else fold(flat)


def _leaves(value):
    return [leaf for part in value.values() for leaf in _leaves(part)] if isinstance(value, Batch) else [value]


@pytest.mark.parametrize(
    ("low", "high", "executed"),
    [(0.0, np.inf, [0.0, 3.0]), (-np.inf, 2.0, [-3.0, 2.0]), (-np.inf, np.inf, [-3.0, 3.0])],
)
def test_a_box_with_one_bound_is_clipped_there_and_not_rescaled(low, high, executed):
    within = ActionRange(BoundedSpec((1,), minimum=np.array([low]), maximum=np.array([high])))
    assert within(torch.tensor([[-3.0], [3.0]])).squeeze(-1).tolist() == executed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_raw_actions_within_bounds_are_of_the_policys_kind(shape, dtype):
    box = BoundedSpec(shape, dtype, minimum=np.full(shape, -3.0), maximum=np.full(shape, 5.0))
    raw = bounded(GaussianPolicy.build(OBSERVATION, box, SMALL).raw_action_spec, box)
    assert (raw.shape, raw.dtype) == ((max(1, box.size),), torch.float32)
    assert (raw.minimum.min(), raw.maximum.max()) == (-1, 1)
