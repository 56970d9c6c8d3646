"""The contract of buffers: what goes in comes out, in the order of its lane, however it was written.

A row of `SHAPES` enrols a shape of buffer; every check runs on each.
"""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import palaestra.buffers
from palaestra.buffers import DeviceMemory, ReplayBuffer
from palaestra.core import DataSource, Offline, OnPolicy, PalaestraError, Replay, ShapeError, load_tensors, save_tensors
from palaestra.testing.buffers import FIRST, LAST, World, check_contents, check_unroll, check_windows
from tests.buffers.model import filled, make_buffer

bounded = settings(max_examples=25, deadline=None, derandomize=True)

# (capacity, lanes, steps): ring buffers before, at and after they are full, and one that grows
SHAPES = {
    "empty": (30, 3, 1),
    "half full": (40, 2, 9),
    "full": (40, 2, 20),
    "wrapped": (40, 2, 33),
    "wrapped twice": (12, 1, 31),
    "odd": (17, 5, 8),
    "growing": (None, 2, 300),
}


STORAGES = {"main memory": lambda: None, "device": lambda: DeviceMemory("cpu")}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request):
    """Capacity, lanes, steps."""
    return request.param


@pytest.fixture(params=STORAGES.values(), ids=STORAGES)
def pair(request, shape):
    """A buffer, and the model that was written beside it."""
    return filled(*shape, breaks=True, storage=request.param())


def replay(**named):
    return Replay(unroll_length=1, **{"mini_batch_size": 64, **named})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def nothing_to_draw(pair, length):
    """Whether no row has so many successors; then the buffer says so."""
    buffer, world = pair
    if any(lane.starts(length) for lane in world.lanes):
        return False
    with pytest.raises(PalaestraError, match=r"steps in a row do not fit|no row can be learned from|hardly any row"):
        buffer.draw(replay(n_step=length), generator())
    return True


def test_every_buffer_of_the_package_is_tested_here():
    buffers = {
        value
        for _, value in inspect.getmembers(palaestra.buffers, inspect.isclass)
        if hasattr(value, "draw") and hasattr(value, "state_tensors")
    }
    assert buffers == {ReplayBuffer}  # `ExperienceMemory` has tests of its own
    assert isinstance(make_buffer(4, 1), DataSource)


def test_what_goes_in_comes_out(pair):
    """TS-08, TS-24, MARO-42: with ring wrap-around, every row of every lane in its order."""
    check_contents(*pair)


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_windows_respect_ends_the_ring_and_the_write_head(pair, n_step):
    """TS-21, TS-22: each of many windows equals a sum that walks along its lane."""
    buffer, world = pair
    if nothing_to_draw(pair, n_step):
        return
    check_windows(buffer.draw(replay(n_step=n_step), generator()), world, n_step)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_sequences_stay_in_one_lane_and_are_cut_at_the_end_of_their_episode(pair, length):
    """ALF-08, TS-22: never across an episode, a broken fragment or the write head."""
    buffer, world = pair
    if nothing_to_draw(pair, length):
        return
    drawn = buffer.draw(replay(mini_batch_length=length), generator())
    starts = [world.find(serial) for serial in drawn.observation[0].tolist()]
    assert all(start in lane.starts(length) for lane, start in starts)
    check_unroll(drawn, starts, one_episode=True)


@pytest.mark.parametrize("n_step", [1, 3])
def test_every_row_that_may_be_learned_from_is_drawn_equally_often(pair, n_step):
    """MARO-43: uniform: none is left out, none preferred, and broken fragments and LAST rows never come."""
    buffer, world = pair
    allowed = {lane.stream[i].serial for lane in world.lanes for i in lane.starts(n_step)}
    if nothing_to_draw(pair, n_step):
        return
    count = 60 * len(allowed)
    drawn = buffer.draw(replay(mini_batch_size=count, n_step=n_step), generator(1)).observation.tolist()
    assert set(drawn) == allowed
    times = np.unique(drawn, return_counts=True)[1]
    chi_squared = ((times - 60) ** 2 / 60).sum()
    assert chi_squared < len(allowed) + 5 * np.sqrt(2 * len(allowed)) + 5


def test_an_unroll_is_everything_with_a_bootstrap_row(pair):
    """ALF-05, ALF-08: and the row after it begins the next one."""
    buffer, world = pair
    unroll = buffer.draw(OnPolicy(unroll_length=1), generator())
    check_unroll(unroll, [(lane, 0) for lane in world.lanes])
    bootstrap = unroll.observation[-1].clone()
    world.append(buffer)
    assert len(buffer) == buffer.num_lanes
    following = buffer.draw(OnPolicy(unroll_length=1), generator())
    assert torch.equal(following.observation[0], bootstrap)
    check_unroll(following, [(lane, len(lane.rows) - 1) for lane in world.lanes])


def test_the_same_generator_draws_the_same(pair):
    """ALF-56: sampling depends on the contents and the given generator alone."""
    buffer, _ = pair
    if nothing_to_draw(pair, 1):
        return
    first, second = (buffer.draw(replay(), generator(3)) for _ in range(2))
    other = buffer.draw(replay(), generator(4))
    assert torch.equal(first.index, second.index)
    assert torch.equal(first.observation, buffer.take("observation", first.index))
    assert len(other.index) == 64


def test_a_saved_buffer_goes_on_bit_for_bit(pair, tmp_path):
    """F25: cut in mid-stream; contents, draws and later rows are those of the uninterrupted buffer."""
    buffer, world = pair
    save_tensors(tmp_path / "buffer", buffer.state_tensors())
    twin = make_buffer(None if buffer.rows_per_lane > 40 else buffer.rows_per_lane * buffer.num_lanes, buffer.num_lanes)
    twin.load_state_tensors(load_tensors(tmp_path / "buffer"))
    check_contents(twin, world)
    for _ in range(buffer.rows_per_lane // 2 + 2):
        world.append(Both(buffer, twin))
    check_contents(twin, world)
    for plan in (replay(), replay(n_step=2), replay(mini_batch_length=2), OnPolicy(unroll_length=1)):
        drawn, drawn_again = buffer.draw(plan, generator()), twin.draw(plan, generator())
        for key in drawn.keys():  # noqa: SIM118
            left, right = drawn[key], drawn_again[key]
            assert left.is_empty() if key == "policy_info" else torch.equal(left, right), key


class Both:
    """Writes to two buffers."""

    def __init__(self, *buffers):
        self.buffers = buffers

    def open(self, *arguments, **named):
        for buffer in self.buffers:
            buffer.open(*arguments, **named)

    def append(self, *arguments, **named):
        for buffer in self.buffers:
            buffer.append(*arguments, **named)


@settings(parent=bounded, max_examples=50)
@given(
    num_lanes=st.integers(1, 3),
    rows=st.one_of(st.none(), st.integers(1, 6)),
    seed=st.integers(0, 999),
    steps=st.lists(st.sampled_from(["all", "some", "some", "restart", "clear", "unroll", "reload"]), max_size=25),
    storage=st.sampled_from(sorted(STORAGES)),
)
def test_any_history_of_writes_equals_lists_of_rows(num_lanes, rows, seed, steps, storage):
    """TS-08, TS-22, TS-24, F25: unequal lanes, restarted streams, unrolls in between, a reload in mid-stream."""
    capacity = None if rows is None else rows * num_lanes
    buffer = make_buffer(capacity, num_lanes, storage=STORAGES[storage]())
    world = World(num_lanes, rows or 10**6, seed, breaks=True)
    world.open(buffer)
    rng, used = np.random.default_rng(seed), False
    for step in steps:
        some = sorted(rng.choice(num_lanes, rng.integers(1, num_lanes + 1), replace=False).tolist())
        if used and step in ("all", "some"):
            for lane in world.lanes:
                lane.rows, used = [], False
        if step == "clear":
            buffer.clear()
            for lane in world.lanes:
                lane.rows, used = [], False
        elif step == "unroll" and len(buffer):
            buffer.draw(OnPolicy(unroll_length=1), generator())
            used = True
        elif step == "reload":
            state, buffer = buffer.state_tensors(), make_buffer(capacity, num_lanes, storage=STORAGES[storage]())
            buffer.load_state_tensors(state)
        elif step == "restart":
            world.open(buffer, some)
        elif step == "all":
            world.append(buffer)
        else:
            world.append(buffer, some)
        check_contents(buffer, world)
    for n_step in (1, 2, 3):
        for fixed in (False, True):
            if any(lane.starts(n_step, fixed=fixed) for lane in world.lanes):
                plan = Offline(mini_batch_size=8, n_step=n_step) if fixed else replay(mini_batch_size=8, n_step=n_step)
                check_windows(buffer.draw(plan, generator(seed)), world, n_step, fixed=fixed)
    if len(buffer):
        unroll = buffer.draw(OnPolicy(unroll_length=1), generator())
        for b, lane in enumerate(world.lanes):
            check_unroll(unroll[:, b : b + 1], [(lane, 0)])
            behind = unroll.step_type[len(lane.rows) + 1 :, b].tolist()
            assert set(behind) <= {LAST if unroll.step_type[len(lane.rows), b] == LAST else FIRST}
    else:
        with pytest.raises(ShapeError, match="the buffer holds no rows"):
            buffer.draw(OnPolicy(unroll_length=1), generator())


@bounded
@given(
    num_lanes=st.integers(1, 3),
    seed=st.integers(0, 999),
    steps=st.integers(1, 40),
    every=st.integers(1, 9),
    storage=st.sampled_from(sorted(STORAGES)),
)
def test_only_ended_episodes_are_learned_from_where_that_is_asked_for(num_lanes, seed, steps, every, storage):
    """TS-24, TS-25: running episodes wait for their end, broken ones never come, and none is lost between unrolls."""
    buffer = make_buffer(None, num_lanes, complete_episodes_only=True, storage=STORAGES[storage]())
    world = World(num_lanes, 10**6, seed, breaks=True)
    world.open(buffer)
    learned = []
    for step in range(steps):
        world.append(buffer, None if step % 3 else [step % num_lanes])
        if step % every == 0 and len(buffer):
            unroll = buffer.draw(OnPolicy(unroll_length=1), generator())
            learned += unroll.observation[:-1][unroll.valid > 0].tolist()
    if (steps - 1) % every and len(buffer):  # else the last unroll has them already
        unroll = buffer.draw(OnPolicy(unroll_length=1), generator())
        learned += unroll.observation[:-1][unroll.valid > 0].tolist()
    assert sorted(learned) == sorted(row for lane in world.lanes for row in ended_episodes(lane))


@bounded
@given(num_lanes=st.integers(1, 3), seed=st.integers(0, 999), steps=st.integers(1, 40), rows=st.integers(3, 40))
def test_a_ring_of_ended_episodes_samples_no_running_one(num_lanes, seed, steps, rows):
    """TS-24: also where the ring has overwritten the beginning of an episode."""
    buffer = make_buffer(rows * num_lanes, num_lanes, complete_episodes_only=True)
    world = World(num_lanes, 10**6, seed, breaks=True)
    world.open(buffer)
    for step in range(steps):
        world.append(buffer, None if step % 3 else [step % num_lanes])
    allowed = {serial for lane in world.lanes for serial in ended_episodes(lane)}
    try:
        drawn = buffer.draw(replay(), generator(seed)).observation.tolist()
    except ShapeError:
        drawn = []
    assert set(drawn) <= allowed
    assert drawn or rows < steps or not allowed


def ended_episodes(lane):
    """Rows before the end of every episode that ran from FIRST to LAST."""
    kept, episode = [], []
    for row in lane.stream:
        episode = [row.serial] if row.kind == FIRST else [*episode, row.serial]
        if row.kind == LAST:
            kept += episode[:-1]
    return kept
