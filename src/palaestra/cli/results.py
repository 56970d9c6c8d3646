"""`palaestra eval`, `rate`, `plot`, `report` and `compare`: what runs have reached."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from palaestra import experiments
from palaestra.analysis.curves import Axis, Statistic, require_plot_name, shown_metric
from palaestra.analysis.labels import table_cells
from palaestra.cli.options import RunOptions, print_table
from palaestra.core import AtLeastOne, ConfigError


@dataclass(frozen=True, kw_only=True)
class EvalOptions(RunOptions):
    """Options of `palaestra eval`."""

    episodes: AtLeastOne[int] = 20
    """Number of episodes of each run."""
    seed: int = 1_000_000
    """Added to the seed of each run, so that each has episodes of its own; 0 gives those of its evaluations in
    training, which chose its policy."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    stochastic: bool = False
    """Sample actions instead of taking the best. Policies without a distribution, as of DQN and TD3, act the same."""
    target_return: float | None = None
    """Return to ask for, of a policy that acts for one (decision_transformer)."""
    baseline: bool = False
    """Evaluate random actions as well."""


def evaluate(names: list[str], options: EvalOptions) -> int:
    """Evaluates the policies of runs."""
    chosen = options.chosen()
    result = experiments.evaluate_runs(names, deterministic=not chosen.pop("stochastic"), **chosen)
    options.show(asdict(result), str(result))
    return 0


@dataclass(frozen=True, kw_only=True)
class RateOptions(RunOptions):
    """Options of `palaestra rate`."""

    games: int = 100
    """Between any two players; each begins half of them."""
    seed: int = 0
    """Seed of the environments and of what is drawn from policies."""
    deterministic: bool = False
    """Take the best actions instead of sampling them; equal games may repeat then."""
    baseline: bool = False
    """Let random actions play as well."""


def rate(names: list[str], options: RateOptions) -> int:
    """Lets policies of runs play against each other, and rates them: Elo with 95% intervals."""
    result = experiments.rate_runs(names, **options.chosen())
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


def plot(names: list[str], options: PlotOptions) -> int:
    """Draws learning curves, one for each configuration, with 95% intervals over seeds."""
    if options.output is not None:
        require_plot_name(options.output, or_table=True)
    runs = experiments.find_runs(names, options.root)
    metric = options.metric_of(runs)
    curves = experiments.curves_of(runs, metric=metric, x=options.x, statistic=options.statistic)
    path = options.output and experiments.save_plot(curves, options.output, x=options.x, metric=metric)
    with options.told():
        if path:
            print(f"plot        {path}")
        elif not options.json:
            options.draw(curves, metric)
    if options.json:
        print(json.dumps([vars(curve) for curve in curves], default=np.ndarray.tolist))
    return 0


@dataclass(frozen=True, kw_only=True)
class ReportOptions(RunOptions):
    """Options of `palaestra report`."""

    output: str | None = None
    """File to write; by default `report.html` in the run or group."""


def report(names: list[str], options: ReportOptions) -> int:
    """Writes one HTML file about runs that needs neither server nor network."""
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


def compare(first: str, second: str, options: CurveOptions) -> int:
    """Shows how two runs, or two groups, differ: in settings, and in what they reached."""
    result = experiments.compare_runs(first, second, root=options.root, metric=options.metric, x=options.x)
    if options.json:
        print(json.dumps(result.to_json()))
        return 0
    if result.differences:
        rows = [(path, *table_cells(values)) for path, values in result.differences.items()]
        print_table(["setting", first, second], rows)
    else:
        print("the settings are the same")
    options.draw(result.curves, result.metric)
    print(result)
    return 0
