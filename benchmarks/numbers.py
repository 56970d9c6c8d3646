"""The little statistics that the reports need."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# 97.5% quantiles of Student's t for 1, 2, ... 29 degrees of freedom.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045),
)


class Spread(NamedTuple):
    """What repeated measurements of one quantity say."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Ours divided by the peer's of the same round: the machine's speed drifts between rounds and cancels."""
    return [a / b for a, b in zip(ours, peer, strict=True)]


class Interval(NamedTuple):
    mean: float
    half_width: float | None
    """Half of the 95% interval of the mean, by Student's t; `None` for one value."""


def mean_interval(values: Sequence[float]) -> Interval:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    return Interval(mean, t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)))


def t_quantile(degrees_of_freedom: int) -> float:
    """97.5% quantile of Student's t."""
    if not 1 <= degrees_of_freedom <= len(_T_975):
        raise ValueError(f"the table of t has 2 to {len(_T_975) + 1} values, not {degrees_of_freedom + 1}")
    return _T_975[degrees_of_freedom - 1]
