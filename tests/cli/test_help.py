"""Tests of the table of commands: what help, usage, completion and the page *Commands* make of it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from palaestra.algorithms import ALGORITHMS, DQN, DQNConfig
from palaestra.cli.commands import COMMANDS, Command
from palaestra.cli.help import options_of
from palaestra.cli.options import defaults_of, parse
from palaestra.cli.train import TrainCommand
from palaestra.core import ConfigError
from tests.cli.parts import exit_code, output
from tools import commands_page


def test_the_help_of_a_training_fits_on_a_screen_and_has_the_values_of_the_pair(capsys):
    assert exit_code("train", "ppo", "CartPole-v1", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 140
    assert "usage: palaestra train ppo CartPole-v1" in text
    assert "[linear(0.001, 0)]" in text  # the preset's
    assert "--help-all has all" in text


def test_a_short_name_of_a_command_comes_before_that_of_its_groups():
    """`tune --time-limit 2h` ended each trial after two hours, and the search never."""
    base = defaults_of(COMMANDS["tune"], ["dqn", "CartPole-v1"])
    options = parse(base, ["--time-limit", "2h"])
    assert (options.time_limit_s, options.trainer.time_limit_s) == (7200, None)
    assert parse(options, ["--time-limit", "Null"]).time_limit_s is None
    with pytest.raises(ConfigError, match="--space: an empty text was given"):
        parse(options, ["--space", ""])
    (found,) = [option.setting.path for option in options_of(base) if "--time-limit" in option.names]
    assert found == "time_limit_s"


FEW = ("behaviour_cloning", "evolution_strategies", "reinforce")  # they have fewer


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "tests.cli.test_help:Own"])
def test_the_help_of_a_training_shows_the_numbers_of_the_algorithm(algorithm, capsys):
    assert exit_code("train", algorithm, "CartPole-v1", "--help") == 0
    text = capsys.readouterr().out
    assert 8 <= text.count("  --algorithm.") <= 13 or algorithm in FEW
    assert ("--algorithm.sharpness             How sharp it is  [2.5]" in text) == (":" in algorithm)


@pytest.mark.parametrize(
    ("algorithm", "needed"),
    [("cql", ["--offline.data", "--offline.fraction"]), ("dagger", ["--algorithm.teacher"]), ("sac", [])],
)
def test_the_help_of_a_training_begins_with_what_is_learned_from(algorithm, needed, capsys):
    """Learners from data alone did not show `--offline.data`."""
    assert exit_code("train", algorithm, "Pendulum-v1", "--help") == 0
    _, _, text = capsys.readouterr().out.partition("what it learns from\n")
    assert [line.split()[0] for line in text.partition("\n\n")[0].splitlines()] == needed


@dataclass(frozen=True, kw_only=True)
class OwnConfig(DQNConfig):
    """Settings of an algorithm outside the package."""

    sharpness: float = 2.5
    """How sharp it is."""


class Own(DQN):
    """An algorithm outside the package."""

    config_class = OwnConfig


def test_what_is_set_most_exists():
    known = {option.setting.path for option in options_of(defaults_of(COMMANDS["train"]))}
    shown = [path for paths in TrainCommand.MOST_SET.values() for path in paths if not path.endswith(".")]
    assert len(shown) >= 12
    assert set(shown) <= known


def examples() -> list[str]:
    return [name for name, command in COMMANDS.items() if command.function]


@pytest.mark.parametrize("name", examples())
def test_the_options_of_an_example_exist(name, tmp_path, monkeypatch):
    """And every option has a text."""
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name]
    options = options_of(defaults_of(command))
    known = {typed for option in options for typed in option.names}
    assert {word for word in command.example.split() if word.startswith("--")} <= known
    assert [option.names[0] for option in options if not option.text] == []


def test_the_page_of_commands_has_every_command_and_option():
    """`make docs` writes it, so that it is always of the table as it is."""
    text = commands_page.page()
    for name in examples():
        assert f"\n## {name}\n\n`{COMMANDS[name].usage}`\n" in text
        options = options_of(defaults_of(COMMANDS[name]))
        assert [option.names[0] for option in options if f"| `{option.names[0]}`" not in text] == []
    sac = options_of(defaults_of(COMMANDS["train"], ["sac"]))
    assert [option.names[0] for option in sac if f"| `{option.names[0]}`" not in text] == []


NEW = '''
from dataclasses import dataclass
from typing import Literal

from palaestra.cli.options import JsonOptions


@dataclass(frozen=True, kw_only=True)
class SizeOptions(JsonOptions):
    unit: Literal["bytes", "kilobytes"] = "bytes"
    """What is counted."""


def size(runs: list[str], options: SizeOptions) -> int:
    """Says how large runs are."""
    options.show([runs, options.unit], f"{runs} in {options.unit}")
    return 0
'''


def test_a_new_command_is_one_file_and_its_entry(tmp_path, monkeypatch, capsys):
    """The trial of issue 50: help, usage, parsing, completion and the page have it."""
    (tmp_path / "command_of_size.py").write_text(NEW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    entry = Command("size", "RUN...", "how large runs are", "command_of_size:size", "last --unit kilobytes")
    monkeypatch.setitem(COMMANDS, "size", entry)
    assert exit_code("--help") == 0
    assert "\n size RUN... how large runs are palaestra size last --unit kilobytes\n" in output(capsys)
    assert exit_code("size", "first", "second", "--unit", "kilobytes") == 0
    assert output(capsys) == "['first', 'second'] in kilobytes\n"
    assert exit_code("size", "--help") == 0
    text = output(capsys)
    assert text.startswith("usage: palaestra size RUN... [options]\n\nSays how large runs are.\n")
    assert "\n --unit bytes|kilobytes\n What is counted. (default: bytes)\n" in text
    for typed, message in {
        "": "the run is missing: palaestra size RUN... [options]",
        "last --unti bytes": "unknown option --unti — did you mean --unit?",
        "last --unit bites": "unit is 'bites': 'bytes' or 'kilobytes' is needed",
    }.items():
        assert exit_code("size", *typed.split()) == 2
        assert message in output(capsys)
    assert exit_code("sise") == 2
    assert "did you mean 'size'?" in output(capsys)
    file = script(tmp_path, "bash", capsys)
    assert completed(file, "palaestra si", tmp_path) == ["size"]
    assert completed(file, "palaestra size last --un", tmp_path) == ["--unit"]
    assert completed(file, "palaestra size last --unit k", tmp_path) == ["kilobytes"]
    assert "## size\n" in commands_page.page()


def script(folder: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> Path:
    assert exit_code("completion", shell) == 0
    (folder / shell).write_text(capsys.readouterr().out)
    return folder / shell


def completed(file: Path, line: str, folder: Path) -> list[str]:
    """What bash completes at the end of a line."""
    ask = 'COMP_LINE=$1 COMP_POINT=${#1}; _palaestra; printf "%s\\n" "${COMPREPLY[@]}"'
    words = ["bash", "-c", f"source {file}; {ask}", "bash", line]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, cwd=folder)
    return done.stdout.split()


RUNS = ["last", "ppo_1", "seeds", "seeds/seed_0"]
COMPLETED = {
    "palaestra tr": ["train"],
    "palaestra train pp": ["ppg", "ppo"],
    "palaestra train ppo Cart": ["CartPole-v1"],
    "palaestra eval la": ["last"],
    "palaestra eval ": RUNS,
    "palaestra eval last ": RUNS,
    "palaestra eval --root elsewhere last --episodes 3 ": [],
    "palaestra compare last se": ["seeds", "seeds/seed_0"],
    "palaestra data c": ["collect"],
    "palaestra data collect r": ["random"],
    "palaestra data collect random Pend": ["Pendulum-v1"],
    "palaestra bench CartP": ["CartPole-v1"],
    "palaestra list r": ["runs"],
    "palaestra completion ": ["bash", "zsh", "fish"],
    "palaestra train ppo CartPole-v1 --trainer.tot": ["--trainer.total-env-steps"],
    "palaestra train ppo CartPole-v1 --seed 3 --dry": ["--dry-run"],
    "palaestra train ppo x --algorithm.network.cnn im": ["impala"],
    "palaestra train ppo x --algorithm.value-c": ["--algorithm.value-cost", "--algorithm.value-clip"],
    "palaestra train dqn x --algorithm.value-c": [],
    "palaestra train own:Algorithm x --seed": ["--seeds", "--seed"],
}


@pytest.fixture
def runs(tmp_path):
    """A folder with runs, one of whose names a shell must not run."""
    for name in ("ppo_1/config.yaml", "seeds/group.json", "seeds/seed_0/config.yaml", "no_run/other.txt"):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).touch()
    return tmp_path


@pytest.mark.slow
def test_bash_completes_what_can_be_typed(runs, capsys):
    """By running bash."""
    file = script(runs, "bash", capsys)
    for line, expected in COMPLETED.items():
        assert sorted(completed(file, line, runs)) == sorted(expected), line
    names = {name for name in COMMANDS if " " not in name}
    assert set(completed(file, "palaestra ", runs)) == names
    (runs / "runs" / "$(touch broken)").mkdir()
    (runs / "runs" / "$(touch broken)" / "config.yaml").touch()
    assert "broken)" in completed(file, "palaestra eval ", runs)
    assert not (runs / "broken").exists()


@pytest.mark.slow
def test_what_follows_a_colon_is_completed(runs, capsys, monkeypatch):
    """Bash replaces only what follows it."""
    monkeypatch.setattr("palaestra.cli.completion._values", lambda argument: ["package:One", "package:Other"])
    assert completed(script(runs, "bash", capsys), "palaestra check-env package:O", runs) == ["One", "Other"]


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete -c palaestra")])
def test_there_are_scripts_for_other_shells(shell, word, tmp_path, capsys):
    file = script(tmp_path, shell, capsys)
    assert word in file.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(file)], check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_the_same(runs, capsys):
    file = script(runs, "fish", capsys)
    for line, expected in COMPLETED.items():
        call = f"source {file}; complete -C '{line}'"
        done = subprocess.run(["fish", "-c", call], capture_output=True, text=True, check=True, timeout=60, cwd=runs)
        found = [found.partition("\t")[0] for found in done.stdout.splitlines()]
        assert not expected or sorted(found) == sorted(expected), line  # where nothing is known files are shown


@pytest.mark.parametrize("arguments", [(), ("bsh",), ("bash", "zsh")])
def test_another_shell_is_refused_with_those_that_there_are(arguments, capsys):
    assert exit_code("completion", *arguments) == 2
    text = output(capsys)
    assert "bash|zsh|fish" in text or "did you mean 'bash'?" in text or "unexpected 'zsh'" in text
