"""`palaestra tune`: a search for settings."""

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass

from palaestra import experiments
from palaestra.cli.options import parse, positional
from palaestra.cli.train import seconds
from palaestra.core import ConfigError
from palaestra.runs.build import require_fit

__all__ = ["tune"]


@dataclass(frozen=True, kw_only=True)
class TuneCommand(experiments.ExperimentConfig):
    """All settings of a run, and how far to search."""

    trials: int = 20
    """How many are begun; the first has the settings as given."""
    seeds: int = 2
    """Seeds of each trial, side by side."""
    jobs: int = 1
    """Trials side by side."""
    prune: bool = True
    """End trials early that are worse than half of those before them after as many env steps."""
    time: str | None = None
    """Begin no further trial after so long, such as 30m or 2h; the winners are trained after that."""
    top: int = 3
    """How many of the best trials are trained again on fresh seeds."""
    fresh_seeds: int = 5
    """Seeds of each of them that no trial had."""
    output: str | None = None
    """Folder of the study; the same command goes on with one that exists. By default studies/ALGORITHM_ENVIRONMENT."""
    dry_run: bool = False
    """Say what would be searched, and start nothing."""
    json: bool = False
    """Print JSON."""

    def search(self) -> experiments.Search:
        """How far to search."""
        name = self.env.name.replace("/", "-").replace(":", "-")
        return experiments.Search(
            output=self.output or f"studies/{self.algorithm_name}_{name}",
            trials=self.trials,
            seeds=self.seeds,
            jobs=self.jobs,
            prune=self.prune,
            time_limit_s=None if self.time is None else seconds(self.time, "--time"),
            top=self.top,
            fresh_seeds=self.fresh_seeds,
        )


def tune(arguments: list[str]) -> int:
    """Searches for settings of an algorithm in an environment.

    Args:
        arguments: the algorithm and the environment, then options.
    """
    usage = "palaestra tune ALGORITHM ENVIRONMENT [--trials N] [--space.PATH LOW HIGH] [options]"
    (algorithm, env), rest = positional(arguments, usage, "the algorithm", "the environment")
    space, rest = _space(rest)
    base = experiments.preset(algorithm or "ppo", env or "CartPole-v1")
    default = TuneCommand(**vars(base))
    command = parse(TuneCommand, rest, f"palaestra tune {algorithm} {env}", default=default, description=usage)
    names = [field.name for field in dataclasses.fields(experiments.ExperimentConfig)]
    config = experiments.ExperimentConfig(**{name: getattr(command, name) for name in names})
    experiments.require_same_task(config, algorithm, env)
    search = command.search()
    if command.dry_run:
        require_fit(config)
        searched = experiments.search_space(config, space)
        print(
            json.dumps([dataclasses.asdict(one) for one in searched]) if command.json else "\n".join(map(str, searched))
        )
        return 0
    stream = sys.stderr if command.json else sys.stdout

    def tell(line: str) -> None:
        print(line, file=stream, flush=True)

    found = experiments.tune(algorithm, env, search=search, space=space, on_trial=tell, config=config)
    if command.json:
        print(json.dumps(found.to_json()))
    else:
        preset = shlex.quote(str(found.directory / "preset.yaml"))
        print(f"\n{found}\n\nnext        palaestra train {algorithm} {env} --config {preset}")
    return 0


def _space(arguments: list[str]) -> tuple[dict[str, tuple[float, ...] | None], list[str]]:
    """What `--space.PATH LOW HIGH` and `--space.PATH none` change, and the other arguments."""
    space: dict[str, list[str]] = {}
    rest: list[str] = []
    words = rest
    for argument in arguments:
        if argument.startswith("--"):
            path, equals, value = argument.partition("=")
            words = space.setdefault(path.removeprefix("--space."), []) if path.startswith("--space.") else rest
            if words is not rest:
                words += [value] if equals else []
                continue
        words.append(argument)
    try:
        return {p: None if given == ["none"] else tuple(map(float, given)) for p, given in space.items()}, rest
    except ValueError as error:
        raise ConfigError(f"--space needs PATH LOW HIGH, or PATH none: {error}") from None
