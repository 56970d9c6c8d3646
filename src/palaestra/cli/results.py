"""`palaestra eval`, `rate`, `play`, `plot`, `report` and `compare`: what runs have reached."""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from palaestra import experiments
from palaestra.analysis.curves import Axis, Statistic, require_plot_name, shown_metric
from palaestra.cli.options import RunOptions, command, print_table
from palaestra.core import ConfigError, import_extra, require_at_least

__all__ = ["compare", "evaluate", "play", "plot", "rate", "report"]


@dataclass(frozen=True, kw_only=True)
class EvalOptions(RunOptions):
    """Options of `palaestra eval`."""

    episodes: int = 20
    """How many episodes of each run."""
    seed: int | None = None
    """Seed of the environments; by default the run's own evaluation seeds."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    stochastic: bool = False
    """Sample actions instead of taking the best. Policies without a distribution, as of DQN and TD3, act the same."""
    target_return: float | None = None
    """Return to ask for, of a policy that acts for one (decision_transformer)."""
    baseline: bool = False
    """Evaluate random actions as well."""


def evaluate(arguments: list[str]) -> int:
    """Evaluates the policies of runs.

    Args:
        arguments: what was typed after the verb.
    """
    names, options = command(EvalOptions, arguments, "palaestra eval RUN... [--episodes N]", "the run...")
    require_at_least(options, "--", episodes=1)
    result = experiments.evaluate_runs(
        names,
        root=options.root,
        baseline=options.baseline,
        episodes=options.episodes,
        seed=options.seed,
        deterministic=not options.stochastic,
        which=options.which,
        target_return=options.target_return,
    )
    options.show(asdict(result), str(result))
    return 0


@dataclass(frozen=True, kw_only=True)
class RateOptions(RunOptions):
    """Options of `palaestra rate`."""

    games: int = 100
    """Between any two players; each begins half of them."""
    seed: int = 0
    """Seed of the environments."""
    deterministic: bool = False
    """Take the best actions instead of sampling them; equal games may repeat then."""
    baseline: bool = False
    """Let random actions play as well."""


def rate(arguments: list[str]) -> int:
    """Lets policies of runs play against each other, and rates them: Elo with 95% intervals.

    Args:
        arguments: what was typed after the verb.
    """
    usage = "palaestra rate RUN[@STEPS]... [--games N] [--baseline]"
    names, options = command(RateOptions, arguments, usage, "the run...")
    chosen = {name: getattr(options, name) for name in ("games", "seed", "deterministic", "baseline")}
    result = experiments.rate_runs(names, root=options.root, **chosen)
    options.show(asdict(result), str(result))
    return 0


@dataclass(frozen=True, kw_only=True)
class CurveOptions(RunOptions):
    """Options of verbs that draw curves."""

    metric: str | None = None
    """Column of `metrics.jsonl`, such as eval/return_mean; by default return_mean, or what there is of it."""
    x: Axis = "steps"
    """What lies on the x axis."""

    def metric_of(self, runs: Sequence[experiments.RunDirectory]) -> str:
        """What to draw of runs."""
        return self.metric or shown_metric(runs)

    def draw(self, curves: Sequence[experiments.Curve], metric: str) -> None:
        """Draws curves in the terminal."""
        console = Console(emoji=False)
        width = min(110, console.width)
        console.print(experiments.terminal_plot(curves, x=self.x, metric=metric, width=width))


@dataclass(frozen=True, kw_only=True)
class PlotOptions(CurveOptions):
    """Options of `palaestra plot`."""

    statistic: Statistic = "mean"
    """Mean over seeds, or interquartile mean."""
    output: str | None = None
    """File to write: .png, .svg (both need the extra `plot`) or .csv; by default the plot is drawn here."""


def plot(arguments: list[str]) -> int:
    """Draws learning curves, one for each configuration, with 95% intervals over seeds.

    Args:
        arguments: what was typed after the verb.
    """
    names, options = command(PlotOptions, arguments, "palaestra plot RUN... [--output FILE.svg]", "the run...")
    if options.output is not None:
        require_plot_name(options.output, or_table=True)
    runs = experiments.find_runs(names, options.root)
    metric = options.metric_of(runs)
    curves = experiments.curves_of(runs, metric=metric, x=options.x, statistic=options.statistic)
    path = options.output and experiments.save_plot(curves, options.output, x=options.x, metric=metric)
    if options.json:
        print(json.dumps([vars(curve) for curve in curves], default=np.ndarray.tolist))
    elif path:
        print(f"plot        {path}")
    else:
        options.draw(curves, metric)
    return 0


@dataclass(frozen=True, kw_only=True)
class ReportOptions(RunOptions):
    """Options of `palaestra report`."""

    output: str | None = None
    """File to write; by default `report.html` in the run or group."""


def report(arguments: list[str]) -> int:
    """Writes one HTML file about runs that needs neither server nor network.

    Args:
        arguments: what was typed after the verb.
    """
    names, options = command(ReportOptions, arguments, "palaestra report RUN... [--output FILE.html]", "the run...")
    if options.output is not None and Path(options.output).suffix != ".html":
        raise ConfigError(f"--output is {options.output!r}; give a file that ends with .html")
    runs = experiments.find_runs(names, options.root)
    path = experiments.write_report([run.path for run in runs], options.output or _home(runs) / "report.html")
    options.show({"report": str(path)}, f"report      {path}")
    return 0


def _home(runs: list[experiments.RunDirectory]) -> Path:
    """The run, the group that all runs are of, or this folder; a shared folder stays what its manifest says."""
    if len(runs) == 1:
        return Path() if runs[0].is_shared else runs[0].path
    group = runs[0].path.parent
    alike = all(run.path.parent == group for run in runs) and (group / "group.json").is_file()
    return group if alike else Path()


def compare(arguments: list[str]) -> int:
    """Shows how two runs, or two groups, differ: in settings, and in what they reached.

    Args:
        arguments: what was typed after the verb.
    """
    names = ("the first run", "the second run")
    (first, second), options = command(CurveOptions, arguments, "palaestra compare RUN RUN", *names)
    metric = options.metric_of(experiments.find_runs([first, second], options.root))
    result = experiments.compare_runs(first, second, root=options.root, metric=metric, x=options.x)
    if options.json:
        print(json.dumps(result.to_json()))
        return 0
    if result.differences:
        rows = [(path, *values) for path, values in result.differences.items()]
        print_table(["setting", first, second], rows)
    else:
        print("the settings are the same")
    options.draw(result.curves, metric)
    print(result)
    return 0


@dataclass(frozen=True, kw_only=True)
class PlayOptions(RunOptions):
    """Options of `palaestra play`."""

    episodes: int = 1
    """How many episodes."""
    output: str | None = None
    """File to write, .mp4 or .gif; by default a window, or `videos/play.mp4` in the run without a screen; of a shared
    folder `play.mp4` here."""
    fps: int | None = None
    """Frames per second of the film; by default as many as the environment says (`render_fps`), or 30."""
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
    usage = "palaestra play RUN [--episodes N] [--output FILE]"
    (name,), options = command(PlayOptions, arguments, usage, "the run")
    require_at_least(options, "--", episodes=1, **({} if options.fps is None else {"fps": 1}))
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
    rate = 30
    for scene in learner.play(policies, episodes=options.episodes, seed=options.seed, window=window):
        rate = scene.fps
        if scene.picture is not None:
            write = options.overlay and scene.lines
            episodes[-1].append(labelled(scene.picture, scene.lines) if write else scene.picture)
        if scene.returns:
            episodes.append([])
        returns += scene.returns
    films = [episode for episode in episodes if episode]
    path, text = None, f"{len(returns)} episode(s), return {np.mean(returns):.1f}"
    if not window:
        frames = grid(films) if options.grid else [frame for film in films for frame in film]
        videos = directory.path / "videos"
        place = videos if videos.is_dir() else Path()  # a shared folder stays what its manifest says
        path = Path(options.output or place / ("grid.mp4" if options.grid else "play.mp4"))
        experiments.write_film(path, frames, options.fps or rate)
        text += f"\nfilm        {path}"
    options.show({"returns": returns, "film": path and str(path)}, text)
    return 0


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
