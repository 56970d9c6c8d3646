"""Tests of `palaestra.cli.main` and `palaestra.cli.options`: verbs, help, exit codes."""

import ast
import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import palaestra.cli.inspect
import palaestra.cli.train
from palaestra.cli.commands import COMMANDS
from palaestra.cli.main import main
from palaestra.cli.options import NoOptions, print_table
from palaestra.core import CheckpointError, ConfigError, EnvError, MissingExtraError, NonFiniteError, SpecError
from palaestra.training import StoppedError
from tests.architecture.test_documentation import exported
from tests.cli.parts import exit_code, output
from tests.faults.parts import COMMAND, TIMEOUT_S, command


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_verb(arguments, capsys):
    assert exit_code(*arguments) == 0
    text = output(capsys)
    assert all(f"\n {verb} " in text for verb in COMMANDS if " " not in verb)
    told = " ".join(text.split()).partition("exit codes: ")[2]
    codes = "0 done|1 findings|2 configuration|3 environment|4 non-finite|5 checkpoint"
    codes += "|129 SIGHUP|130 Ctrl-C|143 SIGTERM"
    assert re.findall(r"(?:^|(?<=, ))\d+ [\w-]+", told) == codes.split("|")


def test_the_version_is_printed(capsys):
    assert exit_code("--version") == 0
    assert output(capsys) == f"{palaestra.__version__}\n"


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run([sys.executable, "-m", "palaestra", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{palaestra.__version__}\n"


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error():
    """As in `palaestra show-code ppo | head -1`."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "show-code", "ppo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT_S) == 141


def test_another_pipe_that_breaks_is_an_error(monkeypatch, capsys):
    """F27: that of a simulator, say, which is no `| head`."""

    def broken(*arguments):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(palaestra.cli.inspect, "print_table", broken)
    assert exit_code("list", "presets") == 5
    assert "BrokenPipeError [Errno 32] Broken pipe" in output(capsys)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupt_that_a_library_swallows_ends_the_command_as_any_other(number, code, monkeypatch, capsys):
    """Struck while it imports, torch's exporter goes on with half a module, and fails later."""

    def export(*arguments):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise AttributeError("partially initialized module")

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(palaestra.cli.inspect, "print_table", export)
    assert exit_code("list", "presets") == code
    assert "stopped" in output(capsys)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_no_run_leaves_nothing_behind_when_it_is_asked_to_end(number, code, monkeypatch, capsys):
    """F22: as by `timeout 60 palaestra data collect ...`, or a closed terminal, whose shell says so again."""
    tidied = []

    def collect(*arguments):
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGHUP)
            if number == signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)  # `timeout` sends it to its child and to its group
            tidied.append(os.fork() or signal.raise_signal(signal.SIGTERM))

    monkeypatch.setattr(palaestra.cli.inspect, "print_table", collect)
    assert exit_code("list", "presets") == code
    assert "stopped at once" in output(capsys)
    assert os.waitpid(tidied[0], 0)[1] == signal.SIGTERM  # a fork of it, which ends by what it is sent


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("at_once", [False, True])
def test_a_terminal_that_closes_says_so_again_while_a_command_that_was_stopped_ends(at_once, monkeypatch):
    """F22: neither is anything left half said, nor the exit code another one."""

    def train():
        if at_once:
            raise StoppedError("at once", 129)
        return 129

    said = []
    monkeypatch.setattr(sys.modules[main.__module__], "_read", lambda typed: train)
    monkeypatch.setattr(Console, "print", lambda *_, **__: said.append(signal.raise_signal(signal.SIGHUP)))
    assert exit_code("train") == 129
    signal.raise_signal(signal.SIGHUP)  # the interpreter ends
    assert bool(said) == at_once


@pytest.mark.needs_linux
def test_a_mistake_has_its_exit_code_where_nothing_can_be_said():
    """As with `palaestra ... > log 2>&1` on a full disk."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", COMMAND, "trian"], stdout=full, stderr=full, timeout=TIMEOUT_S)
    assert done.returncode == 2


@pytest.mark.parametrize("typed", [("--seed", "3", "ppo", "CartPole-v1"), ("ppo", "--seed", "3", "CartPole-v1")])
def test_what_a_command_is_about_comes_before_its_options(typed, capsys):
    """F27: it was given, so that it is missing is not all there is to say."""
    assert exit_code("train", *typed) == 2
    assert "is missing; it comes before the options: palaestra train" in output(capsys)


def test_without_a_verb_the_help_is_an_error(capsys):
    assert exit_code() == 2
    assert "usage: palaestra VERB" in output(capsys)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_explains_its_options(verb, capsys):
    assert exit_code(*verb.split(), "--help") == 0
    text = output(capsys)
    assert f"usage: palaestra {verb}" in text
    assert "--help" in text


def test_the_help_of_a_training_shows_the_tuned_settings_of_the_pair(capsys):
    """Every field with the docstring under it, and the preset's value as its default."""
    assert exit_code("train", "ppo", "CartPole-v1", "--help-all") == 0
    text = " ".join(output(capsys).split())
    assert "--trainer.eval-episodes INT Episodes of one evaluation; with 0 there are none" in text
    assert "--algorithm.learning-rate NUMBER|SCHEDULE" in text
    assert "(default: 'linear(0.001, 0)')" in text
    assert "--seed" in text
    assert "--compile" in text


def test_the_help_shows_the_wrappers_of_a_preset(capsys):
    assert exit_code("train", "ppo", "HalfCheetah-v5", "--help-all") == 0
    text = " ".join(output(capsys).split())
    assert "(default: NormalizeReward)" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (MissingExtraError("a", "b", "c"), 2),
        (SpecError("x"), 2),
        (EnvError("x"), 3),
        (NonFiniteError("x"), 4),
        (CheckpointError("x"), 5),
        (OSError("No space left on device"), 5),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error, code, monkeypatch, capsys):
    """RELIABILITY.md, mechanism 9; a disk may also be full outside the checkpoints (F10)."""

    def fail(options: NoOptions) -> int:
        raise error

    monkeypatch.setattr(palaestra.cli.inspect, "doctor", fail)
    assert exit_code("doctor") == code
    assert output(capsys).strip() == f"{type(error).__name__} {error}"


def test_an_interrupt_before_training_ends_with_130(monkeypatch, capsys):
    """F22: while the environments are being made, say."""

    def interrupt(algorithm: str, environment: str, options: NoOptions) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(palaestra.cli.train, "train", interrupt)
    monkeypatch.setattr(palaestra.cli.train, "begun", [])
    assert exit_code("train", "ppo", "CartPole-v1") == 130
    assert output(capsys) == "stopped before the run began\n"
    palaestra.cli.train.begun.append(Path("runs/mine"))
    assert exit_code("train", "ppo", "CartPole-v1") == 130
    assert output(capsys) == "stopped at once; the last checkpoint, if there is one, is intact\n"


def test_an_interrupt_of_what_saves_nothing_speaks_of_no_checkpoint(monkeypatch, capsys):
    def interrupt(options: NoOptions) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(palaestra.cli.inspect, "doctor", interrupt)
    assert exit_code("doctor") == 130
    assert output(capsys) == "stopped at once\n"


@pytest.mark.parametrize(("module", "said"), [("torch", "stopped  at once\n"), ("palaestra.cli.commands", "")])
def test_an_interrupt_while_libraries_are_imported_ends_with_130(module, said, tmp_path):
    """F22: that takes seconds, and a person who mistyped does not wait for them."""
    interrupting = f"""
import sys
class Interrupting:
    def find_spec(name, *where):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting)
"""
    assert command("list", folder=tmp_path, program=f"{interrupting}{COMMAND}", check=130) == said


def test_a_message_is_printed_as_it_is(monkeypatch, capsys):
    """Brackets are no markup, and a long line is not broken."""

    def fail(options: NoOptions) -> int:
        raise ConfigError("[red] " + "word " * 60 + "[/]")

    monkeypatch.setattr(palaestra.cli.inspect, "doctor", fail)
    assert exit_code("doctor") == 2
    assert "[red] word" in (text := output(capsys))
    assert len(text.splitlines()) == 1


def test_main_ends_the_process_with_the_code_of_the_command():
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0


def test_code_of_the_current_folder_can_be_named_and_code_of_a_run_cannot(tmp_path, monkeypatch, capsys):
    """F12: imported from the user's Python path, never from a run directory."""
    (tmp_path / "of_the_user.py").write_text("from palaestra.envs.tiny import Chain\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / "of_the_run.py").write_text("raise SystemExit('executed')\n")
    path = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", list(path))
    monkeypatch.chdir(run)
    assert exit_code("train", "ppo", "of_the_run:Chain", "--print-config") == 0
    assert exit_code("train", "ppo", "of_the_run:Chain") == 2
    assert "No module named 'of_the_run'" in output(capsys)
    monkeypatch.chdir(tmp_path)
    assert exit_code("check-env", "of_the_user:Chain") == 0


def test_help_waits_for_no_library():
    """The usage is printed without PyTorch: the answer to `palaestra --help` is there at once."""
    code = """
import sys
from palaestra.cli import main
try:
    main(['--help'])
finally:
    sys.exit('torch' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize(("given", "quickly"), [("", True), ("['list']", False)])
def test_a_process_of_its_own_looks_for_no_garbage_in_what_is_imported(given, quickly):
    """What imports make lives on; a caller's process is left as it is."""
    code = f"""
import gc, sys
from palaestra.cli import main
module = sys.modules['palaestra.cli.main']
def read(typed):
    print(gc.isenabled())
    return lambda: print(gc.isenabled(), gc.get_freeze_count() > 0) or 0
module._read = read
main({given})
"""
    done = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(not quickly), "True", str(quickly)]


def test_every_public_name_is_found_when_it_is_asked_for():
    """`palaestra` imports its packages when first used; type checkers read of the same names, and of all algorithms."""
    import palaestra

    tree = ast.parse(Path(palaestra.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told, algorithms = {}, exported("palaestra.algorithms")
    for node in block.body:
        assert isinstance(node, ast.ImportFrom) and node.module
        names = [alias.name for alias in node.names]
        assert ("*" in names) == (node.module == "palaestra.algorithms")
        told |= dict.fromkeys(algorithms if "*" in names else names, importlib.import_module(node.module))
    assert told.keys() == {*palaestra.__all__, *algorithms}
    for name, module in told.items():
        assert getattr(palaestra, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        palaestra.nothing  # noqa: B018


def test_tables_show_class_names_and_no_emoji(capsys):
    print_table(["name"], [["my_pkg:robot: x"]])
    assert "my_pkg:robot: x" in capsys.readouterr().out


def test_what_a_library_says_by_a_handler_of_its_own_is_not_said_again():
    """As each retry of huggingface_hub was."""
    program = (
        "import atexit, logging; from palaestra.cli import main; names = ('library', 'other');"
        "logging.getLogger('library').addHandler(logging.StreamHandler());"
        "logging.getLogger('other').addHandler(logging.NullHandler());"
        "atexit.register(lambda: [logging.getLogger(f'{name}.inside').warning('by %s', name) for name in names]);"
        "main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["by library", "WARNING  by other"]
