"""Tests of `palaestra.policies.rule_based`."""

import numpy as np
import pytest
import torch

from palaestra.core import (
    Batch,
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    ShapeError,
    SpecError,
    TensorSpec,
    TimeStep,
    spec_leaves,
)
from palaestra.policies import Phase, RandomPolicy, RulePolicy

VECTOR = TensorSpec((2,))
INF = np.inf
SPACES = {
    "discrete": DiscreteSpec(num=3, start=-1),
    "multi-discrete": MultiDiscreteSpec(nvec=(2, 3)),
    "multi-binary": MultiBinarySpec((4,)),
    "box": BoundedSpec((2,), minimum=np.array([-1.0, 5.0]), maximum=np.array([1.0, 6.0])),
    "huge box": BoundedSpec((1,), minimum=np.array([-3e38]), maximum=np.array([3e38])),
    "half box": BoundedSpec((3,), minimum=np.array([0.0, -INF, -INF]), maximum=np.array([INF, 1.0, INF])),
    "integer box": BoundedSpec((1,), torch.uint8, np.array([250]), np.array([255])),
    "unbounded": TensorSpec((2,)),
}


def test_a_rule_acts_on_batches_and_for_users():
    """MARO-19: `choose_action(state)` of a rule."""
    policy = RulePolicy(lambda x: (x[:, 0] > 0).long() + 5, VECTOR, DiscreteSpec(num=2, start=5))
    observation = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    for phase in Phase:
        assert policy.act(TimeStep(observation=observation), phase=phase).action.tolist() == [6, 5]
    assert policy(observation.numpy()).tolist() == [6, 5]
    assert policy([1.0, 0.0]) == 6


@pytest.mark.parametrize("result", [[0, 1], np.array([0, 1]), torch.tensor([0.0, 1.0])], ids=["list", "array", "float"])
def test_a_rule_may_return_whatever_holds_numbers(result):
    action = (
        RulePolicy(lambda _: result, VECTOR, DiscreteSpec(num=2)).act(TimeStep(observation=torch.zeros(2, 2))).action
    )
    assert action.dtype == torch.int64
    assert action.tolist() == [0, 1]


@pytest.mark.parametrize("result", [None, [0, 1, 1]], ids=["nothing", "rows"])
def test_what_a_rule_gives_has_to_be_actions(result):
    policy = RulePolicy(lambda _: result, VECTOR, DiscreteSpec(num=2))
    with pytest.raises(ShapeError, match=r"the function of a RulePolicy gave (None|\(3,\) actions; \(2,\) are needed)"):
        policy(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("spec", "result", "said"),
    [
        (DiscreteSpec(num=2), [0.4, 1.0], "from 0 to 1; give those, such as argmax"),
        (DiscreteSpec(num=3, start=5), [5, 8], "from 5 to 7"),
        (MultiDiscreteSpec(nvec=(2, 4)), [[1, 3], [1, 4]], r"from 0 to \[1, 3\]"),
        (MultiBinarySpec((2,)), [[0, 1], [1, -1]], "from 0 to 1"),
    ],
)
def test_what_is_no_choice_is_not_rounded_to_one(spec, result, said):
    """0.4 became 0: a network's outputs, say, instead of their argmax."""
    policy = RulePolicy(lambda _: result, VECTOR, spec)
    with pytest.raises(SpecError, match=said):
        policy(np.zeros((2, 2)))


def test_a_rule_may_return_a_nest():
    spec = {"move": DiscreteSpec(num=3), "aim": (TensorSpec((1,)),)}
    policy = RulePolicy(lambda x: {"move": [2] * len(x), "aim": (x[:, :1],)}, VECTOR, spec)
    action = policy(np.array([[7.0, 0.0]]))
    assert action["move"].tolist() == [2]
    assert action["aim"][0].tolist() == [[7.0]]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_random_actions_lie_in_the_space(space):
    for action in RandomPolicy(VECTOR, space)(np.zeros((100, 2))):
        assert space.problem(action) is None


def test_random_actions_are_uniform():
    policy = RandomPolicy(VECTOR, SPACES["discrete"])
    counts = np.unique(policy(np.zeros((9_000, 2))), return_counts=True)
    assert counts[0].tolist() == [-1, 0, 1]
    assert np.allclose(counts[1] / 9_000, 1 / 3, atol=0.02)
    box = RandomPolicy(VECTOR, SPACES["box"])(np.zeros((9_000, 2)))
    assert np.allclose(box.mean(0), [0.0, 5.5], atol=0.03)
    integers = RandomPolicy(VECTOR, SPACES["integer box"])(np.zeros((600, 2)))
    assert set(integers[:, 0].tolist()) == set(range(250, 256))


def test_random_actions_of_a_nest_lie_in_each_space():
    spec = {"a": SPACES["discrete"], "b": (SPACES["box"], SPACES["multi-binary"])}
    action = RandomPolicy(VECTOR, spec).act(TimeStep(observation=torch.zeros(5, 2))).action
    for path, leaf_spec in spec_leaves(spec).items():
        leaf = action
        for key in path.split("."):
            leaf = leaf[key]
        assert all(leaf_spec.problem(row) is None for row in leaf)


def test_random_actions_need_only_the_number_of_lanes():
    spec = {"nested": {"image": TensorSpec((2, 2))}}
    observation = Batch(nested=Batch(image=torch.zeros(7, 2, 2)))
    assert RandomPolicy(spec, DiscreteSpec(num=2)).act(TimeStep(observation=observation)).action.shape == (7,)


def test_random_actions_of_a_masked_space_start_where_it_does():
    policy = RandomPolicy({"x": VECTOR, "action_mask": MultiBinarySpec((3,))}, SPACES["discrete"])
    observation = Batch(x=torch.zeros(50, 2), action_mask=torch.tensor([[0, 1, 1]]).expand(50, 3))
    assert set(policy.act(TimeStep(observation=observation)).action.tolist()) == {0, 1}
