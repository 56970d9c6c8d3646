"""Run directories that are deleted while the run goes on."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra import Trainer
from palaestra.core import RunLostError
from palaestra.experiments import RunDirectory
from palaestra.training import Callback
from tests.cli.parts import exit_code, output, train
from tests.experiments.parts import config_of, trained
from tests.faults.parts import COMMAND, child_environment, logged
from tests.runs.test_lineage import contents

LONG = ("--trainer.total-env-steps", "100000", "--trainer.log-every-steps", "16", "--trainer.eval-every-steps", "0")


@pytest.fixture
def deleting(tmp_path, monkeypatch):
    """Deletes the run directory, or all of them, after some iterations."""
    monkeypatch.chdir(tmp_path)
    train_iter = Trainer.train_iter

    def set_up(what: str, iterations: int = 5) -> None:
        made = itertools.count(1)

        def counted(trainer: Trainer) -> None:
            train_iter(trainer)
            if next(made) == iterations:
                shutil.rmtree(what)

        monkeypatch.setattr(Trainer, "train_iter", counted)

    return set_up


ARGUMENTS = ("train", "ppo", "palaestra.envs.tiny:Chain", "--env.max-episode-steps", "6", "--run.name", "run")
SIZES = ("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8")


@pytest.mark.parametrize("what", ["runs/run", "runs/run/checkpoints", "runs"])
def test_a_deleted_run_directory_ends_the_run_with_5_and_one_message(deleting, capsys, what):
    """D7: nothing is made again, and a record lies beside where it was, if there is a folder for it."""
    deleting(what)
    end = ("--trainer.checkpoint-every-steps", "64") if "checkpoints" in what else ()
    assert exit_code(*ARGUMENTS, *SIZES, *LONG, *end) == 5
    text = output(capsys)
    assert text.count("RunLostError") == 1
    assert "is gone: it was deleted, moved or unmounted while the run went on" in text
    if what == "runs/run":
        record = json.loads(Path("runs/run.lost.json").read_text())
        assert "recorded runs/run.lost.json" in text
        assert record["kind"] == "RunLostError"
        assert 0 < record["env_steps"] < 1000
        assert not Path("runs/run").exists()
    if "checkpoints" in what:
        assert RunDirectory("runs/run").status == "failed"
        assert len(list(Path("runs/run/faults").iterdir())) == 1


def test_a_directory_that_is_deleted_at_the_very_end_is_noticed(deleting, capsys, monkeypatch):
    """D7: between the last row of metrics and the end of the run."""
    deleting("runs/run", iterations=3)
    assert exit_code(*ARGUMENTS, *SIZES, "--trainer.total-env-steps", "192", "--trainer.log-every-steps", "10000") == 5
    assert "is gone" in output(capsys)


def test_checkpoints_of_a_run_that_was_never_saved_may_be_made(tmp_path, monkeypatch, capsys):
    """D7: only what was there can be missed; where the folder is gone, it was there."""
    monkeypatch.chdir(tmp_path)
    run = train()
    RunDirectory(run).write_info({"status": "running", "env_steps": None, "saved": None})  # as a kill leaves it
    shutil.rmtree(run / "checkpoints")
    assert exit_code("resume", str(run), "--until", "96") == 5
    assert "the checkpoints of the run runs/run are gone" in output(capsys)
    (run / "checkpoints").mkdir()
    assert exit_code("resume", str(run), "--until", "96") == 0


@pytest.mark.fault
def test_a_directory_that_is_deleted_by_another_process(tmp_path, wait_until):
    """D7: with TensorBoard, and the real command."""
    command = [sys.executable, "-c", COMMAND, *ARGUMENTS, *SIZES, *LONG]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=child_environment()
    ) as process:
        run = tmp_path / "runs" / "run"
        wait_until(lambda: len(logged(run)) > 3, 90)
        run.rename(tmp_path / "moved")
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 5, text
    assert text.count("is gone") == 1
    assert "Traceback" not in text
    assert (tmp_path / "runs" / "run.lost.json").exists()


class Moved(Callback):
    """Moves the run away, and begins another of its name."""

    def __init__(self, run):
        self.run = run

    def iteration_ended(self, trainer, updates):
        runs = self.run.parent
        if not (runs / "before").exists():
            self.run.rename(runs / "before")
            RunDirectory.create(config_of(runs, run__name="run"))
            self.found = contents(self.run)


class Copied(Callback):
    """Writes the run's lock anew, as programs do that keep folders alike."""

    def __init__(self, run):
        self.run = run

    def iteration_ended(self, trainer, updates):
        copy = shutil.copyfile(self.run / "run.lock", self.run / "copy")
        copy.replace(self.run / "run.lock")


def test_a_run_whose_lock_was_replaced_is_still_itself(tmp_path):
    trained(tmp_path, "run", trainer__eval_every_steps=16, callbacks=[Copied(tmp_path / "run")])
    assert len([*(tmp_path / "run" / "evals").glob("*.json")]) > 2


@pytest.mark.parametrize("writes", ["eval", "checkpoint", "log"])
def test_a_run_writes_nothing_into_another_that_has_its_name_by_now(tmp_path, writes):
    """Its policies, evaluations and checkpoints went there, and its end."""
    periods = {f"trainer__{name}_every_steps": 16 if name == writes else 0 for name in ("eval", "checkpoint")}
    log_every_steps, moved = 16 if writes == "log" else 10_000, Moved(tmp_path / "run")
    with pytest.raises(RunLostError, match=r"the run directory .*run is gone: it was deleted, moved"):
        trained(tmp_path, "run", **periods, trainer__log_every_steps=log_every_steps, callbacks=[moved])
    assert contents(tmp_path / "run") == moved.found
    assert json.loads((tmp_path / "run.lost.json").read_text())["env_steps"] < 96
