"""`palaestra stats`: what runs of any library say about algorithms, and what they do not."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra import experiments
from palaestra.analysis.curves import require_plot_name
from palaestra.cli.options import RunOptions
from palaestra.core import ConfigError

Groups = dict[str, dict[str, list[experiments.LoggedRun]]]


@dataclass(frozen=True, kw_only=True)
class StatsOptions(RunOptions):
    """Options of `palaestra stats`."""

    env: str | None = None
    """Environment of logs that do not name theirs."""
    references: str | None = None
    """YAML or JSON file, `environment: [low, high]`: takes normalised scores of all environments together."""
    output: str | None = None
    """File to draw into, .png or .svg (both need the extra `plot`)."""


def stats(names: list[str], options: StatsOptions) -> int:
    """Interquartile means, intervals, performance profiles and probabilities of improvement over runs."""
    if options.output is not None:
        require_plot_name(options.output)
    groups = _groups(names, options)
    references = None if options.references is None else experiments.read_references(options.references)
    environments = sorted({env for table in groups.values() for env in table})
    parts = [environments] if references is not None else [[env] for env in environments]
    if options.output is not None and len(parts) > 1:
        raise ConfigError("--output draws one environment, or several with --references; name runs of one")
    until = {env: _until(groups, env) for env in environments}
    results = [experiments.stats(_scores(groups, part, until), references=references) for part in parts]
    metrics = {name: sorted({r.metric for runs in t.values() for r in runs}) for name, t in groups.items()}
    replaced = {str(r.path): r.replaced for t in groups.values() for runs in t.values() for r in runs if r.replaced}
    record = {"stats": [result.to_json() for result in results], "metrics": metrics, "env_steps": until}
    paragraphs = [*map(str, results), *_notes(until, metrics, replaced)]
    if options.output is not None:
        paragraphs[-1] += f"\nplot        {_draw(groups, results[0], options.output, references)}"
    record |= {"replaced": replaced, "plot": options.output}
    options.show(json.loads(json.dumps(record)), "\n\n".join(paragraphs))
    return 0


def _notes(
    until: Mapping[str, float], metrics: Mapping[str, Sequence[str]], replaced: Mapping[str, int]
) -> Iterator[str]:
    """What a reader of the scores has to know."""
    if at := [f"{env} {end:,.0f}" for env, end in until.items() if end]:
        yield f"up to where the shortest run ends, env steps: {', '.join(at)}"
    if len({tuple(kinds) for kinds in metrics.values()}) > 1:
        yield f"note: the scores are of different kinds: {metrics}"
    for path, count in replaced.items():
        yield f"note: {path} goes back; {count:,} points from before were replaced by what was logged after"


def _draw(groups: Groups, result: Any, output: str, references: Any) -> Path:
    """Writes the picture, and says where."""
    curves = {
        name: {env: [run.points for run in runs] for env, runs in table.items()} for name, table in groups.items()
    }
    efficiency = experiments.sample_efficiency(curves, references=references)
    return experiments.save_stats(result, output, efficiency=efficiency)


def _groups(names: Sequence[str], options: StatsOptions) -> Groups:
    """Runs by algorithm and environment."""
    groups: Groups = {}
    words: dict[tuple[str, str], str] = {}
    counted: dict[tuple[str, Path], int] = {}
    for number, word in enumerate(names):
        label, name = _labelled(word, options.root)
        for run in _runs(name, options.root):
            env, key = run.environment or options.env, label or run.algorithm or Path(name).name
            if not env:
                raise ConfigError(f"{run.path} does not name its environment; give --env NAME")
            if not (label or run.algorithm) and (first := words.setdefault((key, env), word)) != word:
                raise ConfigError(f"{first} and {word} would both be {key!r}; give each its own name: NAME={word}")
            if counted.setdefault((key, run.path.resolve()), number) != number:
                raise ConfigError(f"{run.path} is given twice, and would count as two; give each run once")
            groups.setdefault(key, {}).setdefault(env, []).append(run)
    return groups


def _labelled(word: str, root: str) -> tuple[str, str]:
    """The name that `NAME=LOGS` gives, and the logs; a run may itself be called lr=0.1."""
    label, equals, name = word.partition("=")
    return (label, name) if equals and not Path(word).exists() and not (Path(root) / word).exists() else ("", word)


def _runs(name: str, root: str) -> list[experiments.LoggedRun]:
    """The runs of a path, or of a name below the root."""
    if Path(name).exists() and not (Path(name) / "group.json").is_file():
        return experiments.read_logs(name)
    return [run for own in experiments.begun_runs([name], root) for run in experiments.read_logs(own.path)]


def _until(groups: Groups, env: str) -> float:
    """Env steps that all runs in an environment have reached."""
    return min(float(run.points[-1, 0]) for table in groups.values() for run in table.get(env, []))


def _scores(
    groups: Groups, environments: Sequence[str], until: Mapping[str, float]
) -> dict[str, dict[str, list[float]]]:
    """Each run's score at env steps that all runs in its environment have reached."""
    scores: dict[str, dict[str, list[float]]] = {}
    for env in environments:
        for name, table in groups.items():
            if env in table:
                scores.setdefault(name, {})[env] = [run.score(until[env]) for run in table[env]]
    return scores
