"""Tests of `palaestra play`: a film where there is no screen."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import palaestra
from palaestra.core import ConfigError
from palaestra.experiments import write_film
from tests.cli.parts import exit_code, output, train
from tests.faults.parts import COMMAND, command

imageio = pytest.importorskip("imageio.v3")
pytest.importorskip("pygame")

pytestmark = pytest.mark.filterwarnings("ignore:pkg_resources is deprecated", "ignore:Deprecated call to")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of an environment that can be drawn."""
    folder = tmp_path_factory.mktemp("play")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        short = ("--trainer.total-env-steps", "64", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
        steps = ("--env.max-episode-steps", "20", "--env.num-envs", "2", "--algorithm.unroll-length", "16")
        assert exit_code("train", "ppo", "CartPole-v1", *short, *steps, "--run.name", "run") == 0
    return folder


@pytest.fixture(autouse=True)
def _without_a_screen(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


# Reading an mp4 back leaves imageio-ffmpeg's pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_film_has_a_picture_for_every_step(suffix, capsys):
    """Issue 2: `play` writes an mp4 or gif when headless."""
    if suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        pytest.skip("needs imageio-ffmpeg")
    assert exit_code("play", "last", "--output", f"film{suffix}", "--episodes", "2") == 0
    text = output(capsys)
    assert "2 episode(s), return " in text
    assert f"film film{suffix}" in text
    with imageio.imopen(f"film{suffix}", "r") as film:
        frames = np.stack(list(film.iter()))
    assert frames.ndim == 4
    assert frames.shape[-1] == 3
    assert 10 < len(frames) <= 2 * 21
    assert frames.std() > 1  # something is drawn


@pytest.mark.slow
def test_without_a_screen_none_is_looked_for(tmp_path):
    """SDL would complain of a folder for its windows that is not there."""
    programme = f"import os; os.environ.pop('SDL_VIDEODRIVER', 0); os.environ.pop('XDG_RUNTIME_DIR', 0); {COMMAND}"
    text = command("play", "run", "--output", str(tmp_path / "film.gif"), folder=Path(), program=programme)
    assert "XDG_RUNTIME_DIR" not in text


def test_without_a_file_name_the_film_lies_in_the_run(capsys):
    assert exit_code("play", "run", "--fps", "10") == 0
    assert "film runs/run/videos/play.mp4" in output(capsys)
    assert Path("runs/run/videos/play.mp4").stat().st_size > 500


def test_a_film_runs_at_the_rate_of_its_environment(monkeypatch):
    """CartPole says 50 pictures in a second."""
    written = []
    monkeypatch.setattr("palaestra.analysis.films.write_film", lambda frames, path, fps: written.append(fps))
    assert exit_code("play", "run") == exit_code("play", "run", "--fps", "10") == 0
    assert written == [50, 10]


def test_a_film_is_one_call_in_python():
    (earned,) = palaestra.film_run("last", "python.gif", fps=20, overlay=False)
    assert 1 <= earned <= 20 and Path("python.gif").stat().st_size > 500
    with pytest.raises(ConfigError, match="episodes is 0; it must be a whole number"):
        palaestra.film_run("last", "python.gif", episodes=0)
    assert write_film([np.zeros((4, 4, 3), np.uint8)], "deep/one.gif", fps=1).exists()
    with pytest.raises(ConfigError, match=r"frames is 'one.gif'; give the pictures first: write_film\(frames, path"):
        write_film(Path("one.gif"), [], fps=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"there is no picture for one.gif"):
        write_film([], "one.gif", fps=1)


def test_an_environment_that_cannot_be_drawn_is_named(capsys):
    """F27."""
    train(name="plain")
    capsys.readouterr()
    assert exit_code("play", "plain") == 2
    assert "ConfigError palaestra.envs.tiny:Chain cannot be drawn as 'rgb_array': " in output(capsys)


def test_a_missing_extra_is_named(monkeypatch, capsys):
    """F27."""
    import sys

    monkeypatch.setitem(sys.modules, "imageio.v3", None)
    assert exit_code("play", "run", "--output", "film.gif") == 2
    assert "pip install 'palaestra[video]'" in output(capsys)


@pytest.mark.slow
def test_episodes_are_shown_side_by_side_with_what_was_done(capsys):
    """Action, reward and return are written on the film unless they are not wanted."""
    arguments = ("play", "run", "--episodes", "3", "--grid")
    assert exit_code(*arguments, "--output", "with.gif", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["film"] == "with.gif"
    assert len(record["returns"]) == 3
    assert exit_code(*arguments, "--output", "without.gif", "--no-overlay") == 0
    films = []
    for name in ("with", "without"):
        with imageio.imopen(f"{name}.gif", "r") as film:
            films.append(np.stack(list(film.iter())))
    assert films[0].shape[1:] == films[1].shape[1:] == (800, 1200, 3)
    assert len(films[0]) == int(max(record["returns"])) + 1  # a gif leaves out a picture that equals the one before
    changed = (films[0][:5] != films[1][:5]).any(axis=(0, 3))
    assert changed[:60, :160].any()


@pytest.mark.parametrize("option", ["--episodes", "--fps"])
def test_a_film_of_nothing_is_refused(option, capsys):
    """F27."""
    assert exit_code("play", "run", option, "0") == 2
    assert f"{option} is 0; it must be at least 1" in output(capsys)
