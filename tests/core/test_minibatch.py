"""Tests of `palaestra.core.minibatch`: what is learned from, how often, and in which order."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core import Batch, Offline, OnPolicy, Replay, ShapeError, equal_minibatches, minibatches, sequences

bounded = settings(max_examples=25, deadline=None, derandomize=True)


def numbered(num_steps, num_lanes):
    """An unroll whose rows say which step and lane they are."""
    step = torch.arange(num_steps)[:, None].expand(num_steps, num_lanes)
    lane = torch.arange(num_lanes).expand(num_steps, num_lanes)
    return Batch(step=step, lane=lane, nested=Batch(pair=torch.stack([step, lane], -1)), empty=Batch())


def parts(batch, plan, seed=0):
    return list(minibatches(batch, plan, generator=torch.Generator().manual_seed(seed)))


def visits(minibatches_, num_steps, num_lanes):
    """[T, B] how often each row was learned from."""
    count = torch.zeros(num_steps, num_lanes, dtype=torch.int64)
    for part in minibatches_:
        assert torch.equal(part.nested.pair[..., 0], part.step)
        index = (part.step * num_lanes + part.lane).flatten()
        count += torch.bincount(index, minlength=num_steps * num_lanes).reshape(num_steps, num_lanes)
    return count


@bounded
@given(
    num_steps=st.integers(1, 12),
    num_lanes=st.integers(1, 5),
    num_epochs=st.integers(1, 3),
    size=st.one_of(st.none(), st.integers(1, 20)),
    length=st.one_of(st.none(), st.integers(1, 12)),
    seed=st.integers(0, 99),
)
def test_every_row_is_learned_from_once_in_each_repeat(num_steps, num_lanes, num_epochs, size, length, seed):
    """ALF-08, ALF-10: a visit counter; rows beyond a multiple of the length are left out and no others."""
    length = None if length is None else min(length, num_steps)
    plan = OnPolicy(unroll_length=num_steps, num_epochs=num_epochs, mini_batch_size=size, mini_batch_length=length)
    drawn = parts(numbered(num_steps, num_lanes), plan, seed)
    kept = num_steps // (length or num_steps) * (length or num_steps)
    count = visits(drawn, num_steps, num_lanes)
    assert (count[:kept] == num_epochs).all()
    assert (count[kept:] == 0).all()
    total, per_update = kept // (length or num_steps) * num_lanes, len(drawn) // num_epochs
    wanted = size or num_lanes
    assert len(drawn) == num_epochs * per_update
    assert per_update in (max(1, total // wanted), math.ceil(total / wanted))
    for part in drawn:
        if part.step.ndim == 2:  # sequences: time order inside, one lane each
            assert (part.step.diff(dim=0) == 1).all()
            assert (part.lane == part.lane[0]).all()


def test_a_sequence_keeps_its_time_order():
    """ALF-08: 8 steps of 2 lanes in sequences of 4; each begins at a multiple of 4."""
    plan = OnPolicy(unroll_length=8, num_epochs=2, mini_batch_size=1, mini_batch_length=4)
    drawn = parts(numbered(8, 2), plan)
    assert len(drawn) == 8
    assert all(part.step.shape == (4, 1) for part in drawn)
    assert {tuple(part.step[:, 0].tolist()) for part in drawn} == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_every_repeat_has_another_order():
    """ALF-08."""
    plan = OnPolicy(unroll_length=32, num_epochs=4, mini_batch_size=8, mini_batch_length=1)
    drawn = parts(numbered(32, 1), plan)
    orders = [tuple(torch.cat([part.step for part in drawn[i : i + 4]]).tolist()) for i in range(0, 16, 4)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(32)) for order in orders)
    assert orders == [
        tuple(torch.cat([part.step for part in parts(numbered(32, 1), plan)[i : i + 4]]).tolist())
        for i in range(0, 16, 4)
    ]


def test_a_tiny_last_minibatch_is_avoided():
    """ALF-10: 264 rows in minibatches of 32 become 8 of 33, not 8 of 32 and one of 8."""
    plan = OnPolicy(unroll_length=33, mini_batch_size=32, mini_batch_length=1)
    assert [len(part) for part in parts(numbered(33, 8), plan)] == [33] * 8
    for total, size, expected in [
        (100, 32, [34, 33, 33]),
        (10, 20, [10]),
        (10, 10, [10]),
        (11, 10, [11]),
        (9, 2, [3, 2, 2, 2]),
        (257, 16, [17] + [16] * 15),
        (500, 256, [250, 250]),
        (380, 256, [380]),
        (385, 256, [193, 192]),
    ]:
        plan = OnPolicy(unroll_length=total, mini_batch_size=size, mini_batch_length=1)
        assert [len(part) for part in parts(numbered(total, 1), plan)] == expected


def test_without_sizes_the_whole_unroll_is_one_gradient_step():
    """ALF-07, ALF-10: `None` is the number of environments for the size, and the full length for the length."""
    batch = numbered(5, 3)
    (part,) = parts(batch, OnPolicy(unroll_length=5))
    assert torch.equal(part.step, batch.step)
    drawn = parts(batch, OnPolicy(unroll_length=5, mini_batch_length=1))
    assert [len(part) for part in drawn] == [3] * 5
    drawn = parts(batch, OnPolicy(unroll_length=5, mini_batch_length=2))
    assert [part.step.shape for part in drawn] == [(2, 3), (2, 3)]


@pytest.mark.parametrize("plan_class", [Replay, Offline])
def test_one_sample_is_divided_into_the_updates(plan_class):
    """ALF-09: exactly `gradient_steps` minibatches; rows are cut along N, sequences along their second dimension."""
    unroll = {"unroll_length": 1} if plan_class is Replay else {}
    plan = plan_class(gradient_steps=3, mini_batch_size=4, **unroll)
    drawn = parts(Batch(row=torch.arange(12), nested={"row": torch.arange(12)}), plan)
    assert [part.row.tolist() for part in drawn] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    plan = plan_class(gradient_steps=2, mini_batch_size=3, mini_batch_length=5, **unroll)
    assert [part.step.shape for part in parts(numbered(5, 6), plan)] == [(5, 3), (5, 3)]
    whole = Batch(row=torch.arange(4))
    (part,) = parts(whole, plan_class(mini_batch_size=4, **unroll))
    assert part is whole


def test_sequences_need_enough_steps_and_equal_leaves():
    """ALF-10: and rows that do not belong together are never paired in silence."""
    with pytest.raises(ShapeError, match="mini_batch_length is 6 but the unroll has 5 steps; unroll at least as many"):
        sequences(numbered(5, 2), 6)
    batch = numbered(4, 2).replace(observation=torch.zeros(5, 2, 3))
    with pytest.raises(ShapeError, match=r"'observation': \(5, 2\)"):
        sequences(batch, 1)
    assert sequences(batch, None) is batch


def test_with_a_memory_steps_that_do_not_fill_a_sequence_are_a_shorter_one():
    """Episodes end there. What fills it up does not count, and a memory starts anew; no zeros, for masks."""
    step_type = torch.tensor([0, 1, 1, 2, 0, 1, 1]).unsqueeze(1).expand(7, 2)
    rows = {"step_type": step_type, "mask": torch.ones(7, 2, 3), "state": torch.zeros(7, 2, 5)}
    batch = numbered(7, 2).replace(valid=torch.ones(7, 2), **rows)
    plan = OnPolicy(unroll_length=7, num_epochs=2, mini_batch_size=3, mini_batch_length=4)
    drawn = parts(batch, plan)
    assert [part.step.shape for part in drawn] == [(4, 4)] * 2
    count = torch.zeros(7, 2)
    for part in drawn:
        count.index_put_((part.step, part.lane), part.valid, accumulate=True)
        assert part.mask.all()
        assert torch.equal(part.valid == 0, part.step == part.step.roll(1, 0))
        assert not part.step_type[part.valid == 0].any()
    assert (count == 2).all()
    assert (batch.valid == 1).all() and batch.step_type is step_type


def test_an_unroll_that_is_shorter_than_a_sequence_is_one_sequence():
    """Unrolls of whole episodes may be."""
    (whole,) = minibatches(numbered(5, 2), OnPolicy(unroll_length=16, mini_batch_length=8), generator=torch.Generator())
    assert whole.step.shape[:2] == (5, 2)


def test_the_first_of_many_steps_can_be_a_single_one():
    assert sequences(numbered(1, 3), 1).step.shape == (3,)
    assert sequences(numbered(1, 3), None).step.shape == (1, 3)


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("size", [4, 6])
def test_the_minibatches_of_a_pass_lie_together(length, size):
    """They are those of `minibatches`, in that order; only a smaller last one is apart."""
    plan = OnPolicy(unroll_length=8, num_epochs=2, mini_batch_size=size, mini_batch_length=length)
    batch, expected = numbered(8, 5), parts(numbered(8, 5), plan)
    passes = list(equal_minibatches(batch, plan, generator=torch.Generator().manual_seed(0)))
    found = [minibatch for equal in passes for minibatch in equal]
    assert len(found) == len(expected) == sum(len(equal) for equal in passes)
    assert all(torch.equal(a.nested.pair, b.nested.pair) for a, b in zip(found, expected, strict=True))
    for equal in passes:
        assert len({part.step.shape for part in equal}) == 1
        assert equal[0].step.untyped_storage().data_ptr() == equal[-1].step.untyped_storage().data_ptr()


def test_minibatches_come_in_parts_of_so_many():
    """Sequences are cut along their second dimension; what has one value for each of them, along its first."""
    rows = Batch(step=torch.arange(24).reshape(2, 12), weight=torch.arange(12))
    plan = Replay(unroll_length=1, gradient_steps=6, mini_batch_size=2, mini_batch_length=2)
    (every,) = equal_minibatches(rows, plan, generator=torch.Generator())
    first, second = every.in_parts(3)
    assert [part.weight.tolist() for part in [*first, *second]] == [[k, k + 1] for k in range(0, 12, 2)]
    assert second.rows.step.tolist() == [list(range(6, 12)), list(range(18, 24))]
    assert every.of(second.rows)[5].weight.tolist() == [11]
    assert [every] == every.in_parts(6)


def test_rows_that_are_left_over_are_an_error():
    plan = Replay(unroll_length=1, gradient_steps=3, mini_batch_size=3)
    with pytest.raises(ShapeError, match="3 equal minibatches are needed, but 1 rows or sequences are left over"):
        parts(Batch(row=torch.arange(10)), plan)


def test_an_unroll_of_one_step_is_one_sequence_where_sequences_are_learned_from():
    plan = OnPolicy(unroll_length=16, mini_batch_size=2, mini_batch_length=8)
    found = parts(numbered(1, 4), plan)
    assert [tuple(part.step.shape) for part in found] == [(1, 2), (1, 2)]
    assert sorted(torch.cat([part.lane for part in found], 1).flatten().tolist()) == [0, 1, 2, 3]
