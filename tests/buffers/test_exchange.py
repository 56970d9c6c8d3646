"""Tests of `palaestra.buffers.with_actions`."""

import pytest
import torch

from palaestra.buffers import ReplayBuffer, with_actions
from palaestra.core import Batch, BoundedSpec, DiscreteSpec, ShapeError, TensorSpec
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.buffers.model import step

SPECS = {"observation_spec": TensorSpec((1,)), "action_spec": DiscreteSpec(num=9)}


def filled(lanes=2, only=None, **options):
    """Lanes with an episode that ends after two steps; then only some of them go on."""
    buffer = ReplayBuffer(40, lanes, **SPECS, **options)

    def arrived(number, kind, rows):
        numbers = torch.full((rows, 1), float(number))
        return step([kind] * rows, numbers, torch.full((rows,), float(number)), torch.ones(rows))

    buffer.open(arrived(0, FIRST, lanes))
    for number, kind in enumerate([MID, LAST, FIRST, MID], start=1):
        buffer.append(torch.full((lanes,), number), arrived(number, kind, lanes), policy_version=number)
    for number in () if only is None else (5, 6):
        rows = len(only)
        buffer.append(torch.full((rows,), number), arrived(number, MID, rows), policy_version=number, env_id=only)
    return buffer


def test_everything_but_the_actions_stays():
    """And there is room for what is held, not for what the first buffer could hold."""
    buffer = filled()
    made = with_actions(buffer, DiscreteSpec(num=90), lambda action: action * 10)
    assert len(made) == len(buffer) == 8
    assert made.rows_per_lane == 4
    assert made.positions.lockstep
    for lane in range(2):
        old, new = buffer[buffer.in_time_order(lane)], made[made.in_time_order(lane)]
        for name in ("observation", "reward", "discount", "step_type"):
            assert torch.equal(old[name], new[name])
        assert torch.equal(old.policy_version[:-1], new.policy_version[:-1])
        assert new.action[:-1].tolist() == [10, 20, 0, 40]  # the third row is LAST: its action was not executed


def test_what_environments_say_besides_stays():
    """A loss may read `env_info`, and a mixture needs the fields of the run's own rows."""
    info = {"cost": TensorSpec(())}
    buffer = ReplayBuffer(8, 1, **SPECS, env_info_spec=info)
    for kind, cost in ((FIRST, 0.0), (MID, 2.0), (LAST, 3.0)):
        arrived = step([kind], torch.zeros(1, 1), torch.zeros(1), torch.ones(1))
        arrived = arrived._replace(env_info=Batch(cost=torch.tensor([cost])))
        if kind == FIRST:
            buffer.open(arrived)
        else:
            buffer.append(torch.zeros(1, dtype=torch.int64), arrived)
    made = with_actions(buffer, SPECS["action_spec"], lambda action: action)
    assert made.options.get("env_info_spec") == info
    assert made[made.in_time_order(0)].env_info.cost.tolist() == [0.0, 2.0, 3.0]


def test_lanes_of_different_length_stay_apart():
    buffer = filled(3, only=[1])
    made = with_actions(buffer, SPECS["action_spec"], lambda action: action)
    assert [len(made.in_time_order(lane)) for lane in range(3)] == [5, 7, 5]
    assert made[made.in_time_order(1)].observation.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_what_belongs_to_the_policy_is_left_out():
    """Memories and log-probabilities are of a policy that the data set knows nothing about."""
    spec = {"info_spec": {"log_prob": TensorSpec(())}, "state_spec": {"h": TensorSpec((2,))}}
    buffer = ReplayBuffer(8, 1, **SPECS, **spec)
    one = step([FIRST], torch.zeros(1, 1), torch.zeros(1), torch.ones(1))
    buffer.open(one)
    two = step([MID], torch.zeros(1, 1), torch.zeros(1), torch.ones(1))
    buffer.append(torch.tensor([3]), two, state=Batch(h=torch.ones(1, 2)))
    made = with_actions(buffer, SPECS["action_spec"], lambda action: action)
    assert not made.keeps_states
    assert made.info_fields == ()


def test_nested_actions_are_zeroed_leaf_by_leaf():
    spec = {"a": DiscreteSpec(num=9), "b": BoundedSpec((2,), minimum=-1.0, maximum=1.0)}
    made = with_actions(filled(1), spec, lambda action: Batch(a=action, b=torch.stack([action, action], -1).float()))
    action = made[made.in_time_order(0)[:-1]].action
    assert action.a.tolist() == [1, 2, 0, 4]
    assert action.b.tolist() == [[1, 1], [2, 2], [0, 0], [4, 4]]


def test_single_frames_stay_single_frames():
    """Where stacks are made of the rows before when they are read."""
    buffer = filled(1, stack_num=3, sample_avail=True)
    made = with_actions(buffer, SPECS["action_spec"], lambda action: action)
    whole = (made[made.in_time_order(0)].observation, buffer[buffer.in_time_order(0)].observation)
    assert torch.equal(*whole) and whole[0].shape == (5, 3, 1)


def test_an_empty_buffer_has_nothing_to_give():
    with pytest.raises(ShapeError, match="holds no rows"):
        with_actions(ReplayBuffer(4, 1, **SPECS), SPECS["action_spec"], lambda action: action)
