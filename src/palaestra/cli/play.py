"""`palaestra play`: a policy in a window, or on film."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from palaestra import experiments
from palaestra.analysis.films import require_film_name
from palaestra.cli.options import RunOptions
from palaestra.core import AtLeastOne, left_as_found, readable


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
    """Seed of the environment, whatever the run's own is."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    overlay: bool = True
    """Write step, action, reward and return on the film."""
    grid: bool = False
    """Show the episodes side by side in one film."""


@left_as_found()
def play(name: str, options: PlayOptions) -> int:
    """Shows the policy of a run in a window, or films it."""
    if options.output is not None:
        require_film_name(options.output)
    directory = experiments.find_run(name, options.root)
    learner, policies = experiments.policies_of_run(directory, options.which)
    window = options.output is None and not options.grid and _has_screen() and learner.has_window
    scenes = learner.play(policies, episodes=options.episodes, seed=options.seed, window=window)
    path = None
    if window:
        returns = [earned for scene in scenes for earned in scene.returns]
    else:
        path = Path(options.output or _place(directory) / ("grid.mp4" if options.grid else "play.mp4"))
        returns = experiments.film_scenes(scenes, path, fps=options.fps, overlay=options.overlay, grid=options.grid)
    text = f"{len(returns)} episode(s), return {readable(float(np.mean(returns)))}"
    film = "" if path is None else f"\nfilm        {path}"
    options.show({"returns": returns, "film": path and str(path)}, text + film)
    return 0


def _has_screen() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"))


def _place(directory: experiments.RunDirectory) -> Path:
    """Where films of a run are; a shared folder stays what its manifest says."""
    videos = directory.path / "videos"
    return videos if videos.is_dir() else Path()
