"""Tests of `palaestra.buffers.ReplayBuffer` beyond its contract: nests, edges, documented examples."""

import numpy as np
import pytest
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import (
    Batch,
    DiscreteSpec,
    OnPolicy,
    ShapeError,
    TensorSpec,
)
from palaestra.ops import n_step_end, n_step_targets, valid_starts
from palaestra.testing.buffers import FIRST, GAMMA, LAST, MID, World, check_contents, check_windows
from tests.buffers.model import NESTED, filled, generator, make_buffer, nested, replay, step
from tests.core.nests import assert_same


def test_ten_rows_of_fifteen():
    """TS-08: size 10, 15 adds: len is 10 and the newest 10 are kept, in order."""
    buffer, _ = filled(10, 1, 15)
    assert len(buffer) == 10
    assert buffer.newest(10).observation[:, 0].tolist() == list(range(6, 17))  # and the open row


def test_a_full_ring_keeps_overwriting_its_oldest_row():
    """MARO-42: MARO's ring began each overwrite at slot 0 again, so that every put hit the same slots."""
    buffer, world = filled(4, 1, 4)
    kept = []
    for _ in range(9):
        world.append(buffer)
        kept.append(buffer.newest(4).observation[:4, 0].tolist())
    assert kept == [list(range(first, first + 4)) for first in range(2, 11)]


def test_the_two_step_example_of_the_document():
    """TS-21: `buffer[(i + 2) % len]` by `next`, which stays inside episode, lane and ring; G = r₁ + γ r₂ + γ² V(x₂)."""
    buffer, world = filled(60, 2, 44)
    index = buffer.draw(replay(mini_batch_size=50), generator()).index
    one, two = buffer.next(index), buffer.next(buffer.next(index))
    serial, bootstrap = buffer.take("observation", index), buffer.take("observation", two)
    returns = buffer.take("reward", one) + GAMMA * buffer.take("discount", one) * buffer.take("reward", two)
    inside = two != one
    assert 10 < inside.sum() < 50
    for i in inside.nonzero().flatten().tolist():
        lane, start = world.find(int(serial[i]))
        total, _, last = lane.target(start, 2)
        assert returns[i].item() == pytest.approx(total)
        assert bootstrap[i] == last.serial
    for i in (~inside).nonzero().flatten().tolist():  # the first step was the episode's last, or is the open row
        lane, start = world.find(int(serial[i]))
        row = lane.stream[start + 1]
        assert row.kind == LAST or row is lane.open
    windows = buffer.windows(index[inside].numpy(), 2)
    assert torch.equal(windows.next_observation, bootstrap[inside])
    assert torch.equal(
        n_step_targets(windows.reward, windows.discount, windows.step_type, gamma=GAMMA).reward, returns[inside]
    )


def test_the_modulo_idiom_would_cross_episodes():
    """TS-21, TS-22: the mutant: adding 2 to the index finds rows of the next episode."""
    buffer, world = filled(60, 1, 44)
    index = buffer.draw(replay(mini_batch_size=50), generator()).index
    serial, crossed = buffer.take("observation", index), buffer.take("observation", (np.asarray(index) + 2) % 44)
    right = buffer.take("observation", buffer.next(buffer.next(index)))
    ended = [any(r.kind == LAST for r in world.lanes[0].stream[i + 1 : i + 2]) for i in index.tolist()]
    assert any(ended)
    assert (serial + 2 == right).tolist() == [
        not end and i + 2 < 45 for end, i in zip(ended, index.tolist(), strict=True)
    ]
    assert not torch.equal(crossed, right)


def test_next_stays_at_the_open_row_and_before_a_break():
    """TS-21, TS-22."""
    buffer = make_buffer(10, 2)
    buffer.open(step([FIRST, FIRST]))
    buffer.append(torch.zeros(2, dtype=torch.int64), step([MID, FIRST]))  # lane 1 broke off
    buffer.append(torch.zeros(2, dtype=torch.int64), step([LAST, MID]))
    rows = torch.arange(6)  # row number = place * 2 + lane
    assert buffer.next(rows).tolist() == [2, 1, 4, 5, 4, 5]


@pytest.mark.parametrize("seed", range(4))
def test_ends_are_those_of_the_ops(seed):
    """TS-22: the buffer's own, faster reading of ends is that of `ops.valid_starts` and `ops.n_step_end`."""
    buffer, _ = filled(None, 3, 60, seed, breaks=True)
    stream = buffer.newest(60).step_type
    for n_step in (1, 2, 4):
        windows = buffer.draw(replay(mini_batch_size=99, n_step=n_step), generator(seed))
        steps = n_step_end(windows.step_type)
        place, lane = windows.index // 3, windows.index % 3
        assert valid_starts(stream)[place, lane].all()
        rows = np.asarray(windows.index) + 3 * steps.numpy()
        assert torch.equal(windows.next_observation, buffer.take("observation", rows))


def test_unrolls_are_views_where_rows_lie_together():
    """DESIGN.md section 10: nothing is copied for an on-policy update."""
    buffer, _ = filled(None, 2, 5)
    rows = buffer.newest(5)
    storage = buffer.state_tensors()["field.reward"].untyped_storage().data_ptr()
    assert rows.reward.untyped_storage().data_ptr() == storage
    assert buffer.recent("reward", 3).untyped_storage().data_ptr() == storage
    assert buffer.positions.lockstep


def test_recent_rows_of_a_short_lane_repeat_its_oldest():
    """What a policy computes about its newest rows is then written where it belongs, whatever the lanes hold."""
    buffer, world = filled(8, 2, 1)
    for _ in range(3):
        world.append(buffer, [0])
    assert not buffer.positions.lockstep
    assert buffer.recent("observation", 4).tolist() == [[1, 2], [3, 2], [5, 2], [6, 2]]
    with pytest.raises(ShapeError, match=r"4 rows were asked for, but the lanes hold \[4, 1\] rows"):
        buffer.newest(4)
    with pytest.raises(ShapeError, match="0 rows were asked for"):
        buffer.newest(0)


@pytest.mark.parametrize("lanes", [1, 2])
def test_policy_info_lands_on_its_rows(lanes):
    """TS-07, TS-19: what the policy computed at t is stored with row t, also across the end of the ring."""
    info_spec = {"log_prob": TensorSpec(()), "logits": TensorSpec((2,))}
    buffer = make_buffer(4 * lanes, lanes, info_spec=info_spec)
    world = World(lanes, 4)
    world.open(buffer)
    for _ in range(5):
        for _ in range(2):
            world.append(buffer)
        serial = buffer.recent("observation", 2).float()
        buffer.write_info(Batch(log_prob=serial, logits=torch.stack([serial, -serial], -1)), 2)
    drawn = buffer.newest(4)
    assert torch.equal(drawn.policy_info.log_prob, drawn.observation[:-1].float())
    windows = buffer.draw(replay(mini_batch_size=20), generator())
    assert torch.equal(windows.policy_info.logits[:, 1], -windows.observation.float())
    with pytest.raises(
        ShapeError, match=r"policy_info.log_prob is float32 of shape \(1, \d\), but .* of shape \(2, \d\)"
    ):
        buffer.write_info(Batch(log_prob=torch.zeros(1, lanes), logits=torch.zeros(2, lanes, 2)), 2)


def test_nested_observations_and_vector_rewards_come_back():
    """ALF-16, TS-09: dicts of several dtypes, tuples as batches with the keys "0", "1"; rewards of shape [k]."""
    buffer = ReplayBuffer(
        6,
        2,
        observation_spec=NESTED,
        action_spec={"move": DiscreteSpec(num=3), "speed": TensorSpec((2,))},
        reward_spec=TensorSpec((3,)),
    )
    buffer.open(step([FIRST, FIRST], nested([0, 1]), torch.zeros(2, 3)))
    for t in range(1, 6):
        values = [2 * t, 2 * t + 1]
        action = {"move": torch.tensor([t % 3, 0]), "speed": torch.full((2, 2), float(t))}
        arrived = step([MID, MID], nested(values), torch.tensor(values)[:, None] * torch.ones(3))
        if t == 4:  # as plain nests of a user's own loop
            numbers = arrived.observation
            observation = {"camera": numbers.camera.numpy(), "pair": (numbers.pair["0"], {"n": numbers.pair["1"].n})}
            arrived = arrived._replace(observation=observation)
        buffer.append(action, arrived)
    rows = buffer.newest(3)
    assert rows.observation.camera.dtype == torch.uint8
    assert rows.observation.pair["1"].n[:, 1, 2].tolist() == [5, 7, 9, 11]
    assert rows.reward[:, 0, 1].tolist() == [4, 6, 8, 10]
    assert rows.action.speed[:, 1].tolist() == [[3, 3], [4, 4], [5, 5]]
    windows = buffer.draw(replay(mini_batch_size=9, n_step=2), generator())
    assert torch.equal(windows.next_observation.pair["0"], windows.observation.pair["0"] + 4)
    assert windows.reward.shape == (3, 9, 3)
    twin = ReplayBuffer(
        6,
        2,
        observation_spec=NESTED,
        action_spec={"move": DiscreteSpec(num=3), "speed": TensorSpec((2,))},
        reward_spec=TensorSpec((3,)),
    )
    twin.load_state_tensors(buffer.state_tensors())
    assert_same(twin.newest(3), rows)


def test_lanes_may_be_the_env_ids_of_a_time_step():
    """ALF-18: first-n-ready environments say where they belong."""
    buffer, _ = filled(8, 3, 1)
    arrived = step([MID, MID], torch.tensor([70, 80]))
    buffer.append(torch.zeros(2, dtype=torch.int64), arrived, env_id=torch.tensor([2, 0]))
    assert [buffer.take("observation", buffer.in_time_order(lane))[-1] for lane in (0, 2)] == [80, 70]
    assert len(buffer) == 5


def test_a_lane_written_with_its_own_number_stays_contiguous():
    buffer, world = filled(8, 1, 2)
    world.append(buffer, [0])
    assert buffer.positions.lockstep
    check_contents(buffer, world)


def test_reopening_a_stream_keeps_the_end_of_its_episode():
    """ALF-33, F25: an environment that is made anew after LAST does not swallow the last transition."""
    buffer = make_buffer(8, 1)
    buffer.open(step([FIRST]))
    buffer.append(torch.tensor([3]), step([LAST], torch.tensor([7]), torch.tensor([5.0]), torch.zeros(1)))
    buffer.open(step([FIRST], torch.tensor([9])))
    drawn = buffer.draw(replay(mini_batch_size=4), generator())
    assert drawn.next_observation.tolist() == [7] * 4
    assert drawn.reward[1].tolist() == [5] * 4


def test_broken_fragments_are_never_sampled():
    """TS-22, F1: MID followed by FIRST; the mutant that looks for LAST alone would bootstrap across the break."""
    buffer = make_buffer(20, 1)
    buffer.open(step([FIRST], torch.tensor([0])))
    kinds = [MID, MID, FIRST, MID, MID, LAST]
    for i, kind in enumerate(kinds, start=1):
        buffer.append(torch.tensor([0]), step([kind], torch.tensor([i])))
    drawn = buffer.draw(replay(mini_batch_size=200), generator())
    assert set(drawn.observation.tolist()) == {0, 1, 3, 4, 5}
    windows = buffer.draw(replay(mini_batch_size=200, n_step=3), generator())
    pairs = set(zip(windows.observation.tolist(), windows.next_observation.tolist(), strict=True))
    assert pairs == {(0, 2), (1, 2), (3, 6)}
    assert buffer.newest(6).valid[:, 0].tolist() == [1, 1, 0, 1, 1, 1]


def test_lanes_that_meet_again_are_told_apart():
    """A lane that wrote a whole ring more than another is at the same place, and holds other rows."""
    buffer, world = make_buffer(8, 2), World(2, 4)
    world.open(buffer)
    for _ in range(5):  # the ring has 4 + 1 places
        world.append(buffer, [0])
    check_contents(buffer, world)
    assert not buffer.positions.lockstep
    drawn = buffer.draw(replay(mini_batch_size=40), generator())
    check_windows(drawn, world, 1)
    assert (drawn.index % 2 == 0).all()
    world.append(buffer)
    check_contents(buffer, world)


def test_an_unroll_may_be_of_any_length():
    """ALF-04: the buffer of an on-policy plan grows, also while a policy acts, and can be learned from afterwards."""
    buffer, world = make_buffer(None, 2), World(2, 10**6)
    world.open(buffer)
    before = buffer.size_bytes
    with torch.inference_mode():
        for _ in range(300):
            world.append(buffer)
    assert buffer.size_bytes > 2 * before
    check_contents(buffer, world)
    reward = buffer.draw(OnPolicy(unroll_length=300), generator()).reward
    assert not reward.is_inference()
    weight = torch.ones((), requires_grad=True)
    assert torch.autograd.grad((reward * weight).sum(), weight)[0] == reward.sum()


def test_write_back_is_ignored_without_priorities():
    buffer, world = filled(8, 1, 5)
    buffer.write_back(torch.tensor([0]), torch.tensor([1.0]))
    check_contents(buffer, world)


def test_what_was_drawn_is_forgotten_with_the_next_row_only():
    """ALF-05: one-time use, without a call to remember; drawing twice gives the same."""
    buffer, world = filled(None, 2, 4)
    first = buffer.draw(OnPolicy(unroll_length=4), generator()).observation.clone()
    assert torch.equal(buffer.draw(OnPolicy(unroll_length=4), generator()).observation, first)
    assert len(buffer) == 8
    world.append(buffer)
    assert len(buffer) == 2
    buffer.clear()
    assert len(buffer) == 0
    world.append(buffer)
    assert buffer.newest(1).observation[1].tolist() == [lane.stream[-1].serial for lane in world.lanes]
