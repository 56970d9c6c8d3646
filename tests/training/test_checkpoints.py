"""Tests of `palaestra.training.checkpoints`; what may go wrong is in tests/faults."""

import json
import os
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.buffers import saving
from palaestra.core import Batch, CheckpointError, files
from palaestra.core.files import second_copy
from palaestra.training import CheckpointStore
from tests.buffers.model import filled


def state(step: int) -> dict[str, Any]:
    """Of every kind that a checkpoint holds."""
    return {
        "trainer": {"step": step, "best": None, "next": {"eval": 3.5}, "recent": [[1.0, 2, 0, {"x": 1.0}]]},
        "buffer": {"field.reward": torch.arange(6.0).view(2, 3) + step, "count": np.array([step, 2]), "used": True},
        "algorithm": {
            "model.q.weight": torch.full((2, 2), float(step)),
            "generator": torch.zeros(3, dtype=torch.uint8),
        },
        "collect": {"time_step": Batch.of({"observation": torch.ones(2), "nested": Batch.of({"a": torch.zeros(1)})})},
    }


def test_what_is_saved_comes_back(tmp_path):
    """F25: values, tensors, arrays, batches and tuples, each of its own kind and dtype."""
    store = CheckpointStore(tmp_path)
    path = store.save(12, state(12) | {"extra": {"tuple": (1, torch.ones(1)), "nothing": None}})
    assert path.name == "step_0000000012"
    step, loaded = store.load(path)
    assert step == 12
    assert loaded["trainer"] == state(12)["trainer"]
    assert torch.equal(loaded["buffer"]["field.reward"], state(12)["buffer"]["field.reward"])
    assert isinstance(loaded["buffer"]["count"], np.ndarray)
    assert loaded["buffer"]["count"].tolist() == [12, 2]
    assert loaded["buffer"]["used"] is True
    assert loaded["algorithm"]["generator"].dtype == torch.uint8
    assert isinstance(loaded["collect"]["time_step"], Batch)
    assert loaded["extra"]["tuple"] == (1, torch.ones(1))


def test_a_checkpoint_is_made_of_safetensors_json_and_a_manifest(tmp_path):
    """RELIABILITY.md, mechanism 4: sizes and hashes of all files, the format version and the step."""
    path = CheckpointStore(tmp_path).save(3, state(3))
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format_version"], manifest["step"]) == (1, 3)
    assert set(manifest["files"]) == {file.name for file in path.iterdir()} - {"manifest.json"}
    assert {name.split(".")[-1] for name in manifest["files"]} == {"safetensors", "json"}
    for name, fingerprint in manifest["files"].items():
        assert fingerprint["size_bytes"] == (path / name).stat().st_size
        assert len(fingerprint["sha256"]) == 64


def test_the_newest_ones_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (5, 10, 100, 20_000_000_000):
        store.save(step, state(0))
    assert [path.name for path in store.steps()] == ["step_0000000100", "step_20000000000"]
    assert store.load_newest()[0] == 20_000_000_000


def test_the_newest_has_the_largest_number_however_many_digits_it_has(tmp_path):
    """Names are of ten digits, and the eleventh would sort them by the first: 10^10 before 9,999,999,999."""
    store = CheckpointStore(tmp_path, keep=2)
    for step in (9_999_999_998, 9_999_999_999, 10_000_000_000, 10_000_000_001):
        store.save(step, state(0))
    assert [path.name for path in store.steps()] == ["step_10000000000", "step_10000000001"]
    assert store.load_newest()[0] == 10_000_000_001


@pytest.mark.parametrize("keep", [0, 1, -3])
def test_never_fewer_than_two_are_kept(tmp_path, keep):
    """RELIABILITY.md, mechanism 4: one to fall back to."""
    store = CheckpointStore(tmp_path, keep=keep)
    for step in (1, 2, 3):
        store.save(step, state(step))
    assert len(store.steps()) == 2


def test_a_checkpoint_is_never_overwritten(tmp_path):
    store = CheckpointStore(tmp_path)
    path = store.save(1, state(1))
    before = {file.name: (file.read_bytes(), file.stat().st_ino) for file in path.iterdir()}
    assert store.save(1, state(2)) == path
    assert {file.name: (file.read_bytes(), file.stat().st_ino) for file in path.iterdir()} == before


@pytest.mark.needs_linux
def test_everything_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """F9, mechanism 4: files, then the manifest, the directory, the rename, the parent; pruning last."""
    events: list[str] = []
    names: dict[int, str] = {}
    fsync, opened, rename = os.fsync, os.open, os.rename

    def spy_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        descriptor = opened(path, flags, *args, **kwargs)
        names[descriptor] = os.path.basename(os.fspath(path))
        return descriptor

    def spy_fsync(descriptor: int) -> None:
        target = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).removeprefix(".")
        events.append(f"sync {'the temporary directory' if target.startswith('tmp-') else target}")
        fsync(descriptor)

    def spy_rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        events.append(f"rename to {os.path.basename(os.fspath(target))}")
        rename(source, target, *args, **kwargs)

    monkeypatch.setattr(os, "open", spy_open)
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(7, state(7))
    parts = {f"sync {name}" for name in ("algorithm.safetensors", "buffer.safetensors", "collect.safetensors")}
    assert {*events[:4]} == {*parts, "sync state.json"}
    assert events[4:] == [
        "sync manifest.json",
        "sync the temporary directory",
        "rename to step_0000000007",
        "sync checkpoints",
    ]


def test_without_a_checkpoint_there_is_an_error_and_no_fresh_start(tmp_path):
    """Mechanism 4: never start from scratch silently."""
    with pytest.raises(CheckpointError, match=r"no valid checkpoint in .*: there is none") as caught:
        CheckpointStore(tmp_path / "checkpoints").load_newest()
    assert caught.value.exit_code == 5


def test_a_value_that_cannot_be_saved_is_named_and_leaves_nothing(tmp_path):
    store = CheckpointStore(tmp_path)
    with pytest.raises(TypeError, match="object"):
        store.save(1, {"part": {"x": object()}})
    assert store.steps() == []


def test_the_newest_pieces_of_a_buffer_are_written_twice(tmp_path, monkeypatch):
    """D3: so many as the store is told; one that is damaged is read from its second copy."""
    monkeypatch.setattr(saving, "_SMALLEST", 1)
    buffer, _ = filled(128, 2, 40)
    path = CheckpointStore(tmp_path, copies=2).save(1, {"buffer": buffer.state_tensors()})
    copies = {file.name for file in path.iterdir()} & {second_copy(file.name) for file in path.glob("segment-*")}
    assert len(copies) == 2
    damaged = next(file for file in path.glob("segment-*") if second_copy(file.name) in copies)
    damaged.write_bytes(b"")
    store = CheckpointStore(tmp_path)
    assert "lost" not in store.load(path)[1]["buffer"]
    (path / second_copy(damaged.name)).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{damaged.name} is missing or damaged"):
        store.load(path)
    assert len(store.load(path, without_lost=True)[1]["buffer"]["lost"]) == 1
    (path / "state.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"state.json is missing or damaged"):
        store.load(path, without_lost=True)


def test_a_lost_piece_of_a_buffer_is_refused_unless_it_may_be_left_out(tmp_path, monkeypatch):
    """D3: what is left of the buffer then comes back, with the numbers of what is lost."""
    monkeypatch.setattr(saving, "_SMALLEST", 1)
    buffer, _ = filled(128, 2, 40)
    store = CheckpointStore(tmp_path)
    path = store.save(1, {"buffer": buffer.state_tensors()})
    step, whole = store.load(path, without_lost=True)
    first = min(path.glob("segment-*"))
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{first.name} is missing or damaged"):
        store.load(path)
    again, left = store.load(path, without_lost=True)
    assert (step, again) == (1, 1)
    assert "lost" not in whole["buffer"]
    assert len(left["buffer"]["lost"]) == 1


def test_a_damaged_checkpoint_is_put_aside(tmp_path):
    """F11: also where an earlier one of the same name was, and where none was."""
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, state(step))
    for _ in range(2):
        (store.steps()[-1] / "state.json").write_text("{")
        assert store.load_newest()[0] == 1
        assert [path.name for path in tmp_path.glob("*.corrupt")] == ["step_0000000002.corrupt"]
        store.save(2, state(2))


def test_a_checkpoint_that_is_replaced_is_there_until_the_new_one_is_whole(tmp_path, monkeypatch):
    """F9: a run that ends at an env step that it has saved already writes that step's checkpoint again."""
    store = CheckpointStore(tmp_path)
    path = store.save(1, state(1))
    seal, there = files.seal, []

    def noted(*args: Any, **named: Any) -> None:
        seal(*args, **named)
        there.append(CheckpointStore(tmp_path).load(path)[1]["trainer"])

    monkeypatch.setattr(files, "seal", noted)
    store.save(1, state(2), replace=True)
    assert there == [state(1)["trainer"]]
    assert store.load_newest()[1]["trainer"] == state(2)["trainer"]
    path.rename(tmp_path / f".tmp-{path.name}")  # killed between two renames
    assert not store.never_saved and store.steps() == []
    assert store.load_newest()[1]["trainer"] == state(2)["trainer"]


def test_values_that_could_not_be_read_again_are_not_saved(tmp_path, monkeypatch):
    """Every checkpoint with them would have been renamed to `.corrupt` by the resumed run."""
    monkeypatch.setattr("palaestra.training.checkpoints._MOST_BYTES", 2_000)
    store = CheckpointStore(tmp_path)
    store.save(1, state(1))
    with pytest.raises(CheckpointError, match=r"could not be read again: .* most of them in 'hook', and at most 2,000"):
        store.save(2, state(2) | {"hook": [0.5] * 1_000})
    assert store.load_newest()[0] == 1


def test_a_fork_shares_what_its_parent_shared(tmp_path, monkeypatch):
    """It had every piece of a buffer once for each checkpoint."""
    monkeypatch.setattr(saving, "_SMALLEST", 1)
    buffer, _ = filled(128, 2, 40)
    parent, child = CheckpointStore(tmp_path / "parent", run_id="a"), CheckpointStore(tmp_path / "child", run_id="b")
    for step in (1, 2):
        parent.save(step, {"buffer": buffer.state_tensors()})
    child.take_over(parent, 2)
    for path in parent.steps():
        names = [file.name for file in path.glob("*segment-*")]
        first, again = (parent.directory / "step_0000000001", child.directory / path.name)
        assert names and not any(os.path.samefile(first / name, again / name) for name in names)
        assert all(os.path.samefile(child.directory / first.name / name, again / name) for name in names)
    assert child.load_newest()[0] == 2
