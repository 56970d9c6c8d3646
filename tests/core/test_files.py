"""Tests of what files hold: `save_tensors`, `Batch.save`, and state as JSON values and arrays."""

import contextlib
import errno
import json
import math
import os
import stat
import subprocess
import sys
import tempfile
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from palaestra.core import (
    Batch,
    CheckpointError,
    ExperienceSet,
    join_state,
    load_tensors,
    save_tensors,
    split_state,
)
from palaestra.core.files import read_manifest, seal, temporary_folder, whole_folder, write_json
from tests.core.nests import assert_same


class Memory(NamedTuple):
    hidden: torch.Tensor
    cell: torch.Tensor


def test_tensors_arrays_numbers_and_text_keep_their_kind(tmp_path):
    values = {
        "tensor": torch.arange(3, dtype=torch.bfloat16),
        "array": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "big endian": np.arange(3, dtype=">f8"),
        "scalar": np.float64(0.1),
        "empty": torch.zeros(0, 4),
        "bool": True,
        "int": 2**60,
        "float": 0.1,
        "nothing": None,
        "text": "ünïcode.with/dots",
        "odd.name/": torch.tensor(3),
    }
    save_tensors(tmp_path / "file", values)
    loaded = load_tensors(tmp_path / "file")
    assert loaded.keys() == values.keys()
    for name, value in values.items():
        back = loaded[name]
        if isinstance(value, torch.Tensor):
            assert back.dtype == value.dtype
            assert torch.equal(back, value)
        elif isinstance(value, np.ndarray | np.generic):
            assert back.dtype == value.dtype.newbyteorder("=")
            np.testing.assert_array_equal(back, value)
        else:
            assert (type(back), back) == (type(value), value)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_says_who_may_read_a_file(tmp_path, umask, mode):
    """A policy on a shared disk is for colleagues, too."""
    before = os.umask(umask)
    try:
        save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == mode


def test_tensors_come_back_where_pytorch_puts_its_own(tmp_path):
    """A product of two rows has other bits at another address: a memory's next step after a resume would have."""
    kept = {f"a{n}": torch.arange(float(n)) for n in (1, 3, 5, 7, 130)}
    kept |= {"b": np.arange(9), "c": torch.zeros(3).bool()}
    save_tensors(tmp_path / "t", kept)
    loaded = load_tensors(tmp_path / "t")
    assert not [name for name, one in loaded.items() if torch.as_tensor(one).data_ptr() % 64]


def test_views_of_one_memory_are_saved_apart(tmp_path):
    whole = torch.arange(6.0)
    save_tensors(tmp_path / "file", {"whole": whole, "part": whole[2:4], "again": whole, "every": whole[::2]})
    loaded = load_tensors(tmp_path / "file")
    assert [loaded[name].tolist() for name in ("part", "again", "every")] == [[2, 3], [0, 1, 2, 3, 4, 5], [0, 2, 4]]


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(TypeError, match="'words' has dtype object; only numbers and booleans can be saved"):
        save_tensors(tmp_path / "file", {"words": np.array(["a", None])})
    with pytest.raises(TypeError, match="'f' is a builtin_function_or_method"):
        save_tensors(tmp_path / "file", {"f": math.cos})
    with pytest.raises(TypeError, match=r"a builtin_function_or_method cannot be saved \(at 'a.1'\)"):
        split_state({"a": [1, math.cos]})


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04]\x94."], ids=["empty", "garbage", "pickle"])
def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path, content):
    """F11, F12: a pickle is refused like any other stranger."""
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read as a safetensors file"):
        load_tensors(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tensors(tmp_path / "missing")


@pytest.mark.parametrize("metadata", ["[]", "{", '{"x": 1}', '{"gone": ["numpy", null]}'])
def test_damaged_metadata_is_refused(tmp_path, metadata):
    save_file({"a": torch.zeros(1)}, tmp_path / "file", metadata={"palaestra": metadata})
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tensors(tmp_path / "file")


def test_a_safetensors_file_of_another_program_can_be_read(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "file")
    assert load_tensors(tmp_path / "file")["a"].tolist() == [0, 0]
    with pytest.raises(CheckpointError, match="holds no Batch"):
        Batch.load(tmp_path / "file")


def test_a_batch_with_dotted_names_and_empty_nests_comes_back(tmp_path):
    """TS-06: names that would meet in one flat file stay apart."""
    batch = Batch({"a.b": np.zeros(1), "a": {"b": np.ones(1), "": np.full(1, 2.0)}, "e": {}, "n": 3, "t": "text"})
    batch.save(tmp_path / "file")
    assert_same(Batch.load(tmp_path / "file"), batch)
    assert "e" in Batch.load(tmp_path / "file")


def test_a_layout_comes_back_as_one(tmp_path):
    """MARO-40."""
    experiences = ExperienceSet(np.zeros((2, 1)), [1, 2], [0.5, 1.0], np.ones((2, 1)), {"priority": torch.ones(2)})
    experiences.save(tmp_path / "file")
    loaded = ExperienceSet.load(tmp_path / "file")
    assert type(loaded) is ExperienceSet
    assert_same(loaded, experiences)
    Batch(a=1).save(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"holds no ExperienceSet: .*missing"):
        ExperienceSet.load(tmp_path / "other")


def test_objects_are_refused_instead_of_pickled(tmp_path):
    """TS-03, F12."""
    with pytest.raises(TypeError, match="'d' has dtype object"):
        Batch(d=("a", -2, -3)).save(tmp_path / "file")


def test_named_tuples_keep_their_fields():
    """The memory of a recurrent policy can be read by name after a resume."""
    values, arrays = split_state({"state": Memory(torch.zeros(1), torch.ones(1))})
    state = join_state(json.loads(json.dumps(values)), arrays)["state"]
    assert state.cell.item() == 1
    assert [x.item() for x in state] == [0, 1]


def test_state_goes_through_json_text():
    state = {"a": [1, (2.5, None)], 3: {"$array": True}, "inf": math.inf, "g": np.float32(0.5), "t": torch.ones(2)}
    values, arrays = split_state(state)
    back = join_state(json.loads(json.dumps(values)), arrays)
    assert torch.equal(back.pop("t"), state.pop("t"))
    assert back == state


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"$array": "gone"}, "refers to the array 'gone', which is missing"),
        ({"$future": 1}, "holds '\\$future', which this version does not know"),
        ({"$tuple": 5}, "not what this version writes"),
        ({"$record": {"class": 1}}, "not what this version writes"),
        ({"$items": [[1]]}, "not what this version writes"),
        ({"$array": ["a"]}, "not what this version writes"),
    ],
)
def test_damaged_state_is_refused(values, message):
    """F11."""
    with pytest.raises(CheckpointError, match=message):
        join_state(values, {})


@pytest.mark.parametrize(("number", "of_files"), [(errno.EINVAL, False), (errno.EINVAL, True), (errno.EIO, False)])
def test_a_directory_that_cannot_be_flushed_is_no_fault(number, of_files, tmp_path, monkeypatch):
    """Some mounts refuse that; a file has to be on the disk everywhere."""

    def refuse(descriptor):
        if of_files or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    is_fault = of_files or number == errno.EIO
    refused = pytest.raises(CheckpointError, match="cannot be written") if is_fault else contextlib.nullcontext()
    with refused, whole_folder(tmp_path / "folder", "folder") as folder:
        write_json(folder / "file", 1)


def test_what_a_killed_process_left_goes_with_the_next_folder_and_what_others_have_stays(tmp_path, monkeypatch):
    """Every run with workers that was killed left its `palaestra-told-*` for good."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = """
import sys
from palaestra.core.files import told_once
with told_once():
    print(flush=True)
    sys.stdin.read()
"""
    command, environment = [sys.executable, "-c", program], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (its,) = tmp_path.iterdir()
        with temporary_folder("said") as mine, temporary_folder("verification"):
            assert {its, mine} < {*tmp_path.iterdir()}
        assert [*tmp_path.iterdir()] == [its]
        other.kill()
        other.wait()
    with temporary_folder("said") as mine:
        assert [*tmp_path.iterdir()] == [mine]


def test_what_a_killed_process_has_left_unfinished_goes_with_the_next_whole_folder_beside_it(tmp_path):
    """`share`, `export` and `data collect` left a hidden folder in the user's own for good."""
    program = f"""
import os, pathlib, signal
from palaestra.core.files import whole_folder
with whole_folder(pathlib.Path({str(tmp_path / "killed")!r}), "folder"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    (left,) = tmp_path.iterdir()
    with whole_folder(tmp_path / "first", "folder") as mine:
        os.utime(mine, (0, 0))
        with whole_folder(tmp_path / "second", "folder"):
            assert left.exists() and mine.exists()  # not old enough; locked
    os.utime(left, (0, 0))
    with whole_folder(tmp_path / "third", "folder"):
        assert not left.exists()


def test_hidden_folders_of_the_user_and_of_other_machines_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    machine, other = os.uname().nodename, f"1-{'0' * 32}"
    theirs = [tmp_path / f"{kind}{machine}-{name}" for kind in (".tmp-", ".palaestra-x@") for name in ("cache", other)]
    for folder in theirs:
        folder.mkdir()
        os.utime(folder, (0, 0))
    with whole_folder(tmp_path / "made", "folder"), temporary_folder("x"):
        assert all(folder.exists() for folder in theirs)


def test_a_sealed_folder_lists_no_hidden_files(tmp_path):
    """A system puts `.DS_Store` or `._name` into folders and takes them away, and the folder was damaged then."""
    for name in ("weights", ".DS_Store", "._weights"):
        (tmp_path / name).write_text(name)
    seal(tmp_path, 1)
    assert list(read_manifest(tmp_path, 1)["files"]) == ["weights"]
