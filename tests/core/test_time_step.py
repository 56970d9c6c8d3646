"""Tests of `palaestra.core.TimeStep` and its constructors."""

import numpy as np
import pytest
import torch

from palaestra.core import (
    ShapeError,
    SpecError,
    StepType,
    TimeStep,
    check_time_step,
    restart,
    termination,
    transition,
    truncation,
)

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def test_a_time_step_has_eight_fields_that_default_to_nothing():
    """ALF-13."""
    names = ["step_type", "reward", "discount", "observation", "prev_action", "env_id", "untransformed", "env_info"]
    assert list(TimeStep._fields) == names
    assert TimeStep() == ((),) * 8


def test_step_types_are_the_numbers_that_environments_write():
    """ALF-14."""
    assert [(kind.name, int(kind)) for kind in StepType] == [("FIRST", 0), ("MID", 1), ("LAST", 2)]
    step_type = torch.tensor([0, 1, 2], dtype=torch.int32)
    assert (step_type == LAST).tolist() == [False, False, True]


def test_the_constructors_write_the_four_legal_pairs():
    """ALF-23..28: FIRST 1, MID 1, LAST 0 after a normal end, LAST with the discount unchanged after a time limit."""
    steps = [restart(0), transition(1, 0.5), termination(2, 1.0), truncation(3, 2.0)]
    assert [(step.step_type, step.discount) for step in steps] == [(FIRST, 1), (MID, 1), (LAST, 0), (LAST, 1)]
    for step in steps:
        check_time_step(step)


def test_the_constructors_put_everything_in_its_place():
    """ALF-15..20."""
    named = {"prev_action": np.int64(3), "env_id": 7, "env_info": {"lives": 2}}
    for make in (transition, termination, truncation):
        step = make("seen", 1.5, **named)
        assert (step.observation, step.reward, step.prev_action, step.env_id) == ("seen", 1.5, 3, 7)
        assert step.env_info == {"lives": 2}
        assert step.untransformed == ()
    assert restart("seen", **named).observation == "seen"


def test_the_reward_of_a_first_step_is_zero():
    """ALF-15: no action came before that could have earned one."""
    assert restart(0).reward == 0
    assert restart(0, reward=np.zeros(2)).reward.shape == (2,)
    with pytest.raises(SpecError, match=r"the reward of a first step is 1.0; it must be 0"):
        restart(0, reward=1.0)


@pytest.mark.parametrize("kind", ["bare", "numpy", "torch"])
def test_ends_are_read_from_step_type_and_discount_alone(kind):
    """ALF-23..26, ALF-28: `last`, `terminated` and `truncated` are views of the pair."""
    step_type, discount = [0, 1, 2, 2], [1.0, 1.0, 0.0, 1.0]
    if kind == "bare":
        steps = [TimeStep(step_type=s, discount=d) for s, d in zip(step_type, discount, strict=True)]
        views = [[bool(getattr(step, name)) for step in steps] for name in ("first", "last", "terminated", "truncated")]
    else:
        make = np.array if kind == "numpy" else torch.tensor
        step = TimeStep(step_type=make(step_type), discount=make(discount))
        views = [getattr(step, name).tolist() for name in ("first", "last", "terminated", "truncated")]
    assert views == [
        [True, False, False, False],
        [False, False, True, True],
        [False, False, True, False],
        [False, False, False, True],
    ]


def pairs(step_type, discount, **named):
    return TimeStep(step_type=torch.tensor(step_type), discount=torch.tensor(discount), **named)


@pytest.mark.parametrize(
    ("step_type", "discount", "message"),
    [
        ([0, 1], [1.0, 0.0], r"environment 1 emitted \(MID, discount 0.0\): discount is 0 only with LAST"),
        ([0, 1], [0.0, 1.0], r"environment 0 emitted \(FIRST, discount 0.0\)"),
        ([2, 2], [1.0, 0.5], r"environment 1 emitted \(LAST, discount 0.5\)"),
        ([2, 3], [1.0, 1.0], r"environment 1 emitted \(step type 3, discount 1.0\)"),
        ([2, 1], [0.0, float("nan")], r"environment 1 emitted \(MID, discount nan\)"),
        ([[1, 1], [1, 0]], [[1.0, 1.0], [1.0, 0.0]], r"environment 1 emitted \(FIRST, discount 0.0\)"),
    ],
)
def test_every_other_pair_is_refused_by_name(step_type, discount, message):
    """ALF-27."""
    with pytest.raises(SpecError, match=message):
        check_time_step(pairs(step_type, discount))


def test_the_environment_is_named_by_its_id():
    """ALF-18, ALF-27: with first-n-ready environments the position says nothing."""
    with pytest.raises(SpecError, match="environment 9 emitted"):
        check_time_step(pairs([1, 1], [1.0, 0.0], env_id=torch.tensor([4, 9])))


def test_shapes_must_agree():
    with pytest.raises(ShapeError, match=r"step_type has shape \(2,\) and discount \(1,\)"):
        check_time_step(pairs([1, 1], [1.0]))
    check_time_step(pairs([[0, 2], [1, 0]], [[1.0, 0.0], [1.0, 1.0]]))
