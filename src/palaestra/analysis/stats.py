"""Statistics of scores over runs and environments: what a few seeds say, and what they do not.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
https://arxiv.org/abs/2108.13264: interquartile mean, stratified bootstrap, performance profiles, probability of
improvement, optimality gap, sample efficiency.
Departures: a difference is named only if a permutation test agrees with the bootstrap, whose intervals are too narrow
with few runs; among many pairs by p-values that hold for all of them (Holm 1979, https://www.jstor.org/stable/4615733).
How many scores are cut off at either end of an interquartile mean is rounded down, as in scipy.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from palaestra.analysis.curves import new_figure, require_plot_name, save_figure
from palaestra.config.values import read_yaml
from palaestra.core import CheckpointError, ConfigError
from palaestra.core.reading import read_text
from palaestra.ops import Interval
from palaestra.ops.statistics import iqm

__all__ = ["Improvement", "Scores", "Stats", "read_references", "sample_efficiency", "save_stats", "stats"]

Scores: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
"""Scores by algorithm and environment: one for each run."""

_FEW = 5  # with fewer runs of an environment a percentile bootstrap is far too narrow
_POINTS = 50
_LEVEL = 0.05


@dataclass(frozen=True)
class Improvement:
    """Whether one algorithm is better than another."""

    first: str
    """An algorithm."""
    second: str
    """Another."""
    probability: Interval
    """Probability that a run of the first beats one of the second, averaged over environments; a tie counts half."""
    p_value: float
    """Two-sided permutation test: how often labels given by chance lie as far from 0.5; by Holm for all pairs."""

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 0.5 out and the permutation test agrees, at 5% for all pairs together."""
        outside = not self.probability.low <= 0.5 <= self.probability.high
        return outside and self.p_value <= _LEVEL

    def __str__(self) -> str:
        said = "they differ" if self.differs else "nothing follows"
        return f"P({self.first} > {self.second}) = {self.probability}, p = {self.p_value:.3g}: {said}"


@dataclass(frozen=True)
class Stats:
    """What scores say; in units of the references, or raw scores of one environment."""

    environments: list[str]
    """Over which it is."""
    normalized: bool
    """Whether 0 and 1 are reference scores."""
    scores: dict[str, dict[str, list[float]]]
    """Every score, by algorithm and environment."""
    estimates: dict[str, dict[str, Interval]]
    """Estimates by algorithm: iqm, mean, median, and optimality_gap where scores are normalised."""
    improvements: list[Improvement]
    """Comparison of each pair of algorithms."""
    thresholds: list[float]
    """Scores at which the profiles are taken."""
    profiles: dict[str, list[Interval]]
    """Share of runs above each threshold, by algorithm."""
    notes: list[str]
    """Warnings about the estimates."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        record = asdict(self)
        for row, pair in zip(record["improvements"], self.improvements, strict=True):
            row["differs"] = pair.differs
        return record

    def __str__(self) -> str:
        lines = [", ".join(self.environments) + (" (normalised)" if self.normalized else "")]
        for name, estimates in self.estimates.items():
            lines.append(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in estimates.items()))
            for env, values in self.scores[name].items():
                if len(values) < _FEW:
                    lines.append(f"    {env}: " + ", ".join(f"{value:.4g}" for value in values))
        lines += [f"  {pair}" for pair in self.improvements]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def stats(scores: Scores, *, references: Mapping[str, Sequence[float]] | None = None, resamples: int = 2000) -> Stats:
    """Statistics of scores, with 95% intervals by a bootstrap within each environment.

    Args:
        scores: of each algorithm, for each environment, one score a run; as many runs in each environment.
        references: of each environment, the scores that become 0 and 1. Without them there can be one environment.
        resamples: how many times runs are drawn again, with a fixed seed.

    Raises:
        ConfigError: algorithms have other environments or numbers of runs, a score is not finite, or references miss.

    Examples:
        >>> print(stats({"a": {"Walk": [1.0, 2.0, 3.0]}, "b": {"Walk": [1.5, 2.5, 2.0]}}).improvements[0].differs)
        False
    """
    if resamples < 1:
        raise ConfigError(f"resamples is {resamples}; it must be at least 1")
    tables = _tables(scores, references)
    environments = sorted(next(iter(tables.values())))
    rng = np.random.default_rng(0)
    draws = {name: _drawn(table, resamples, rng) for name, table in tables.items()}
    kinds: dict[str, Callable[[np.ndarray], np.ndarray]] = {"iqm": _iqm, "mean": _mean, "median": _median}
    if references is not None:
        kinds["optimality_gap"] = _optimality_gap
    estimates = {
        name: {kind: _estimate(function(_matrix(table)), function(draws[name])) for kind, function in kinds.items()}
        for name, table in tables.items()
    }
    every = np.concatenate([_matrix(table).ravel() for table in tables.values()])
    thresholds = np.linspace(every.min(), every.max(), _POINTS)
    profiles = {
        name: [_estimate((_matrix(table) > tau).mean(), (draws[name] > tau).mean((-2, -1))) for tau in thresholds]
        for name, table in tables.items()
    }
    pairs = _holm([_improvement(a, b, tables, draws, rng) for a, b in itertools.combinations(tables, 2)])
    few = [name for name, table in tables.items() if _matrix(table).shape[1] < _FEW]
    notes = [f"{', '.join(few)}: fewer than {_FEW} runs of an environment; the intervals are too narrow"] if few else []
    written = {name: {env: table[env].tolist() for env in environments} for name, table in tables.items()}
    return Stats(environments, references is not None, written, estimates, pairs, thresholds.tolist(), profiles, notes)


def _tables(scores: Scores, references: Mapping[str, Sequence[float]] | None) -> dict[str, dict[str, np.ndarray]]:
    """Checked and normalised scores."""
    if not isinstance(scores, Mapping) or not all(isinstance(one, Mapping) for one in scores.values()):
        raise ConfigError(
            "scores are no mapping of mappings; give those of each algorithm by environment: {'ppo': {'CartPole-v1': "
            "[500.0, 480.0]}}"
        )
    if not scores or not all(scores.values()):
        raise ConfigError("there are no scores; give those of one algorithm or more")
    names = {name: sorted(table) for name, table in scores.items()}
    environments = next(iter(names.values()))
    if any(others != environments for others in names.values()):
        raise ConfigError(f"every algorithm needs scores of the same environments; given: {names}")
    if references is None and len(environments) > 1:
        raise ConfigError(f"raw scores of {', '.join(environments)} cannot be averaged; give references, or take one")
    tables: dict[str, dict[str, np.ndarray]] = {}
    for name, table in scores.items():
        counts = {env: len(values) if isinstance(values, Sized) else 0 for env, values in table.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise ConfigError(f"{name} needs as many runs in each environment; it has {counts}")
        tables[name] = {}
        for env, values in table.items():
            try:
                array = np.asarray(values, np.float64)
            except (TypeError, ValueError):
                array = np.empty((0, 0))
            if array.ndim != 1 or not np.isfinite(array).all():
                raise ConfigError(f"the scores of {name} in {env} are {values!r}; each must be a finite number")
            low, high = (0.0, 1.0) if references is None else _reference(references, env)
            tables[name][env] = (array - low) / (high - low)
    return tables


def _reference(references: Mapping[str, Sequence[float]], env: str) -> tuple[float, float]:
    if env not in references:
        raise ConfigError(f"there is no reference of {env}; there are those of {', '.join(references) or 'none'}")
    pair = np.asarray(references[env], np.float64)
    if pair.shape != (2,) or not np.isfinite(pair).all() or pair[0] == pair[1]:
        raise ConfigError(f"the reference of {env} is {references[env]!r}; it must be two different numbers")
    return float(pair[0]), float(pair[1])


def _matrix(table: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.stack([table[env] for env in sorted(table)])  # [environments, runs]


def _drawn(table: Mapping[str, np.ndarray], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Runs drawn again within each environment: [resamples, environments, runs]."""
    matrix = _matrix(table)
    index = rng.integers(matrix.shape[1], size=(resamples, *matrix.shape))
    return np.take_along_axis(matrix[None], index, axis=-1)


def _iqm(values: np.ndarray) -> np.ndarray:
    return iqm(values.reshape(*values.shape[:-2], -1, 1))[..., 0]


def _mean(values: np.ndarray) -> np.ndarray:
    return values.mean((-2, -1))


def _median(values: np.ndarray) -> np.ndarray:
    """Of the means of environments; of one environment, of its runs."""
    return np.median(values[..., 0, :] if values.shape[-2] == 1 else values.mean(-1), axis=-1)


def _optimality_gap(values: np.ndarray) -> np.ndarray:
    return 1 - np.minimum(values, 1).mean((-2, -1))


def _estimate(value: Any, draws: np.ndarray) -> Interval:
    low, high = np.percentile(draws, [2.5, 97.5])
    return Interval(float(value), float(low), float(high))


def _beats(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[..., environments, n] and [..., environments, m]: P(first > second), averaged over environments."""
    means = []
    for env in range(first.shape[-2]):
        difference = first[..., env, :, None] - second[..., env, None, :]
        means.append((0.5 + 0.5 * np.sign(difference)).mean((-2, -1)))
    return np.mean(means, axis=0)


def _improvement(
    a: str, b: str, tables: Mapping[str, Any], draws: Mapping[str, np.ndarray], rng: np.random.Generator
) -> Improvement:
    first, second = _matrix(tables[a]), _matrix(tables[b])
    value = _beats(first, second)
    together, count = np.concatenate([first, second], axis=1), first.shape[1]
    shuffled = rng.permuted(np.broadcast_to(together, (len(draws[a]), *together.shape)), axis=-1)
    chance = _beats(shuffled[..., :count], shuffled[..., count:])
    far = (np.abs(chance - 0.5) >= abs(value - 0.5) - 1e-12).sum()
    return Improvement(a, b, _estimate(value, _beats(draws[a], draws[b])), float((far + 1) / (len(chance) + 1)))


def _holm(pairs: Sequence[Improvement]) -> list[Improvement]:
    """With p-values for all pairs together: in 95% of cases none is named whose algorithms are equal."""
    p = np.array([pair.p_value for pair in pairs])
    order = np.argsort(p, kind="stable")
    p[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return [replace(pair, p_value=float(value)) for pair, value in zip(pairs, p, strict=True)]


def sample_efficiency(
    runs: Mapping[str, Mapping[str, Sequence[np.ndarray]]],
    *,
    references: Mapping[str, Sequence[float]] | None = None,
    resamples: int = 500,
) -> tuple[np.ndarray, dict[str, list[Interval]]]:
    """Interquartile mean of scores against env steps, with stratified intervals at each point.

    Args:
        runs: of each algorithm, for each environment, a [n, 2] array a run, of (env steps, score).
        references: as in `stats`.
        resamples: how many times runs are drawn again.

    Returns:
        Env steps [points], and by algorithm an estimate at each; they end where the shortest run does.

    Raises:
        ConfigError: as `stats`; or the runs share no steps.
    """
    every = [run for table in runs.values() for members in table.values() for run in members]
    if not every:
        raise ConfigError("there are no runs; give one or more")
    first, last = max(run[0, 0] for run in every), min(run[-1, 0] for run in every)
    if first > last:
        raise ConfigError(f"the runs share no env steps: one begins at {first:g}, another ends at {last:g}")
    grid, rng, found = np.linspace(first, last, _POINTS), np.random.default_rng(0), dict[str, list[Interval]]()
    at = [
        {
            name: {env: [float(np.interp(x, *run.T)) for run in members] for env, members in table.items()}
            for name, table in runs.items()
        }
        for x in grid
    ]
    for scores in at:
        for name, table in _tables(scores, references).items():
            found.setdefault(name, []).append(_estimate(_iqm(_matrix(table)), _iqm(_drawn(table, resamples, rng))))
    return grid, found


def read_references(path: str | Path) -> dict[str, list[float]]:
    """Reference scores of a YAML or JSON file: environment: [score that becomes 0, score that becomes 1].

    Args:
        path: where the references stand.

    Raises:
        ConfigError: it cannot be read, or is not of that form.
    """
    try:
        record = read_yaml(read_text(path).expandtabs())  # JSON is YAML, but for tabs
        return {str(env): [float(low), float(high)] for env, (low, high) in record.items()}
    except (CheckpointError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} must hold `environment: [low, high]` in each line: {error}") from error


def save_stats(
    result: Stats,
    path: str | Path,
    *,
    efficiency: tuple[np.ndarray, dict[str, Any]] | None = None,
    unit: str = "env steps",
) -> Path:
    """Draws interquartile means, performance profiles and sample efficiency.

    Args:
        result: from `stats`.
        path: ends with .png or .svg.
        efficiency: from `sample_efficiency`.
        unit: what it is against: `updates` of runs that learn from data alone.

    Raises:
        ConfigError: another ending.
        MissingExtraError: matplotlib is not installed.
    """
    path = require_plot_name(path)
    figure = new_figure(path, (11, 3.6))
    bars, profile, curve = figure.subplots(1, 3)
    for row, (name, estimates) in enumerate(result.estimates.items()):
        middle = estimates["iqm"]
        bars.plot([middle.low, middle.high], [row, row], linewidth=6, alpha=0.4)
        bars.plot(middle.value, row, "k|", markersize=14)
        _band(profile, np.asarray(result.thresholds), result.profiles[name], name)
        if efficiency is not None:
            _band(curve, efficiency[0], efficiency[1][name], name)
    bars.set_yticks(range(len(result.estimates)), list(result.estimates))
    bars.set_xlabel("interquartile mean, 95% interval")
    profile.set(xlabel="score", ylabel="share of runs above")
    curve.set(xlabel=unit, ylabel="interquartile mean")
    profile.legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)
    return path


def _band(axes: Any, x: np.ndarray, estimates: Sequence[Interval], name: str) -> None:
    value, low, high = np.asarray([[e.value, e.low, e.high] for e in estimates]).T
    (line,) = axes.plot(x, value, label=name)
    axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
