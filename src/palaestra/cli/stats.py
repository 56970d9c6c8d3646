"""`palaestra stats`: what runs of any library say about algorithms, and what they do not."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from palaestra import experiments
from palaestra.analysis.curves import require_plot_name
from palaestra.analysis.labels import labels_of_runs, say_same_seeds
from palaestra.cli.options import RunOptions
from palaestra.core import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StatsOptions(RunOptions):
    """Options of `palaestra stats`."""

    env: str | None = None
    """Environment of logs that do not name theirs."""
    references: str | None = None
    """YAML or JSON file, `environment: [low, high]`: takes normalised scores of all environments together."""
    output: str | None = None
    """File to draw into, .png or .svg (both need the extra `plot`)."""


class _Entry(NamedTuple):
    """A run in a table of algorithms and environments."""

    algorithm: str
    env: str
    run: experiments.LoggedRun
    until: float = math.nan
    """Env steps up to which it is scored."""


def stats(names: list[str], options: StatsOptions) -> int:
    """Interquartile means, intervals, performance profiles and probabilities of improvement over runs."""
    if options.output is not None:
        require_plot_name(options.output)
    entries, until = _with_ends(_entries(names, options))
    references = None if options.references is None else experiments.read_references(options.references)
    parts = [[*until]] if references is not None else [[env] for env in until]
    if options.output is not None and len(parts) > 1:
        raise ConfigError("--output draws one environment, or several with --references; name runs of one")
    scores = _table(entries, lambda one: one.run.score(one.until))
    results = [experiments.stats(_part(scores, part), references=references) for part in parts]
    record = {"stats": [result.to_json() for result in results], "env_steps": until, "plot": options.output}
    paragraphs = [*map(str, results), *_notes(entries, until)]
    if options.output is not None:
        curves = _table(entries, lambda one: one.run.points)
        efficiency = experiments.sample_efficiency(curves, references=references)
        path = experiments.save_stats(results[0], options.output, efficiency=efficiency, unit=_unit(entries))
        paragraphs[-1] += f"\nplot        {path}"
    record |= {"metrics": _metrics(entries), "replaced": _replaced(entries), "scored_early": _scored_early(entries)}
    options.show(json.loads(json.dumps(record)), "\n\n".join(paragraphs))
    return 0


def _notes(entries: Sequence[_Entry], until: Mapping[str, float]) -> Iterator[str]:
    """What a reader of the scores has to know."""
    last = {env: max(min(one.until, one.run.end) for one in entries if one.env == env) for env in until}
    own = {env: f" (others of its budget to their own ends, {last[env]:,.0f} at most)" for env in until}
    if at := [f"{env} {end:,.0f}{own[env] * (last[env] > end)}" for env, end in until.items() if end]:
        yield f"up to where the shortest run ends, {_unit(entries)}: {', '.join(at)}"
    for (at, end), paths in _scored_early(entries):
        yield f"note: scored at {at:,.0f} of {end:,.0f} {_unit(entries)}: {', '.join(paths)}"
    metrics = _metrics(entries)
    if len({kind for kinds in metrics.values() for kind in kinds}) > 1:
        yield f"note: the scores are of different kinds: {metrics}"
    for path, count in _replaced(entries).items():
        yield f"note: {path} goes back; {count:,} points from before were replaced by what was logged after"


def _unit(entries: Sequence[_Entry]) -> str:
    """What steps are counted in."""
    return " or ".join(dict.fromkeys(one.run.unit for one in entries))


def _metrics(entries: Sequence[_Entry]) -> dict[str, list[str]]:
    """What the scores of each algorithm are."""
    names = dict.fromkeys(one.algorithm for one in entries)
    return {name: sorted({one.run.metric for one in entries if one.algorithm == name}) for name in names}


def _replaced(entries: Sequence[_Entry]) -> dict[str, int]:
    """How many points of a log that goes back were replaced."""
    return {str(one.run.path): one.run.replaced for one in entries if one.run.replaced}


def _with_ends(entries: Sequence[_Entry]) -> tuple[list[_Entry], dict[str, float]]:
    """Runs with the env steps up to which each is scored, and those that all in an environment have reached.

    A run is scored where the shortest one ends; at its own end, if it has done the budget of one that ends there, too.
    """
    runs = {env: [one.run for one in entries if one.env == env] for env in sorted({one.env for one in entries})}
    ends = {env: min(run.end for run in members) for env, members in runs.items()}
    done = {env: {run.budget for run in members if run.ends_near(ends[env])} - {None} for env, members in runs.items()}
    whole = [math.inf if one.run.budget in done[one.env] else ends[one.env] for one in entries]
    return [one._replace(until=until) for one, until in zip(entries, whole, strict=True)], ends


def _scored_early(entries: Sequence[_Entry]) -> list[tuple[tuple[float, float], list[str]]]:
    """Runs that are scored before their end: env steps of that score and of their last one, and the logs."""
    found: dict[tuple[float, float], list[str]] = {}
    for one in entries:
        if (at := one.run.scored_at(one.until)) < one.run.end:
            found.setdefault((at, one.run.end), []).append(str(one.run.path))
    return sorted(found.items())


def _table(entries: Sequence[_Entry], value: Callable[[_Entry], T]) -> dict[str, dict[str, list[T]]]:
    """A value of each run, by algorithm and environment."""
    table: dict[str, dict[str, list[T]]] = {}
    for one in entries:
        table.setdefault(one.algorithm, {}).setdefault(one.env, []).append(value(one))
    return table


def _part(table: Mapping[str, Mapping[str, T]], environments: Sequence[str]) -> dict[str, dict[str, T]]:
    """The rows of some environments, and the algorithms that have any."""
    part = {name: {env: row[env] for env in environments if env in row} for name, row in table.items()}
    return {name: row for name, row in part.items() if row}


def _entries(names: Sequence[str], options: StatsOptions) -> list[_Entry]:
    """Each run with its algorithm and environment."""
    entries: list[_Entry] = []
    words: dict[tuple[str, str], str] = {}
    counted: dict[tuple[str, Path], int] = {}
    for number, word in enumerate(names):
        label, name = _labelled(word, options.root)
        runs = _runs(name, options.root)
        if not label:
            _require_alike(name, runs)
        for run in runs:
            env, key = run.environment or options.env, label or run.algorithm or Path(name).name
            if not env:
                raise ConfigError(f"{run.path} does not name its environment; give --env NAME")
            if not (label or run.algorithm) and (first := words.setdefault((key, env), word)) != word:
                raise ConfigError(f"{first} and {word} would both be {key!r}; give each its own name: NAME={word}")
            if counted.setdefault((key, run.path.resolve()), number) != number:
                raise ConfigError(f"{run.path} is given twice, and would count as two; give each run once")
            entries.append(_Entry(key, env, run))
            if len(tasks := sorted({one.run.task for one in entries if one.env == env and one.run.task})) > 1:
                raise ConfigError(f"these are scores of different tasks, or by different counts: {'; '.join(tasks)}")
    for row in _table(entries, lambda one: one.run.directory).values():
        say_same_seeds([run for runs in row.values() for run in runs if run])
    return entries


def _require_alike(name: str, runs: Sequence[experiments.LoggedRun]) -> None:
    """Refuses runs of ours that are no seeds of one algorithm in their environment."""
    found: dict[str, set[str]] = {}
    own = {run.directory: run.environment for run in runs if run.directory}
    for env, label in zip(own.values(), labels_of_runs([*own]), strict=True):
        found.setdefault(env, set()).add(label)
    if several := next((sorted(labels) for labels in found.values() if len(labels) > 1), []):
        raise ConfigError(
            f"the runs of {name} are no seeds of one algorithm: they are {', '.join(several)}. Give each its own name, "
            f"NAME=RUN; or NAME={name} to take them as one"
        )


def _labelled(word: str, root: str) -> tuple[str, str]:
    """The name that `NAME=LOGS` gives, and the logs; a run may itself be called lr=0.1."""
    label, equals, name = word.partition("=")
    return (label, name) if equals and not Path(word).exists() and not (Path(root) / word).exists() else ("", word)


def _runs(name: str, root: str) -> list[experiments.LoggedRun]:
    """The runs of a path, or of a name below the root."""
    if Path(name).exists() and not (Path(name) / "group.json").is_file():
        return experiments.read_logs(name)
    return [run for own in experiments.begun_runs([name], root) for run in experiments.read_logs(own.path)]
