"""Full disks, damaged, newer and malicious files: refused by name, fallen back from, never executed (F10 to F13)."""

import errno
import json
import logging
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import palaestra
import palaestra.core.files
import palaestra.training.checkpoints as checkpoints
from palaestra.core import CheckpointError, ConfigError, PalaestraError
from palaestra.core.files import fingerprint, write_manifest
from palaestra.experiments import read_faults
from palaestra.training import CheckpointStore
from tests.experiments.parts import trained
from tests.faults.killed import state, whole
from tests.faults.parts import COMMAND, command, steps_of


def stored(folder: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder, keep=10)
    for step in steps:
        store.save(step, state(step, rows=4))
    return store


def resigned(path: Path) -> None:
    """What an attacker does who knows the format: makes every hash right again."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"] = {
        file.name: fingerprint(file) for file in sorted(path.iterdir()) if file.name != "manifest.json"
    }
    write_manifest(path, manifest)


# -- F10


def raising(error: Exception, at: int) -> Callable[..., Any]:
    """A replacement that raises at its n-th call."""
    count = 0

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise error
            return original(*args, **kwargs)

        return called

    return wrap


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name", "error", "at"),
    [
        *((os, "fsync", FULL, at) for at in range(1, 6)),
        *(
            (palaestra.core.files, "save_file", SafetensorError("I/O error: No space left on device"), at)
            for at in (1, 2)
        ),
        *((palaestra.core.files, name, FULL, 1) for name in ("write_json", "write_manifest")),
        (Path, "mkdir", FULL, 1),
        (Path, "rename", FULL, 1),
    ],
)
def test_a_full_disk_leaves_the_older_checkpoints_as_they_are(tmp_path, monkeypatch, owner, name, error, at):
    """F10: wherever it strikes; no leftovers, and the next save works when there is room again."""
    store = stored(tmp_path / "checkpoints", 1, 2)
    before = {path: path.read_bytes() for path in sorted(store.directory.rglob("*")) if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(error, at)(getattr(owner, name)))
        with pytest.raises(CheckpointError, match=r"step_0000000003 cannot be written: .*No space left") as caught:
            store.save(3, state(3, rows=4))
    assert caught.value.exit_code == 5
    assert {path: path.read_bytes() for path in sorted(store.directory.rglob("*")) if path.is_file()} == before
    store.save(3, state(3, rows=4))
    assert store.load_newest()[0] == 3


def test_a_run_on_a_full_disk_ends_with_5_and_its_older_checkpoints(tmp_path):
    """F10: a real limit of the operating system on the size of a file, which the growing replay buffer meets."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    text = command(
        *("train", "dqn", "palaestra.envs.tiny:Endless", "--env.kwargs", "size", "50"),
        *("--trainer.total-env-steps", "5000", "--trainer.checkpoint-every-steps", "200"),
        *("--trainer.eval-every-steps", "0", "--run.name", "full", "--run.no-tensorboard"),
        *("--algorithm.network.hidden-sizes", "8", "--algorithm.learning-starts", "100000"),
        folder=tmp_path,
        program=f"{limit}; {COMMAND}",
        check=5,
    )
    assert "CheckpointError" in text
    assert "cannot be written" in text
    run = tmp_path / "runs" / "full"
    assert len(steps_of(run)) >= 2
    assert CheckpointStore(run / "checkpoints").load_newest()[0] == steps_of(run)[-1]
    assert not list((run / "checkpoints").glob(".tmp-*"))


@pytest.mark.parametrize("what", ["records.write_fault", "run_directory.replace_text"])
def test_records_that_do_not_fit_end_no_run(what, tmp_path, monkeypatch, caplog):
    """F10: neither those of faults that were survived, which are written later, nor that there is a checkpoint."""
    place, name = "palaestra.runs." + what, what.rpartition(".")[2]
    original = getattr(sys.modules[place.rpartition(".")[0]], name)
    full = [FULL, FULL]

    def failing(*arguments: Any) -> Any:
        if full and (name == "write_fault" or (arguments[0].name == "run.json" and '"saved"' in arguments[1])):
            raise full.pop()
        return original(*arguments)

    monkeypatch.setattr(place, failing)
    monkeypatch.setattr("palaestra.envs.supervision.faults._LONGEST_WAIT_S", 0.0)  # 13 s of eight restarts
    settings = {"env__chaos": "raise@3#1", "env__on_fault": "restart", "trainer__log_every_steps": 8}
    settings |= {"trainer__total_env_steps": 32}
    done = trained(tmp_path, **settings, trainer__checkpoint_every_steps=8)
    assert done.result.status == "done"
    assert not full
    assert "cannot be written" in caplog.text
    faults = read_faults(done.directory)
    assert len({(fault.details["episode"], fault.details["step"]) for fault in faults}) == len(faults) > 2
    assert not list((done.directory / "faults").glob(".*"))


# -- F11


def test_a_truncated_file_is_noticed_at_every_length(tmp_path):
    """F11: every file, cut to the start, the middle, one byte short, and empty."""
    store = stored(tmp_path, 1)
    (path,) = store.steps()
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for length in {0, 1, 8, len(content) // 3, len(content) // 2, len(content) - 1}:
            file.write_bytes(content[:length])
            with pytest.raises(CheckpointError):
                store.load(path)
        file.write_bytes(content)
    assert store.load(path)[0] == 1


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    """F11: 400 random bits, in every file, the manifest included."""
    store = stored(tmp_path, 1)
    (path,) = store.steps()
    draw = random.Random(0)
    files = sorted(path.iterdir())
    for number in range(400):
        file = files[number % len(files)]
        content = file.read_bytes()
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(damaged))
        with pytest.raises(CheckpointError):
            store.load(path)
        file.write_bytes(content)
    assert store.load(path)[0] == 1


@pytest.mark.parametrize("file", ["manifest.json", "state.json", "buffer.safetensors"])
def test_a_missing_file_is_noticed(tmp_path, file):
    store = stored(tmp_path, 1)
    (path,) = store.steps()
    (path / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        store.load(path)


def test_damaged_checkpoints_are_put_aside_and_the_newest_valid_one_is_loaded(tmp_path, caplog):
    """F11: renamed to *.corrupt, with a loud warning that names file and reason; also a second time."""
    for _ in range(2):
        store = stored(tmp_path, 1, 2, 3)
        for path in store.steps()[1:]:
            (path / "buffer.safetensors").write_bytes(b"damaged")
        with caplog.at_level(logging.WARNING):
            step, saved = store.load_newest()
        assert step == 1
        assert whole(1, saved)
        assert sorted(path.name for path in tmp_path.glob("*.corrupt")) == [
            "step_0000000002.corrupt",
            "step_0000000003.corrupt",
        ]
        assert "buffer.safetensors is missing or damaged" in caplog.text
        assert "step_0000000003.corrupt and an older checkpoint is tried" in caplog.text


def test_without_a_valid_one_the_error_names_every_damage(tmp_path):
    """F11: never from scratch silently."""
    store = stored(tmp_path, 1, 2)
    for path in store.steps():
        (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no valid checkpoint in .*step_0000000002.*step_0000000001"):
        store.load_newest()


# -- F12


class Canary:
    """A pickle that leaves a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_in_a_checkpoint_is_refused_and_never_executed(tmp_path, protocol):
    """F12: instead of every file, and with every hash made right again."""
    canary = tmp_path / "executed"
    store = stored(tmp_path / "checkpoints", 1)
    (path,) = store.steps()
    for file in sorted(path.iterdir()):
        content = {other: other.read_bytes() for other in path.iterdir()}
        file.write_bytes(pickle.dumps(Canary(canary), protocol))
        if file.name != "manifest.json":
            resigned(path)
        with pytest.raises(CheckpointError):
            store.load(path)
        for other, before in content.items():
            other.write_bytes(before)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Canary(canary)))  # the canary does sing
    assert canary.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every file."""
    done = palaestra.train(
        "ppo",
        "palaestra.envs.tiny:Chain",
        env__max_episode_steps=5,
        trainer__total_env_steps=64,
        trainer__eval_episodes=2,
        algorithm__unroll_length=8,
        run__directory=str(tmp_path_factory.mktemp("runs")),
        run__name="run",
        run__tensorboard=False,
    )
    return done.directory


@pytest.mark.parametrize(
    ("file", "refused_by"),
    [
        ("config.yaml", ("resume", "evaluate")),
        ("policy/policy.json", ("evaluate",)),
        ("policy/weights.safetensors", ("evaluate",)),
        ("run.json", ()),
        ("metrics.jsonl", ()),
        ("episodes.csv", ()),
        ("evals/0.json", ()),
    ],
)
def test_a_pickle_in_a_run_directory_is_never_executed(tmp_path, finished, file, refused_by):
    """F12: every other file slot of a run; what needs the file refuses it by name, what does not goes on."""
    canary = tmp_path / "executed"
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / file).write_bytes(pickle.dumps(Canary(canary)))
    uses: dict[str, Callable[[], Any]] = {
        "resume": lambda: palaestra.resume(str(run)),
        "evaluate": lambda: palaestra.evaluate_run(str(run), episodes=1),
    }
    for name, use in uses.items():
        if name in refused_by:
            with pytest.raises(PalaestraError, match=file.split("/")[-1]):
                use()
        else:
            use()
    assert not canary.exists()


def test_a_yaml_tag_in_a_configuration_is_refused_and_never_executed(tmp_path, finished):
    """F12: no Python objects in config.yaml."""
    canary = tmp_path / "executed"
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    tag = f"!!python/object/apply:builtins.open ['{canary}', 'w']"
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("seed: 0", f"seed: {tag}"))
    with pytest.raises(ConfigError, match="cannot be read"):
        palaestra.resume(str(run))
    assert not canary.exists()


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/hostname", "..", "sub/file", ""])
def test_a_manifest_cannot_name_files_outside(tmp_path, name):
    """F12: path traversal."""
    store = stored(tmp_path / "checkpoints", 1)
    (path,) = store.steps()
    (path.parent / "outside.safetensors").write_bytes(b"x")
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"][name] = {"sha256": "0" * 64, "size_bytes": 1}
    write_manifest(path, manifest)
    with pytest.raises(CheckpointError, match="missing or damaged"):
        store.load(path)


def test_a_part_cannot_name_files_outside(tmp_path):
    """F12: the parts of state.json name tensor files; only those of the manifest are opened."""
    store = stored(tmp_path / "checkpoints", 1)
    (path,) = store.steps()
    shutil.copy(path / "buffer.safetensors", path.parent / "outside.safetensors")
    values = json.loads((path / "state.json").read_text())
    values["../outside"] = values["buffer"]
    (path / "state.json").write_text(json.dumps(values))
    resigned(path)
    with pytest.raises(CheckpointError, match="which is missing"):
        store.load(path)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"null", b"[]", b'{"format_version": "1", "step": [], "files": 3, "sha256": 1}', b"\xff\xfe\x00"],
)
@pytest.mark.parametrize("file", ["manifest.json", "state.json"])
def test_json_of_any_shape_is_refused_with_the_name_of_the_file(tmp_path, file, content):
    """F12: deep nesting, other types, no text."""
    store = stored(tmp_path, 1)
    (path,) = store.steps()
    (path / file).write_bytes(content)
    if file == "state.json":
        resigned(path)
    if (file, content[:1]) == ("state.json", b"{"):
        assert store.load(path)[1]["sha256"] == 1
        return
    with pytest.raises(CheckpointError, match=file):
        store.load(path)


def test_a_huge_safetensors_header_is_refused(tmp_path):
    """F12: a header of 2^60 bytes is not allocated."""
    store = stored(tmp_path, 1)
    (path,) = store.steps()
    (path / "buffer.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    resigned(path)
    with pytest.raises(CheckpointError, match=r"buffer.safetensors cannot be read"):
        store.load(path)


# -- F13


def test_a_newer_format_is_a_clear_error_and_stays_as_it_is(tmp_path):
    """F13: nothing to fall back from, nothing corrupt: an update of the library is what is needed."""
    store = stored(tmp_path, 1, 2)
    path = store.steps()[-1]
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["format_version"] = checkpoints.FORMAT_VERSION + 1
    write_manifest(path, manifest)
    text = rf"has format {checkpoints.FORMAT_VERSION + 1}, this version reads {checkpoints.FORMAT_VERSION}: update pal"
    with pytest.raises(CheckpointError, match=text):
        store.load_newest()
    assert [found.name for found in store.steps()] == ["step_0000000001", "step_0000000002"]
