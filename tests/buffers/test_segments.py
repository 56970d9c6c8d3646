"""Tests of checkpoints of a replay buffer: only what is new is written, and every one of them is whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import PrioritizedSampler, ReplayBuffer, saving
from palaestra.buffers.streams import WritePositions
from palaestra.core import Batch, CheckpointError, DiscreteSpec, TensorSpec
from palaestra.core.files import second_copy
from palaestra.testing.buffers import FIRST, MID, World, check_contents
from palaestra.training import CheckpointStore
from tests.buffers.model import generator, make_buffer, replay, step


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(3, 40),
    seed=st.integers(0, 99),
    writes=st.lists(st.sampled_from(["all", "some", "restart", "clear", "info", "save", "load"]), max_size=40),
)
def test_every_checkpoint_holds_what_the_buffer_held(tmp_path_factory, lanes, rows, seed, writes):
    """F25, F9: whatever was written between two of them; tiny pieces, so that all edges come up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "_SMALLEST", 1)
        patch.setattr(saving, "_SEGMENTS", 8)
        info = {"info_spec": {"x": TensorSpec(())}}
        buffer, world = make_buffer(rows * lanes, lanes, **info), World(lanes, rows, seed, breaks=True)
        store = CheckpointStore(tmp_path_factory.mktemp("run"), keep=3)
        world.open(buffer)
        saved = {}
        for number, write in enumerate([*writes, "save", "load"]):
            some = sorted(world.rng.choice(lanes, world.rng.integers(1, lanes + 1), replace=False).tolist())
            if write in ("all", "some"):
                world.append(buffer, some if write == "some" else None)
            elif write == "restart":
                world.open(buffer, some)
            elif write == "clear":
                buffer.clear()
                for lane in world.lanes:
                    lane.rows = []
            elif write == "info" and len(buffer):
                count = min(2, buffer.positions.counts.min())
                if count:
                    buffer.write_info(Batch(x=torch.rand(count, lanes, generator=generator(number))), count)
            elif write == "save":
                store.save(number, {"buffer": buffer.state_tensors()})
                saved[number] = [(list(lane.rows), lane.open) for lane in world.lanes]
                infos = [buffer[buffer.in_time_order(lane)[:-1]].policy_info.x for lane in range(lanes)]
            elif saved:
                for path in store.steps():  # also the older ones
                    step_saved, state = store.load(path)
                    other = make_buffer(rows * lanes, lanes, **info)
                    other.load_state_tensors(state["buffer"])
                    past = World(lanes, rows)
                    for lane, (held, opened) in zip(past.lanes, saved[step_saved], strict=True):
                        lane.rows, lane.open = held, opened
                    check_contents(other, past)
                for lane, expected in enumerate(infos):
                    assert torch.equal(other[other.in_time_order(lane)[:-1]].policy_info.x, expected)


def large(rows=200_000, lanes=4):
    buffer = ReplayBuffer(
        rows,
        lanes,
        observation_spec=TensorSpec((40,)),
        action_spec=DiscreteSpec(num=5),
        sampler=PrioritizedSampler(),
    )
    observation = torch.rand(lanes, 40)
    buffer.open(step([FIRST] * lanes, observation))
    fill(buffer, rows // lanes)
    return buffer


def fill(buffer, steps):
    observation, action = torch.rand(buffer.num_lanes, 40), torch.zeros(buffer.num_lanes, dtype=torch.int64)
    arrived = step([MID] * buffer.num_lanes, observation)
    for _ in range(steps):
        buffer.append(action, arrived)


@pytest.mark.slow
def test_a_checkpoint_after_one_hundredth_of_new_rows_writes_at_most_three_hundredths(tmp_path):
    """The issue's bar, in bytes: full, wrapped, and with priorities, whose tree is always new."""
    buffer, store = large(), CheckpointStore(tmp_path)
    buffer.draw(replay(), generator())
    full = store.save(1, {"buffer": buffer.state_tensors()})
    size = sum(file.stat().st_size for file in full.iterdir())
    for number in (2, 3):
        fill(buffer, 500)
        path = store.save(number, {"buffer": buffer.state_tensors()})
        new = sum(file.stat().st_size for file in path.iterdir() if file.stat().st_nlink == 1)
        tree = 8 * 200_000 * 33 // 32
        assert new < 0.03 * size + tree
        assert sum(file.stat().st_size for file in path.iterdir()) == pytest.approx(size, rel=0.01)
        _, state = store.load(path)
        assert torch.equal(state["buffer"]["field.observation"], buffer.state_tensors()["field.observation"])


def test_a_checkpoint_outlives_the_one_it_shares_pieces_with(tmp_path):
    """F11: older ones are deleted; what is damaged is found wherever it is linked to."""
    buffer, world = make_buffer(40_000, 2), World(2, 20_000)
    world.open(buffer)
    for _ in range(9000):
        world.append(buffer)
    store = CheckpointStore(tmp_path, keep=2)
    for number in range(1, 6):
        world.append(buffer)
        store.save(number, {"buffer": buffer.state_tensors()})
    assert [path.name for path in store.steps()] == ["step_0000000004", "step_0000000005"]
    twin = make_buffer(40_000, 2)
    twin.load_state_tensors(store.load(store.steps()[0])[1]["buffer"])
    last = store.steps()[1]
    shared = next(
        file
        for file in last.glob("segment-*")
        if file.stat().st_nlink == 2 and not (last / second_copy(file.name)).exists()
    )
    content = bytearray(shared.read_bytes())
    content[-1] ^= 1
    shared.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"segment-.*safetensors is missing or damaged"):
        store.load(store.steps()[1])


def test_without_links_pieces_are_copied(tmp_path, monkeypatch):
    """On file systems that have none."""

    def refuse(source, target):
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    buffer, store = large(8_000, 2), CheckpointStore(tmp_path)
    for number in (1, 2):
        store.save(number, {"buffer": buffer.state_tensors()})
    assert torch.equal(store.load(store.steps()[1])[1]["buffer"]["field.reward"], torch.zeros(4001, 2))
    assert {file.stat().st_nlink for file in store.steps()[1].iterdir()} == {1}


def test_a_damaged_checkpoint_before_is_not_built_upon(tmp_path):
    """F11."""
    buffer, store = large(8_000, 2), CheckpointStore(tmp_path)
    first = store.save(1, {"buffer": buffer.state_tensors()})
    (first / "manifest.json").write_text("{")
    second = store.save(2, {"buffer": buffer.state_tensors()})
    assert all(file.stat().st_nlink == 1 for file in second.glob("segment-*"))
    assert store.load_newest()[0] == 2


@pytest.mark.parametrize(("size_bytes", "pieces"), [(1000, 1), (2**19, 4), (2**40, 250)])
def test_pieces_are_large_enough_to_be_worth_a_file(size_bytes, pieces):
    """128 KiB; and no more than 256 of them."""
    places = saving.SegmentKeys(WritePositions(2, rows=9_999), 1, size_bytes).places
    assert -(-10_000 // places) == pieces
