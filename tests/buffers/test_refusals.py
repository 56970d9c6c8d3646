"""Tests of `palaestra.buffers.ReplayBuffer` refusals: what does not fit is named, and changes nothing."""

import numpy as np
import pytest
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    DiscreteSpec,
    OnPolicy,
    ShapeError,
    TensorSpec,
)
from palaestra.testing.buffers import FIRST, MID
from tests.buffers.model import NESTED, filled, generator, make_buffer, nested, replay, step

REFUSED = {
    "one row for two lanes": (
        {"observation": torch.zeros(1, 3)},
        r"observation is float32 of shape \(1, 3\), but .* \(2, 3\)",
    ),
    "a number for a vector": ({"observation": torch.zeros(2, 1)}, r"of shape \(2, 1\)"),
    "no lanes": ({"observation": torch.zeros(3)}, r"of shape \(3,\)"),
    "another dtype": ({"observation": torch.zeros(2, 3, dtype=torch.float64)}, "observation is float64 .* float32"),
    "another step type": ({"step_type": torch.zeros(2, dtype=torch.int64)}, "step_type is int64 .* int32"),
    "a scalar reward": ({"reward": torch.tensor(1.0)}, r"reward is float32 of shape \(\)"),
    "a column of rewards": ({"reward": torch.zeros(2, 1)}, r"reward is float32 of shape \(2, 1\)"),
    "a number for discounts": ({"discount": 1.0}, r"discount is float64 of shape \(\)"),
    "a nest": ({"observation": Batch(x=torch.zeros(2, 3))}, "observation"),
}


@pytest.mark.parametrize("lanes", [None, np.array([1, 0])], ids=["all", "some"])
@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("held", [0, 3], ids=["first", "later"])
def test_what_would_be_broadcast_or_cast_is_refused_and_changes_nothing(change, message, lanes, held):
    """F7, TS-07: on the first row and on every later one; the buffer stays as it was, also when it is full."""
    buffer = ReplayBuffer(4, 2, observation_spec=TensorSpec((3,)), action_spec=DiscreteSpec(num=2))
    good = step([FIRST, FIRST], torch.ones(2, 3))
    if not held:
        with pytest.raises(ShapeError, match=message):
            buffer.open(good._replace(**change), lanes)
    buffer.open(good)
    action = torch.zeros(2, dtype=torch.int64)
    for _ in range(held):
        buffer.append(action, step([MID, MID], torch.ones(2, 3)))
    before = {key: value.clone() if hasattr(value, "clone") else value for key, value in buffer.state_tensors().items()}
    with pytest.raises(ShapeError, match=message):
        buffer.append(action, good._replace(**change), env_id=lanes)
    assert len(buffer) == 2 * min(held, 2)
    after = buffer.state_tensors()
    for key in ("field.step_type", "field.reward", "field.discount", "field.observation"):
        assert torch.equal(before[key], after[key])
    with pytest.raises(ShapeError, match=r"action is int64 of shape \(1,\)"):
        buffer.append(action[:1], step([MID, MID], torch.ones(2, 3)), env_id=lanes)


def test_nests_must_have_the_leaves_of_the_spec():
    """F7."""
    buffer = ReplayBuffer(4, 1, observation_spec=NESTED, action_spec=DiscreteSpec(num=2))
    with pytest.raises(ShapeError, match=r"observation has the leaves \['camera'\], but .* for \['camera', 'pair'\]"):
        buffer.open(step([FIRST], Batch(camera=torch.zeros(1, 2, 2, dtype=torch.uint8))))
    with pytest.raises(ShapeError, match=r"observation has the leaves Tensor"):
        buffer.open(step([FIRST], torch.zeros(1)))
    broken = nested([1])
    broken.pair["1"].n = torch.zeros(1, 4)
    with pytest.raises(
        ShapeError, match=r"observation.pair.1.n is float32 of shape \(1, 4\), but .* of shape \(1, 3\)"
    ):
        buffer.open(step([FIRST], broken))


@pytest.mark.parametrize("lanes", [[0, 0], [2], [-1], [[0]], [0.5], [True, False]], ids=str)
def test_lanes_are_distinct_numbers(lanes):
    buffer, _ = filled(8, 2, 1)
    count = np.size(lanes)
    with pytest.raises(ShapeError, match="give each lane once, as numbers from 0 to 1"):
        buffer.append(torch.zeros(count, dtype=torch.int64), step([MID] * count), env_id=np.array(lanes))


def test_a_lane_must_be_opened_before_it_is_written():
    buffer = make_buffer(8, 2)
    with pytest.raises(ShapeError, match=r"the lanes \[0, 1\] have no open row to complete; call open"):
        buffer.append(torch.zeros(2, dtype=torch.int64), step([MID, MID]))
    buffer.open(step([FIRST]), np.array([1]))
    with pytest.raises(ShapeError, match=r"the lanes \[0\] have no open row"):
        buffer.append(torch.zeros(2, dtype=torch.int64), step([MID, MID]))
    buffer.append(torch.zeros(1, dtype=torch.int64), step([MID]), env_id=np.array([1]))
    assert len(buffer) == 1


def test_nothing_can_be_drawn_too_early():
    buffer = make_buffer(9, 3)
    with pytest.raises(ShapeError, match="the buffer holds no rows; collect before learning"):
        buffer.draw(OnPolicy(unroll_length=1), generator())
    buffer.open(step([FIRST] * 3))
    with pytest.raises(
        ShapeError, match=r"no row can be learned from yet: 1 rows must follow it; the lanes hold \[0, 0, 0\]"
    ):
        buffer.draw(replay(), generator())
    with pytest.raises(ConfigError, match="4 steps in a row do not fit into a lane of 3; raise the capacity"):
        buffer.draw(replay(n_step=4), generator())
    for _ in range(3):
        buffer.append(torch.zeros(3, dtype=torch.int64), step([FIRST] * 3))
    with pytest.raises(ShapeError, match=r"hardly any row can be learned from: episodes end at once"):
        buffer.draw(replay(), generator())


@pytest.mark.parametrize(("capacity", "lanes"), [(2, 3), (0, 1), (4, 0), (None, 0)])
def test_a_buffer_needs_room_for_every_lane(capacity, lanes):
    with pytest.raises(ConfigError, match="has no room for one row in each of"):
        make_buffer(capacity, lanes)


def test_a_state_of_another_buffer_is_refused():
    """F11."""
    buffer, _ = filled(10, 2, 3)
    state = buffer.state_tensors()
    with pytest.raises(CheckpointError, match="the saved buffer has 5 rows per lane, but this one has 10"):
        make_buffer(20, 2).load_state_tensors(state)
    with pytest.raises(
        CheckpointError, match=r"'step_type' has rows of \(\(2,\), torch.int32\), but this one of \(\(1,\)"
    ):
        make_buffer(5, 1).load_state_tensors(state)
    with pytest.raises(CheckpointError, match="'reward' has rows of None"):
        make_buffer(10, 2).load_state_tensors({k: v for k, v in state.items() if k != "field.reward"})
    with pytest.raises(CheckpointError, match="the saved buffer has no 'unfinished'"):
        make_buffer(10, 2).load_state_tensors({k: v for k, v in state.items() if k != "unfinished"})
    with pytest.raises(CheckpointError, match="the saved buffer has 1 lanes, but this one 2"):
        make_buffer(10, 2).load_state_tensors({**state, "head": state["head"][:1]})


def test_returns_of_vectors_of_rewards_are_refused():
    specs = {"observation_spec": TensorSpec(()), "action_spec": DiscreteSpec(num=2), "reward_spec": TensorSpec((2,))}
    buffer = ReplayBuffer(8, 1, **specs)
    buffer.open(step([FIRST], torch.zeros(1), reward=torch.ones(1, 2)))
    with pytest.raises(ConfigError, match="a return is a sum of single numbers, but the rewards of these rows are"):
        buffer.returns_to_go([0])
