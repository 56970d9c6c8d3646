"""Tests of `palaestra train`, `resume` and `eval`."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from palaestra import experiments
from palaestra.envs.tiny import Chain
from palaestra.experiments import RunDirectory, load_config, preset
from tests.cli.parts import CHAIN, SHORT, exit_code, output, train


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_training_prints_where_the_run_is_and_what_to_do_next(capsys):
    """Scenario of the README: train, look at the evaluation, go on."""
    run = train()
    text = output(capsys)
    assert text.startswith("run runs/run\n")
    assert "evaluation " in text
    assert "next palaestra play runs/run" in text
    assert "palaestra eval runs/run --episodes 100" in text
    assert "tensorboard --logdir" not in text  # none was written
    assert RunDirectory(run).info["status"] == "done"


@pytest.mark.parametrize("stdout", [None, pytest.param("/dev/full", marks=pytest.mark.needs_linux)])
def test_what_cannot_be_printed_ends_no_run(stdout, monkeypatch, caplog):
    """F10: on a disk that is full, or with stdout closed."""
    monkeypatch.setattr(sys, "stdout", stdout and open(stdout, "w"))  # noqa: SIM115
    run = train()
    sys.stdout.close()
    assert RunDirectory(run).info["status"] == "done"
    assert ("what was printed is lost" in caplog.text) == (stdout is not None)


def test_a_run_and_a_group_say_how_they_ended_as_json(capsys):
    """`train --json` was refused, `resume` had none; lines for people are on stderr."""

    def answer(*words: str) -> dict[str, Any]:
        assert exit_code(*words, "--json") == 0
        printed = capsys.readouterr()
        assert "next        palaestra" in printed.err
        return json.loads(printed.out)

    words = ("train", "ppo", *CHAIN, *SHORT, "--algorithm.unroll-length", "8")
    made = answer(*words, "--run.name", "run")
    assert [made[key] for key in ("directory", "status", "exit_code", "unit")] == ["runs/run", "done", 0, "env steps"]
    assert made["env_steps"] >= 48 and made["best_return"] == made["evaluation"]["return_mean"]
    resumed = answer("resume", "run", "--until", "80")
    assert resumed.keys() == made.keys() and resumed["env_steps"] >= 80
    group = answer(*words, "--run.name", "few", "--seeds", "3,7")
    assert [(seed["seed"], seed["status"], seed["unit"]) for seed in group["seeds"]] == [
        (3, "done", "env steps"),
        (7, "done", "env steps"),
    ]
    assert answer("resume", "few") == group
    assert exit_code(*words, "--print-config", "--json") == 2
    assert "--print-config prints YAML; leave out --json" in output(capsys)


def test_a_run_that_was_never_evaluated_says_which_policy_there_is(capsys):
    run = train("--trainer.eval-episodes", "0")
    assert f"next palaestra play {run} --which last" in output(capsys)
    assert exit_code("eval", str(run), "--episodes", "2", "--which", "last") == 0


def test_options_override_the_preset():
    run = train("--algorithm.gamma", "0.5", "--seed", "7", "--algorithm.learning-rate", "linear(1e-2, 0)")
    config = RunDirectory(run).config
    assert (config.algorithm.gamma, config.run.seed) == (0.5, 7)
    assert str(config.algorithm.learning_rate) == "linear(0.01, 0)"
    assert config.algorithm.clip == preset("ppo", "x").algorithm.clip


def test_a_printed_configuration_trains_the_same_run(capsys, tmp_path):
    """F25: --print-config, then --config, gives equal configurations and equal runs."""
    options = ("--algorithm.unroll-length", "8", "--seed", "3", "--algorithm.learning-rate", "linear(1e-2, 0, 0.5)")
    assert exit_code("train", "ppo", *CHAIN, *SHORT, *options, "--print-config") == 0
    text = capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert yaml.safe_load(text)["algorithm"]["learning_rate"] == "linear(0.01, 0, 0.5)"
    (tmp_path / "printed.yaml").write_text(text)
    assert exit_code("train", "--config", "printed.yaml", "--print-config") == 0
    assert capsys.readouterr().out == text
    assert exit_code("train", "ppo", *CHAIN, *SHORT, *options, "--run.name", "typed") == 0
    assert exit_code("train", "--config=printed.yaml", "--run.name", "read") == 0
    typed, read = ((tmp_path / "runs" / name / "episodes.csv").read_text() for name in ("typed", "read"))
    assert typed == read


def test_a_file_can_change_a_preset_and_options_can_change_the_file(tmp_path):
    (tmp_path / "changes.yaml").write_text("algorithm: {gamma: 0.5, gae_lambda: 0.1}\nrun: {name: run}\n")
    assert exit_code("train", "ppo", *CHAIN, *SHORT, "--config", "changes.yaml", "--algorithm.gamma", "0.7") == 0
    config = load_config(tmp_path / "runs" / "run" / "config.yaml")
    assert (config.algorithm.gamma, config.algorithm.gae_lambda) == (0.7, 0.1)
    assert config.env.name == CHAIN[0]


def test_a_file_may_hold_another_algorithm(tmp_path, capsys):
    (tmp_path / "dqn.yaml").write_text("algorithm_name: dqn\nalgorithm: {capacity: 77}\nenv: {name: Acrobot-v1}\n")
    assert exit_code("train", "--config", "dqn.yaml", "--algorithm.n-step", "2", "--print-config") == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["algorithm"]["capacity"], printed["algorithm"]["n_step"]) == (77, 2)
    assert printed["env"]["name"] == "Acrobot-v1"


def test_a_file_that_names_algorithm_and_environment_stands_on_their_preset(tmp_path, capsys):
    """USERS: `train --config FILE` and `train ppo CartPole-v1 --config FILE` are the same run."""
    (tmp_path / "own.yaml").write_text("algorithm_name: ppo\nenv: {name: CartPole-v1}\nrun: {seed: 4}\n")
    assert exit_code("train", "--config", "own.yaml", "--print-config") == 0
    alone = yaml.safe_load(capsys.readouterr().out)
    assert exit_code("train", "ppo", "CartPole-v1", "--config", "own.yaml", "--print-config") == 0
    assert yaml.safe_load(capsys.readouterr().out) == alone
    assert alone["env"]["num_envs"] == preset("ppo", "CartPole-v1").env.num_envs == 8
    (tmp_path / "half.yaml").write_text("trainer: {total_env_steps: 100}\n")
    assert exit_code("train", "--config", "half.yaml") == 2
    assert "half.yaml does not say algorithm_name and env.name" in output(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ppo", ""), "the environment is an empty text"),
        (("", "CartPole-v1"), "the algorithm is an empty text"),
        (("CartPole-v1", "ppo"), "the algorithm comes first: ppo, then the environment CartPole-v1"),
        (
            ("ppo", "CartPole-v1", "--algorithm-name", "dqn"),
            "is for dqn on CartPole-v1, but ppo on CartPole-v1 was named",
        ),
        (
            ("ppo", "CartPole-v1", "--env.name", "Acrobot-v1"),
            "is for ppo on Acrobot-v1, but ppo on CartPole-v1 was named",
        ),
        (("ppo", "CartPole-v1", "--algorithm.network.hidden-sizes"), "a value is needed"),
        (
            ("dqn", "CartPole-v1", "--algorithm.learning-rate.start", "0.001"),
            "did you mean --algorithm.learning-rate? (number or schedule, linear(0.001, 0)); give 'linear(start, end",
        ),
        (
            ("evolution_strategies", "CartPole-v1", "--env.vectorization", "process", "--env.num-ready", "16"),
            "tries one perturbation in each environment, all together; leave out env.num_ready",
        ),
        (("ppo", "CartPole-v1", "--run.name", "a/b"), "give a name that is no path"),
        (("ppo", "CartPole-v1", "--run.name", "last"), "not 'last', the newest run"),
        (
            ("ppo", "Pendulum-v1", "--env.train-wrappers", "NormalizeAction"),
            "env.train_wrappers or env.train_kwargs change the actions",
        ),
        (("ppo", "CartPole-v1", "--env.train-wrappers", "FrameStack(num_frames=2)"), "change the observations"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_starts(arguments, message, capsys, tmp_path):
    """F27."""
    assert exit_code("train", *arguments) == 2
    assert message in " ".join(output(capsys).split())
    assert not (tmp_path / "runs").exists()


def test_an_option_that_is_given_again_adds_to_a_list_and_replaces_a_value(capsys):
    wrappers = ("--env.wrappers", "FrameStack(num_frames=2)", "--env.wrappers", "ActionRepeat(repeat=2)")
    kwargs = ("--env.kwargs", "size", "3", "--env.kwargs", "random", "true")
    options = (*wrappers, *kwargs, "--seed", "1", "--seed", "2", "--print-config")
    assert exit_code("train", "ppo", "palaestra.envs.tiny:Endless", *options) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["env"]["wrappers"] == ["FrameStack(num_frames=2)", "ActionRepeat(repeat=2)"]
    assert config["env"]["kwargs"] == {"size": 3, "random": True}
    assert config["run"]["seed"] == 2


def test_a_run_without_budget_does_not_take_new_settings(capsys):
    """Its record would say that it was trained with them."""
    run = train()
    before = (run / "config.yaml").read_text()
    assert exit_code("resume", "run", "--override", "algorithm.gamma=0.5") == 2
    assert exit_code("resume", "run", "--until", "") == 2
    assert exit_code("resume", "run", "--until", "96", "--override", "") == 2
    assert exit_code("resume", "run", "--fork", "--name", "") == 2
    assert exit_code("resume", "run", "--until", "96", "--override", "trainer.total_env_steps=128") == 2
    assert "nothing would be done with algorithm.gamma; give --until as well" in " ".join(output(capsys).split())
    assert (run / "config.yaml").read_text() == before


def test_a_fork_is_named_from_the_start_on(capsys):
    train()
    assert exit_code("resume", "run", "--fork", "--until", "96", "--override", "algorithm.gamma=0.5") == 0
    text = output(capsys)
    assert text.index("forking runs/run into runs/run_fork") < text.index("changed algorithm.gamma: ")
    assert "resuming" not in text


def test_a_group_that_is_called_as_its_first_seed_is_a_group(capsys, monkeypatch):
    train("--run.directory", "runs/seed_0", "--run.name", "seed_0")
    Path("runs/seed_0/group.json").write_text("{}")
    groups = []
    monkeypatch.setattr(experiments, "resume_seeds", lambda name, **_: groups.append(name))
    monkeypatch.setattr("palaestra.cli.train._report", lambda *_: 0)
    assert exit_code("resume", "seed_0") == 0
    assert [str(path) for path in groups] == ["runs/seed_0"]
    assert exit_code("resume", "runs/seed_0/seed_0", "--until", "96") == 0
    assert len(groups) == 1


def test_what_an_environment_is_made_with_can_be_typed(capsys):
    """ALF-34, ALF-35: its arguments and its wrappers."""
    arguments = ("train", "dqn", "palaestra.envs.tiny:Chain", "--env.kwargs", "num_states", "7")
    wrappers = ("--env.gym-wrappers", "gymnasium.wrappers:ClipReward")
    assert exit_code(*arguments, *wrappers, "--print-config") == 0
    printed = yaml.safe_load(capsys.readouterr().out)["env"]
    assert printed["kwargs"] == {"num_states": 7}
    assert printed["gym_wrappers"] == ["gymnasium.wrappers:ClipReward"]


@pytest.mark.parametrize("which", ["last", "run", "runs/run"])
def test_a_finished_run_can_be_resumed_and_says_that_it_is_done(which, capsys):
    train()
    capsys.readouterr()
    assert exit_code("resume", which) == 0
    text = output(capsys)
    assert text.startswith("resuming runs/run\nnothing left to do; `--until N` trains on\n")
    assert "next palaestra play runs/run" in text


def test_resuming_what_is_not_there_ends_with_5(capsys):
    """F11: and what is there is listed."""
    train(name="this")
    capsys.readouterr()
    assert exit_code("resume", "that") == 5
    assert "CheckpointError there is no run 'that'; runs in runs: this" in output(capsys)


def test_resuming_without_a_valid_checkpoint_ends_with_5(capsys):
    """F11: never from scratch silently."""
    run = train()
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.write_text("damaged")
    capsys.readouterr()
    assert exit_code("resume", "run") == 5
    assert "no valid checkpoint in runs/run/checkpoints" in output(capsys)
    assert list(run.glob("checkpoints/*.corrupt"))


def test_an_evaluation_prints_a_line_or_json(capsys):
    """`--json` is one object that a script can read."""
    train()
    capsys.readouterr()
    assert exit_code("eval", "last", "--episodes", "3") == 0
    text = output(capsys)
    assert text.startswith("runs/run ")
    assert "(95%, 3 episodes, deterministic)" in text
    assert exit_code("eval", "run", "--episodes", "5", "--stochastic", "--seed", "3", "--json") == 0
    record = json.loads(capsys.readouterr().out)["runs"]["runs/run"]
    assert (record["episodes"], record["deterministic"]) == (5, False)
    assert len(record["returns"]) == 5


def test_evaluating_a_run_without_a_policy_ends_with_5(capsys):
    run = train()
    (run / "policy" / "policy.json").unlink()
    capsys.readouterr()
    assert exit_code("eval", "run") == 5
    assert "there is no policy.json" in output(capsys)


@pytest.mark.parametrize("verb", ["eval", "play"])
def test_a_run_that_was_never_evaluated_has_a_last_policy(verb, capsys):
    run = train()
    for file in [*run.glob("evals/*"), *run.glob("policy/*")]:
        file.unlink()
    capsys.readouterr()
    assert exit_code(verb, "run") == 5
    assert "runs/run has not been evaluated yet, so it has no best policy; `eval`, `play` and `export` take" in output(
        capsys
    )
    assert exit_code("eval", "run", "--which", "last") == 0


class Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A chain that raises in its 30th step, or pays NaN there."""

    def __init__(self, kind: str) -> None:
        super().__init__(Chain())
        self._kind, self._count = kind, 0

    def step(self, action: Any) -> Any:
        self._count += 1
        observation, reward, *rest = super().step(action)
        if self._count == 30 and self._kind == "raise":
            raise ValueError("the wheel came off")
        return observation, float("nan") if self._count == 30 else reward, *rest


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [("raise", 3, "EnvError environment 0 .*the wheel came off"), ("nan", 4, "NonFiniteError .*reward = nan")],
)
def test_a_run_that_fails_ends_with_the_code_of_its_failure_and_can_be_resumed(kind, code, message, capsys):
    """F1, F5: the environment is named; checkpoints made before are there."""
    arguments = ("tests.cli.test_train:Failing", "--env.kwargs", "kind", kind, "--env.max-episode-steps", "5")
    steps = ("--algorithm.unroll-length", "4", "--env.num-envs", "2", "--trainer.checkpoint-every-steps", "20")
    assert exit_code("train", "ppo", *arguments, *SHORT, *steps, "--trainer.total-env-steps", "200") == code
    text = " ".join(output(capsys).split())
    assert re.search(message, text), text
    assert "Traceback (most recent call last)" not in text.split("Error ")[0]
    (run,) = Path("runs").iterdir()
    info = RunDirectory(run).info
    assert (info["status"], info["best_return"]) == ("failed", 1.0)
    assert 20 <= info["env_steps"] < 200
    assert list(run.glob("checkpoints/step_*/manifest.json"))
    assert f"recorded {run}/faults/0001.json" in text
    assert text.endswith(f"next palaestra resume {run}")
    assert ("--env.on-fault restart" in text) == (kind == "raise")
    assert (run / "faults" / "0001.json").is_file()


def test_evaluations_come_at_the_steps_that_are_given():
    """MARO-47: a list, from the command line; the end of the run has one of its own."""
    run = train("--trainer.eval-at-steps", "20", "32")
    made = sorted(int("".join(filter(str.isdigit, path.stem))) for path in (run / "evals").iterdir())
    assert made == [28, 42, 56], "unrolls end at 14, 28, 42 and 56 env steps"


def test_a_run_that_ends_before_its_budget_says_why(capsys):
    train("--trainer.stop-at-return", "-100", "--trainer.eval-every-steps", "16", "--trainer.total-env-steps", "400")
    assert re.search(r"stopped after \d+ env steps: .*return", output(capsys))
