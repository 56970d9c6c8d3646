"""Pictures of episodes: writing on them, putting them side by side, and films of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core import MissingExtraError

__all__ = ["grid", "labelled", "write_film"]


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
