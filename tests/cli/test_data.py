"""Tests of `palaestra data`, and of training from what it makes."""

import json

import pytest

from palaestra import load_policy
from palaestra.analysis import measure
from palaestra.buffers import ReplayBuffer
from palaestra.experiments import RunDirectory
from tests.cli.parts import exit_code, output
from tests.faults.parts import differences

SIZES = ("--algorithm.network.hidden-sizes", "8", "--algorithm.mini-batch-size", "16", "--env.max-episode-steps", "10")
SHORT = ("--trainer.total-env-steps", "40", "--trainer.eval-episodes", "2", "--run.no-tensorboard")
CHANCE = ("data", "collect", "random", "Pendulum-v1")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def chance(*options: str) -> int:
    return exit_code(*CHANCE, "demo", "--steps", "60", "--env.max-episode-steps", "10", *options)


def test_chance_collects_and_an_offline_algorithm_learns(capsys):
    """The way of a newcomer: data, training, the run; and back to data of the policy that was learned."""
    assert chance() == 0
    text = output(capsys)
    assert text.startswith("data demo: 60 steps, 6 complete episodes, mean return -")
    assert "--offline.data demo" in text
    assert exit_code("train", "iql", "Pendulum-v1", "--offline.data", "demo", *SIZES, *SHORT, "--run.name", "run") == 0
    assert RunDirectory("runs/run").info["status"] == "done"
    assert exit_code("data", "collect", "run", "again", "--steps", "20", "--which", "last") == 0
    capsys.readouterr()
    assert exit_code("resume", "run", "--until", "50") == 0
    assert RunDirectory("runs/run").info["resume"] == "exact"
    text = output(capsys)
    assert "updates, exact" in text and "env steps" not in text
    assert exit_code("eval", "run", "--episodes", "2") == 0


def test_a_hybrid_run_and_its_buffer(capsys):
    assert chance() == 0
    options = ("--offline.data", "demo", "--offline.fraction", "0.25", "--algorithm.learning-starts", "10")
    assert exit_code("train", "sac", "Pendulum-v1", *options, *SIZES, *SHORT, "--run.name", "run") == 0
    capsys.readouterr()
    assert exit_code("data", "export", "run", "own", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["path"], summary["steps"], summary["episodes"]) == ("own", 40, 4)  # its own experience alone


@pytest.mark.slow
def test_a_decision_transformer_goes_online_and_resumes_bit_for_bit():
    """20 updates on the data, then 20 env steps; cut in an episode, it goes on as if it never was."""
    assert chance() == 0
    memory = ("--algorithm.network.recurrent", "attention", "--algorithm.network.recurrent-size", "8")
    lengths = ("--algorithm.network.attention-window", "4", "--algorithm.mini-batch-length", "4")
    online = ("--offline.data", "demo", "--offline.updates", "20", "--offline.fraction", "0.5", *memory, *lengths)
    sizes = [word.replace("batch-size", "batch-sequences") for word in SIZES]
    train = ("train", "decision_transformer", "Pendulum-v1", *online, *sizes, *SHORT)
    assert exit_code(*train, "--run.name", "whole") == 0
    assert exit_code(*train, "--run.name", "cut", "--trainer.total-env-steps", "33") == 0
    assert exit_code("resume", "cut", "--until", "40") == 0
    whole, cut = (RunDirectory(f"runs/{name}").checkpoints().load_newest()[1] for name in ("whole", "cut"))
    assert RunDirectory("runs/cut").info["resume"] == "exact"
    assert differences(whole["algorithm"], cut["algorithm"]) == []
    assert differences(whole["buffer"], cut["buffer"]) == []
    assert exit_code("data", "export", "whole", "own") == 0


@pytest.mark.parametrize("name", ["iql", "sac"])
def test_a_dry_run_from_data(name, capsys):
    assert chance() == 0
    assert exit_code("train", name, "Pendulum-v1", "--offline.data", "demo", *SIZES, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["updates"] > 1


def test_a_dry_run_from_data_counts_updates(capsys):
    assert chance() == 0
    assert exit_code("train", "iql", "Pendulum-v1", "--offline.data", "demo", *SIZES, "--dry-run") == 0
    assert " updates per second, after " in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", [("sac",), ("iql", "--offline.fraction", "0.5")])
def test_a_dry_run_of_updates_and_env_steps_counts_both(algorithm, capsys, monkeypatch):
    """It took the whole budget for updates."""
    assert chance() == 0
    name, *options = algorithm
    budget = ("--offline.data", "demo", "--offline.updates", "500", "--trainer.total-env-steps", "1500")
    speeds = iter([(100.0, 7), (10.0, 12)])
    monkeypatch.setattr(measure, "_measure", lambda trainer: next(speeds))
    assert exit_code("train", name, "Pendulum-v1", *budget, *options, *SIZES, "--dry-run", "--json") == 0
    estimate = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (estimate["train_s"], estimate["updates"]) == (pytest.approx(500 / 100 + 1_000 / 10), 12)


def test_options_reach_the_environment(capsys):
    """Here of the one that chance acts in; of a run it is the run's own unless an option changes it."""
    assert chance("--env.num-envs", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 60


@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [
        ("", 2, "usage: palaestra data WHAT"),
        ("colect run demo", 2, "`palaestra data` has no 'colect' — did you mean 'collect'?"),
        ("collect random Pendulum-v1", 2, "the folder is missing: palaestra data collect"),
        ("collect random Pendulm-v1 demo", 2, "did you mean 'Pendulum-v1'?"),
        ("collect nobody demo", 5, "there is no run 'nobody'"),
        ("export nobody demo", 5, "there is no run 'nobody'"),
        ("collect random Pendulum-v1 demo --steps 0", 2, "--steps is 0; it must be at least 1"),
        ("minari nowhere pendulum/x-v0", 5, "nowhere has no readable manifest.json"),
        ("export run", 2, "the folder is missing: palaestra data export RUN FOLDER"),
    ],
)
def test_mistakes_are_named(typed, code, message, capsys):
    """F27."""
    assert exit_code("data", *typed.split()) == code
    assert message in output(capsys)


def test_deterministic_data_has_the_actions_that_evaluations_take():
    """`--which best` sampled them."""
    sizes = ("--trainer.total-env-steps", "64", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
    assert exit_code("train", "ppo", "CartPole-v1", *sizes, "--run.name", "run") == 0
    policy, same = load_policy("runs/run/policy"), []
    for how in ([], ["--deterministic"]):
        assert exit_code("data", "collect", "run", f"seen{len(how)}", "--steps", "50", *how) == 0
        data = ReplayBuffer.load(f"seen{len(how)}")
        rows = data.in_time_order(0)[:-1]
        rows = rows[data.is_start(rows)]
        best = [int(policy(observation.numpy())) for observation in data.take("observation", rows)]
        same.append(data.take("action", rows).tolist() == best)
    assert same == [False, True]


def test_an_evaluation_by_data_says_how_far_it_is_in_a_pipe_as_well(monkeypatch, capsys):
    """Issue 54: nothing was printed in 500 s."""
    monkeypatch.setattr("palaestra.cli.options._TELL_S", 0.0)
    sizes = ("--trainer.total-env-steps", "64", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
    assert exit_code("train", "ppo", "CartPole-v1", *sizes, "--run.name", "run") == 0
    assert exit_code("data", "collect", "run", "seen", "--steps", "100") == 0
    capsys.readouterr()
    assert exit_code("data", "evaluate", "run", "seen", "--updates", "30", "--members", "2") == 0
    said = capsys.readouterr()
    assert "30 of 30 gradient steps\n" in said.err
    assert "gradient steps" not in said.out
