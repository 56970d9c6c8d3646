"""Mistakes in a configuration: one clear message each, exit code 2, before any environment starts (F27)."""

import re
from pathlib import Path

import pytest

from palaestra.cli.main import _main
from palaestra.envs.gym_environment import GymEnvironment

TRAIN = ("train", "ppo", "CartPole-v1")

# What is typed, and what is said; a test below asks for the whole message, boxes and line breaks aside.
MISTAKES = {
    "unknown option": (
        (*TRAIN, "--algorithm.learnin-rate", "3"),
        "ConfigError unknown option --algorithm.learnin-rate — did you mean --algorithm.learning-rate? "
        "(number or schedule, linear(0.001, 0))",
    ),
    "two unknown options at once": (
        (*TRAIN, "--algorithm.gama", "3", "--trainer.total-steps", "5"),
        "ConfigError unknown option --algorithm.gama — did you mean --algorithm.gamma? (number or schedule, 0.98) "
        "ConfigError unknown option --trainer.total-steps — did you mean --trainer.total-env-steps? (int, 100000)",
    ),
    "unknown algorithm": (
        ("train", "pqo", "CartPole-v1"),
        "ConfigError unknown algorithm 'pqo' — did you mean 'ppo'?",
    ),
    "unknown verb": (("trian", "ppo", "CartPole-v1"), "ConfigError unknown verb 'trian' — did you mean 'train'?"),
    "environment missing": (
        ("train", "ppo"),
        "ConfigError the environment is missing: palaestra train ALGORITHM ENVIRONMENT [--config FILE] "
        "[--print-config] [options]",
    ),
    "wrong type": (
        (*TRAIN, "--algorithm.gamma", "high"),
        "ConfigError algorithm.gamma is 'high': a number is needed",
    ),
    "out of range": ((*TRAIN, "--algorithm.gamma", "1.5"), "algorithm.gamma is 1.5; it must lie in [0, 1]"),
    "not positive": (
        ("train", "dqn", "CartPole-v1", "--algorithm.target-period", "0"),
        "algorithm.target_period is 0; it must be greater than 0",
    ),
    "no budget": (
        (*TRAIN, "--trainer.total-env-steps", "0"),
        "trainer.total_env_steps is 0; it must be greater than 0",
    ),
    "no environments": ((*TRAIN, "--env.num-envs", "0"), "env.num_envs is 0; it must be at least 1"),
    "negative seed": ((*TRAIN, "--seed", "-1"), "run.seed is -1; it must be at least 0"),
    "no schedule": (
        (*TRAIN, "--algorithm.learning-rate", "linear(1)"),
        "'linear(1)' is no schedule; give a number, linear(start, end), linear(start, end, fraction) "
        "or piecewise(0: a, 0.5: b)",
    ),
    "not one of the choices": (
        (*TRAIN, "--env.vectorization", "threads"),
        "ConfigError env.vectorization is 'threads': 'auto', 'serial', 'process' or 'native' is needed",
    ),
    "a value for nothing": (
        (*TRAIN, "--env.kwargs", "size"),
        "ConfigError --env.kwargs: 'size' has no value; give names and values in turn",
    ),
    "impossible pair": (
        ("train", "dqn", "Pendulum-v1"),
        "ConfigError dqn does not fit Pendulum-v1: ValueGreedyPolicy needs a discrete action space and was given",
    ),
    "impossible schedule": (
        ("train", "dqn", "CartPole-v1", "--algorithm.epsilon", "2"),
        "dqn does not fit CartPole-v1: EpsilonGreedy was given epsilon=2.0; it must stay in [0, 1]",
    ),
    "no such environment": (("train", "ppo", "CartPol-v1"), "ConfigError no environment 'CartPol-v1' in Gymnasium's"),
    "no such module": (
        ("train", "ppo", "nothing.here:Env"),
        "'nothing.here:Env' names the module 'nothing.here', which cannot be imported: No module named 'nothing'",
    ),
    "no such class": (
        ("train", "ppo", "palaestra.envs.tiny:Catsh"),
        "module 'palaestra.envs.tiny' has no 'Catsh' — did you mean 'Catch'?",
    ),
    "arguments that do not fit": (
        ("train", "ppo", "palaestra.envs.tiny:Catch", "--env.kwargs", "rows", "3"),
        "'palaestra.envs.tiny:Catch' cannot be called with {'rows': 3}: got an unexpected keyword argument 'rows'",
    ),
    "no such file": (
        (*TRAIN, "--config", "missing.yaml"),
        "ConfigError the configuration missing.yaml cannot be read: [Errno 2] No such file or directory",
    ),
    "an option without its file": ((*TRAIN, "--config"), "ConfigError --config needs a value"),
    "no episodes": (("eval", "last", "--episodes", "0"), "ConfigError --episodes is 0; it must be at least 1"),
    "no film": (
        ("play", "last", "--output", "film.avi"),
        "ConfigError --output is 'film.avi'; give a file that ends with .mp4 or .gif",
    ),
}


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
    try:
        return _main(list(arguments))
    except SystemExit as error:
        return int(error.code or 0)


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_and_ends_with_2(arguments, message, capsys):
    """F27: what was given, what is needed, and what was probably meant."""
    assert exit_code(*arguments) == 2
    text = said(capsys)
    assert message in text
    if message.startswith("ConfigError") and message.endswith(("?", "value", "least 1", "options]", ".gif")):
        assert text == message


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
        algorithm: {gama: 0.9, num_updates: many, epsilon: linear(1)}
        env: {name: CartPole-v1, num_env: 3}
        trainer: {total_env_steps: 0}
        run: 3
        sed: 1
        """
    )
    assert exit_code("train", "--config", "run.yaml") == 2
    text = said(capsys)
    for problem in (
        "unknown key algorithm.gama — did you mean 'algorithm.gamma'? (float, 0.99)",
        "algorithm.num_updates is 'many': a whole number is needed",
        "algorithm.epsilon is 'linear(1)': 'linear(1)' is no schedule",
        "unknown key env.num_env — did you mean 'env.num_envs'? (int, 1)",
        "trainer.total_env_steps is 0; it must be greater than 0",
        "run is 3: a mapping of settings is needed",
        "unknown key sed — did you mean 'run.seed'?",
    ):
        assert problem in text
    assert text.count("ConfigError") == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("algorithm_name: pqo", "unknown algorithm 'pqo' — did you mean 'ppo'?"),
        ("- 1", "holds list; a mapping of settings is needed"),
        ("a: [", "cannot be read"),
        ("", "holds NoneType; a mapping of settings is needed"),
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
