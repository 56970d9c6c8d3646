"""Films of policies that act, made without a screen."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.analysis.evaluation import policies_of_run, require_episodes
from palaestra.core import ConfigError, computing, import_extra, left_as_found
from palaestra.core.files import whole_file
from palaestra.runs import RunDirectory, Scene

__all__ = ["film_run", "film_scenes", "write_film"]


def film_run(
    name: str | Path | RunDirectory,
    path: str | Path,
    *,
    root: str | Path = "runs",
    which: str | int = "best",
    episodes: int = 1,
    seed: int = 0,
    **options: Any,
) -> list[float]:
    """Films the policy of a run.

    Args:
        name: path or name of the run, or `last`.
        path: of the film, .mp4 or .gif.
        which: see `policies_of_run`.
        seed: of the environment.
        options: `fps`, `overlay`, `grid`: see `film_scenes`.

    Returns:
        The return of each episode.

    Raises:
        CheckpointError: there is no such run, or it has no such policy.
        ConfigError: `episodes` is less than 1, another ending, or the environment cannot be drawn.
        MissingExtraError: a package that draws is not installed.

    Examples:
        >>> film_run("last", "film.mp4", episodes=3, grid=True)  # doctest: +SKIP
        [200.0, 187.0, 200.0]
    """
    require_episodes(episodes)
    learner, policies = policies_of_run(name, which, root=root)
    return film_scenes(learner.play(policies, episodes=episodes, seed=seed, window=False), path, **options)


@left_as_found()
def film_scenes(
    scenes: Iterable[Scene], path: str | Path, *, fps: int | None = None, overlay: bool = True, grid: bool = False
) -> list[float]:
    """Films what policies do.

    Args:
        scenes: from `Learner.play`.
        path: of the film, .mp4 or .gif.
        fps: frames per second; by default as many as the environment says (`render_fps`), or 30.
        overlay: whether step, action, reward and return are written on it.
        grid: whether the episodes are side by side.

    Returns:
        The return of each episode.

    Raises:
        ConfigError: another ending, or the environment cannot be drawn.
        MissingExtraError: a package that draws is not installed.
    """
    require_film_name(path)
    computing.set_variable("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen even where it draws a picture
    films: list[list[np.ndarray]] = [[]]
    returns, usual = list[float](), 30
    for scene in scenes:
        usual = scene.fps
        if scene.picture is not None:
            films[-1].append(labelled(scene.picture, scene.lines) if overlay and scene.lines else scene.picture)
        if scene.returns:
            films.append([])
        returns += scene.returns
    films = [film for film in films if film]
    frames = side_by_side(films) if films and grid else [frame for film in films for frame in film]
    write_film(frames, path, fps=fps or usual)
    return returns


def write_film(frames: Sequence[np.ndarray], path: str | Path, *, fps: float) -> Path:
    """Writes an mp4 or a gif.

    Args:
        frames: uint8 [H, W, 3].
        path: ends with .mp4 or .gif.
        fps: frames per second.

    Returns:
        The file.

    Raises:
        ConfigError: another ending, or there are no frames.
        MissingExtraError: imageio is not installed.
    """
    if isinstance(frames, str | Path):
        raise ConfigError(f"frames is {str(frames)!r}; give the pictures first: write_film(frames, path, fps=30)")
    path = require_film_name(path)
    if not len(frames):
        raise ConfigError(f"there is no picture for {path}; a film is of an environment that draws some")
    imageio = import_extra("imageio.v3", "video", "writing a film")
    path.parent.mkdir(parents=True, exist_ok=True)
    gif = path.suffix == ".gif"
    options = {"loop": 0, "duration": 1000 / fps} if gif else {"fps": fps, "macro_block_size": 2}
    with whole_file(path) as temporary:
        data = imageio.imwrite("<bytes>", np.stack(frames), extension=path.suffix, **options)
        if not gif and b"moov" not in data:  # ffmpeg writes the index last, and imageio does not say that it has failed
            raise OSError("ffmpeg could not finish it; is the disk for temporary files full?")
        temporary.write_bytes(data)
    return path


def require_film_name(path: str | Path) -> Path:
    """The path of a film, once its ending is known to be one that can be written.

    Args:
        path: given.

    Raises:
        ConfigError: another ending.
    """
    if Path(path).suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output is {str(path)!r}; give a file that ends with .mp4 or .gif")
    return Path(path)


def labelled(frame: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """A picture with text in its upper left corner, on a dark ground."""
    image, drawing = (import_extra(f"PIL.{name}", "video", "writing on a film") for name in ("Image", "ImageDraw"))
    picture = image.fromarray(frame)
    draw = drawing.Draw(picture, "RGBA")
    text = "\n".join(lines)
    left, top, right, bottom = draw.multiline_textbbox((6, 4), text)
    draw.rectangle((left - 4, top - 3, right + 4, bottom + 3), fill=(0, 0, 0, 150))
    draw.multiline_text((6, 4), text, fill=(255, 255, 255, 255))
    return np.asarray(picture.convert("RGB"))


def side_by_side(episodes: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Episodes as one film; those that have ended show their last picture."""
    columns = math.ceil(math.sqrt(len(episodes)))
    black = [np.zeros_like(episodes[0][0])] * (-len(episodes) % columns)
    frames = []
    for t in range(max(map(len, episodes))):
        pictures = [episode[min(t, len(episode) - 1)] for episode in episodes] + black
        rows = [np.hstack(pictures[i : i + columns]) for i in range(0, len(pictures), columns)]
        frames.append(np.vstack(rows))
    return frames
