"""The mistakes of the buffers of MARO, Tianshou and ALF (REQUIREMENTS section 6), and what ours do instead."""

import pickle

import numpy as np
import pytest
import torch

from palaestra.buffers import PrioritizedSampler
from palaestra.core import Batch, OnPolicy
from palaestra.ops import n_step_targets
from palaestra.testing.buffers import FIRST, GAMMA, LAST, MID
from tests.buffers.model import filled, generator, make_buffer, replay, step
from tests.core.nests import assert_same


def episode(kinds, discounts, serials=None, **named):
    """One lane that goes through these steps."""
    buffer = make_buffer(100, 1, **named)
    serials = range(len(kinds)) if serials is None else serials
    steps = [
        step([kind], torch.tensor([serial]), torch.tensor([1.0 if kind != FIRST else 0.0]), torch.tensor([discount]))
        for kind, discount, serial in zip(kinds, discounts, serials, strict=True)
    ]
    buffer.open(steps[0])
    for arrived in steps[1:]:
        buffer.append(torch.tensor([1]), arrived)
    return buffer


def test_maro_a_full_ring_does_not_write_to_the_same_slots_again():
    """MARO: the start index was `size - capacity`, 0 once the ring was full."""
    buffer, world = filled(6, 1, 25)
    assert buffer.observation[buffer.in_time_order(0)].tolist() == [row.serial for row in world.lanes[0].stream]


def test_maro_a_sample_has_as_many_independent_rows_as_were_asked_for():
    """MARO: `_sample` drew one scalar and iterated over it."""
    buffer, _ = filled(400, 2, 200)
    for sampler in (buffer.sampler, PrioritizedSampler()):
        buffer.sampler = sampler
        index = buffer.draw(replay(mini_batch_size=64), generator()).index
        assert index.shape == (64,)
        assert len(set(index.tolist())) > 40


def test_maro_terminal_transitions_are_drawn_and_not_bootstrapped():
    """MARO: they were dropped, there was no mask, and time limits were unknown."""
    for discount, bootstrapped in ((0.0, 0.0), (1.0, GAMMA)):
        buffer = episode([FIRST, MID, LAST], [1.0, 1.0, discount])
        drawn = buffer.draw(replay(mini_batch_size=50), generator())
        targets = n_step_targets(drawn.reward, drawn.discount, drawn.step_type, gamma=GAMMA)
        ends = drawn.next_observation == 2
        assert ends.any()
        assert targets.bootstrap[ends].tolist() == pytest.approx([bootstrapped] * int(ends.sum()))
        assert set(targets.reward[ends].tolist()) == {1.0}


def test_maro_agents_that_share_a_buffer_do_not_overwrite_each_others_rows():
    """MARO: agents with one policy overwrote each other's trajectory; here each has a lane."""
    buffer = make_buffer(40, 2)
    buffer.open(step([FIRST, FIRST], torch.tensor([0, 100])))
    for t in range(1, 9):
        buffer.append(torch.tensor([t % 5]), step([MID], torch.tensor([t])), env_id=torch.tensor([0]))
        buffer.append(torch.tensor([t % 5]), step([MID], torch.tensor([100 + t])), env_id=torch.tensor([1]))
    assert buffer.newest(8).observation.T.tolist() == [list(range(9)), list(range(100, 109))]


def test_tianshou_running_episodes_can_be_learned_from_at_once():
    """Tianshou: full-episode caching delays learning and prefers short episodes; ours is a choice."""
    buffer = episode([FIRST, MID, MID], [1.0, 1.0, 1.0])
    assert set(buffer.draw(replay(mini_batch_size=20), generator()).observation.tolist()) == {0, 1}
    waits = episode([FIRST, MID, MID], [1.0, 1.0, 1.0], complete_episodes_only=True)
    with pytest.raises(ValueError, match="no row can be learned from yet"):
        waits.draw(replay(), generator())


def test_tianshou_n_steps_bootstrap_at_a_time_limit():
    """Tianshou: `done` hid truncation, so n-step targets had 0 instead of the value behind a time limit."""
    for discount, factor in ((1.0, GAMMA**2), (0.0, 0.0)):
        buffer = episode([FIRST, MID, LAST, FIRST, MID, MID], [1.0, 1.0, discount, 1.0, 1.0, 1.0])
        windows = buffer.windows(np.array([0]), 3)
        targets = n_step_targets(windows.reward, windows.discount, windows.step_type, gamma=GAMMA)
        assert targets.bootstrap.item() == pytest.approx(factor)
        assert targets.reward.item() == pytest.approx(1 + GAMMA)
        assert windows.next_observation.item() == 2


def test_tianshou_next_crosses_neither_episodes_nor_the_write_head():
    """Tianshou: `(i + 2) % len` found rows of another episode, or the oldest ones behind the newest."""
    buffer, world = filled(14, 1, 40)
    rows = buffer.in_time_order(0)
    for i, row in enumerate(rows[:-1].tolist()):
        two = buffer.next(buffer.next(row))
        modulo = rows[(i + 2) % len(rows)]
        crosses = i + 2 >= len(rows) or LAST in [r.kind for r in world.lanes[0].stream[i : i + 2]]
        assert (two == modulo) == (not crosses)


def test_tianshou_a_slice_and_the_same_numbers_give_the_same():
    """Tianshou: `buffer[slice] != buffer[np.arange]`, and silent arrays of objects in batches."""
    buffer, _ = filled(20, 1, 15)
    rows = buffer[np.arange(3, 9)]
    everything = buffer[np.arange(15)]
    assert_same(everything[3:9], rows)
    assert_same(everything[np.arange(3, 9)], rows)
    assert all(leaf.dtype != object for leaf in rows.to_numpy().values() if not isinstance(leaf, Batch))
    assert_same(pickle.loads(pickle.dumps(rows)), rows)


def test_alf_a_restored_buffer_needs_no_training_iteration_first():
    """ALF: buffers were made lazily, so that restoring ran `train_iter()` before anything was read."""
    buffer, _ = filled(40, 2, 13)
    fresh = make_buffer(40, 2)
    fresh.load_state_tensors(buffer.state_tensors())
    assert torch.equal(fresh.draw(replay(), generator()).index, buffer.draw(replay(), generator()).index)


def test_alf_two_buffers_in_one_process_know_nothing_of_each_other():
    """ALF: global singletons allowed one trainer per process."""
    one, first = filled(None, 1, 5, 1)
    two, _ = filled(None, 1, 9, 2)
    two.draw(OnPolicy(unroll_length=1), generator())
    two.clear()
    assert one.newest(5).observation[:, 0].tolist() == [row.serial for row in first.lanes[0].stream]
