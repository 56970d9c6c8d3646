"""The little statistics that the reports need."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from palaestra.ops import t_quantile


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


class Sample(NamedTuple):
    """What is known of a population's mean."""

    mean: float
    std: float
    """Of single values, with n - 1."""
    count: int


def sample(values: Sequence[float]) -> Sample:
    return Sample(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan, len(values))


def difference(first: Sample, second: Sample) -> Interval:
    """First mean minus second; see `combination`."""
    return combination((first, second), (1.0, -1.0))


def combination(samples: Sequence[Sample], weights: Sequence[float]) -> Interval:
    """Weighted sum of means, by Welch: variances may differ. No width where a sample has one value.

    A percentile bootstrap, stratified or not, holds the true difference of three values a side in about 80% of cases
    instead of 95%: so few values have to be told by t.
    """
    mean = sum(weight * one.mean for one, weight in zip(samples, weights, strict=True))
    if min(one.count for one in samples) < 2:
        return Interval(mean, None)
    parts = [weight**2 * one.std**2 / one.count for one, weight in zip(samples, weights, strict=True)]
    variance = sum(parts)
    if variance == 0:
        return Interval(mean, 0.0)
    freedom = variance**2 / sum(part**2 / (one.count - 1) for part, one in zip(parts, samples, strict=True))
    return Interval(mean, t_quantile(freedom) * math.sqrt(variance))
