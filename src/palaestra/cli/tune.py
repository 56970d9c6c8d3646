"""`palaestra tune`: a search for settings."""

import json
import shlex
import sys
from dataclasses import asdict, dataclass, field

from palaestra import experiments
from palaestra.cli.options import ExperimentOptions
from palaestra.cli.train import seconds
from palaestra.runs.build import require_fit


@dataclass(frozen=True, kw_only=True)
class TuneCommand(ExperimentOptions):
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
    space: dict[str, tuple[float, ...] | None] = field(default_factory=dict)
    """Where a setting is searched, as `--space.algorithm.gamma 0.9 0.999`; `none` leaves it as it is."""

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


def tune(algorithm: str, env: str, options: TuneCommand) -> int:
    """Searches for settings of an algorithm in an environment."""
    config, search = options.experiment(), options.search()
    experiments.require_same_task(config, algorithm, env)
    if options.dry_run:
        require_fit(config)
        searched = experiments.search_space(config, options.space)
        print(json.dumps([asdict(one) for one in searched]) if options.json else "\n".join(map(str, searched)))
        return 0
    stream = sys.stderr if options.json else sys.stdout

    def tell(line: str) -> None:
        print(line, file=stream, flush=True)

    found = experiments.tune(algorithm, env, search=search, space=options.space, on_trial=tell, config=config)
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        preset = shlex.quote(str(found.directory / "preset.yaml"))
        print(f"\n{found}\n\nnext        palaestra train {algorithm} {env} --config {preset}")
    return 0
