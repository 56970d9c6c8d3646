"""Learning curves as SVG; needs matplotlib (`pip install matplotlib`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning.rows import ROWS
from benchmarks.learning.summary import Seeds, curve, peer_title
from benchmarks.numbers import mean_interval


def draw(name: str, record: Mapping[str, Any], folder: Path, peer: Seeds = ()) -> Path:
    """Mean over seeds with its 95% band, every seed as a thin line, the Zoo's mean, and the peer's curve."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = name  # the same file every time
    from matplotlib import pyplot

    row = ROWS[name]
    seeds, points = record["seeds"], curve(record["seeds"])
    steps, means = [x for x, _ in points], [y.mean for _, y in points]
    halves = [y.half_width or 0.0 for _, y in points]
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for seed in seeds:
        axes.plot(seed["env_steps"], seed["return_mean"], color="C0", alpha=0.25, linewidth=0.8)
    low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
    axes.fill_between(steps, low, high, color="C0", alpha=0.2, linewidth=0, label="95% interval")
    axes.plot(steps, means, color="C0", marker="o", markersize=3, label=f"mean of {len(seeds)} seeds")
    if row.zoo is not None:
        axes.axhline(row.zoo.mean, color="grey", linestyle="--", linewidth=1, label="RL Baselines3 Zoo")
    if peer:
        peer_label = peer_title(row)
        theirs = [(x, y.mean) for x, y in curve(peer)]
        axes.plot(*zip(*theirs, strict=True), color="C1", marker="o", markersize=3, label=peer_label)
    axes.set(title=f"{row.title} on {row.task}", xlabel="env steps", ylabel="evaluation return")
    axes.legend(loc="lower right")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def draw_success(name: str, learners: Mapping[str, Any], folder: Path) -> Path:
    """Mean success over seeds with its 95% band, of several learners; each has runs of env steps and success."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = name  # the same file every time
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for number, (label, runs) in enumerate(learners.items()):
        steps, columns = runs[0][0], list(zip(*(success for _, success in runs), strict=True))
        points = [mean_interval(column) for column in columns]
        low, high = ([min(1, max(0, p.mean + sign * (p.half_width or 0))) for p in points] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
        axes.plot(steps, [p.mean for p in points], color=f"C{number}", marker="o", markersize=3, label=label)
    axes.set(xlabel="env steps", ylabel="success", ylim=(-0.03, 1.03))
    axes.legend(loc="best", fontsize="small")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
