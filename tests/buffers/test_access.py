"""Tests of how rows of `palaestra.buffers.ReplayBuffer` are read one by one, joined and moved."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, DiscreteSpec, OnPolicy, ShapeError, TensorSpec
from palaestra.testing.buffers import FIRST, GAMMA, LAST, MID, World, check_contents
from tests.buffers.model import NESTED, filled, generator, make_buffer, nested, step
from tests.core.nests import assert_same

bounded = settings(max_examples=60, deadline=None, derandomize=True)


def test_a_row_has_every_field_as_it_was_stored():
    """TS-07, TS-21: `buffer.observation[i]` is `buffer[i].observation`, and reads nothing else."""
    buffer, world = filled(20, 2, 14)
    for lane, model in enumerate(world.lanes):
        rows = buffer.in_time_order(lane)
        held = buffer[rows[:-1]]
        assert held.observation.tolist() == [row.serial for row in model.rows]
        assert held.action.tolist() == [row.action for row in model.rows]
        assert held.reward.tolist() == [row.reward for row in model.rows]
        assert held.policy_version.tolist() == [row.version for row in model.rows]
        one = buffer[rows[3]]
        assert one.observation == buffer.observation[rows[3]] == buffer.field("observation")[int(rows[3])]
        assert one.step_type == buffer.step_type[rows][3]
    assert torch.equal(buffer.observation[torch.tensor([0, 1])], buffer.take("observation", [0, 1]))


def test_numbers_that_count_back_stand_beside_others():
    buffer, _ = filled(40, 2, 9)
    both = buffer[[0, -1]].observation
    assert both.tolist() == [int(buffer[0].observation), int(buffer[-1].observation)]
    assert both[0] != both[1]


def test_parts_of_a_nest_are_read_by_name():
    """TS-09."""
    buffer = ReplayBuffer(6, 2, observation_spec=NESTED, action_spec=DiscreteSpec(num=2))
    buffer.open(step([FIRST, FIRST], nested([4, 5])))
    assert buffer.observation.camera[1].tolist() == [[5, 5], [5, 5]]
    assert buffer.observation.pair[0]["0"] == 4
    with pytest.raises(AttributeError, match="observation has no part 'camra' — did you mean 'camera'"):
        _ = buffer.observation.camra
    with pytest.raises(AttributeError, match="ReplayBuffer has no attribute and no field 'obs'"):
        _ = buffer.obs


@pytest.mark.parametrize("index", [18, 22, 1.0, [0, 20]], ids=str)
def test_a_row_that_is_not_there_is_refused(index):
    buffer, _ = filled(20, 2, 8)
    with pytest.raises(IndexError, match=r"no row has the number (18|20)|row numbers are integers from 0 to 21"):
        _ = buffer[index]


@pytest.mark.parametrize("index", [18, 22, 1.0, [0, 20], np.ones(22, bool)], ids=str)
def test_fields_next_and_prev_refuse_a_row_that_is_not_there(index):
    """As `buffer[index]` does: no number of another row, or of none, is answered."""
    buffer, _ = filled(20, 2, 8)
    for read in (
        lambda: buffer.reward[index],
        lambda: buffer.field("observation")[index],
        lambda: buffer.next(index),
        lambda: buffer.prev(index),
    ):
        with pytest.raises(IndexError, match=r"no row has the number (18|20)|row numbers are integers from 0 to 21"):
            read()
    nest = ReplayBuffer(6, 2, observation_spec=NESTED, action_spec=DiscreteSpec(num=2))
    nest.open(step([FIRST, FIRST], nested([4, 5])))
    with pytest.raises(IndexError, match="no row has the number 2"):
        _ = nest.observation.camera[2]


def test_two_steps_on_by_hand():
    """TS-21: the document's loop over indices with `next` for `(i + 2) % len`, for numbers, arrays and tensors."""
    buffer, world = filled(40, 2, 33)
    _, index = buffer.sample(16, generator())
    for i in index.tolist():
        one = buffer.next(i)
        two = buffer.next(one)
        lane, start = world.find(int(buffer.observation[i]))
        if two != one:
            returns = buffer.reward[one] + GAMMA * buffer.discount[one] * buffer.reward[two]
            assert returns.item() == pytest.approx(lane.target(start, 2)[0])
        assert buffer.prev(one) == i
    assert buffer.next(index).tolist() == buffer.next(torch.from_numpy(index)).tolist()
    assert isinstance(buffer.prev(torch.from_numpy(index)), torch.Tensor)


def test_steps_stay_inside_the_episode_and_the_ring():
    """TS-21, TS-22: back and forth, also over the end of the ring; nothing leads into another episode."""
    buffer, _ = filled(14, 2, 30, breaks=True)
    for lane in range(2):
        rows = buffer.in_time_order(lane)
        kinds = buffer.step_type[rows].tolist()
        for i, row in enumerate(rows.tolist()):
            leaves = i + 1 == len(rows) or kinds[i] == LAST or kinds[i + 1] == FIRST
            assert buffer.next(row) == (row if leaves else rows[i + 1])
            enters = i == 0 or kinds[i] == FIRST or kinds[i - 1] == LAST
            assert buffer.prev(row) == (row if enters else rows[i - 1])


@pytest.mark.slow
@bounded
@given(seed=st.integers(0, 999), steps=st.integers(1, 300), rows=st.integers(2, 200), lanes=st.integers(1, 3))
def test_distances_to_both_ends_of_an_episode(seed, steps, rows, lanes):
    """Episodes of one step and longer than the ring, however many rows lie between."""
    buffer, world = make_buffer(rows * lanes, lanes), World(lanes, rows, seed, breaks=True)
    world.open(buffer)
    for i in range(steps):
        world.append(buffer, [i % lanes] if i % 4 == 0 else None)
    for lane in range(lanes):
        index = buffer.in_time_order(lane)
        stream = world.lanes[lane].stream
        same = [a.kind != LAST and b.kind != FIRST for a, b in itertools.pairwise(stream)]
        to_end, from_begin = buffer.reader.steps_to_end(index), buffer.reader.steps_from_begin(index)
        for i in range(len(stream)):
            ahead = next((k for k, joined in enumerate(same[i:]) if not joined), len(same) - i)
            behind = next((k for k, joined in enumerate(same[:i][::-1]) if not joined), i)
            assert (to_end[i], from_begin[i]) == (ahead, behind)


def test_long_episodes_are_walked_in_strides():
    buffer = make_buffer(500, 1)
    buffer.open(step([FIRST]))
    for _ in range(300):
        buffer.append(torch.tensor([0]), step([MID]))
    assert buffer.reader.steps_to_end(np.array([0, 10, 299, 300])).tolist() == [300, 290, 1, 0]
    assert buffer.reader.steps_from_begin(np.array([0, 300])).tolist() == [0, 300]


def test_episodes_and_what_is_unfinished():
    """TS-24: complete ones as row numbers from FIRST to LAST; the running ones by their open rows."""
    buffer, world = filled(60, 2, 41, breaks=True)
    expected = []
    for lane in world.lanes:
        episode = None
        for row in lane.stream:
            episode = [row.serial] if row.kind == FIRST else episode and [*episode, row.serial]
            if row.kind == LAST:
                expected += [episode] if episode else []
                episode = None
    assert [buffer.observation[rows].tolist() for rows in buffer.episodes()] == expected
    running = [lane.open.serial for lane in world.lanes if lane.open.kind != LAST]
    assert buffer.observation[buffer.unfinished()].tolist() == running


def test_all_rows_in_time_order():
    """TS-08: `sample(0)` is everything; `sample(n)` gives rows and indices that fit together."""
    buffer, world = filled(20, 2, 31)
    rows, index = buffer.sample(0, generator())
    assert rows.observation.tolist() == [row.serial for lane in world.lanes for row in lane.rows]
    batch, index = buffer.sample(7, generator())
    assert_same(batch, buffer[index])


@pytest.mark.slow
@bounded
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(1, 12),
    seed=st.integers(0, 99),
    parts=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    one_by_one=st.booleans(),
    growing=st.booleans(),
)
def test_fragments_join_to_the_stream_they_were_cut_from(lanes, rows, seed, parts, one_by_one, growing):
    """TS-08, TS-22: each begins with the step the one before ended with; shorter and longer than the ring."""
    source, world = make_buffer(None, lanes), World(lanes, 10**6 if growing else rows, seed, breaks=True)
    joined = make_buffer(None if growing else rows * lanes, lanes)
    world.open(source)
    joined.open(source[np.arange(lanes)])
    for length in parts:
        for _ in range(length):
            world.append(source)
        if not len(source):
            continue
        unroll = source.draw(OnPolicy(unroll_length=1), generator())
        if one_by_one:
            for lane in range(lanes):
                joined.extend(unroll[:, lane : lane + 1], [lane])
        else:
            joined.extend(unroll)
        source.clear()
    check_contents(joined, world)


def test_a_fragment_longer_than_a_growing_buffer_makes_room_for_itself():
    source = make_buffer(None, 1)
    world = World(1, 10**6)
    world.open(source)
    for _ in range(300):
        world.append(source)
    joined = make_buffer(None, 1)
    room = joined.positions.rows
    joined.open(source[np.arange(1)])
    joined.extend(source.draw(OnPolicy(unroll_length=1), generator()))
    assert len(joined) == 300 > room
    check_contents(joined, world)


def test_a_fragment_that_does_not_fit_is_refused_and_changes_nothing():
    """F7."""
    buffer, world = filled(20, 2, 5)
    unroll = filled(None, 2, 4)[0].draw(OnPolicy(unroll_length=1), generator())
    with pytest.raises(ShapeError, match=r"action is int64 of shape \(3, 2\), but .* \(4, 2\)"):
        buffer.extend(unroll.replace(action=unroll.action[1:]))
    with pytest.raises(ShapeError, match=r"reward is float64"):
        buffer.extend(unroll.replace(reward=unroll.reward.double()))
    check_contents(buffer, world)


def test_another_buffer_is_appended_in_time_order():
    """TS-08: `update`: all of it, behind what is there; the ring keeps the newest."""
    for some in (False, True):
        buffer, world = filled(40, 2, 9)
        other, more = filled(20, 2, 31, seed=3)
        if some:
            more.append(other, [1])
        buffer.update(other)
        for lane in range(2):
            kept = buffer.observation[buffer.in_time_order(lane)].tolist()
            before = [row.serial for row in world.lanes[lane].rows]
            if world.lanes[lane].open.kind != FIRST:
                before.append(world.lanes[lane].open.serial)
            assert kept == [*before, *(row.serial for row in more.lanes[lane].stream)][-21:]


@pytest.mark.parametrize(("lanes", "others"), [(1, 3), (2, 3), (3, 1)])
def test_lanes_of_another_number_are_appended_one_after_the_other(lanes, others):
    """They were refused, so that data of other numbers of environments could not be joined."""
    joined = make_buffer(None, lanes)
    made = [filled(None, others, 12, seed) for seed in (3, 4)]
    for other, _ in made:
        other.origin = {"environment": "Own-v0", "task": str(len(other.origin) + len(joined))}
        joined.update(other)
    assert joined.origin == {"environment": "Own-v0"}  # what both say
    for lane in range(lanes):
        streams = [w.lanes[of] for _, w in made for of in range(lane, others, lanes)]
        kept = joined.observation[joined.in_time_order(lane)].tolist()
        assert kept[-1:] == [one.open.serial for one in streams][-1:]
        assert set(kept) >= {row.serial for one in streams for row in one.rows}
    drawn = sum(len(other.starts(1)) for other, _ in made)
    assert len(joined.starts(1)) == drawn


@pytest.mark.parametrize("rows", [3, 128])
def test_an_episode_that_a_gap_cuts_is_a_part_where_the_lane_grows_there_too(rows):
    """It counted as whole at 128 rows, where more room was made."""
    specs = {"observation_spec": TensorSpec((2,)), "action_spec": DiscreteSpec(num=2)}
    buffer, nothing = ReplayBuffer(None, 1, **specs), torch.zeros(1)
    buffer.add(torch.zeros(2), nothing.long()[0], 0.0, torch.ones(2), False, False)
    for _ in range(rows - 1):
        buffer.add(torch.ones(2), nothing.long()[0], 0.0, torch.ones(2), False, False)
    before = buffer.positions.rewrites
    buffer.add(torch.zeros(2), nothing.long()[0], 0.0, torch.ones(2), False, False)
    assert not buffer.episodes() and buffer.positions.rewrites == before + 1


@pytest.mark.parametrize("steps", [2, 5])
def test_an_episode_that_is_only_cut_by_what_is_appended_is_no_whole_one(steps):
    """It counted as one, with the return of a part: a Decision Transformer was shown 13 where 40 was earned."""
    kinds = [FIRST, MID, MID, LAST, FIRST, MID, MID][: steps + 1]
    buffer, other = make_buffer(40, 2), make_buffer(40, 2)
    for one in (buffer, other):
        one.open(step([kinds[0]] * 2))
        for kind in kinds[1:]:
            one.append(torch.zeros(2, dtype=torch.int64), step([kind] * 2, reward=torch.ones(2)))
    whole = len(buffer.episodes())
    buffer.update(other)
    assert len(buffer.episodes()) == 2 * whole
    assert len(buffer.starts(1)) == 2 * len(other.starts(1))


@bounded
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(1, 12),
    steps=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    seed=st.integers(0, 99),
    some=st.booleans(),
    complete=st.booleans(),
)
def test_ts_08_joining_rings_makes_no_transition_that_never_happened(lanes, rows, steps, seed, some, complete):
    """TS-08: both may have wrapped, so that they begin and end inside of episodes, or at their ends."""
    buffers, worlds = [make_buffer(rows * lanes, lanes) for _ in range(2)], []
    for number, buffer in enumerate(buffers):
        worlds.append(world := World(lanes, rows, seed + number, breaks=True))
        world.serial = 1000 * number
        world.open(buffer)
        for t in range(steps[number]):
            world.append(buffer, [t % lanes] if some and t % 3 == 0 else None)
    happened = {
        (stream[i].serial, stream[i + 1].serial)
        for world in worlds
        for lane in world.lanes
        for stream in [lane.stream]
        for i in lane.starts(1)
    }
    joined = make_buffer(500 * lanes, lanes, complete_episodes_only=complete)
    joined.update(buffers[0])
    joined.update(buffers[1])
    for n_step in (1, 2):
        try:
            index = joined.starts(n_step)
        except ShapeError:
            assert not happened or complete or n_step > 1
            continue
        observation, following = joined.observation[index].tolist(), joined.observation[joined.reader.after(index, 1)]
        assert {*zip(observation, following.tolist(), strict=True)} <= happened
        assert complete or n_step > 1 or len(index) == len(happened)


def test_what_is_appended_without_versions_has_none():
    buffer, _ = filled(8, 1, 20)
    fields = {
        "step_type": torch.tensor([[0], [1]], dtype=torch.int32),
        "reward": torch.zeros(2, 1),
        "discount": torch.ones(2, 1),
        "observation": torch.tensor([[70], [71]]),
        "action": torch.tensor([[3]]),
    }
    buffer.extend(Batch.of(fields))
    newest = buffer.newest(1)
    assert (newest.observation.tolist(), newest.policy_version.tolist()) == ([[70], [71]], [[0]])
    buffer.append(torch.tensor([2]), step([MID]))
    assert buffer.newest(1).policy_version.tolist() == [[0]]


@pytest.mark.parametrize("complete", [False, True])
def test_a_fragment_brings_version_and_policy_info_of_each_row(complete):
    """MARO-12: lag is counted by rows, so none may take the version of its neighbour; nor its log-probability."""
    buffer = make_buffer(40, 2, complete_episodes_only=complete, info_spec={"log_prob": TensorSpec(())})
    kinds = torch.tensor([[0, 0], [1, 1], [2, 1], [0, 2], [1, 0], [2, 1]], dtype=torch.int32)
    fields = {
        "step_type": kinds,
        "reward": torch.zeros(6, 2),
        "discount": torch.ones(6, 2),
        "observation": torch.arange(12).reshape(6, 2),
        "action": torch.zeros(5, 2, dtype=torch.int64),
        "policy_version": torch.tensor([[5, 1], [5, 2], [6, 2], [7, 3], [7, 4]], dtype=torch.int32),
        "policy_info": {"log_prob": -torch.arange(10.0).reshape(5, 2)},
    }
    buffer.extend(Batch.of(fields))
    newest = buffer.newest(5)
    assert newest.policy_version.tolist() == fields["policy_version"].tolist()
    assert torch.equal(newest.policy_info.log_prob, fields["policy_info"]["log_prob"])
    left = {name: value for name, value in fields.items() if name != "policy_info"}
    buffer.extend(Batch.of(left))
    assert not buffer.newest(5).policy_info.log_prob.any()


def test_an_episode_that_breaks_off_takes_its_versions_with_it():
    buffer = make_buffer(40, 1, complete_episodes_only=True)
    fields = {
        "step_type": torch.tensor([[0], [1], [2], [0], [1], [0], [1], [2]], dtype=torch.int32),
        "reward": torch.zeros(8, 1),
        "discount": torch.ones(8, 1),
        "observation": torch.arange(8).reshape(8, 1),
        "action": torch.zeros(7, 1, dtype=torch.int64),
        "policy_version": torch.arange(1, 8, dtype=torch.int32).reshape(7, 1),
    }
    buffer.extend(Batch.of(fields))
    newest = buffer.newest(5)
    assert newest.observation[:-1].flatten().tolist() == [0, 1, 2, 5, 6]
    assert newest.policy_version.flatten().tolist() == [1, 2, 3, 6, 7]


def test_rows_keep_what_the_environment_reports_beside_observations_of_several_arrays():
    specs = {"observation_spec": NESTED, "action_spec": DiscreteSpec(num=5)}
    buffer = ReplayBuffer(10, 2, **specs, env_info_spec={"cost": TensorSpec(())})
    for value in range(3):
        seen = step([MID if value else FIRST] * 2)._replace(
            observation=nested([value, value]), env_info=Batch(cost=torch.tensor([10.0 * value, 1.0]))
        )
        if value:
            buffer.append(torch.tensor([0, 1]), seen)
        else:
            buffer.open(seen)
    assert buffer.newest(2).env_info.cost.tolist() == [[0.0, 1.0], [10.0, 1.0], [20.0, 1.0]]
