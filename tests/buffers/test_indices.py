"""Tests of slices, negative indices and pickles of `palaestra.buffers.ReplayBuffer`, and of weights in `sample`."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch

from palaestra.buffers import MappedFiles, PrioritizedSampler, ReplayBuffer
from palaestra.core import ConfigError, DiscreteSpec, Prioritized, Replay, ShapeError, TensorSpec
from palaestra.testing.buffers import MID
from tests.buffers.model import filled, generator, replay, step
from tests.core.nests import assert_same

AFTER_STEPS = pytest.mark.parametrize("steps", [7, 31], ids=["not full", "wrapped"])


@AFTER_STEPS
@pytest.mark.parametrize("lanes", [1, 2])
def test_ts_21_a_slice_is_the_rows_of_its_numbers(steps, lanes):
    """TS-21: `buffer[0:3]` equals `buffer[np.arange(3)]`, also where the ring has wrapped."""
    buffer, _ = filled(12 * lanes, lanes, steps)
    held = set(buffer.reader.complete().tolist())
    for index in (slice(0, 3), slice(2, 5), slice(None, 4), slice(1, 7, 2), slice(0, 1000)):
        numbers = [number for number in np.arange(13 * lanes)[index].tolist() if number in held]
        assert_same(buffer[index], buffer[np.array(numbers)])
        assert torch.equal(buffer.observation[index], buffer[index].observation)


@AFTER_STEPS
@pytest.mark.parametrize("lanes", [1, 2])
def test_ts_21_negative_indices_count_back_from_the_newest_row(steps, lanes):
    """TS-21: in the order of `sample(0)`."""
    buffer, world = filled(12 * lanes, lanes, steps)
    in_time = [row.serial for lane in world.lanes for row in lane.rows]
    assert buffer[...].observation.tolist() == buffer[:].observation.tolist() == in_time
    assert_same(buffer[...], buffer.sample(0, generator())[0])
    assert buffer[-1].observation == in_time[-1]
    assert buffer.reward[-1] == world.lanes[-1].rows[-1].reward
    assert buffer[[-1, -len(buffer)]].observation.tolist() == [in_time[-1], in_time[0]]
    for index in (slice(-3, None), slice(None, -2), slice(-5, -1), slice(None, None, -1)):
        assert buffer[index].observation.tolist() == in_time[index]
    with pytest.raises(IndexError, match="counts back from the newest row"):
        _ = buffer[-len(buffer) - 1]


def test_ts_21_a_slice_that_could_mean_two_things_is_refused():
    """TS-21: from a number to a place in time order, where these differ."""
    buffer, world = filled(12, 1, 7)
    assert buffer[2:-1].observation.tolist() == [row.serial for row in world.lanes[0].rows[2:-1]]
    assert buffer[2:].observation.tolist() == [row.serial for row in world.lanes[0].rows[2:]]
    wrapped, _ = filled(12, 1, 31)
    for index in (slice(2, None), slice(2, -1), slice(-3, 5)):
        with pytest.raises(IndexError, match=r"or there are several lanes\. Give two numbers"):
            _ = wrapped[index]
    with pytest.raises(IndexError, match=r"no row has a number in \[9:11\]"):
        _ = buffer[9:11]


def test_ts_21_row_numbers_modulo_the_length_are_refused():
    """TS-21: the document's `(i + 2) % len(buffer)` would read wrong rows; `next` reads the right ones."""
    buffer, _ = filled(12, 1, 31)
    rows, index = buffer.sample(8, generator())
    drawn = buffer.draw(Replay(unroll_length=1, mini_batch_size=8), generator()).index
    for given in (index, drawn, buffer.starts(1), buffer.episodes()[0], buffer.in_time_order(0), buffer.next(drawn)):
        with pytest.raises(TypeError, match=r"Write buffer.following\(i, 2\)"):
            _ = buffer[(given + 2) % len(buffer)]
        for moved in (
            given + 2,
            2 + given,
            given - 1,
            given + 1 + 1,
            np.add(given, 2) if isinstance(given, np.ndarray) else given.add(2),
            copy.deepcopy(given).__iadd__(2),
        ):
            for read in (buffer.__getitem__, buffer.reward.__getitem__, buffer.next, lambda i: buffer.windows(i, 1)):
                with pytest.raises(TypeError, match=r"added to row numbers.* Write buffer.following\(i, 1\)"):
                    read(moved)
            with pytest.raises(TypeError, match="added to row numbers"):
                buffer.write_back(moved, np.ones(len(moved)))
        twice = buffer.next(buffer.next(given))
        assert type(buffer.following(given, 2)) is type(twice)
        assert np.array_equal(np.asarray(buffer.following(given, 2)), np.asarray(twice))
    assert type(pickle.loads(pickle.dumps(drawn))) is torch.Tensor
    assert_same(buffer[index], rows)
    later = buffer.next(index)
    stays = later == index
    assert (np.asarray(buffer.observation[later] - rows.observation)[~stays] == 1).all()
    assert not isinstance(np.asarray(index) % 5, type(index))


@AFTER_STEPS
@pytest.mark.parametrize("copied", [lambda buffer: pickle.loads(pickle.dumps(buffer)), copy.deepcopy])
@pytest.mark.parametrize("capacity", [24, None])
def test_ts_21_a_pickled_buffer_comes_back_whole(steps, copied, capacity):
    """TS-08, TS-21: rows, positions and priorities; both go on alike and apart."""
    buffer, world = filled(capacity, 2, steps)
    buffer.sampler = PrioritizedSampler(Prioritized())
    drawn = buffer.draw(replay(mini_batch_size=8), generator())
    buffer.write_back(drawn.index, torch.arange(8.0))
    again = copied(buffer)
    assert_same(again.sample(0, generator())[0], buffer.sample(0, generator())[0])
    assert_same(
        again.draw(replay(mini_batch_size=32), generator()), buffer.draw(replay(mini_batch_size=32), generator())
    )
    before = len(again)
    world.append(buffer)
    again.append(torch.tensor([0, 0]), step([MID, MID], torch.tensor([900, 901])))
    assert sorted(again.observation[again.in_time_order(0)[-1:]].tolist()) == [900]
    assert 900 not in buffer.observation[buffer.in_time_order(0)].tolist()
    assert len(again) == len(buffer) >= before


def test_ts_21_a_buffer_of_mapped_files_is_not_pickled(tmp_path):
    """TS-21: two buffers must not write to the same files."""
    specs = {"observation_spec": TensorSpec((), torch.int64), "action_spec": DiscreteSpec(num=2)}
    buffer = ReplayBuffer(8, 1, **specs, storage=MappedFiles(tmp_path / "rows"))
    with pytest.raises(ConfigError, match="use `save` and `load`"):
        pickle.dumps(buffer)


def test_ts_11_a_sample_has_weights_where_rows_have_priorities():
    """TS-11: (N P(i))^-beta, divided by its largest value; and none without priorities."""
    buffer, _ = filled(20, 1, 15)
    assert "weight" not in buffer.sample(4, generator())[0]
    buffer.sampler = PrioritizedSampler(Prioritized(alpha=1.0, beta=0.5))
    starts = buffer.starts(1)
    priority = torch.arange(1.0, len(starts) + 1)
    buffer.write_back(torch.from_numpy(starts), priority)  # before anything was drawn
    rows, index = buffer.sample(64, generator())
    expected = np.array([priority[starts.tolist().index(i)] for i in index.tolist()]) ** -0.5
    assert rows.weight.numpy() == pytest.approx(expected / expected.max(), rel=1e-4)
    assert "weight" not in buffer.sample(0, generator())[0]


def test_ts_11_the_numbers_of_a_sample_are_written_back_as_they_are():
    """TS-11: `batch, i = buffer.sample(n)`, then `update_weight(i, w)`, with arrays as with tensors."""
    weights = []
    for kind in (np.asarray, lambda array: torch.from_numpy(np.array(array))):
        buffer, _ = filled(24, 2, 7)
        buffer.sampler = PrioritizedSampler(Prioritized())
        _, index = buffer.sample(8, generator())
        buffer.write_back(index if kind is np.asarray else kind(index), kind(np.arange(1.0, 9.0)))
        weights.append(buffer.sample(64, generator())[0].weight)
    assert torch.equal(*weights) and len(weights[0].unique()) > 3


def test_ts_11_priorities_are_written_back_at_any_time():
    """TS-11: of rows that came after the last draw, and after the buffer was cleared."""
    buffer, world = filled(40, 1, 10)
    buffer.sampler = PrioritizedSampler(Prioritized(alpha=1.0))
    buffer.sample(4, generator())
    for _ in range(5):
        world.append(buffer)
    newest = buffer.starts(1)[-1:]
    buffer.write_back(torch.from_numpy(newest), torch.tensor([1e6]))
    assert set(buffer.sample(50, generator())[1].tolist()) == {int(newest[0])}
    buffer.clear()
    with pytest.raises(ShapeError, match="no row can be learned from yet"):
        buffer.write_back(torch.from_numpy(newest), torch.tensor([1.0]))
    for _ in range(8):
        world.append(buffer)
    oldest = buffer.starts(1)[:1]
    buffer.write_back(torch.from_numpy(oldest), torch.tensor([1e14]))
    assert set(buffer.sample(50, generator())[1].tolist()) == {int(oldest[0])}


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve room of a file")
def test_mapped_files_have_their_room_from_the_start(tmp_path):
    """F10: who writes to a mapped file whose disk is full would be killed."""
    specs = {"observation_spec": TensorSpec((1000,)), "action_spec": DiscreteSpec(num=2)}
    ReplayBuffer(50, 1, **specs, storage=MappedFiles(tmp_path / "rows"))
    (file,) = [path for path in (tmp_path / "rows").glob("*.bin") if path.stat().st_size >= 50 * 4000]
    assert file.stat().st_blocks * 512 >= file.stat().st_size


def test_a_batch_with_row_numbers_can_be_copied():
    buffer, _ = filled(40, 2, 12)
    index = buffer.draw(replay(), generator()).index
    for numbers in (index, index + 1):
        again = copy.deepcopy({"index": numbers})["index"]
        assert torch.equal(again, numbers)
        assert type(again) is type(numbers)
