"""Two runs, or two groups of seeds, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core import ConfigError
from palaestra.experiments.curves import Axis, Curve, curves_of
from palaestra.experiments.lineage import changes_between
from palaestra.experiments.run_directory import RunDirectory, find_runs

__all__ = ["Comparison", "compare_runs"]


@dataclass(frozen=True)
class Comparison:
    """How two runs differ."""

    differences: dict[str, tuple[Any, Any]]
    """Settings by path: (of the first, of the second); seeds, names and directories left out."""
    curves: list[Curve]
    """Of the first and of the second."""
    metric: str
    """What the curves show."""
    common_x: float
    """Up to where both have come."""
    at_common: tuple[float, float]
    """The metric of each there."""

    def __str__(self) -> str:
        first, second = self.at_common
        change = f"{first:.4g} and {second:.4g}, a difference of {second - first:+.4g}"
        return f"{self.metric} at {self.common_x:,.0f}: {change}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; of the curves, their last points."""
        record = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "curves"}
        ends = [
            {"label": c.label, "value": float(c.value[-1]), "ci95": [float(c.low[-1]), float(c.high[-1])]}
            for c in self.curves
        ]
        return {**record, "curves": ends}


def compare_runs(
    first: str | Path,
    second: str | Path,
    *,
    root: str | Path = "runs",
    metric: str = "return_mean",
    x: Axis = "steps",
) -> Comparison:
    """Compares settings and curves.

    Args:
        first: path or name of a run or group.
        second: of another.
        root: where runs are.
        metric: a column of `metrics.jsonl`.
        x: what lies on the x axis.

    Raises:
        CheckpointError: one of them does not exist, or has not logged anything.
        ConfigError: the runs of a group differ in more than their seeds.
    """
    one, other = find_runs([first], root), find_runs([second], root)
    curves = [_curve(runs, name, metric, x) for runs, name in ((one, first), (other, second))]
    ignored = ("run.seed", "run.name", "run.directory")
    differences = {
        path: pair for path, pair in changes_between(one[0].config, other[0].config).items() if path not in ignored
    }
    common = float(min(curve.x[-1] for curve in curves))
    at_common = tuple(float(np.interp(common, curve.x, curve.value)) for curve in curves)
    return Comparison(differences, curves, metric, common, (at_common[0], at_common[1]))


def _curve(runs: Sequence[RunDirectory], name: str | Path, metric: str, x: Axis) -> Curve:
    curves = curves_of(runs, metric=metric, x=x)
    if len(curves) > 1:
        raise ConfigError(f"the runs of {name} differ in their settings or env steps; compare single runs of it")
    return dataclasses.replace(curves[0], label=str(name))
