"""Learning curves: read from run directories, averaged over seeds with intervals, compared and drawn."""

import csv
import json
import logging
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
from rich.text import Text

from palaestra.analysis.labels import had_before, labels_of_runs, say_same_seeds, shown_labels
from palaestra.config.config import flat_settings
from palaestra.core import CheckpointError, ConfigError, did_you_mean, import_extra
from palaestra.core.files import whole_file
from palaestra.core.reading import LONGEST_LINE, opened, parse_json, read_lines
from palaestra.ops.statistics import half_width, iqm
from palaestra.rollout.episodes import reported
from palaestra.runs import RunDirectory, changes_between, find_runs, read_evaluations
from palaestra.runs.records import is_number, say_once
from palaestra.runs.run_directory import without_copies

_log = logging.getLogger(__name__)

__all__ = [
    "Axis", "Comparison", "Curve", "Statistic",
    "compare_runs", "curves_of", "read_metrics", "save_plot", "terminal_plot",
]  # fmt: skip

Axis: TypeAlias = Literal["steps", "time", "episodes"]
"""What lies on the x axis of a curve."""
Statistic: TypeAlias = Literal["mean", "iqm"]
"""What a curve of several runs shows: their mean, or the mean of their middle half."""

_COLUMNS = {"steps": "env_steps", "time": "time/train_s", "episodes": "episodes"}
_POINTS = 200
_ROWS, _SMALL_BYTES, _MOST_BYTES = 2_000, 2**23, 2**26  # of a larger file of metrics so many rows or bytes are read


_Run: TypeAlias = tuple[np.ndarray, bool]
"""What was logged of a run, [(x, value, env steps), rows], and whether it ended at its goal."""


@dataclass(frozen=True)
class Curve:
    """One metric of runs that differ in their seeds only; every array is [points]."""

    label: str
    """The settings that only these runs have; the name of run or group where these are too long for a legend."""
    x: np.ndarray
    """Env steps, seconds or episodes."""
    value: np.ndarray
    """Mean or interquartile mean over runs."""
    low: np.ndarray
    """Lower end of the 95% interval; the value itself where there is one run."""
    high: np.ndarray
    """Upper end."""
    num_runs: np.ndarray
    """Runs that had come so far."""
    unit: str = "env steps"
    """What `x` counts, if it is neither seconds nor episodes: `updates` of runs that learn from data alone."""
    settings: str = ""
    """The label in full, which tables have."""


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`; half a line at its end, of a process that was killed, is left out."""
    return _rows(run)


def thinned_metrics(run: str | Path, metric: str = "") -> list[dict[str, Any]]:
    """Rows of a run's `metrics.jsonl`, as many as a picture needs: of a large file, 2,000 spread over all of it.

    Where rows are long, as of hundreds of agents, they are fewer.

    Args:
        metric: if the rows chosen lack it, those that have it are looked for in the whole file.
    """
    rows = _rows(run, thinned=True)
    if not metric or any(metric in row for row in rows):
        return rows
    return _rows(run, having=json.dumps(metric).encode()) or rows


def _rows(run: str | Path, *, thinned: bool = False, having: bytes = b"") -> list[dict[str, Any]]:
    path = Path(run) / "metrics.jsonl"
    if not path.exists():
        return []
    RunDirectory(run).say_changed_logs()
    found, damaged = list[dict[str, Any]](), 0
    with opened(path) as file:
        size = path.stat().st_size
        thinned = thinned and size >= _SMALL_BYTES
        for line in _spread(file, size) if thinned else read_lines(path):
            if having not in line:
                continue
            try:
                row = dict(parse_json(line))
                if not is_number(row["env_steps"]) or (found and row["env_steps"] < found[-1]["env_steps"]):
                    raise ValueError("env steps are no number, or go back")
                found.append(row)
            except (ValueError, TypeError, KeyError):
                damaged += line.endswith(b"\n")  # half a last line is what a killed run leaves
    if thinned and len(found) < 2:  # its lines are longer than any of ours, which is said by who reads them all
        return _rows(run)
    if damaged:
        say_once(f"{path} is damaged: {damaged:,} of its lines are no rows of metrics in order, and are left out")
    return found


def _spread(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Whole lines of a file at so many places, the first and the last included."""
    begin = file.seek(max(0, size - 2 * LONGEST_LINE))
    last = begin + file.read().rpartition(b"\n")[0].rfind(b"\n") + 1
    place = file.seek(0)
    while file.tell() < last:
        if (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
            yield line
        place += 1 + max(size // _ROWS, size * len(line) // _MOST_BYTES)
        if place > file.tell():
            file.seek(place)
            file.readline(LONGEST_LINE)
    file.seek(last)
    yield file.readline(LONGEST_LINE)


def shown_metric(runs: Sequence[RunDirectory]) -> str:
    """What there is to draw of all runs: the return, of evaluations where one had no episodes, as with data alone.

    Args:
        runs: in any order.
    """
    names = [{name for row in thinned_metrics(run.path) for name in row} for run in runs]
    has = {name: all(name in one for one in names if one) for name in ("return_mean", "eval/return_mean")}
    return "eval/return_mean" if has["eval/return_mean"] and not has["return_mean"] else "return_mean"


def curves_of(
    runs: Sequence[RunDirectory], *, metric: str = "return_mean", x: Axis = "steps", statistic: Statistic = "mean"
) -> list[Curve]:
    """One curve for each configuration among the runs.

    Args:
        runs: in any order.
        metric: a column of `metrics.jsonl`.
        x: what lies on the x axis.
        statistic: mean over runs, or mean of their middle half (interquartile mean), which outliers move less.

    Raises:
        CheckpointError: no run has logged anything yet.
        ConfigError: there is no such metric.
    """
    found = _logged(runs, metric, x)
    return [
        replace(_curve(label, of, _grid(of), statistic, u), settings=all_) for (label, u, all_), of in found.items()
    ]


def _logged(runs: Sequence[RunDirectory], metric: str, x: Axis) -> dict[tuple[str, str, str], list[_Run]]:
    """Runs of each configuration, by its label, what they count, and the label in full."""
    runs = without_copies(runs)
    groups: dict[tuple[str, str, str], list[_Run]] = {}
    samples: dict[str, list[RunDirectory]] = {}
    columns = (_COLUMNS[x], metric, "env_steps")
    seen, missing = set[str](), list[str]()
    for run, label, whole in zip(runs, shown_labels(runs), labels_of_runs(runs), strict=True):
        rows = thinned_metrics(run.path, metric)
        seen |= {name for row in rows for name in row}
        points = [point for row in rows if all(map(is_number, point := [row.get(name) for name in columns]))]
        if points := (x == "steps" and metric.startswith("eval/") and _evaluated(run, metric)) or points:
            at_goal = "the goal was" in (run.info.get("reason") or "")
            groups.setdefault((label, run.config.unit, whole), []).append((np.asarray(points, np.float64).T, at_goal))
            samples.setdefault(whole, []).append(run)
        else:
            missing.append(f"{run.path}")
    if not groups:
        if metric in seen or not seen or metric == "return_mean":
            names = ", ".join(str(run.path) for run in runs)
            raise CheckpointError(f"nothing to draw yet: no {metric} has been logged in {names}")
        raise ConfigError(f"there is no metric {metric!r}{did_you_mean(metric, seen)}")
    if missing:
        _log.warning("no %s has been logged in %s, of which nothing is drawn", metric, ", ".join(missing))
    for sample in samples.values():
        say_same_seeds(sample)
    return groups


def _evaluated(run: RunDirectory, metric: str) -> list[list[float]]:
    """Points of a metric of evaluations where each was made, for rows of metrics repeat the newest until the next."""
    name = metric.removeprefix("eval/")
    of: Any = dict if name in ("return_mean", "against_best") else lambda record: reported(record.get("parts", {}))
    return [[step, value, step] for step, one in read_evaluations(run.path) if is_number(value := of(one).get(name))]


def _grid(runs: Sequence[_Run]) -> np.ndarray:
    """Where a picture shows runs: to where the first of those ends that came to the end of the budget."""
    budget = max(steps[-1] for (_, _, steps), _ in runs)
    whole = [x[-1] for (x, _, steps), at_goal in runs if steps[-1] >= 0.9 * budget and not at_goal]
    last = min(whole, default=max(x[-1] for (x, _, _), _ in runs))
    first = min(max(x[0] for (x, _, _), _ in runs), last)
    return np.unique([*np.linspace(first, last, _POINTS), *(x[-1] for (x, _, _), _ in runs if first < x[-1] < last)])


def _curve(label: str, runs: Sequence[_Run], at: np.ndarray, statistic: Statistic = "mean", unit: str = "") -> Curve:
    """Runs at common points [points], between the first and the last of `_grid`.

    One that broke off before the others is left out from there on, and `num_runs` says so; one that reached its goal
    stays at its last value.
    """
    table = np.stack([np.interp(at, x, y) for (x, y, _), _ in runs])  # [n, points]
    reached = np.stack([(x[0] <= at) & (at_goal | (at <= x[-1])) for (x, _, _), at_goal in runs])
    value, low, high = (np.empty(len(at)) for _ in range(3))
    for pattern in np.unique(reached, axis=1).T:
        points = (reached == pattern[:, None]).all(axis=0)
        members = table[pattern][:, points]
        mean = iqm(members) if statistic == "iqm" else members.mean(axis=0)
        half = half_width(members, len(members) // 4 if statistic == "iqm" else 0)
        value[points], low[points], high[points] = mean, mean - half, mean + half
    return Curve(label, at, value, low, high, reached.sum(axis=0), unit)


def y_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """What a picture shows: all values, and intervals as far as these differ; those of two runs are wider."""
    lowest, highest = (float(end([end(curve.value) for curve in curves])) for end in (np.nanmin, np.nanmax))
    low = min(float(np.nanmin(curve.low)) for curve in curves)
    high = max(float(np.nanmax(curve.high)) for curve in curves)
    span = (highest - lowest) or high - low
    return max(low, lowest - span), min(high, highest + span)


def x_label(curves: Sequence[Curve], x: Axis = "steps") -> str:
    """What is written below the x axis.

    Args:
        curves: that have it.
        x: what it is.
    """
    return _X_LABELS.get(x) or " or ".join(dict.fromkeys(curve.unit for curve in curves))


@dataclass(frozen=True)
class Comparison:
    """How two runs, or groups of seeds, differ: their settings and their curves."""

    differences: dict[str, tuple[Any, Any]]
    """Settings by path: (of the first, of the second); seeds, names and directories left out. One that was changed
    while a run went on, and sets runs apart, is there as `PATH until ENV_STEPS`, too."""
    curves: list[Curve]
    """The curves of the first run and of the second."""
    metric: str
    """What the curves show."""
    common_x: float
    """Up to where both have come."""
    at_common: tuple[float, float]
    """The metric of each there."""
    num_runs: tuple[int, int]
    """Runs of each that had come so far."""
    tasks: tuple[str, str]
    """Of each, all that decides its returns."""

    def __str__(self) -> str:
        first, second = self.at_common
        change = "of two tasks" if self.tasks[0] != self.tasks[1] else f"a difference of {second - first:+.4g}"
        few = "" if self.num_runs == (1, 1) else " (of {} and {} runs that came so far)".format(*self.num_runs)
        return f"{self.metric} at {self.common_x:,.0f}: {first:.4g} and {second:.4g}, {change}{few}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; of the curves, their last points."""
        last = [(c.label, *(float(one[-1]) for one in (c.value, c.low, c.high))) for c in self.curves]
        ends = [{"label": label, "value": value, "ci95": [low, high]} for label, value, low, high in last]
        return {**vars(self), "curves": ends}


def compare_runs(
    first: str | Path, second: str | Path, *, root: str | Path = "runs", metric: str | None = None, x: Axis = "steps"
) -> Comparison:
    """Compares settings and curves.

    Args:
        first: path or name of a run or group.
        second: of another.
        metric: a column of `metrics.jsonl`; by default returns, of evaluations where episodes have none.
        x: what lies on the x axis.

    Raises:
        CheckpointError: one of them does not exist, or has not logged anything.
        ConfigError: the runs of a group differ in more than their seeds, or one begins after the other has ended.
    """
    one, other = find_runs([first], root), find_runs([second], root)
    if x == "steps" and len(units := sorted({run.config.unit for run in (*one, *other)})) > 1:
        raise ConfigError(f"{first} and {second} do not count the same ({', '.join(units)}); compare them by x='time'")
    metric = metric or shown_metric([*one, *other])
    drawn = [_only_curve(runs, name, metric, x) for runs, name in ((one, first), (other, second))]
    curves = [curve for curve, _ in drawn]
    differences = changes_between(one[0].config, other[0].config)
    for path in ("run.seed", "run.name", "run.directory"):
        differences.pop(path, None)
    had = [(had_before(run), flat_settings(run.config)) for run in (one[0], other[0])]
    for path, step in dict.fromkeys([*had[0][0], *had[1][0]]):
        was = [before.get((path, step), now.get(path)) for before, now in had]
        differences |= {f"{path} until {step:,}": (was[0], was[1])} if was[0] != was[1] else {}
    begin, common = float(max(curve.x[0] for curve in curves)), float(min(curve.x[-1] for curve in curves))
    if begin > common:
        place = f"one begins at {begin:,.0f}, the other ends at {common:,.0f}"
        raise ConfigError(f"{first} and {second} have no {x_label(curves, x)} in common: {place}")
    a, b = (_curve("", logged, np.asarray([common])) for _, logged in drawn)
    at, of = (float(a.value[0]), float(b.value[0])), (int(a.num_runs[0]), int(b.num_runs[0]))
    return Comparison(differences, curves, metric, common, at, of, (one[0].config.task, other[0].config.task))


def _only_curve(runs: Sequence[RunDirectory], name: str | Path, metric: str, x: Axis) -> tuple[Curve, list[_Run]]:
    """The curve of runs of one configuration, and what was logged of them."""
    ((_, unit, _), logged), *others = _logged(runs, metric, x).items()
    if others:
        raise ConfigError(f"the runs of {name} differ in their settings or env steps; compare single runs of it")
    return _curve(str(name), logged, _grid(logged), unit=unit), logged


_X_LABELS = {"time": "training time (s)", "episodes": "episodes"}
_WIDTH = 95  # characters of a legend below a picture
_COLORS = ("cyan", "yellow", "magenta", "green", "red", "blue")
# Dots of a braille character by column and row, the lowest row last.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def save_plot(curves: Sequence[Curve], path: str | Path, *, x: Axis = "steps", metric: str = "return_mean") -> Path:
    """Writes curves with their 95% intervals into a file.

    Args:
        curves: from `curves_of`.
        path: ends with .png, .svg or .csv.
        x: what the curves have on the x axis.
        metric: what they have on the y axis.

    Returns:
        The file.

    Raises:
        ConfigError: another ending.
        MissingExtraError: a picture needs matplotlib.
    """
    path = require_plot_name(path, or_table=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    (_write_csv if path.suffix == ".csv" else _draw)(curves, path, x, metric)
    return path


def require_plot_name(path: str | Path, *, or_table: bool = False) -> Path:
    """The path of a plot, once its ending is known to be one that can be written.

    Args:
        path: given.
        or_table: whether it may be a table instead of a picture.

    Raises:
        ConfigError: another ending.
    """
    if Path(path).suffix not in (".png", ".svg", *([".csv"] if or_table else [])):
        known = ".png, .svg or .csv" if or_table else ".png or .svg (--json prints the numbers)"
        raise ConfigError(f"--output is {str(path)!r}; give a file that ends with {known}")
    return Path(path)


def _write_csv(curves: Sequence[Curve], path: Path, x: Axis, metric: str) -> None:
    with whole_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", x_label(curves, x).replace(" ", "_"), metric, "low95", "high95", "runs"])
        for curve in curves:
            for row in zip(curve.x, curve.value, curve.low, curve.high, curve.num_runs, strict=True):
                writer.writerow([curve.settings or curve.label, *(f"{number:.10g}" for number in row)])


def _draw(curves: Sequence[Curve], path: Path, x: Axis, metric: str) -> None:
    figure = new_figure(path, (7, 4 + 0.2 * len(curves)))  # a line of the legend each
    axes: Any = figure.subplots()
    for curve in curves:
        label = textwrap.fill(f"{curve.label} ({_count(curve)})", _WIDTH)
        (line,) = axes.plot(curve.x, curve.value, label=label, linewidth=1.6)
        axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(x_label(curves, x))
    low, high = y_range(curves)
    margin = 0.05 * (high - low)
    axes.set_ylim(*((low - margin, high + margin) if margin > 0 else (None, None)))
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    save_figure(figure, path)


def new_figure(path: Path, size_inches: tuple[float, float]) -> Any:
    """A figure of matplotlib.

    Args:
        path: of the file that it will be.
        size_inches: width and height.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    module = import_extra("matplotlib.figure", "plot", f"drawing {path.name}")
    return module.Figure(figsize=size_inches, layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Writes a picture of matplotlib, the same every time."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _count(curve: Curve) -> str:
    most, least = int(curve.num_runs.max()), int(curve.num_runs.min())
    runs = f"{most} run{'s' if most > 1 else ''}"
    return runs if least == most else f"{runs}, {least} at the end"


def terminal_plot(
    curves: Sequence[Curve], *, x: Axis = "steps", metric: str = "return_mean", width: int = 80, height: int = 14
) -> Text:
    """Curves drawn with braille characters, a colour for each; intervals are in the legend.

    Args:
        curves: from `curves_of`.
        x: what the curves have on the x axis.
        metric: what they have on the y axis.
        width: of the whole, in characters.
        height: of the picture, in lines.
    """
    low = min(float(curve.value.min()) for curve in curves)
    high = max(float(curve.value.max()) for curve in curves)
    last = max(float(curve.x[-1]) for curve in curves)
    ticks = [short_number(high), short_number((low + high) / 2), short_number(low)]
    margin = max(map(len, ticks)) + 1
    columns = max(10, width - margin - 2)
    cells = np.zeros((height, columns), int)
    colors = np.zeros((height, columns), int)
    for number, curve in enumerate(curves):
        places = np.linspace(0, last, 2 * columns)
        inside = (places >= curve.x[0]) & (places <= curve.x[-1])
        share = (np.interp(places, curve.x, curve.value) - low) / ((high - low) or 1.0)
        rows = ((1 - share) * (4 * height - 1)).round().astype(int)
        for place in np.flatnonzero(inside):
            before = rows[place - 1] if place and inside[place - 1] else rows[place]
            for row in range(min(before, rows[place]), max(before, rows[place]) + 1):
                cells[row // 4, place // 2] |= _DOTS[place % 2][row % 4]
                colors[row // 4, place // 2] = number
    text = Text(f"{metric.replace('_', ' ')}\n", no_wrap=True)
    for row in range(height):
        tick = {0: ticks[0], height // 2: ticks[1], height - 1: ticks[2]}.get(row, "")
        text.append(f"{tick:>{margin}} ┤")
        for column in range(columns):
            text.append(chr(0x2800 + cells[row, column]), style=_COLORS[colors[row, column] % len(_COLORS)])
        text.append("\n")
    end = short_number(last)
    label = f"{x_label(curves, x):^{columns - 1 - len(end)}}"
    text.append(f"{'':>{margin}} └{'─' * columns}\n{'':>{margin}}  0{label}{end}\n")
    for number, curve in enumerate(curves):
        text.append("  ━ ", style=_COLORS[number % len(_COLORS)])
        text.append(f"{curve.label}: {_legend(curve)}\n")
    return text


def _legend(curve: Curve) -> str:
    interval = f", 95% interval {curve.low[-1]:.4g} to {curve.high[-1]:.4g}" if curve.num_runs[-1] > 1 else ""
    return f"{curve.value[-1]:.4g} at the end{interval} ({_count(curve)})"


def short_number(number: float) -> str:
    """A number where there is little room.

    Examples:
        >>> short_number(25_000), short_number(1.5e6), short_number(9_000), short_number(0.002)
        ('25k', '1.5M', '9000', '0.002')
    """
    for least, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(number) >= least:
            return f"{number / size:.4g}{letter}"
    return f"{number:.4g}"
