"""A disk without room: each command that writes a file for its user names it and why, and leaves nothing of it."""

import contextlib
import resource
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.parts import exit_code, output

pytestmark = pytest.mark.filterwarnings("ignore:pkg_resources is deprecated", "ignore:Deprecated call to")

COMMANDS = {
    "export run --format torch --output made/policy": ("made/policy", ()),
    "export run --output made/policy": ("made/policy", ("onnx", "onnxscript", "onnxruntime")),
    "play run --output made/film.gif": ("made/film.gif", ("imageio", "pygame")),
    "play run --output made/film.mp4": ("made/film.mp4", ("imageio_ffmpeg", "pygame")),
    "report run --output made/report.html": ("made/report.html", ()),
    "plot run --output made/plot.csv": ("made/plot.csv", ()),
    "plot run --output made/plot.svg": ("made/plot.svg", ("matplotlib.font_manager",)),
    "plot run --output made/plot.png": ("made/plot.png", ("matplotlib.font_manager",)),
    "stats run=runs/run --output made/stats.png": ("made/stats.png", ("matplotlib.font_manager",)),
    "share run --output made/shared --episodes 1 --no-film": ("made/shared", ()),
    "data collect run made/data --steps 100": ("made/data", ()),
    "resume run --fork": ("runs/run_fork", ()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        short = ("--trainer.total-env-steps", "64", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
        steps = ("--env.max-episode-steps", "20", "--env.num-envs", "2", "--algorithm.unroll-length", "16")
        assert exit_code("train", "ppo", "CartPole-v1", *short, *steps, "--run.name", "run") == 0
    return folder


@contextlib.contextmanager
def no_room():
    """The operating system lets no file of this process, or of those that it starts, grow beyond 100 bytes."""
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would keep the first 100 bytes of a module
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = kept


def files():
    return {path for path in Path().rglob("*") if path.is_file() and path.name != "run.lock"}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_has_no_room_is_named_with_its_cause_and_leaves_nothing(command, folder, monkeypatch, capsys):
    """Issue 51: a raw error of torch, half a film, messages without a file, a name that stayed taken."""
    name, packages = COMMANDS[command]
    for package in packages:  # imported here, they keep what they cache whole
        pytest.importorskip(package)
    monkeypatch.chdir(folder)
    for screen in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(screen, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    before = files()
    with no_room():
        assert exit_code(*command.split()) == 5
    text = output(capsys)
    assert f"{name} cannot be written: " in text
    assert ".tmp-" not in text.partition(" cannot be written: ")[0]
    assert "too large" in text or "ffmpeg could not finish" in text or "pipe" in text
    assert files() == before
    assert not Path("runs/run_fork").exists()


def test_a_file_that_cannot_be_replaced_stays(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    Path("plot.csv").write_text("mine")
    with no_room():
        assert exit_code("plot", "run", "--output", "plot.csv") == 5
    assert "plot.csv cannot be written: " in output(capsys)
    assert Path("plot.csv").read_text() == "mine"


def test_a_run_that_goes_on_without_room_names_the_file(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    shutil.copytree("runs/run", "runs/again")
    with no_room():
        assert exit_code("resume", "again", "--until", "128") == 5
    assert "runs/again/run.json cannot be written: " in output(capsys)
    assert exit_code("resume", "again", "--until", "128") == 0
