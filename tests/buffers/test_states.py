"""Tests of `palaestra.buffers.ReplayBuffer` with a policy's memory: stored with its row, handed out with sequences."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import PrioritizedSampler, UniformSampler, sampler_of
from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    OnPolicy,
    Prioritized,
    ShapeError,
    TensorSpec,
    minibatches,
)
from palaestra.testing.buffers import FIRST, LAST, MID, World, check_unroll
from tests.buffers.model import generator, make_buffer, replay, step

STATE = {"h": TensorSpec((2,)), "c": TensorSpec(())}
bounded = settings(max_examples=60, deadline=None, derandomize=True)


class Remembering:
    """Passes the serial number of each open row on as the memory with which its action is chosen."""

    def __init__(self, buffer, world):
        self.buffer, self.world = buffer, world

    def open(self, *arguments, **named):
        self.buffer.open(*arguments, **named)

    def append(self, action, time_step, *, env_id=None, **named):
        lanes = range(len(self.world.lanes)) if env_id is None else env_id.tolist()
        # the model has already taken the row that arrives: the one before it is being completed
        serials = torch.tensor([float(self.world.lanes[i].rows[-1].serial) for i in lanes])
        state = Batch(h=torch.stack([serials, -serials], -1), c=serials)
        self.buffer.append(action, time_step, env_id=env_id, state=state, **named)


def filled(capacity, lanes, steps, *, period=1, seed=0, sampler=None, some=False):
    buffer = make_buffer(capacity, lanes, state_spec=STATE, state_period=period, sampler=sampler)
    world = World(lanes, 10**6 if capacity is None else capacity // lanes, seed)
    pair = Remembering(buffer, world)
    world.open(pair)
    for i in range(steps):
        world.append(pair, [i % lanes] if some and i % 3 == 0 else None)
    return buffer, world


@pytest.mark.parametrize(("capacity", "steps"), [(None, 300), (20, 9), (20, 47)])
def test_an_unroll_has_the_memory_before_each_row(capacity, steps):
    """DESIGN section 4: also where the buffer has grown or wrapped."""
    buffer, _ = filled(capacity, 2, steps)
    unroll = buffer.draw(OnPolicy(unroll_length=1), generator())
    serials = unroll.observation[:-1].float()
    assert torch.equal(unroll.state.c, serials)
    assert torch.equal(unroll.state.h[..., 1], -serials)


@pytest.mark.slow
@bounded
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(6, 30),
    period=st.integers(1, 5),
    steps=st.integers(7, 70),
    by_priority=st.booleans(),
    some=st.booleans(),
)
def test_sequences_begin_at_rows_with_a_memory(lanes, rows, period, steps, by_priority, some):
    """Whatever the ring, the period and the sampler; every such row is found."""
    sampler = PrioritizedSampler() if by_priority else UniformSampler()
    buffer, world = filled(rows * lanes, lanes, steps, period=period, sampler=sampler, some=some)
    aligned = {i for i in range(buffer.positions.ring_size * lanes) if i // lanes % period == 0}
    expected = []
    for lane in range(lanes):
        numbers = buffer.in_time_order(lane)
        # no episode of this world breaks off: with one memory in several rows nothing but alignment is asked for
        begins = world.lanes[lane].starts(4) if period == 1 else range(max(len(numbers) - 4, 0))
        expected += aligned & set(numbers[list(begins)].tolist())
    expected.sort()
    if not expected:
        with pytest.raises(ShapeError):
            buffer.draw(replay(mini_batch_length=4), generator())
        return
    assert sorted(buffer.starts(4).tolist()) == expected
    drawn = buffer.draw(replay(mini_batch_size=30 * len(expected), mini_batch_length=4), generator())
    assert sorted(set(drawn.index.tolist())) == expected
    assert drawn.state.c.shape == (1, 30 * len(expected))
    assert torch.equal(drawn.state.c[0], drawn.observation[0].float())
    assert torch.equal(drawn.state.h[0, :, 1], -drawn.observation[0].float())
    ended = drawn.step_type[0] == LAST
    assert period > 1 or not ended.any()
    check_unroll(drawn, [world.find(serial) for serial in drawn.observation[0].tolist()], one_episode=True)


@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("rows", [2, 4, 5])
def test_episodes_whose_ends_are_all_rows_with_a_memory_can_be_drawn(rows, by_priority):
    """Episodes of `rows` rows, a period that is a multiple of it, and a ring that shifts the phase each time."""
    period, sampler = 20, PrioritizedSampler() if by_priority else UniformSampler()
    buffer = make_buffer(102, 1, state_spec=STATE, state_period=period, sampler=sampler)
    kinds = [FIRST] + [MID] * (rows - 2) + [LAST]
    state = Batch(h=torch.zeros(1, 2), c=torch.zeros(1))
    buffer.open(step([FIRST]))
    phases = set()
    for i in range(1, 104 * rows * 3):
        buffer.append(torch.zeros(1, dtype=torch.int64), step([kinds[i % rows]]), state=state)
        if i < 60 or i % 13:
            continue
        drawn = buffer.draw(replay(mini_batch_size=16, mini_batch_length=6), generator(i))
        assert (drawn.index % period == 0).all()
        assert (drawn.valid.sum(0) > 0).all()
        first = drawn.step_type[0]
        phases |= set(first.tolist())
        after_end = drawn.valid[:, first == LAST]
        assert after_end[1:rows].all()
        assert not after_end[rows:].any()
        assert not after_end[0].any()
        if by_priority:
            buffer.write_back(drawn.index, torch.rand(16, generator=generator(i)))
    assert phases >= {FIRST, LAST}


def test_windows_of_several_steps_need_more_rows_than_those_with_a_memory():
    """F27."""
    buffer, _ = filled(40, 2, 30, period=4)
    assert buffer.draw(replay(n_step=1), generator()).step_type[0].max() < LAST
    message = (
        r"windows of 3 steps were asked for, but this .* one row in 4, for sequences; ask for mini_batch_length > 1"
    )
    with pytest.raises(ConfigError, match=message):
        buffer.draw(replay(n_step=3), generator())


def test_burn_in_lies_in_front_of_what_is_learned_from():
    """`state` is the memory before the first row of the burn-in, whose rows are not learned from."""
    buffer, _ = filled(200, 2, 90, period=3)
    drawn = buffer.draw(replay(mini_batch_size=64, mini_batch_length=4, burn_in=3), generator())
    plain = buffer.draw(replay(mini_batch_size=64, mini_batch_length=7), generator())
    assert drawn.action.shape == (7, 64)
    assert drawn.valid[:3].sum() == 0
    assert torch.equal(drawn.valid[3:], plain.valid[3:])
    assert torch.equal(drawn.observation, plain.observation)
    assert torch.equal(drawn.state.c[0], drawn.observation[0].float())


def test_sampled_sequences_are_divided_with_their_memory_index_and_weight():
    """ALF-09: what has one value for each sequence goes with it."""
    plan = replay(mini_batch_size=4, mini_batch_length=3, gradient_steps=3, prioritized=Prioritized())
    buffer, _ = filled(200, 2, 50, sampler=sampler_of(plan))
    drawn = buffer.draw(plan, generator())
    assert drawn.index.shape == drawn.weight.shape == (12,)
    for i, part in enumerate(minibatches(drawn, plan, generator=generator())):
        columns = slice(4 * i, 4 * i + 4)
        assert torch.equal(part.index, drawn.index[columns])
        assert torch.equal(part.weight, drawn.weight[columns])
        assert torch.equal(part.state.c, drawn.state.c[:, columns])
        assert torch.equal(part.observation, drawn.observation[:, columns])
        buffer.write_back(part.index, torch.rand(4))


def test_a_saved_memory_comes_back():
    """F25."""
    buffer, _ = filled(40, 2, 33, period=4)
    twin = make_buffer(40, 2, state_spec=STATE, state_period=4)
    twin.load_state_tensors(buffer.state_tensors())
    one, two = (b.draw(replay(mini_batch_length=2), generator()) for b in (buffer, twin))
    assert torch.equal(one.state.h, two.state.h)


def test_a_saved_memory_of_other_sequences_is_refused():
    """F25: it would come to other rows."""
    buffer, _ = filled(40, 2, 5, period=8)
    with pytest.raises(CheckpointError, match="one row in 8, but this one with one in 4"):
        make_buffer(40, 2, state_spec=STATE, state_period=4).load_state_tensors(buffer.state_tensors())


def test_a_memory_that_does_not_fit_is_refused_and_changes_nothing():
    """F7."""
    action, arrived = torch.zeros(2, dtype=torch.int64), step([MID, MID])
    plain = make_buffer(8, 2)
    plain.open(step([FIRST, FIRST]))
    with pytest.raises(ShapeError, match="the buffer was made without one; give it a state_spec"):
        plain.append(action, arrived, state=Batch(h=torch.zeros(2, 2)))
    plain.append(action, arrived, state=())  # what a policy without memory hands on
    buffer = make_buffer(8, 2, state_spec=STATE)
    buffer.open(step([FIRST, FIRST]))
    with pytest.raises(ShapeError, match=r"state has the leaves NoneType, but .* for \['h', 'c'\]"):
        buffer.append(action, arrived)
    with pytest.raises(ShapeError, match=r"state.h is float32 of shape \(1, 2\), but .* \(2, 2\)"):
        buffer.append(action, arrived, state=Batch(h=torch.zeros(1, 2), c=torch.zeros(2)))
    assert len(buffer) == 0
    with pytest.raises(ConfigError, match="state_period is 2; it must be at least 1, and 1 where the buffer grows"):
        make_buffer(None, 2, state_spec=STATE, state_period=2)


def test_the_end_of_an_episode_that_is_opened_anew_has_no_memory():
    buffer, world = filled(40, 1, 6)
    while world.lanes[0].open.kind != 2:
        world.append(Remembering(buffer, world))
    world.open(buffer)
    assert buffer.newest(1).state.c.tolist() == [[0.0]]


@pytest.mark.parametrize("period", [1, 2])
def test_nothing_behind_a_gap_is_valid_until_an_episode_begins(period):
    """The memory before it is another episode's; a sequence may begin with the gap, too."""
    buffer = make_buffer(40, 1, state_spec=STATE, state_period=period)
    one, state = torch.tensor([1]), Batch(h=torch.zeros(1, 2), c=torch.zeros(1))
    for kinds in ([FIRST, MID, MID], [MID, MID, LAST], [FIRST, MID]):
        buffer.open(step(kinds[:1]))
        for kind in kinds[1:]:
            buffer.append(one, step([kind]), state=state)
        if kinds[-1] == MID:
            buffer.end_streams()
    unroll = buffer.newest(8)
    assert unroll.step_type.flatten().tolist()[:8] == [FIRST, MID, LAST, MID, MID, LAST, FIRST, LAST]
    assert unroll.valid.flatten().tolist() == [1, 1, 0, 0, 0, 0, 1, 0]
    (sequence,) = buffer.rows_of(replay(mini_batch_length=3), np.array([2])).valid.T.tolist()
    assert sequence == [0, 0, 0]


def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="a buffer does not know state_specs"):
        make_buffer(8, 1, state_specs=STATE)
    assert np.isscalar(make_buffer(8, 1).state_period)
