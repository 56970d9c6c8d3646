"""Tests of the short help of `palaestra train`, and of `palaestra completion`."""

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest

from palaestra.cli.completion import _OPTIONS
from palaestra.cli.main import _VERBS
from palaestra.cli.options import _known
from palaestra.cli.short_help import COMMON, short_help
from palaestra.cli.train import TrainCommand
from palaestra.experiments import preset
from tests.cli.parts import exit_code, output


def test_the_help_of_a_training_fits_on_a_screen_and_has_the_values_of_the_pair(capsys):
    assert exit_code("train", "ppo", "CartPole-v1", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 140
    assert "usage: palaestra train ppo CartPole-v1" in text
    assert "[linear(0.001, 0)]" in text  # the preset's
    assert "--help-all has all" in text


def test_every_option_of_the_short_help_exists():
    default = TrainCommand(**vars(preset("ppo", "CartPole-v1")))
    text, known = short_help(default, "palaestra train"), _known(default)
    options = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert len(options) == sum(map(len, COMMON.values())) >= 12
    assert all(option.removeprefix("--") in known for option in options)


def test_settings_that_an_algorithm_does_not_have_are_left_out():
    assert "--robot" not in short_help(TrainCommand(**vars(preset("reinforce", "CartPole-v1"))), "x")


def test_every_verb_is_completed():
    assert set(_OPTIONS) == set(_VERBS)
    for place in _OPTIONS.values():
        module, _, name = place.partition(":")
        assert isinstance(getattr(importlib.import_module(f"palaestra.cli.{module}"), name), type)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A completion script for each shell."""
    return tmp_path_factory.mktemp("scripts")


def script(scripts: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> Path:
    path = scripts / shell
    assert exit_code("completion", shell) == 0
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.slow
def test_bash_completes_verbs_options_and_choices(scripts, capsys):
    """By running bash."""
    file = script(scripts, "bash", capsys)

    def completed(*words: str) -> list[str]:
        ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tyro_palaestra; printf "%s\\n" "${COMPREPLY[@]}"'
        call = f"source {file}; {ask}"
        done = subprocess.run(
            ["bash", "-c", call, "bash", *words], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.split()

    assert completed("palaestra", "tr") == ["train"]
    assert set(_VERBS) <= set(completed("palaestra", ""))
    assert completed("palaestra", "train", "ppo", "CartPole-v1", "--trainer.tot") == ["--trainer.total-env-steps"]
    assert completed("palaestra", "train", "ppo", "CartPole-v1", "--seed", "3", "--dry") == ["--dry-run"]
    assert completed("palaestra", "eval", "last", "--epi") == ["--episodes"]
    assert completed("palaestra", "train", "ppo", "x", "--algorithm.network.cnn", "im") == ["impala"]


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "--command $_prog_basename")])
def test_there_are_scripts_for_other_shells(shell, word, scripts, capsys):
    file = script(scripts, shell, capsys)
    assert word in file.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(file)], check=True, timeout=60)


@pytest.mark.parametrize("arguments", [(), ("bsh",), ("bash", "zsh")])
def test_another_shell_is_refused_with_those_that_there_are(arguments, capsys):
    assert exit_code("completion", *arguments) == 2
    assert "give one of bash, zsh, fish" in output(capsys)
