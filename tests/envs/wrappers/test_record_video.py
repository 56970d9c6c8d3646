"""Tests of `palaestra.envs.wrappers.video`."""

import importlib

import numpy as np
import pytest
from PIL import Image

from palaestra.core import ConfigError, MissingExtraError
from palaestra.envs import GymEnvironment
from palaestra.envs.wrappers import RecordVideo
from tests.envs.wrappers.worlds import Drawn, episode, script

imageio = pytest.importorskip("imageio.v3")
ffmpeg = pytest.importorskip("imageio_ffmpeg")


def test_every_nth_episode_is_filmed_from_its_first_to_its_last_frame(tmp_path):
    env = RecordVideo(GymEnvironment(Drawn()), str(tmp_path), every=2, suffix="gif")
    for _ in range(4):
        episode(env, 6)
    env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode_0.gif", "episode_2.gif"]
    frames = imageio.imread(tmp_path / "episode_2.gif", index=None)
    assert [int(frame.mean()) for frame in frames] == [0, 10, 20, 30, 40, 50, 60]


def test_an_abandoned_episode_is_a_complete_film(tmp_path):
    env = RecordVideo(GymEnvironment(Drawn()), str(tmp_path / "new"), suffix="mp4", fps=5)
    episode(env, 2)
    env.close()
    frames, seconds = ffmpeg.count_frames_and_secs(str(tmp_path / "new" / "episode_0.mp4"))
    assert (frames, seconds) == (3, pytest.approx(0.6))


@pytest.mark.parametrize(("fps", "frame_ms"), [(50, 20), (10, 100), (25, 40)])
def test_a_gif_is_as_fast_as_was_asked_for(tmp_path, fps, frame_ms):
    env = RecordVideo(GymEnvironment(Drawn()), str(tmp_path), suffix="gif", fps=fps)
    episode(env, 6)
    env.close()
    with Image.open(tmp_path / "episode_0.gif") as film:
        assert film.n_frames == 7
        assert [(film.seek(frame), film.info.get("duration"))[1] for frame in range(7)] == [frame_ms] * 7
        assert film.info["loop"] == 0  # without end


def test_only_environment_0_is_filmed(tmp_path):
    env = RecordVideo(GymEnvironment(Drawn(), env_id=1), str(tmp_path), suffix="gif")
    episode(env, 6)
    env.close()
    assert not list(tmp_path.iterdir())


def test_counting_goes_on_in_a_restored_run(tmp_path):
    """F25."""
    one, two = (RecordVideo(GymEnvironment(Drawn()), str(tmp_path), every=3, suffix="gif") for _ in range(2))
    for _ in range(2):
        episode(one, 6)
    one.begin(0)
    two.load_carried_state(dict(one.carried))
    assert two.snapshot() == 2  # what the running third episode began with
    two.begin_episode(0)
    two.close()
    assert np.array_equal(sorted(path.name for path in tmp_path.iterdir()), ["episode_0.gif"])


@pytest.mark.parametrize("settings", [{"every": 0}, {"fps": 0}, {"suffix": "avi"}], ids=str)
def test_impossible_settings_are_refused(settings):
    """F27."""
    with pytest.raises(ConfigError, match="suffix mp4 or gif"):
        RecordVideo(script(1.0), **settings)


def test_a_missing_package_is_named(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtraError, match=r"palaestra\[video\]"):
        RecordVideo(script(1.0))


def test_films_that_are_there_are_kept(tmp_path):
    for _ in range(2):
        env = RecordVideo(GymEnvironment(Drawn()), str(tmp_path), suffix="gif")
        for _ in range(2):
            episode(env, 6)
        env.close()
    assert sorted(path.stem for path in tmp_path.iterdir()) == [f"episode_{number}" for number in range(4)]
