"""Tests of where the rows of a buffer lie: `palaestra.buffers.storage`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from palaestra.buffers import MainMemory, MappedFiles, ReplayBuffer, storage
from palaestra.buffers.streams import WritePositions
from palaestra.core import BoundedSpec, CheckpointError, ConfigError, DiscreteSpec, TensorSpec
from palaestra.core.computing import control_groups, memory_bytes
from palaestra.testing.buffers import World, check_contents, check_windows
from tests.buffers.mapped_child import LANES, arrival, mapped, write
from tests.buffers.model import generator, make_buffer, replay

ROOT = Path(__file__).resolve().parents[2]


def child(*arguments):
    return [sys.executable, "-m", "tests.buffers.mapped_child", *map(str, arguments)]


# -- the promise


def test_a_buffer_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    """F21: with the numbers and the ways out."""
    monkeypatch.setattr(storage, "available_bytes", lambda: 5 * 10**9)
    frames = BoundedSpec((4, 84, 84), torch.uint8, np.array(0), np.array(255))
    with pytest.raises(ConfigError) as refused:
        ReplayBuffer(1_000_000, 8, observation_spec=frames, action_spec=DiscreteSpec(num=6))
    message = str(refused.value)
    assert "needs 28.2 GB (28,248,225,984 bytes) (observation alone 28.2 GB" in message
    assert "main memory has 5 GB (5,000,000,000 bytes) free" in message
    for option in ("smaller capacity", "MappedFiles", "uint8", "stacked"):
        assert option in message
    ReplayBuffer(100_000, 8, observation_spec=frames, action_spec=DiscreteSpec(num=6))


def test_a_buffer_that_grows_is_refused_before_it_takes_what_is_not_there(monkeypatch):
    """F21."""
    buffer, world = make_buffer(None, 1), World(1, 10**6)
    world.open(buffer)
    for _ in range(128):
        world.append(buffer)
    monkeypatch.setattr(storage, "available_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match=r"main memory has 1e-06 GB"):
        world.append(buffer)
    assert len(buffer) == 128


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    """F21: both kinds of control groups, of the own group and of those above it; without a limit the machine's."""
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/outer/inner\n3:cpu:/\n0::/unified\n")
    for folder, limit, used in (("memory/outer/inner", 2**63 - 1, 500), ("memory/outer", 4000, 1000)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (tmp_path / folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (tmp_path / folder / "memory.stat").write_text("cache 70\ntotal_inactive_file 50\n")
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "memory.max").write_text("max\n")
    monkeypatch.setattr(storage, "control_groups", lambda controller: control_groups(controller, tmp_path, own))
    assert storage.available_bytes() == 4000 - 1000 + 50
    (tmp_path / "unified" / "memory.max").write_text("900\n")
    (tmp_path / "unified" / "memory.current").write_text("950\n")
    (tmp_path / "unified" / "memory.stat").write_text("inactive_file 0\n")
    assert storage.available_bytes() == 0
    monkeypatch.undo()
    assert (storage.available_bytes() or 0) > 0


# -- mapped files


@pytest.mark.parametrize("steps", [3, 11, 47])
def test_what_goes_in_comes_out_of_mapped_files_in_another_process_too(tmp_path, steps):
    """TS-08, F21: through wrap-around; a buffer made for the same folder goes on where the other one stopped."""
    buffer, world = make_buffer(24, 2, storage=MappedFiles(tmp_path)), World(2, 12)
    world.open(buffer)
    for i in range(steps):
        world.append(buffer, [i % 2] if i % 4 == 3 else None)
        check_contents(buffer, world)
    again = make_buffer(24, 2, storage=MappedFiles(tmp_path))
    check_contents(again, world)
    world.append(again)
    check_windows(again.draw(replay(), generator()), world, 1)
    again.clear()
    assert len(make_buffer(24, 2, storage=MappedFiles(tmp_path))) == 0


def test_a_writer_that_ends_while_it_clears_leaves_no_row(tmp_path, monkeypatch):
    """Rows that are about to be overwritten are not taken for whole ones."""
    buffer, world = make_buffer(24, 2, storage=MappedFiles(tmp_path)), World(2, 12)
    world.open(buffer)
    for _ in range(6):
        world.append(buffer)
    monkeypatch.setattr(WritePositions, "restart", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        buffer.clear()
    monkeypatch.undo()
    assert len(make_buffer(24, 2, storage=MappedFiles(tmp_path))) == 0


def test_without_proc_more_than_the_whole_memory_is_refused(monkeypatch):
    """macOS does not say what is free."""
    monkeypatch.setattr(storage, "Path", lambda path: Path("/none") / path[1:])
    monkeypatch.setattr(storage, "control_groups", lambda controller: iter(()))
    assert storage.available_bytes() == memory_bytes()


@pytest.mark.parametrize("names", [("pos/x", "pos_x"), ("pos", "Pos")])
def test_leaves_whose_files_would_be_one_are_refused(tmp_path, names):
    leaf = TensorSpec((2,))
    with pytest.raises(ConfigError, match="mapped files have no names apart for"):
        ReplayBuffer(
            *(24, 2),
            observation_spec=dict.fromkeys(names, leaf),
            action_spec=DiscreteSpec(num=5),
            storage=MappedFiles(tmp_path),
        )


@pytest.mark.needs_linux
def test_blocks_whose_files_would_be_one_are_refused_when_they_are_new(tmp_path):
    shape, dtype = (100, 2, 8, 8), torch.uint8
    together = MappedFiles(tmp_path)
    for name in ("a/b", "c"):
        together.allocate_blocks("rows", name, shape, dtype)
    for name in ("a_b", "C"):
        with pytest.raises(ConfigError, match=r"no names apart for 'rows\.(a/b|c)\."):
            together.allocate_blocks("rows", name, shape, dtype)
    MappedFiles(tmp_path).allocate_blocks("rows", "C", shape, dtype)  # as earlier versions made them
    opened = MappedFiles(tmp_path)
    assert [opened.allocate_blocks("rows", name, shape, dtype).which.tolist() for name in "cC"] == [[0, 0]] * 2


def test_folders_above_that_of_mapped_files_are_made(tmp_path):
    make_buffer(24, 2, storage=MappedFiles(tmp_path / "new" / "deeper"))
    assert list((tmp_path / "new" / "deeper").glob("*.json"))


def test_lanes_that_were_never_opened_stay_so(tmp_path):
    buffer, world = make_buffer(24, 2, storage=MappedFiles(tmp_path)), World(2, 12)
    world.open(buffer, [1])
    world.append(buffer, [1])
    again = make_buffer(24, 2, storage=MappedFiles(tmp_path))
    assert again.positions.opened.tolist() == [False, True]
    assert again.positions.counts.tolist() == [0, 1]


def test_files_that_do_not_fit_are_named(tmp_path):
    """F11: another shape, a missing file, a file that was cut off, a description that is none."""
    make_buffer(24, 2, storage=MappedFiles(tmp_path))
    with pytest.raises(CheckpointError, match=r"rows.json describes rows of .*; give the same specs"):
        make_buffer(26, 2, storage=MappedFiles(tmp_path))
    file = tmp_path / "rows.reward.bin"
    os.truncate(file, 40)
    with pytest.raises(CheckpointError, match=r"rows.reward.bin has 40 bytes instead of 112: it is missing or was cut"):
        make_buffer(24, 2, storage=MappedFiles(tmp_path))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"rows.reward.bin has no bytes"):
        make_buffer(24, 2, storage=MappedFiles(tmp_path))
    (tmp_path / "rows.json").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"rows.json cannot be read"):
        make_buffer(24, 2, storage=MappedFiles(tmp_path))
    with pytest.raises(ConfigError, match="mapped files hold a buffer of fixed capacity"):
        make_buffer(None, 2, storage=MappedFiles(tmp_path))
    with pytest.raises(ConfigError, match=r"the disk of .* has"):
        MappedFiles(tmp_path / "new").allocate("rows", {"x": ((2**50,), torch.float64)})
    assert isinstance(MainMemory().allocate("rows", {"x": ((2,), torch.float64)})["x"], torch.Tensor)


def test_files_without_what_describes_them_are_refused_and_not_made_anew(tmp_path):
    """The buffer said 0 rows, or gave zeros as rows; what was killed while it made its files makes them again."""
    buffer, world = make_buffer(24, 2, storage=MappedFiles(tmp_path)), World(2, 12)
    world.open(buffer)
    world.append(buffer)
    for name in ("heads", "rows"):
        described = (tmp_path / f"{name}.json").rename(tmp_path / "elsewhere")
        with pytest.raises(CheckpointError, match=rf"{name}.json, which says what {name}\..* holds, is missing"):
            make_buffer(24, 2, storage=MappedFiles(tmp_path))
        described.rename(tmp_path / f"{name}.json")
    check_contents(make_buffer(24, 2, storage=MappedFiles(tmp_path)), world)
    (tmp_path / "heads.json").rename(tmp_path / "heads.tmp")
    assert len(make_buffer(24, 2, storage=MappedFiles(tmp_path))) == 0


def test_blocks_that_are_missing_are_no_zeros(tmp_path):
    made = lambda: MappedFiles(tmp_path).allocate_blocks("rows", "a", (100, 2, 8, 8), torch.uint8)  # noqa: E731
    made().blocks[1] = b"some"
    assert bytes(made().blocks[1]) == b"some"
    (tmp_path / "rows.a.blocks.bin").unlink()
    with pytest.raises(CheckpointError, match=r"rows.a.blocks.bin has no bytes instead of \d+: it is missing"):
        made()


def test_mapped_files_may_be_as_small_as_a_byte_or_empty(tmp_path):
    shapes = {"small": ((1, 1), torch.uint8), "empty": ((4, 0), torch.float32)}
    made = MappedFiles(tmp_path).allocate("rows", shapes)
    made["small"][0] = 7
    again = MappedFiles(tmp_path).allocate("rows", shapes)
    assert (again["small"].tolist(), again["empty"].shape) == ([[7]], (4, 0))


def write_until_killed(directory, rows, enough, wait_until):
    """A process that is killed some time after its write heads are at this place."""

    def place():
        return int(np.frombuffer((directory / "heads.log.bin").read_bytes(), np.int64)[0] >> 32)

    process = subprocess.Popen(child("write for ever", directory, rows), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "writing\n"
        wait_until(lambda: place() >= enough, timeout_s=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.fault
@pytest.mark.parametrize("rows", [400, 40_000], ids=["wrapped", "filling"])
def test_a_writer_that_is_killed_leaves_every_complete_row(tmp_path, rows, wait_until):
    """F21, F9: SIGKILL at any moment; no row that counts is torn, and writing goes on behind them."""
    for attempt in range(4):
        directory = tmp_path / str(attempt)
        enough = min((rows // LANES if rows == 400 else 20) + 37 * attempt, rows // LANES)
        write_until_killed(directory, rows, enough, wait_until)
        buffer = mapped(directory, rows)
        assert len(buffer) > 0
        for lane in range(LANES):
            held = buffer[buffer.in_time_order(lane)]
            serials = held.observation[:, 0]
            assert (held.observation == serials[:, None]).all()
            assert torch.equal(serials.diff(), torch.ones(len(serials) - 1, dtype=torch.int64))
            assert torch.equal(held.reward, serials.float())
            assert torch.equal(held.action[:-1], serials[:-1] % 5)
            assert torch.equal(held.policy_version[:-1], serials[:-1].int())
        newest = int(buffer.observation[buffer.in_time_order(0)[-1]][0])
        buffer.open(arrival(newest))
        write(buffer, newest)


@pytest.mark.fault
@pytest.mark.needs_linux
def test_a_mapped_buffer_larger_than_the_memory_it_may_take_fills_samples_and_reloads(tmp_path):
    """F21: three times the anonymous memory that the process is allowed; resident memory of its own stays flat."""
    rows = 3 * 2**26 // (1024 * 8)
    for verb in ("fill", "sample"):
        done = subprocess.run(child(verb, tmp_path, rows), cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        held, grown, size, _ = map(int, done.stdout.split())
        assert held == rows // LANES * LANES
        assert size >= 3 * 2**26
        assert grown < 2**25
