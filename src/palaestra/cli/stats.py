"""`palaestra stats`: what runs of any library say about algorithms, and what they do not."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from palaestra import experiments
from palaestra.analysis.curves import require_plot_name
from palaestra.cli.options import RunOptions, command
from palaestra.core import ConfigError

__all__ = ["stats"]

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


def stats(arguments: list[str]) -> int:
    """Interquartile means, intervals, performance profiles and probabilities of improvement over runs.

    Args:
        arguments: runs or logs, then options.
    """
    usage = "palaestra stats [NAME=]RUN|FOLDER|FILE... [--references FILE] [--output FILE.svg]"
    names, options = command(StatsOptions, arguments, usage, "the runs or logs...")
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
    text = "\n\n".join(map(str, results))
    at = [f"{env} {end:,.0f}" for env, end in until.items() if end]
    text += f"\n\nup to where the shortest run ends, env steps: {', '.join(at)}" if at else ""
    if len({tuple(kinds) for kinds in metrics.values()}) > 1:
        text += "\n\nnote: the scores are of different kinds: " + str(metrics)
    replaced = {str(r.path): r.replaced for t in groups.values() for runs in t.values() for r in runs if r.replaced}
    for path, count in replaced.items():
        text += f"\n\nnote: {path} goes back; {count:,} points from before were replaced by what was logged after"
    record = {
        "stats": [result.to_json() for result in results],
        "metrics": metrics,
        "env_steps": until,
        "replaced": replaced,
    }
    record["plot"] = options.output
    if options.output is not None:
        curves = {n: {e: [r.points for r in runs] for e, runs in table.items()} for n, table in groups.items()}
        efficiency = experiments.sample_efficiency(curves, references=references)
        text += f"\nplot        {experiments.save_stats(results[0], options.output, efficiency=efficiency)}"
    options.show(json.loads(json.dumps(record)), text)
    return 0


def _groups(names: Sequence[str], options: StatsOptions) -> Groups:
    """Runs by algorithm and environment."""
    groups: Groups = {}
    folders: dict[tuple[str, str], str] = {}
    counted: dict[tuple[str, Path], int] = {}
    for number, word in enumerate(names):
        label, equals, name = word.partition("=")
        if not equals or Path(word).exists() or (Path(options.root) / word).exists():  # a run may be called lr=0.1
            label, name = "", word
        path = Path(name)
        if path.exists() and not (path / "group.json").is_file():
            runs = experiments.read_logs(path)
        else:
            runs = [
                run for own in experiments.begun_runs([name], options.root) for run in experiments.read_logs(own.path)
            ]
        for run in runs:
            env = run.environment or options.env
            if not env:
                raise ConfigError(f"{run.path} does not name its environment; give --env NAME")
            key = label or run.algorithm or path.name
            if not (label or run.algorithm) and (first := folders.setdefault((key, env), word)) != word:
                raise ConfigError(f"{first} and {word} would both be {key!r}; give each its own name: NAME={word}")
            if counted.setdefault((key, run.path.resolve()), number) != number:
                raise ConfigError(f"{run.path} is given twice, and would count as two; give each run once")
            groups.setdefault(key, {}).setdefault(env, []).append(run)
    return groups


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
