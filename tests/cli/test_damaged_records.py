"""Records that are damaged, edited or another run's: said, and never a raw error."""

import json
import os
import shutil
from pathlib import Path

import pytest

from palaestra.experiments import RunDirectory
from palaestra.runs import records, run_directory
from palaestra.runs.records import read_evaluations
from tests.cli.parts import exit_code, output, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(name="a")
        train("--seed", "1", name="b")
    return folder


@pytest.fixture
def copy(folder, monkeypatch, tmp_path):
    """A copy of a run below the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "runs", "runs")
    records.say_once.cache_clear()
    return Path("runs/a")


def edited(path):
    path.write_text(path.read_text().replace("return_mean", "return_maen", 1))


def another(path):
    shutil.copyfile(f"runs/b/{path.name}", path)


def garbage(path):
    path.write_bytes(path.read_bytes() + b"\xff\xfe\x00 garbage\n")


@pytest.mark.parametrize(
    ("command", "name", "damage"),
    [
        ("report a", "metrics.jsonl", edited),
        ("report a", "episodes.csv", garbage),
        ("diagnose a --episodes 0", "metrics.jsonl", another),
        ("diagnose a --episodes 0", "episodes.csv", garbage),
        ("resume a --until 64", "metrics.jsonl", garbage),
        ("resume a --fork", "episodes.csv", another),
    ],
)
def test_logs_that_are_not_what_the_run_left_are_said(command, name, damage, copy, caplog):
    """Issue 51: a changed key, a garbage line, another run's file; bytes that are no UTF-8 were a raw error."""
    damage(copy / name)
    assert exit_code(*command.split()) in (0, 1)
    said = [record.message for record in caplog.records if "is not what the run has left" in record.message]
    assert said == [
        f"runs/a/{name} is not what the run has left: it is damaged, another run's, or was edited"
    ]  # once, however often it is read


def test_logs_that_are_what_the_run_left_are_not_mentioned(copy, caplog):
    for command in ("report a", "resume a --until 64", "report a", "diagnose a --episodes 0"):
        assert exit_code(*command.split()) in (0, 1)
    assert "is not what the run has left" not in caplog.text


@pytest.mark.parametrize("command", ["report a", "stats a", "resume a --fork --until 64"])
def test_evaluations_of_another_run_are_said_and_left_out(command, copy, caplog):
    """They were read as the run's own, and became its best return. A fork has those of its parent as its own."""
    best, (other, *_) = RunDirectory(copy).kept_return, Path("runs/b/evals").glob("*.json")
    worse = json.loads(other.read_text()) | {"return_mean": 499.0}
    (copy / "evals/1.json").write_text(json.dumps(worse))
    assert exit_code(*command.split()) in (0, 1)
    said = [record.message for record in caplog.records if "is no evaluation of this run" in record.message]
    assert len(said) == 1
    assert said[0].startswith("runs/a/evals/1.json")
    assert RunDirectory(copy).kept_return == best
    for fork in Path("runs").glob("a_fork"):
        caplog.clear()
        assert [*read_evaluations(fork)]
        assert not caplog.records


def test_a_configuration_that_is_a_pipe_is_named(copy, capsys):
    """There was no such run, it said."""
    (copy / "config.yaml").unlink()
    os.mkfifo(copy / "config.yaml")
    for command in ("report a", "eval a", "resume a"):
        assert exit_code(*command.split()) == 2
        assert "runs/a/config.yaml is a pipe or a device" in output(capsys)


def test_steps_without_end_are_those_of_the_newest_checkpoint(copy, capsys):
    """`list runs` showed `inf`."""
    steps = RunDirectory(copy).env_steps
    text = (
        (copy / "run.json").read_text().replace(f'"env_steps": {RunDirectory(copy).steps_done}', '"env_steps": 1e999')
    )
    (copy / "run.json").write_text(text)
    assert exit_code("list", "runs") == 0
    assert "inf" not in output(capsys)
    assert RunDirectory(copy).steps_done == steps


@pytest.mark.parametrize("name", ["monitor.csv", "progress.csv", "result.json"])
def test_an_empty_log_is_no_damage(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    (Path("log") / name).touch()
    assert exit_code("stats", "a=log") == 2
    assert "yet; leave it out, or wait for one" in output(capsys)


def test_of_two_starts_with_one_name_the_later_is_refused(copy, monkeypatch, capsys):
    """Five at the same time: one ran, and some of the others ended with 5 and an error of the operating system."""
    makes, config = run_directory.provenance, RunDirectory(copy).config
    shutil.rmtree(copy)

    def slow(env):  # meanwhile another process begins and makes the same run
        monkeypatch.setattr(run_directory, "provenance", makes)
        RunDirectory.create(config)
        return makes(env)

    monkeypatch.setattr(run_directory, "provenance", slow)
    sizes = ("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8")
    assert exit_code("train", "ppo", "CartPole-v1", *sizes, "--run.name", "a") == 2
    assert "the run directory runs/a exists already; choose another name, or continue it with" in output(capsys)
    assert RunDirectory(copy).config == config
    assert [path.name for path in Path("runs").iterdir() if path.name.startswith(".tmp-")] == []
