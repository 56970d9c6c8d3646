"""Compressed buffers: every bit is what a buffer without compression has, and mistakes are named."""

import copy
import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import MappedFiles, PrioritizedSampler, ReplayBuffer
from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    DiscreteSpec,
    MissingExtraError,
    PackedRows,
    Prioritized,
    Replay,
    TensorSpec,
    TimeStep,
)
from palaestra.core.files import load_tensors, save_tensors

FRAME = (6, 5)
KINDS = ("plain", "stacked", "nested", "bools")


@pytest.fixture(scope="module", autouse=True)
def codec():
    pytest.importorskip("cramjam")


def spec_of(kind):
    plain = TensorSpec(FRAME, torch.uint8)
    return {
        "plain": plain,
        "stacked": TensorSpec((3, *FRAME), torch.uint8, stacked=3),
        "nested": {"camera": TensorSpec((3, *FRAME), torch.uint8, stacked=3), "speed": TensorSpec((2,))},
        "bools": TensorSpec((*FRAME, 2), torch.bool),
    }[kind]


class Play:
    """Random episodes of lanes, with the stacks that a wrapper would give."""

    def __init__(self, kind, lanes, seed):
        self.kind, self.lanes, self.rng = kind, lanes, np.random.default_rng(seed)
        self.stack = np.zeros((lanes, 3, *FRAME), np.uint8)
        self.kinds = np.full(lanes, 2)

    def step(self, lanes=None):
        """A time step of some lanes, and the action before it."""
        which, rng = np.arange(self.lanes) if lanes is None else lanes, self.rng
        n, before = len(which), self.kinds[which]
        kinds = np.where(before == 2, 0, np.where(rng.random(n) < 0.15, 2, 1))
        self.kinds[which] = kinds
        frames = rng.integers(0, 4, (n, *FRAME), np.uint8)
        frames[rng.random(n) < 0.2] = rng.integers(0, 256, FRAME, np.uint8)  # that cannot be compressed
        older = np.where(kinds[:, None, None, None] == 0, 0, self.stack[which, 1:])
        self.stack[which] = np.concatenate([older, frames[:, None]], 1)
        stack = torch.from_numpy(self.stack[which])
        observation = {
            "plain": stack[:, -1],
            "stacked": stack,
            "nested": Batch(camera=stack, speed=torch.from_numpy(rng.random((n, 2), np.float32))),
            "bools": torch.from_numpy(rng.random((n, *FRAME, 2)) < 0.1),
        }[self.kind]
        step = TimeStep(
            step_type=torch.from_numpy(kinds.astype(np.int32)),
            reward=torch.from_numpy(rng.random(n, np.float32)),
            discount=torch.from_numpy((kinds != 2).astype(np.float32)),
            observation=observation,
        )
        return torch.from_numpy(rng.integers(0, 3, n)), step


def pair(kind, capacity=90, lanes=3, storage=lambda name: None, **options):
    """The same buffer without compression and with it."""
    made = {}
    for compression in ("none", "lz4"):
        made[compression] = ReplayBuffer(
            capacity,
            lanes,
            observation_spec=spec_of(kind),
            action_spec=DiscreteSpec(num=3),
            storage=storage(compression),
            compression=compression,
            **options,
        )
    return made["none"], made["lz4"]


def fill(buffers, play, rows):
    """Rows of all lanes, begun anew where there are none."""
    if not buffers[0].positions.all_open:
        _, step = play.step()
        for buffer in buffers:
            buffer.open(step)
    for _ in range(rows):
        action, step = play.step()
        for buffer in buffers:
            buffer.append(action, step)


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, Batch):
        assert set(a.keys()) == set(b.keys())
        for key in a.keys():  # noqa: SIM118
            same(a[key], b[key])
    else:
        assert a.dtype == b.dtype
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def draws_agree(buffers, seed=0):
    plain, packed = buffers
    same(plain[...], packed[...])
    same(plain.newest(int(plain.positions.counts.min())), packed.newest(int(plain.positions.counts.min())))
    for n_step, length in ((1, 1), (3, 1), (1, 4)):
        plan = Replay(unroll_length=1, mini_batch_size=20, n_step=n_step, mini_batch_length=length)
        drawn = [buffer.draw(plan, torch.Generator().manual_seed(seed)) for buffer in buffers]
        same(*drawn)


@pytest.mark.parametrize("kind", KINDS)
def test_every_draw_has_the_bits_of_an_uncompressed_buffer_while_the_ring_goes_round(kind):
    buffers, play = pair(kind), Play(kind, 3, 0)
    for rows in (12, 4, 7, 30, 1, 40):
        fill(buffers, play, rows)
        draws_agree(buffers)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
    st.lists(
        st.sampled_from(["fill", "lane", "end", "extend", "keep", "clear", "save", "info"]), min_size=3, max_size=9
    ),
)
def test_whatever_is_written_reads_the_same(kind, seed, actions):
    buffers, play = pair(kind, capacity=75), Play(kind, 3, seed)
    fill(buffers, play, 9)
    for action in actions:
        if action == "fill":
            fill(buffers, play, int(play.rng.integers(1, 30)))
        elif action == "lane":
            lanes = np.array([int(play.rng.integers(3))])
            for _ in range(int(play.rng.integers(1, 12))):
                acted, step = play.step(lanes)
                for buffer in buffers:
                    buffer.append(acted, step, env_id=lanes)
        elif action == "end":
            for buffer in buffers:
                buffer.end_streams()
            play.kinds[:] = 2
            _, step = play.step()
            for buffer in buffers:
                buffer.open(step)
        elif action == "extend":
            other = pair(kind, capacity=60)[0]
            mine = Play(kind, 3, seed + 1)
            fill((other,), mine, 11)
            for buffer in buffers:
                buffer.update(other)
            play.kinds[:], play.stack = mine.kinds, mine.stack
        elif action == "keep":
            for buffer in buffers:
                buffer.writer.keep(np.array([9, 5, 7]))
        elif action == "clear":
            for buffer in buffers:
                buffer.clear()
            fill(buffers, play, 9)
        elif action == "save":
            buffers = [restored(buffer, pair(kind, capacity=75)[i]) for i, buffer in enumerate(buffers)]
        elif action == "copy":
            buffers = [copy.deepcopy(buffer) for buffer in buffers]
        if all(count >= 6 for count in buffers[0].positions.counts):
            draws_agree(buffers, seed)


def restored(buffer, fresh):
    fresh.load_state_tensors(buffer.state_tensors())
    return fresh


@pytest.mark.parametrize("rows", [3, 8, 21, 64])
def test_a_state_saved_inside_a_block_goes_on_in_buffers_of_both_kinds(tmp_path, rows):
    buffers, play = pair("stacked"), Play("stacked", 3, rows)
    fill(buffers, play, rows)
    for source, target in itertools.product(range(2), range(2)):
        path = tmp_path / f"{source}{target}.safetensors"
        save_tensors(path, buffers[source].state_tensors())
        loaded = restored_from(load_tensors(path), pair("stacked")[target])
        both, mine = [buffers[0], loaded], copy.deepcopy(play)
        both[0] = copy.deepcopy(both[0])
        fill(both, mine, 10)
        draws_agree(both)


def restored_from(tensors, fresh):
    fresh.load_state_tensors(tensors)
    return fresh


def test_priorities_are_drawn_as_without_compression():
    buffers, play = pair("stacked"), Play("stacked", 3, 5)
    plan = Replay(unroll_length=1, mini_batch_size=16, n_step=3, prioritized=Prioritized())
    for buffer in buffers:
        buffer.sampler = PrioritizedSampler(Prioritized())
    for round_number in range(4):
        fill(buffers, play, 25)
        drawn = [buffer.draw(plan, torch.Generator().manual_seed(round_number)) for buffer in buffers]
        same(*drawn)
        for buffer, windows in zip(buffers, drawn, strict=True):
            buffer.write_back(windows.index, torch.arange(16.0))


def test_stacks_of_single_frames_are_read_from_blocks():
    buffers, play = pair("plain", stack_num=4), Play("plain", 3, 2)
    fill(buffers, play, 70)
    draws_agree(buffers)


def test_a_draw_of_more_blocks_than_are_read_at_once(monkeypatch):
    monkeypatch.setattr("palaestra.buffers.leaf._SCRATCH", 3 * 8 * 30)
    buffers, play = pair("stacked", capacity=300), Play("stacked", 3, 3)
    fill(buffers, play, 120)
    draws_agree(buffers)


def test_mapped_files_hold_blocks_and_go_on_after_the_process(tmp_path):
    buffers, play = pair("stacked", storage=lambda name: MappedFiles(tmp_path / name)), Play("stacked", 3, 4)
    for rows in (9, 20, 90):
        fill(buffers, play, rows)
        draws_agree(buffers)
        again = pair("stacked", storage=lambda name: MappedFiles(tmp_path / name))
        draws_agree(again)
    with pytest.raises(CheckpointError, match="describes rows"):
        pair("stacked", storage=lambda name: MappedFiles(tmp_path / "none"))


def test_folders_keep_blocks_and_load_them_into_memory_and_files(tmp_path):
    buffers, play = pair("stacked"), Play("stacked", 3, 6)
    fill(buffers, play, 57)
    buffers[1].save(tmp_path / "saved")
    for storage in (None, MappedFiles(tmp_path / "rows")):
        loaded = ReplayBuffer.load(tmp_path / "saved", storage=storage)
        same(buffers[0][...], loaded[...])


def test_blocks_take_less_memory_than_frames_that_are_alike():
    spec = TensorSpec((84, 84), torch.uint8)
    made = [
        ReplayBuffer(800, 1, observation_spec=spec, action_spec=DiscreteSpec(num=3), compression=how)
        for how in ("none", "lz4")
    ]
    numbers = {"reward": torch.zeros(1), "discount": torch.ones(1), "step_type": torch.ones(1, dtype=torch.int32)}
    step = TimeStep(observation=torch.zeros(1, 84, 84, dtype=torch.uint8), **numbers)
    for buffer in made:
        buffer.open(step)
        for _ in range(800):
            buffer.append(torch.zeros(1, dtype=torch.int64), step)
    assert made[1].size_bytes < made[0].size_bytes / 20


@pytest.mark.parametrize("mapped", [False, True])
def test_the_size_of_rows_that_were_loaded_is_that_of_rows_that_were_written(tmp_path, mapped):
    """It is counted where blocks change, for it is asked for every second."""
    folders = iter("abcd")
    made = [
        pair("plain", storage=lambda _: MappedFiles(tmp_path / next(folders)) if mapped else None)[1] for _ in range(2)
    ]
    fill(made[:1], Play("plain", 3, 5), 200)
    made[1].load_state_tensors(made[0].state_tensors())
    assert made[1].size_bytes == pytest.approx(made[0].size_bytes, rel=0.01)


def test_what_cannot_be_compressed_is_said():
    vector = {"observation_spec": TensorSpec((4,)), "action_spec": DiscreteSpec(num=3)}
    with pytest.raises(ConfigError, match=r"compression is for pictures.*\[\(4,\)\]; leave it out"):
        ReplayBuffer(100, 1, compression="lz4", **vector)
    with pytest.raises(ConfigError, match="compression is 'zip'; it must be 'none' or 'lz4'"):
        ReplayBuffer(100, 1, compression="zip", **vector)  # pyright: ignore[reportArgumentType]


def test_the_extra_is_named_where_the_codec_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palaestra\[compression\]'"):
        pair("plain")


def test_packed_rows_are_cut_and_joined_as_tensors_are():
    blocks = [bytes([number]) for number in range(6)]  # of 2 lanes, 3 blocks of 4 rows, the last with 2
    rows = PackedRows(blocks, (10, 2, 6, 5), torch.uint8, 4)
    assert PackedRows.cat([rows[:4], rows[4:8], rows[8:]]) == rows
    assert rows[:, [1]].blocks == [b"\1", b"\3", b"\5"]
    assert PackedRows.beside([rows[:, [0]], rows[:, [1]]]) == rows
    assert PackedRows.beside([rows[:4, [0]], rows[:, [1]]]).blocks == [b"\0", b"\1", b"", b"\3", b"", b"\5"]
    with pytest.raises(ValueError, match="rows from 3 on do not begin with a block of 4"):
        rows[3:]
    with pytest.raises(ValueError, match="6 blocks"):
        PackedRows(blocks, (13, 2, 6, 5), torch.uint8, 4)


def _saved():
    buffers, play = pair("plain"), Play("plain", 3, 1)
    fill(buffers, play, 40)
    return buffers[1].state_tensors()


def _apart():
    return _saved()["field.observation"].apart()


@pytest.mark.parametrize(
    ("place", "value"),
    [(2, "nn"), (2, "Tensor"), (2, ""), (2, 5), (3, 0), (3, 16), (1, [40]), (1, []), (1, [31, 3, 6, -5]), (0, [-1])],
)
def test_a_file_that_describes_no_rows_is_refused(place, value):
    """A name that torch has is no dtype for that, and no rows have blocks of none."""
    layout, data = _apart()
    assert PackedRows.joined(layout, data).apart()[0] == layout
    layout[place] = value
    with pytest.raises(ValueError, match=r"rows .* (are none|are there)|blocks of .* were given"):
        PackedRows.joined(layout, data)


def test_blocks_that_are_not_those_of_their_rows_are_refused_when_they_are_read():
    """Fewer bytes than a block has would leave those that were read before."""
    layout, data = _apart()
    lengths, *rest = layout
    longer = [*lengths[1:], lengths[0]]
    fresh, tensors = pair("plain")[1], _saved()
    codec = pytest.importorskip("cramjam").lz4
    short = bytes(codec.compress_block(bytes(7), store_size=False))
    empty = PackedRows.joined(layout, data)
    for damaged in (
        PackedRows.joined([longer, *rest], data),
        PackedRows([short] * len(empty.blocks), empty.shape, empty.dtype, empty.block_rows),
    ):
        fresh.load_state_tensors(tensors | {"field.observation": damaged})
        with pytest.raises(CheckpointError, match=r"block \d+ of the compressed rows is damaged"):
            fresh[...]
