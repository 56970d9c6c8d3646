"""`palaestra eval`, `plot`, `report` and `compare`: what runs have reached."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from palaestra import experiments
from palaestra.cli.options import RunOptions, parse, positional, several
from palaestra.core import ConfigError
from palaestra.experiments.curves import Axis, Statistic, require_plot_name

__all__ = ["compare", "evaluate", "plot", "report"]


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
    """Sample actions instead of taking the best."""
    baseline: bool = False
    """Evaluate random actions as well."""


def evaluate(arguments: list[str]) -> int:
    """Evaluates the policies of runs.

    Args:
        arguments: what was typed after the verb.
    """
    names, rest = several(arguments, "the run", "palaestra eval RUN... [--episodes N]")
    options = parse(EvalOptions, rest, prog="palaestra eval RUN...")
    if options.episodes < 1:
        raise ConfigError(f"--episodes is {options.episodes}; it must be at least 1")
    result = experiments.evaluate_runs(
        names,
        root=options.root,
        baseline=options.baseline,
        episodes=options.episodes,
        seed=options.seed,
        deterministic=not options.stochastic,
        which=options.which,
    )
    if options.json:
        sys.stdout.write(json.dumps(result.to_json()) + "\n")
        return 0
    for path, evaluation in result.runs.items():
        sys.stdout.write(f"{path}  {evaluation}\n")
    if len(result.runs) > 1:
        low, high = result.return_ci95
        interval = f"95% bootstrap interval over {len(result.runs)} runs: {low:.1f} to {high:.1f}"
        sys.stdout.write(f"all  {result.return_mean:.1f} ({interval})\n")
    if result.baseline is not None:
        sys.stdout.write(f"random actions  {result.baseline}\n")
    return 0


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Options of `palaestra plot`."""

    metric: str = "return_mean"
    """Column of `metrics.jsonl`, such as eval/return_mean."""
    x: Axis = "steps"
    """What lies on the x axis."""
    statistic: Statistic = "mean"
    """Mean over seeds, or interquartile mean."""
    output: str | None = None
    """File to write: .png, .svg (both need the extra `plot`) or .csv; by default the plot is drawn here."""
    json: bool = False
    """Print the curves as JSON."""
    root: str = "runs"
    """Where runs are."""


def plot(arguments: list[str]) -> int:
    """Draws learning curves, one for each configuration, with 95% intervals over seeds.

    Args:
        arguments: what was typed after the verb.
    """
    names, rest = several(arguments, "the run", "palaestra plot RUN... [--output FILE.svg]")
    options = parse(PlotOptions, rest, prog="palaestra plot RUN...")
    if options.output is not None:
        require_plot_name(options.output)
    runs = experiments.find_runs(names, options.root)
    curves = experiments.curves_of(runs, metric=options.metric, x=options.x, statistic=options.statistic)
    if options.json:
        listing = [
            {key: value if key == "label" else value.tolist() for key, value in vars(curve).items()} for curve in curves
        ]
        sys.stdout.write(json.dumps(listing) + "\n")
    elif options.output is not None:
        path = experiments.save_plot(curves, options.output, x=options.x, metric=options.metric)
        sys.stdout.write(f"plot        {path}\n")
    else:
        console = Console()
        console.print(
            experiments.terminal_plot(curves, x=options.x, metric=options.metric, width=min(110, console.width))
        )
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
    names, rest = several(arguments, "the run", "palaestra report RUN... [--output FILE.html]")
    options = parse(ReportOptions, rest, prog="palaestra report RUN...")
    if options.output is not None and Path(options.output).suffix != ".html":
        raise ConfigError(f"--output is {options.output!r}; give a file that ends with .html")
    runs = experiments.find_runs(names, options.root)
    path = experiments.write_report([run.path for run in runs], options.output or _home(runs) / "report.html")
    sys.stdout.write(json.dumps({"report": str(path)}) + "\n" if options.json else f"report      {path}\n")
    return 0


def _home(runs: list[experiments.RunDirectory]) -> Path:
    """The run, the group that all runs are of, or this folder."""
    if len(runs) == 1:
        return runs[0].path
    group = runs[0].path.parent
    alike = all(run.path.parent == group for run in runs) and (group / "group.json").is_file()
    return group if alike else Path()


@dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """Options of `palaestra compare`."""

    metric: str = "return_mean"
    """Column of `metrics.jsonl`."""
    x: Axis = "steps"
    """What lies on the x axis."""


def compare(arguments: list[str]) -> int:
    """Shows how two runs, or two groups, differ: in settings, and in what they reached.

    Args:
        arguments: what was typed after the verb.
    """
    (first, second), rest = positional(arguments, ("the first run", "the second run"), "palaestra compare RUN RUN")
    options = parse(CompareOptions, rest, prog="palaestra compare RUN RUN")
    result = experiments.compare_runs(first, second, root=options.root, metric=options.metric, x=options.x)
    if options.json:
        sys.stdout.write(json.dumps(result.to_json()) + "\n")
        return 0
    console = Console()
    table = Table("setting", first, second, box=None)
    for path, (one, other) in result.differences.items():
        table.add_row(path, str(one), str(other))
    console.print(table if result.differences else "the settings are the same")
    console.print(
        experiments.terminal_plot(result.curves, x=options.x, metric=options.metric, width=min(110, console.width))
    )
    console.print(str(result), highlight=False, soft_wrap=True, markup=False)
    return 0
