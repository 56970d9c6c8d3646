"""`palaestra tune`: a search for settings."""

import functools
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, ClassVar

from palaestra import experiments
from palaestra.cli.options import ExperimentOptions
from palaestra.experiments.tuning import asked_search


@dataclass(frozen=True, kw_only=True)
class TuneCommand(ExperimentOptions, experiments.Search):
    """All settings of a run, and how far to search."""

    MOST_SET: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "how far": ("trials", "seeds", "jobs", "pbt_every", "time_limit_s", "prune", "trainer.total_env_steps"),
        "who wins": ("top", "fresh_seeds", "fresh_episodes"),
        "what is searched": ("space", "output", "dry_run"),
    }
    """What people set most, by group."""

    time_limit_s: Annotated[float | None, "--time", "--time-limit", "duration"] = None
    """Begin no further trial after so long, such as 30m or 2h; the winners are trained after that. A limit of each run
    is --trainer.time-limit-s."""
    dry_run: bool = False
    """Say what would be searched, and start nothing."""
    space: dict[str, tuple[float, ...] | None] = field(default_factory=dict)
    """Where a setting is searched, as `--space.algorithm.gamma 0.9 0.999`; `none` leaves it as it is."""

    def search(self) -> experiments.Search:
        """How far to search."""
        return experiments.Search(**{entry.name: getattr(self, entry.name) for entry in fields(experiments.Search)})


def tune(algorithm: str, env: str, options: TuneCommand) -> int:
    """Searches for settings of an algorithm in an environment."""
    config, search = options.experiment(), options.search()
    experiments.require_same_task(config, algorithm, env)
    if options.dry_run:
        _, searched = asked_search(config, search, options.space)
        print(json.dumps([asdict(one) for one in searched]) if options.json else "\n".join(map(str, searched)))
        return 0
    tell = functools.partial(print, flush=True)
    with options.told():
        found = experiments.tune(algorithm, env, search=search, space=options.space, on_trial=tell, config=config)
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        preset = shlex.quote(str(found.directory / "preset.yaml"))
        print(f"\n{found}\n\ntrials      {found.directory / 'summary.md'}")
        print(f"next        palaestra train {algorithm} {env} --config {preset}")
    return 0
