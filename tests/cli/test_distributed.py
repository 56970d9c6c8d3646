"""Tests of distributed runs from the command line."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from palaestra.experiments import RunDirectory
from tests.cli.parts import CHAIN, SHORT, exit_code, output, train

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
)
FEW_ITERATIONS = ("--algorithm.unroll-length", "8")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("runtime", ["local", "process"])
def test_workers_collect_where_the_command_says(runtime):
    """MARO-01: the same command with another runtime."""
    run = train("--runtime", runtime, "--num-workers", "2", "--trainer.eval-async")
    row = rows(run)[-1]
    assert row["env_steps"] >= 48
    assert (row["workers/there"], row["workers/dropped"], row["workers/lag_max"]) == (2, 0, 0)
    assert row["workers/fragments"] == 2 * row["iterations"]
    assert row["eval/return_mean"] >= 0
    assert RunDirectory(run).config.distributed.num_workers == 2
    assert RunDirectory(run).info["status"] == "done"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
)
def test_workers_collect_on_ray():
    run = train("--runtime", "ray", "--num-workers", "2")
    assert rows(run)[-1]["workers/fragments"] == 2 * rows(run)[-1]["iterations"]


def test_a_resumed_run_goes_on_exactly_and_can_move_to_another_runtime():
    """F25."""
    whole = train("--runtime", "local", "--trainer.total-env-steps", "96", name="whole")
    train("--runtime", "process", name="half")
    moved = ("--override", "distributed.runtime=local")
    assert exit_code("resume", "runs/half", "--until", "96", *moved) == 0
    half = RunDirectory(whole.parent / "half")
    assert half.info["resume"] == "exact"
    assert (whole / "episodes.csv").read_text() == (half.path / "episodes.csv").read_text()


def test_a_run_goes_on_with_another_number_of_workers(capsys):
    """It says that it is not the run it would have been, and why; and how many there were is written down."""
    run = train("--runtime", "local")
    assert exit_code("resume", "runs/run", "--until", "96", "--override", "distributed.num_workers=1") == 0
    assert "statistical: with new episodes" in output(capsys)
    info = RunDirectory(run).info
    assert (info["resume"], info["status"]) == ("statistical", "done")
    assert info["overrides"][-1]["changes"]["distributed.num_workers"] == [2, 1]
    assert exit_code("resume", "runs/run", "--until", "144", "--override", "distributed.num_workers=3") == 2
    assert "cannot be shared out evenly over 3 workers" in output(capsys)


def test_the_number_of_actors_cannot_change_in_a_run_that_goes_on(capsys):
    train("--runtime", "local", "--mode", "async")
    assert exit_code("resume", "runs/run", "--override", "distributed.num_workers=1") == 2
    assert "distributed.num_workers cannot change" in output(capsys)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--runtime", "proces"), "'local', 'process' or 'ray' is needed"),
        (("--runtime", "process", "--num-workers", "3"), "cannot be shared out evenly over 3 workers; give 3"),
        (("--runtime", "process", "--address", "auto"), "it is for runtime=ray"),
        (("--runtime", "local", "--num-workers", "0"), "num_workers is 0; it must be at least 1"),
        (("--runtime", "local", "--env.vectorization", "process"), "the workers of the run are processes already"),
        (("--runtime", "local", "--distributed.min-finished-workers", "5"), "there are 2 workers"),
    ],
)
def test_mistakes_are_named_before_anything_starts(options, text, capsys):
    """F27."""
    assert exit_code("train", "ppo", *CHAIN, *SHORT, *FEW_ITERATIONS, *options) == 2
    assert text in output(capsys)
    assert not Path("runs").exists()


def test_without_ray_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # what Python takes for a module that is not there
    assert exit_code("train", "ppo", *CHAIN, *SHORT, *FEW_ITERATIONS, "--runtime", "ray") == 2
    assert "RayRuntime needs the package 'ray': pip install 'palaestra[ray]'" in output(capsys)


def test_an_algorithm_without_data_of_its_own_needs_no_workers(capsys):
    steps = ("--steps", "60", "--env.max-episode-steps", "6")
    assert exit_code("data", "collect", "random", "palaestra.envs.tiny:Chain", "data", *steps) == 0
    assert exit_code("train", "behaviour_cloning", *CHAIN, *SHORT, "--offline.data", "data", "--runtime", "local") == 2
    assert "collects nothing; leave out distributed.runtime" in output(capsys)
