"""Tests of asynchronous runs and of gradient workers from the command line."""

import json

import pytest

from palaestra.experiments import RunDirectory
from tests.cli.parts import exit_code, train


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("runtime", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_actors_wait_for_nobody(runtime):
    """MARO-01, MARO-10: the same command with another mode."""
    options = ("--asynchronous.max-lag", "8", "--asynchronous.fragment-steps", "4")
    run = train("--runtime", runtime, "--num-workers", "2", "--mode", "async", *options)
    row = rows(run)[-1]
    assert row["env_steps"] >= 48
    assert row["workers/there"] == 2
    assert row["workers/lag_max"] <= 8
    assert row["workers/fragments"] == row["iterations"] == row["policy_version"]
    assert RunDirectory(run).info["status"] == "done"


def test_an_asynchronous_run_is_resumed(tmp_path):
    """F16."""
    options = ("--runtime", "local", "--num-workers", "2", "--mode", "async", "--asynchronous.fragment-steps", "4")
    train(*options, name="half")
    before = rows(tmp_path / "runs/half")[-1]
    assert exit_code("resume", "runs/half", "--until", "96") == 0
    after = rows(tmp_path / "runs/half")[-1]
    assert after["env_steps"] >= 96
    assert RunDirectory(tmp_path / "runs/half").info["resume"] == "statistical"
    assert after["policy_version"] > before["policy_version"]
    assert after["workers/fragments"] > before["workers/fragments"]


def test_one_gradient_worker_changes_nothing_of_what_is_learned():
    """MARO-27: with a number of shards, whoever computes them."""
    options = ("--runtime", "local", "--num-workers", "2", "--distributed.gradient-shards", "2")
    alone = train(*options, name="alone")
    shared = train(*options, "--distributed.num-learners", "2", name="shared")
    assert (alone / "episodes.csv").read_text() == (shared / "episodes.csv").read_text()
    learned = [{k: v for k, v in rows(run)[-1].items() if k.startswith("learning/")} for run in (alone, shared)]
    assert learned[0] == learned[1]
    assert learned[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "async"), "needs workers: give distributed.runtime"),
        (("--runtime", "local", "--asynchronous.max-lag", "2"), "asynchronous.max_lag is for distributed.mode=async"),
        (("--runtime", "local", "--mode", "async", "--distributed.max-lag", "2"), "max_lag is for mode=sync"),
        (("--num-workers", "2"), "num_workers is 2, but this run has no workers"),
        (("--runtime", "local", "--distributed.max-lag", "2"), "max_lag is for data that comes late, and all"),
        (("--runtime", "local", "--mode", "async", "--distributed.grace-timeout-s", "2"), "grace_timeout_s is for"),
        (("--runtime", "local", "--mode", "async", "--asynchronous.samples-per-insert", "2"), "every policy replays"),
        (
            ("--runtime", "process", "--trainer.eval-async", "--run.eval-vectorization", "process"),
            "may start no processes; leave one of the three out",
        ),
        (("--distributed.num-learners", "2"), "needs workers: give distributed.runtime"),
        (("--distributed.gradient-shards", "2"), "gradient_shards needs workers: give distributed.runtime"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(options, message, capsys):
    """F27."""
    assert exit_code("train", "ppo", "CartPole-v1", *options) == 2
    assert message in capsys.readouterr().err


def test_a_pace_of_unrolls_is_refused_where_everything_is_replayed(capsys):
    """F27."""
    options = (
        "--runtime",
        "local",
        "--num-workers",
        "1",
        "--mode",
        "async",
        "--asynchronous.fragments-per-update",
        "2",
    )
    assert exit_code("train", "dqn", "CartPole-v1", *options) == 2
    assert "fragments_per_update is for policies that learn on-policy" in capsys.readouterr().err
