"""Tests of where draws may begin: in data that grow no more, and where all of a buffer is gone through."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from palaestra.buffers import MappedFiles, saving
from palaestra.core import Batch, ConfigError, Offline, OnPolicy, Replay, ShapeError, TensorSpec
from palaestra.testing.buffers import FIRST, LAST, MID, World, check_contents
from tests.buffers.model import generator, make_buffer, step
from tests.buffers.test_states import filled


def serials(buffer, length):
    try:
        return sorted(buffer.reader.windows(buffer.starts(length), 1).observation.tolist())
    except ShapeError:  # there is none
        return []


@pytest.mark.parametrize("begins", [FIRST, LAST])
def test_a_fragment_that_is_lost_takes_the_places_that_it_would_have_filled(begins):
    """Behind the end of an episode a fragment begins a new one, or, of a worker that goes on, with that very end."""
    kinds = {"before": [FIRST, MID, LAST], "lost": [begins, MID, LAST], "after": [FIRST, MID, MID]}
    fragments = {}
    for number, (name, own) in enumerate(kinds.items()):
        rows = step(own, 10 * number + torch.arange(3))
        fields = {"step_type": rows.step_type, "reward": rows.reward, "discount": rows.discount}
        fields |= {"observation": rows.observation, "action": torch.zeros(2, dtype=torch.int64)}
        fragments[name] = Batch.of(fields).map(lambda leaf: leaf[:, None])
    whole, damaged = make_buffer(16, 1), make_buffer(16, 1)
    for buffer in (whole, damaged):
        buffer.extend(fragments["before"], [0])
    whole.extend(fragments["lost"], [0])
    lost = damaged.skip(np.array(kinds["lost"])[:, None], [0])
    for buffer in (whole, damaged):
        buffer.extend(fragments["after"], [0])
    assert len(damaged) == len(whole)
    assert whole.observation[lost.flatten()].tolist() == [10, 11]
    seen = whole.observation[whole.in_time_order(0)].flatten().tolist()
    assert seen == ([0, 1, 2] if begins == FIRST else [0, 1]) + [10, 11, 12, 20, 21, 22]
    assert serials(damaged, 1) == [0, 1, 20, 21]


@pytest.mark.parametrize("rows", [4, 12])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_in_fixed_data_an_episode_that_broke_off_has_ended_too(length, rows):
    """TS-22: nothing will follow its last rows, so they wait for nothing, also where a lane has not so many rows.

    Those of the running episode do.
    """
    for seed in range(25):
        buffer, world = make_buffer(2 * rows, 2), World(2, rows, seed, breaks=True)
        buffer.reader.fixed = True
        world.open(buffer)
        for _ in range(seed + 2):
            world.append(buffer)
        lanes = world.lanes
        assert serials(buffer, length) == sorted(
            lane.stream[start].serial for lane in lanes for start in lane.starts(length, fixed=True)
        )


def test_sequences_of_ended_episodes_are_drawn_from_lanes_that_are_shorter():
    """Of 64 environments, say, with a few steps each; where no episode has ended, there is nothing to draw."""
    buffer = make_buffer(8, 2)
    buffer.open(step([FIRST, FIRST], torch.tensor([0, 100])))
    for t, kinds in enumerate([[MID, MID], [LAST, MID], [FIRST, MID], [MID, MID]], start=1):
        buffer.append(torch.tensor([0, 0]), step(kinds, torch.tensor([t, 100 + t])))
    with pytest.raises(ConfigError, match="20 steps in a row do not fit into a lane of 4"):
        buffer.starts(20)
    drawn = buffer.draw(Offline(mini_batch_size=16, mini_batch_length=20), generator())
    assert {*drawn.observation[0].tolist()} == {0, 1}
    assert drawn.valid.sum(0).tolist() == [2 - first for first in drawn.observation[0].tolist()]
    buffer.reader.fixed = True
    assert sorted(buffer.starts(20).tolist()) == [0, 2]
    buffer.lose(np.array([0, 1]), [0])
    with pytest.raises(ShapeError, match="no row can be learned from"):
        buffer.starts(20)


def test_a_pass_cuts_the_buffer_into_sequences_that_share_no_row():
    """ALF-08: one behind the other, from the oldest row on; also where the ring has wrapped."""
    buffer = make_buffer(40, 2)
    buffer.open(step([FIRST, FIRST], torch.tensor([0, 100])))
    for t in range(1, 27):
        buffer.append(torch.tensor([0, 0]), step([MID, MID], torch.tensor([t, 100 + t])))
    plan = Replay(unroll_length=1, num_epochs=1, mini_batch_length=4)
    drawn = buffer.draw(plan, generator())
    assert sorted(drawn.observation[0].tolist()) == [6, 10, 14, 18, 22, 106, 110, 114, 118, 122]
    overlapping = buffer.draw(dataclasses.replace(plan, sequence_period=2), generator())
    firsts = [6, 8, 10, 12, 14, 16, 18, 20, 22]
    assert sorted(overlapping.observation[0].tolist()) == firsts + [100 + first for first in firsts]


@pytest.mark.parametrize("steps", [3, 4, 8])
def test_a_pass_leaves_out_no_sequence_that_would_begin_with_the_end_of_an_episode(steps):
    """ALF-08: episodes of a fixed length may have an end at each of these rows; the next row begins it."""
    buffer = make_buffer(41, 1)
    buffer.open(step([FIRST], torch.tensor([0])))
    for t in range(1, 41):
        kind = LAST if t % steps == 0 else FIRST if t % steps == 1 and t > 1 else MID
        buffer.append(torch.tensor([0]), step([kind], torch.tensor([t])))
    drawn = buffer.draw(Replay(unroll_length=1, num_epochs=1, mini_batch_length=4), generator())
    expected = [row + (row > 0 and row % steps == 0) for row in range(0, 37, 4)]
    assert sorted(drawn.observation[0].tolist()) == [row for row in expected if row <= 36]


def test_where_few_rows_have_a_memory_a_pass_begins_at_all_of_these():
    """ALF-08: the oldest row need not be one of them."""
    buffer, _ = filled(40, 2, 46, period=4)
    plan = Replay(unroll_length=1, num_epochs=1, mini_batch_length=4)
    index = buffer.draw(plan, generator()).index
    assert sorted(index.tolist()) == sorted(buffer.starts(4).tolist())
    assert len(index) >= 4
    assert (buffer.reader.ages(index.numpy()) % 4).any()


@pytest.mark.parametrize("lost", [[1], [3], [0, 2]])
def test_rows_that_are_lost_are_ends_of_episodes_and_no_others_are(monkeypatch, lost):
    """F11: nothing is learned from them, nor across the row before; every other row stays what it was."""
    monkeypatch.setattr(saving, "_SMALLEST", 1)
    monkeypatch.setattr(saving, "_SEGMENTS", 4)
    buffer = make_buffer(40, 2)
    buffer.open(step([FIRST, FIRST], torch.tensor([0, 100])))
    for t in range(1, 51):
        buffer.append(torch.tensor([0, 0]), step([MID, MID], torch.tensor([t, 100 + t])))
    tensors = buffer.state_tensors()
    places = json.loads(tensors["segments"])["rows"]["field.step_type"]
    other = make_buffer(40, 2)
    other.load_state_tensors({**tensors, "lost": lost})
    kinds, ring = other.state_tensors()["field.step_type"].numpy(), other.positions.ring_size
    spare = other.positions.spare
    gone = {place for i in lost for place in range(i * places - 1, min((i + 1) * places, ring) + spare)}
    expected = np.where(
        np.isin(np.arange(ring), [place % ring for place in gone])[:, None], LAST, tensors["field.step_type"]
    )
    assert (kinds == expected).all()
    assert 0 < len(gone) < ring


def test_what_is_loaded_into_mapped_files_is_there_for_the_next_process(tmp_path):
    """F25: the positions are written with the rows."""
    buffer, world = make_buffer(24, 2, storage=MappedFiles(tmp_path / "one")), World(2, 12)
    world.open(buffer)
    for _ in range(9):
        world.append(buffer)
    mapped = make_buffer(24, 2, storage=MappedFiles(tmp_path / "two"))
    mapped.load_state_tensors(buffer.state_tensors())
    del mapped
    again = make_buffer(24, 2, storage=MappedFiles(tmp_path / "two"))
    assert len(again) == 18
    check_contents(again, world)


def test_a_fragment_of_another_stream_does_not_begin_behind_the_end_of_what_was_learned_from():
    """Blocks of fragments from any worker: one that begins inside an episode kept no row, with a memory."""
    buffer = make_buffer(None, 2, state_spec={"memory": TensorSpec((1,))})

    def fragment(kinds):
        rows = step(kinds, torch.arange(4))
        fields = {"step_type": rows.step_type, "reward": rows.reward, "discount": rows.discount}
        fields |= {"observation": rows.observation, "action": torch.zeros(3, dtype=torch.int64)}
        return Batch.of({**fields, "state": Batch.of({"memory": torch.full((3, 1), 0.5)})}).map(
            lambda leaf: leaf[:, None]
        )

    for kinds in ([FIRST, MID, MID, LAST], [MID, MID, MID, MID]):
        for lane in (0, 1):
            buffer.extend(fragment(kinds), [lane])
        unroll = buffer.draw(OnPolicy(unroll_length=3), generator())
    assert unroll.step_type.T.tolist() == [[MID] * 4] * 2
    assert unroll.valid.all() and (unroll.state.memory == 0.5).all()
