"""`palaestra play`: a policy in a window, or on film."""

import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palaestra import experiments
from palaestra.cli.options import RunOptions
from palaestra.core import AtLeastOne, ConfigError, import_extra, readable


@dataclass(frozen=True, kw_only=True)
class PlayOptions(RunOptions):
    """Options of `palaestra play`."""

    episodes: AtLeastOne[int] = 1
    """Number of episodes."""
    output: str | None = None
    """File to write, .mp4 or .gif; by default a window, or `videos/play.mp4` in the run without a screen; of a shared
    folder `play.mp4` here."""
    fps: AtLeastOne[int | None] = None
    """Frames per second of the film; by default as many as the environment says (`render_fps`), or 30."""
    seed: int = 0
    """Seed of the environment."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    overlay: bool = True
    """Write step, action, reward and return on the film."""
    grid: bool = False
    """Show the episodes side by side in one film."""


def play(name: str, options: PlayOptions) -> int:
    """Shows the policy of a run in a window, or films it."""
    if options.output is not None and Path(options.output).suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output is {options.output!r}; give a file that ends with .mp4 or .gif")
    directory = experiments.find_run(name, options.root)
    learner, policies = experiments.policies_of_run(directory, options.which)
    window = options.output is None and not options.grid and _has_screen() and learner.has_window
    if not window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen even where it draws a picture
    scenes = learner.play(policies, episodes=options.episodes, seed=options.seed, window=window)
    films, returns, fps = _watched(scenes, options.overlay)
    path, text = None, f"{len(returns)} episode(s), return {readable(float(np.mean(returns)))}"
    if not window:
        path = Path(options.output or _place(directory) / ("grid.mp4" if options.grid else "play.mp4"))
        frames = grid(films) if options.grid else [frame for film in films for frame in film]
        experiments.write_film(path, frames, options.fps or fps)
        text += f"\nfilm        {path}"
    options.show({"returns": returns, "film": path and str(path)}, text)
    return 0


def _has_screen() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"))


def _place(directory: experiments.RunDirectory) -> Path:
    """Where films of a run are; a shared folder stays what its manifest says."""
    videos = directory.path / "videos"
    return videos if videos.is_dir() else Path()


def _watched(scenes: Iterable[Any], overlay: bool) -> tuple[list[list[np.ndarray]], list[float], int]:
    """The pictures of each episode, with text on them or without; returns; frames per second."""
    films: list[list[np.ndarray]] = [[]]
    returns: list[float] = []
    fps = 30
    for scene in scenes:
        fps = scene.fps
        if scene.picture is not None:
            films[-1].append(labelled(scene.picture, scene.lines) if overlay and scene.lines else scene.picture)
        if scene.returns:
            films.append([])
        returns += scene.returns
    return [film for film in films if film], returns, fps


def labelled(frame: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """A picture with text in its upper left corner, on a dark ground.

    Args:
        frame: uint8 [H, W, 3].
        lines: of text.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    image, drawing = (import_extra(f"PIL.{name}", "video", "writing on a film") for name in ("Image", "ImageDraw"))
    picture = image.fromarray(frame)
    draw = drawing.Draw(picture, "RGBA")
    text = "\n".join(lines)
    left, top, right, bottom = draw.multiline_textbbox((6, 4), text)
    draw.rectangle((left - 4, top - 3, right + 4, bottom + 3), fill=(0, 0, 0, 150))
    draw.multiline_text((6, 4), text, fill=(255, 255, 255, 255))
    return np.asarray(picture.convert("RGB"))


def grid(episodes: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Episodes side by side as one film; those that have ended show their last picture.

    Args:
        episodes: frames, uint8 [H, W, 3], of each.
    """
    columns = math.ceil(math.sqrt(len(episodes)))
    black = [np.zeros_like(episodes[0][0])] * (-len(episodes) % columns)
    frames = []
    for t in range(max(map(len, episodes))):
        pictures = [episode[min(t, len(episode) - 1)] for episode in episodes] + black
        rows = [np.hstack(pictures[i : i + columns]) for i in range(0, len(pictures), columns)]
        frames.append(np.vstack(rows))
    return frames
