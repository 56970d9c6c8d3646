"""`palaestra play`: watch a policy, or film it where there is no screen."""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palaestra import experiments
from palaestra.cli.options import RunOptions, parse, positional
from palaestra.core import ConfigError, MissingExtraError

__all__ = ["grid", "labelled", "play", "write_film"]


@dataclass(frozen=True, kw_only=True)
class PlayOptions(RunOptions):
    """Options of `palaestra play`."""

    episodes: int = 1
    """How many episodes."""
    output: str | None = None
    """File to write, .mp4 or .gif; by default a window, or `videos/play.mp4` in the run without a screen."""
    fps: int = 30
    """Frames per second of the film."""
    seed: int = 0
    """Seed of the environment."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    overlay: bool = True
    """Write step, action, reward and return on the film."""
    grid: bool = False
    """Show the episodes side by side in one film."""


def play(arguments: list[str]) -> int:
    """Shows the policy of a run.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the run",), "palaestra play RUN [--episodes N] [--output FILE]")
    options = parse(PlayOptions, rest, prog="palaestra play RUN")
    for option in ("episodes", "fps"):
        if getattr(options, option) < 1:
            raise ConfigError(f"--{option} is {getattr(options, option)}; it must be at least 1")
    if options.output is not None and Path(options.output).suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output is {options.output!r}; give a file that ends with .mp4 or .gif")
    directory = experiments.find_run(name, options.root)
    learner, policies = experiments.policies_of_run(directory, options.which)
    screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"))
    window = options.output is None and not options.grid and screen and learner.has_window
    if not window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen even where it draws a picture
    episodes: list[list[np.ndarray]] = [[]]
    returns: list[float] = []
    for scene in learner.play(policies, episodes=options.episodes, seed=options.seed, window=window):
        if scene.picture is not None:
            write = options.overlay and scene.lines
            episodes[-1].append(labelled(scene.picture, scene.lines) if write else scene.picture)
        if scene.returns:
            episodes.append([])
        returns += scene.returns
    films = [episode for episode in episodes if episode]
    path = None
    if not window:
        frames = grid(films) if options.grid else [frame for film in films for frame in film]
        path = Path(options.output or directory.path / "videos" / ("grid.mp4" if options.grid else "play.mp4"))
        write_film(path, frames, options.fps)
    if options.json:
        print(json.dumps({"returns": returns, "film": None if path is None else str(path)}))
        return 0
    print(f"{len(returns)} episode(s), return {np.mean(returns):.1f}")
    if path is not None:
        print(f"film        {path}")
    return 0


def labelled(frame: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """A picture with text in its upper left corner, on a dark ground.

    Args:
        frame: uint8 [H, W, 3].
        lines: of text.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingExtraError("PIL", "video", "writing on a film") from error
    picture = Image.fromarray(frame)
    draw = ImageDraw.Draw(picture, "RGBA")
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
    rows = math.ceil(len(episodes) / columns)
    height, width, channels = episodes[0][0].shape
    frames = []
    for t in range(max(map(len, episodes))):
        canvas = np.zeros((rows * height, columns * width, channels), np.uint8)
        for number, episode in enumerate(episodes):
            y, x = number // columns * height, number % columns * width
            canvas[y : y + height, x : x + width] = episode[min(t, len(episode) - 1)]
        frames.append(canvas)
    return frames


def write_film(path: Path, frames: Sequence[np.ndarray], fps: int) -> None:
    """Writes an mp4 or a gif.

    Args:
        path: of the file.
        frames: uint8 [H, W, 3].
        fps: frames per second.

    Raises:
        MissingExtraError: imageio is not installed.
    """
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise MissingExtraError("imageio", "video", "writing a film") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"loop": 0, "duration": 1000 / fps} if path.suffix == ".gif" else {"fps": fps}
    if path.suffix == ".mp4":
        options["macro_block_size"] = 2
    imageio.imwrite(path, np.stack(frames), **options)
