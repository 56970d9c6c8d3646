"""Films of policies: pictures as mp4 or gif."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from palaestra.core import ConfigError, import_extra
from palaestra.experiments.learner import Learner
from palaestra.policies import Policy

__all__ = ["film_episode", "write_film"]


def write_film(path: Path, frames: Sequence[np.ndarray], fps: int) -> None:
    """Writes an mp4 or a gif.

    Args:
        path: of the file.
        frames: uint8 [H, W, 3].
        fps: frames per second.

    Raises:
        MissingExtraError: imageio is not installed.
    """
    imageio = import_extra("imageio.v3", "video", "writing a film")
    path.parent.mkdir(parents=True, exist_ok=True)
    gif = path.suffix == ".gif"
    options = {"loop": 0, "duration": 1000 / fps} if gif else {"fps": fps, "macro_block_size": 2}
    imageio.imwrite(path, np.stack(frames), **options)


def film_episode(
    learner: Learner, policies: Mapping[str, Policy], path: Path, *, seed: int = 0, fps: int | None = None
) -> None:
    """Films one episode of policies, without a screen.

    Args:
        learner: of the run.
        policies: that act, by name.
        path: of the film, .mp4 or .gif.
        seed: of the environment.
        fps: frames per second; by default as many as the environment says.

    Raises:
        ConfigError: the environment draws no pictures, or a package for them is missing.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen even where it draws a picture
    scenes = list(learner.play(policies, episodes=1, seed=seed, window=False))
    frames = [scene.picture for scene in scenes if scene.picture is not None]
    if not frames:
        raise ConfigError(f"{learner.config.env.name} draws no pictures")
    write_film(path, frames, fps or scenes[0].fps)
