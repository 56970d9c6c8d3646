"""The comparison: a table, and a picture of learning beside the rules and the bound (needs matplotlib)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.numbers import mean_interval
from benchmarks.record import table


class Margin(NamedTuple):
    """How much less learned policies lose than a rule, in shares of all orders: a mean over seeds of training."""

    rule: str
    mean: float
    half_width: float
    """Of the 95% interval over seeds, by Student's t."""

    @property
    def sure(self) -> bool:
        """Whether the interval excludes zero, on the right side."""
        return self.mean - self.half_width > 0


PROGRAMS = ("rolling plan", "bound")
"""Solve linear programs; all others are rules."""


def best_rule(lost: Mapping[str, Sequence[float]]) -> str:
    """The rule that loses least on the very episodes of the comparison.

    Args:
        lost: shares lost by episode, of rules and programs.
    """
    return min((name for name in lost if name not in PROGRAMS), key=lambda name: np.mean(lost[name]))


def margin(lost: Mapping[str, Sequence[float]], runs: Sequence[Mapping[str, Any]], rule: str) -> Margin:
    """How much less is lost than with a rule.

    Args:
        lost: shares lost by episode, of rules and programs.
        runs: of training, one for each seed, measured on the same episodes in the same order.
        rule: its name.
    """
    differences = [float(np.mean(np.subtract(lost[rule], run["share_lost"]))) for run in runs]
    mean, half_width = mean_interval(differences)
    return Margin(rule, mean, float("inf") if half_width is None else half_width)


def markdown(lost: Mapping[str, Sequence[float]], learned: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of everything, best last.

    Args:
        lost: by rule or program.
        learned: runs by the kind of their mapping.
    """
    rivals = [name for name in dict.fromkeys(["(s, S)", best_rule(lost), "rolling plan"]) if name in lost]
    rows = []
    for name, shares in lost.items():
        rows.append((float(np.mean(shares)), [name, f"{np.mean(shares):.2%}", *[""] * (len(rivals) + 1)]))
    for kind, runs in learned.items():
        mean, half_width = mean_interval([float(np.mean(run["share_lost"])) for run in runs])
        gains = [margin(lost, runs, name) for name in rivals]
        row = [f"PPO, {kind} policies, {len(runs)} seeds", f"{mean:.2%} ± {half_width or 0:.2%}"]
        row += [f"{gain.mean:+.2%} ± {gain.half_width:.2%}" for gain in gains]
        rows.append((mean, [*row, f"{max(run['wall_s'] for run in runs) / 60:.1f} min"]))
    header = ["policy", "orders lost", *(f"less than {name}" for name in rivals), "longest training"]
    return table(header, [row for _, row in sorted(rows, key=lambda row: -row[0])])


def draw(lost: Mapping[str, Sequence[float]], learned: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """Curves of learning with their 95% bands over seeds; rules and bound as lines across.

    Args:
        lost: by rule, and `bound`.
        learned: runs by the kind of their mapping.
        path: of the svg.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = path.stem  # the same file every time
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")
    for color, (kind, runs) in zip(("C0", "C1"), learned.items(), strict=False):
        steps = [point["env_steps"] for point in runs[0]["curve"]]
        curves = np.array([[100 * point["share_lost"] for point in run["curve"]] for run in runs])
        points = [mean_interval(column.tolist()) for column in curves.T]
        mean = np.array([point.mean for point in points])
        half = np.array([point.half_width or 0.0 for point in points])
        for curve in curves:
            axes.plot(steps, curve, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(steps, mean, color=color, marker="o", markersize=3, label=f"PPO, {kind} ({len(runs)} seeds)")
        axes.fill_between(steps, mean - half, mean + half, color=color, alpha=0.2, linewidth=0)
    shown = [name for name in lost if name not in ("none", "random")]
    for style, name in zip(("-.", "--", ":", "-", "-"), shown, strict=False):
        color = "black" if name == "bound" else "grey"
        title = "bound: linear program with known demand" if name == "bound" else name
        axes.axhline(100 * float(np.mean(lost[name])), color=color, linestyle=style, linewidth=1.2, label=title)
    axes.set(xlabel="port calls learned from", ylabel="orders lost (%), held-out episodes", ylim=(3, 12))
    axes.legend(frameon=False, fontsize="small", ncols=2, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
