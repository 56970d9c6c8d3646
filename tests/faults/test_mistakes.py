"""Mistakes in a configuration: one clear message each, exit code 2, before any environment starts (F27)."""

import re
import shlex
from pathlib import Path

import pytest

from palaestra.algorithms import ALGORITHMS
from palaestra.cli import main
from palaestra.cli.commands import COMMANDS
from palaestra.cli.help import options_of
from palaestra.cli.options import defaults_of
from palaestra.config.config import meant, settings_of
from palaestra.config.values import foreign_names
from palaestra.envs.contract.gym_environment import GymEnvironment
from palaestra.experiments import ExperimentConfig
from tests.faults.mistakes import MISTAKES

TRAIN = ("train", "ppo", "CartPole-v1")


@pytest.fixture(autouse=True)
def _nothing_starts(tmp_path, monkeypatch):
    """An empty folder, and environments that refuse to start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def refuse(self: GymEnvironment, seed: int) -> None:
        raise AssertionError("an environment was started")

    monkeypatch.setattr(GymEnvironment, "begin_episode", refuse)
    yield
    assert not Path("runs").exists()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, without boxes and line breaks."""
    captured = capsys.readouterr()
    return re.sub(r"[\s│╭╮╰╯─]+", " ", captured.out + captured.err).strip()


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def same(expected: str, text: str) -> bool:
    """Whether a message is word for word what is expected; `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


@pytest.mark.parametrize(("typed", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_before_anything_starts(typed, code, message, capsys):
    """F27: what was given, what is needed, and what was probably meant."""
    assert exit_code(*shlex.split(typed)) == code
    captured = capsys.readouterr()
    text = re.sub(r"[ \t]+", " ", captured.out + captured.err).strip()
    assert same(message, text), text


def test_a_message_that_says_something_else_is_noticed():
    assert same("given 3; ... needed", "given 3; at least 4 is needed")
    assert not same("given 3; ... needed", "given 3; at least 4 is needed, please")
    assert len(MISTAKES) >= 30


def test_a_missing_extra_says_what_to_install(monkeypatch, capsys):
    """F27: with the very command."""
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ale_py" else find_spec(name))
    assert exit_code("train", "ppo", "ALE/Pong-v5") == 2
    assert said(capsys) == (
        "MissingExtraError the environment 'ALE/Pong-v5' needs the package 'ale_py': pip install 'palaestra[atari]'"
    )


def test_all_mistakes_of_a_file_are_named_at_once(tmp_path, capsys):
    """F27: unknown keys with a suggestion, wrong types, values out of range, in one message."""
    (tmp_path / "run.yaml").write_text(
        """
        algorithm_name: dqn
        algorithm: {gama: 0.9, gradient_steps: many, epsilon: linear(1)}
        env: {name: CartPole-v1, num_env: 3}
        trainer: {total_env_steps: 0}
        run: 3
        sed: 1
        """
    )
    assert exit_code("train", "--config", "run.yaml") == 2
    text = said(capsys)
    for problem in (
        "unknown key algorithm.gama — did you mean 'algorithm.gamma'?",
        "algorithm.gradient_steps is 'many': a whole number is needed",
        "algorithm.epsilon is 'linear(1)': give a number, linear(start, end)",
        "unknown key env.num_env — did you mean 'env.num_envs'? (int, 1)",
        "trainer.total_env_steps is 0; it must be greater than 0",
        "run is 3: a mapping of settings is needed",
        "unknown key sed — did you mean 'run.seed'?",
    ):
        assert problem in text
    assert text.count("ConfigError") == 7


@pytest.mark.parametrize(
    ("algorithm", "old", "new"),
    [
        ("ppo", "num_updates", "num_epochs"),
        ("dqn", "num_updates", "gradient_steps"),
        ("dqn", "initial_collect_steps", "learning_starts"),
    ],
)
def test_a_setting_that_elsewhere_has_another_name_is_refused_with_ours(tmp_path, capsys, algorithm, old, new):
    """F27: in a file and on the command line."""
    (tmp_path / "run.yaml").write_text(
        f"algorithm_name: {algorithm}\nenv: {{name: CartPole-v1}}\nalgorithm: {{{old}: 3}}\n"
    )
    assert exit_code("train", "--config", "run.yaml") == 2
    assert f"unknown key algorithm.{old} — did you mean 'algorithm.{new}'?" in said(capsys)
    assert exit_code("train", algorithm, "CartPole-v1", f"--algorithm.{old.replace('_', '-')}", "3") == 2
    assert f"did you mean --algorithm.{new.replace('_', '-')}?" in said(capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("algorithm_name: ppoo", "unknown algorithm 'ppoo' — did you mean 'ppo'?"),
        ("- 1", "holds list; a mapping of settings is needed"),
        ("a: [", "cannot be read"),
        ("", "the configuration run.yaml is empty; a mapping of settings is needed"),
        ("run:\n  seed: 1\n  seed: 2", "cannot be read: the key 'seed' stands twice, in lines 2 and 3"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(content, message, tmp_path, capsys):
    """F27."""
    (tmp_path / "run.yaml").write_text(content)
    assert exit_code("train", "--config", "run.yaml") == 2
    assert message in said(capsys)


def test_several_values_out_of_range_are_named_at_once(capsys):
    """F27: also those typed."""
    assert exit_code(*TRAIN, "--algorithm.gamma", "2", "--algorithm.mini-batch-size", "0") == 2
    text = said(capsys)
    assert "algorithm.gamma is 2.0; it must lie in [0, 1]" in text
    assert "algorithm.mini_batch_size is 0; it must be greater than 0" in text


@pytest.mark.parametrize(
    ("algorithm", "typed", "meant"),
    [
        ("ppo", "--lr", "--algorithm.learning-rate"),
        ("ppo", "--n-steps", "--algorithm.unroll-length"),
        ("ppo", "--clip-range", "--algorithm.clip"),
        ("ppo", "--ent-coef", "--algorithm.entropy-cost"),
        ("ppo", "--algorithm.net-arch", "--algorithm.network.hidden-sizes"),
        ("ppo", "--n-envs", "--env.num-envs"),
        ("dqn", "--policy-kwargs", "--algorithm.network"),
        ("dqn", "--buffer-size", "--algorithm.capacity"),
        ("dqn", "--exploration-fraction", "--algorithm.epsilon"),
        ("dqn", "--total-timesteps", "--trainer.total-env-steps"),
        ("dqn", "--algorithm.batch-size", "--algorithm.mini-batch-size"),
        ("dqn", "--eval-freq", "--trainer.eval-every-steps"),
        ("dqn", "--root", "--run.directory"),
        ("dqn", "--name", "--run.name"),
    ],
)
def test_what_other_libraries_call_a_setting_is_understood(algorithm, typed, meant, capsys):
    """F27: from the command line, with its group or without."""
    assert exit_code("train", algorithm, "CartPole-v1", typed, "3") == 2
    assert f"unknown option {typed} — did you mean {meant}?" in said(capsys)


def test_names_of_other_libraries_stand_for_settings_that_exist():
    """So that the table does not outlive them; each name is answered with ours, for an algorithm that has it."""
    known = {}
    for algorithm, kind in ALGORITHMS.items():
        config = ExperimentConfig(algorithm_name=algorithm, algorithm=kind.config_class())
        known[algorithm] = {setting.path: setting for setting in settings_of(ExperimentConfig, vars(config))}
    of_eval = {option.setting.path for option in options_of(defaults_of(COMMANDS["eval"]))}
    assert len(foreign_names()) >= 250
    for name, row in foreign_names().items():
        assert row.ours or row.note, name
        for our in row.ours:
            having = [one for one in known.values() if any(f".{path}".endswith(f".{our}") for path in one)]
            assert having or our in of_eval, f"{name}: no algorithm has {our}"
        first = f".{row.ours[0]}" if row.ours else ""
        having = [one for one in known.values() if any(f".{path}".endswith(first) for path in one)]
        assert (f"{row.ours[0]}?" if first else row.note) in meant(name, having[0], "{}"), name


def test_a_name_that_means_something_else_is_no_guess():
    """Harmful guesses of an earlier version: names that look alike, and words in which units differ unsaid."""
    config = ExperimentConfig(algorithm_name="ppo", algorithm=ALGORITHMS["ppo"].config_class())
    known = {setting.path: setting for setting in settings_of(ExperimentConfig, vars(config))}
    for name, right in {
        "discount": "algorithm.gamma?",
        "max_epoch": "trainer.total_env_steps?",
        "num_minibatches": "rows of one, not how many",
        "train_batch_size": "unroll length x environments",
        "rew_norm": "algorithm.normalize_return?",
        "frame_stack": "FrameStack(num_frames=4)",
        "experiment_name": "run.name?",
        "optimize_memory_usage": "always so",
        "action_noise": "exploration_std here, a setting of ddpg",
        "num_atoms": "it is a setting of alphazero, c51",
        "deterministic": "slower kernels, for equal results on equal GPUs; the policy's best actions are what",
        "framework_of_mine": "",
    }.items():
        assert right in meant(name, known, "{}") if right else meant(name, known, "{}") == "", name
