"""Checkpoints that are whole and lie in the wrong place, and run directories that cannot be written."""

import errno
import os
import shutil
from pathlib import Path

import pytest

import palaestra
from palaestra.core import CheckpointError
from palaestra.experiments import RunDirectory
from tests.cli.parts import exit_code, output
from tests.experiments.parts import trained


@pytest.fixture
def runs(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """Two that differ in their seeds."""
    monkeypatch.chdir(tmp_path)
    return tuple(trained(tmp_path / "runs", name, run__seed=i).directory for i, name in enumerate("ab"))


def newest(run: Path) -> Path:
    return RunDirectory(run).checkpoints().steps()[-1]


def test_a_checkpoint_of_another_run_is_refused(runs, capsys):
    """D5: by resume and by eval, exit code 5; it stays as it is, and without it the run goes on from its own."""
    one, other = runs
    own, given = newest(one), newest(other)
    foreign = own.with_name("step_0000009999")
    shutil.rmtree(own)
    shutil.copytree(given, own.with_name(given.name))
    for verb in (["resume", str(one), "--until", "20000"], ["eval", str(one), "--which", "last"]):
        assert exit_code(*verb) == 5
        text = output(capsys)
        assert "is a checkpoint of another run" in text
        assert "CheckpointError" in text and "_MisplacedError" not in text  # that name is nobody's
    assert not foreign.exists()
    assert own.with_name(given.name).exists()
    shutil.rmtree(own.with_name(given.name))
    assert palaestra.resume(one, trainer__total_env_steps=200).result.status == "done"


def test_names_of_checkpoints_that_were_swapped_are_noticed(runs, capsys):
    """D5: the message says what the name was."""
    run, _ = runs
    first, *_, last = RunDirectory(run).checkpoints().steps()
    aside = first.with_name("aside")
    first.rename(aside)
    last.rename(first)
    aside.rename(last)
    assert exit_code("resume", str(run), "--until", "20000") == 5
    assert f"so its name was changed; rename it to {first.name}" in output(capsys)


def test_a_fork_makes_the_checkpoints_its_own(runs):
    """D5: they go on in the fork, twice over, and are refused in the parent once they were."""
    run, _ = runs
    child = palaestra.resume(run, fork="child", trainer__total_env_steps=140).directory
    grandchild = palaestra.resume(child, fork="grandchild", trainer__total_env_steps=180)
    assert grandchild.result.status == "done"
    assert len({RunDirectory(path).info["id"] for path in (run, child, grandchild.directory)}) == 3
    with pytest.raises(CheckpointError, match="another run"):
        RunDirectory(run).checkpoints().load(newest(child))


def test_a_run_whose_record_is_damaged_goes_on(runs):
    """D5: `run.json` is no part of what a run needs, and neither is the id in it."""
    run, _ = runs
    (run / "run.json").write_text("{")
    assert palaestra.resume(run, trainer__total_env_steps=140).result.status == "done"


def test_read_only_media_are_read_past_a_damaged_checkpoint(runs, monkeypatch, capsys):
    """D8: `eval` and `resume --fork` use the older one, rename nothing, and write where they can."""
    run, _ = runs
    (newest(run) / "state.json").write_text("{}")
    before = sorted(path for path in run.rglob("*"))
    access, below = os.access, str(run.parent.resolve())

    def refused(original):
        def called(path, *rest, **named):
            if str(Path(path).resolve()).startswith(below):
                raise OSError(errno.EROFS, "Read-only file system")
            return original(path, *rest, **named)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, *rest: str(path) != str(run.parent) and access(path, *rest))
        for name in ("mkdir", "rename", "replace", "write_text"):
            patch.setattr(Path, name, refused(getattr(Path, name)))
        assert exit_code("eval", str(run), "--which", "last", "--episodes", "1") == 0
        assert exit_code("resume", str(run), "--fork", "--root", "elsewhere", "--until", "150") == 0
        assert exit_code("resume", str(run), "--until", "150") == 5
    assert "Read-only file system" in output(capsys)
    assert sorted(path for path in run.rglob("*")) == sorted({*before, run / "run.lock"})
    assert RunDirectory("elsewhere/a_fork").env_steps >= 150
