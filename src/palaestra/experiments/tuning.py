"""Search for settings: trials of several seeds in processes of their own, in a study on disk that can be continued."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palaestra.analysis.evaluation import evaluate_run
from palaestra.config.config import ExperimentConfig, config_to_mapping, save_config, saved_config
from palaestra.config.dimensions import Dimension, require_comparable, setting_path, settings_with, with_values
from palaestra.config.presets import AlgorithmOrName
from palaestra.core import CheckpointError, ConfigError, Linear, PalaestraError, readable, refuses
from palaestra.core.errors import require_kind
from palaestra.core.files import replace_text
from palaestra.core.reading import parse_json, read_text
from palaestra.experiments import study
from palaestra.experiments.pbt import Ancestry, Selection, lineage_page
from palaestra.experiments.run import asked_config
from palaestra.experiments.study import Search, Trial, ranked
from palaestra.ops import mean_interval
from palaestra.runs import RunDirectory, read_evaluations
from palaestra.runs.build import require_fit
from palaestra.runs.lineage import changes_between, for_new_run
from palaestra.runs.records import try_lock

__all__ = ["Search", "Trial", "TuningResult", "Winner", "tune"]

_FRESH_SEED = 10_000
"""Added to the run seed for the winners."""
_STUDY = "study.json"
"""In the folder of a study: what it was begun with."""


@dataclass(frozen=True)
class Winner:
    """One of the best trials, trained again."""

    trial: int
    """Number of the trial."""
    settings: dict[str, Any]
    """What it had drawn, by path; of population-based training, the schedules with which its last policy came about."""
    search_score: float
    """What it was chosen by: mean over seeds of the best evaluation; of population-based training, the last one."""
    fresh_score: float
    """Mean over fresh seeds of the best policy's return in episodes of its own."""
    fresh_ci95: tuple[float, float]
    """95% interval of that mean over seeds (Student's t)."""

    @property
    def winners_curse(self) -> float:
        """By how much the search overstates it: `search_score` minus `fresh_score`."""
        return self.search_score - self.fresh_score


@dataclass(frozen=True)
class TuningResult:
    """Results of a search."""

    directory: Path
    """Folder of the study; `preset.yaml` in it is for `palaestra train --config`."""
    space: tuple[Dimension, ...]
    """What was searched."""
    trials: tuple[Trial, ...]
    """All that have ended, or members, the best first and those that are not complete last."""
    failed: dict[int, str]
    """Errors of the trials that failed, also on fresh seeds, by number."""
    winners: tuple[Winner, ...]
    """Best first, by the score of the search."""
    best: int
    """Number of the trial whose settings the preset has: the first of those that have not failed on fresh seeds."""
    preset: dict[str, Any]
    """What was searched of the preset, by path, as `palaestra train` takes it."""
    kind: Literal["trial", "member"] = "trial"
    """What is numbered: trials, or the members of a population."""

    @property
    def complete(self) -> int:
        """Trials with a score."""
        return sum(one.status == "complete" for one in self.trials)

    @property
    def pruned(self) -> int:
        """Trials that were ended early."""
        return sum(one.status == "pruned" for one in self.trials)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        winners = [{**dataclasses.asdict(one), "winners_curse": one.winners_curse} for one in self.winners]
        counts = {"complete": self.complete, "pruned": self.pruned}
        return {**dataclasses.asdict(self), **counts, "directory": str(self.directory), "winners": winners}

    def __str__(self) -> str:
        counts = f"{self.complete} {self.kind}s are complete, {self.pruned} were pruned, {len(self.failed)} failed."
        rows: list[Sequence[Any]] = []
        for one in self.winners:
            low, high = one.fresh_ci95
            scores = map(readable, (one.search_score, one.fresh_score))
            rows.append([one.trial, *scores, f"{readable(low)} to {readable(high)}", readable(one.winners_curse)])
        table = _table([self.kind, "search", "fresh seeds", "95% interval", "winner's curse"], rows)
        lines = [counts, "", table if rows else "None has been trained on fresh seeds yet."]
        lines += ["", f"The preset has the settings of {self.kind} {self.best}, the best by the search:", ""]
        settings = self.preset.items()
        lines += [f"- {path}: {value if isinstance(value, str) else f'{value:.6g}'}" for path, value in settings]
        lines += [f"- {self.kind} {number} failed: {error}" for number, error in self.failed.items()]
        return "\n".join(lines)


def tune(
    algorithm: AlgorithmOrName,
    env: Any,
    /,
    *,
    config: ExperimentConfig | None = None,
    search: Search | None = None,
    space: Mapping[str, Sequence[float] | None] | None = None,
    on_trial: Callable[[str], None] | None = None,
    **settings: Any,
) -> TuningResult:
    """Searches for settings, and trains the best again on fresh seeds: the command `palaestra tune` as a function.

    The score of a trial is the mean over its seeds of the best evaluation (deterministic policy) within the run's env
    steps. The best `top` are trained again with seeds that no trial had, and their best policies play new episodes.
    The preset is the first by the score of the search, so that its fresh score has not been selected by: it is
    unbiased, where the highest of several fresh scores would not be. The same call continues a study that was killed:
    the trial that was running goes on from its checkpoints.

    Args:
        algorithm: see `train`.
        env: see `train`.
        config: see `train`.
        search: how far to search, and where the study is.
        space: changes of what is searched, as in `search_space`.
        on_trial: called with a line for each trial and winner that has ended, and with a table of those that had ended
            before this call.
        settings: see `train`.

    Raises:
        ConfigError: settings or ranges are wrong, trials could not be compared, the folder is another study's or in
            use, or no trial has a score.
        MissingExtraError: Optuna is not installed.
        KeyboardInterrupt: a signal ended it; the study is saved.
    """
    search, tell = Search() if search is None else search, on_trial or (lambda _: None)
    require_kind(search, Search, "tune, as search,", "a Search(...); ranges are its `space`")
    config = asked_config(algorithm, env, config, settings)
    config, dimensions = asked_search(config, search, space)
    folder = search.folder(config)
    with _held(folder, config, dimensions, search):
        if search.pbt_every is not None:
            trials = _evolved(config, dimensions, search, tell)
        else:
            opened = study.opened(config, dimensions, search, tell)
            if before := study.ended_trials(opened):
                tell(f"the study goes on; so far\n\n{_trial_table(before, 'trial')}\n")
            trials = study.searched(opened, config, dimensions, search, tell)
        return _result(trials, config, dimensions, search, tell)


def asked_search(
    config: ExperimentConfig, search: Search, space: Mapping[str, Sequence[float] | None] | None
) -> tuple[ExperimentConfig, tuple[Dimension, ...]]:
    """What a search begins from, and which numbers it tries; a study that has begun goes on with what it has.

    Args:
        config: of the user.
        search: how far to search.
        space: see `tune`.

    Raises:
        ConfigError: see `tune`.
    """
    learner = require_fit(config)
    config = for_new_run(config)  # runs that it begins with are found where it is asked for
    config, dimensions = search.begin(config, space)
    if not (search.folder(config) / _STUDY).exists():
        _require_scores(config)
        learner.require_ranking()
        given = {setting_path(path) for path in space or ()}
        require_comparable(config, [one for one in dimensions if one.path in given])
    return config, dimensions


@refuses(ConfigError)
def _require_scores(config: ExperimentConfig) -> Iterator[str]:
    """Refuses settings with which trials have no score, or scores that do not say which is better."""
    if config.algorithm.rewards.thresholds:
        yield (
            "algorithm.rewards.thresholds are constraints, which the score of a trial does not know: settings that "
            "break them would win. Leave them out, and give weights"
        )
    if not config.trainer.eval_episodes:
        yield "trainer.eval_episodes is 0, so trials have no score; give a number of at least 1"
    if (goal := config.trainer.stop_at_return) is not None:
        yield (
            f"trainer.stop_at_return is {goal:g}, so trials that reach it would end there, and what their scores are "
            "above it would be luck; leave it out (none), and all trials have equally many env steps"
        )


@contextlib.contextmanager
def _held(folder: Path, config: ExperimentConfig, space: tuple[Dimension, ...], search: Search) -> Iterator[None]:
    """Holds the folder for this process, and refuses one that has another question's answers."""
    is_taken = any((folder / name).exists() for name in ("runs", "run.json", "group.json"))
    if is_taken and not (folder / _STUDY).exists():
        raise ConfigError(f"{folder} has runs and no study, whose trials would take their place; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        if not try_lock(lock):
            raise ConfigError(f"another process searches in {folder}; wait for it, or give another folder")
        asked = {"config": config_to_mapping(config), "seeds": search.num_seeds, "space": [str(one) for one in space]}
        asked |= {} if search.pbt_every is None else {"pbt_every": search.pbt_every, "members": search.trials}
        text, file = json.dumps(asked, indent=2) + "\n", folder / _STUDY
        if file.exists() and not _is_same(read_text(file), asked, config):
            raise ConfigError(f"{folder} holds a study with other settings, seeds or space; give another folder")
        replace_text(file, text)
        yield


def _is_same(text: str, asked: Mapping[str, Any], config: ExperimentConfig) -> bool:
    """Whether a study was begun with the same question; its configuration may be of an older version."""
    try:
        saved = dict(parse_json(text))
        before = saved_config(saved.pop("config"))
    except (CheckpointError, ConfigError, ValueError, TypeError, KeyError):
        return False
    return not changes_between(before, config) and saved == {name: asked[name] for name in asked if name != "config"}


def _evolved(
    config: ExperimentConfig, space: tuple[Dimension, ...], search: Search, tell: Callable[[str], None]
) -> list[Trial]:
    """Trains the members of population-based training, and says who has come to what.

    Raises:
        KeyboardInterrupt: the search was asked to stop.
    """
    assert search.pbt_every is not None
    selection, folder = Selection(search.pbt_every, config.run.seed, space), search.folder(config)
    seeds = [[config.run.seed + number] for number in range(search.trials)]
    paths = [folder / "runs" / f"member_{seed}" for (seed,) in seeds]
    asked = {"selection": selection.to_json()}
    tell(f"{search.trials} members learn side by side in one graph, and are compared every {search.pbt_every} updates")
    groups = study.trained_together(selection.members(config, search.trials), seeds, paths, **asked)
    failed, last = dict[int, str](), dict[int, tuple[int, float]]()
    runs = {seed.seed: RunDirectory(seed.directory) for done in groups for seed in done.seeds}
    for seed in (seed for done in groups for seed in done.seeds):
        ends = [(steps, result["return_mean"]) for steps, result in read_evaluations(seed.directory)[-1:]]
        if seed.exit_code or not ends or not math.isfinite(ends[0][1]):
            failed[seed.seed] = f"{seed.status}: {seed.error or 'no finite evaluation was made'}"
        else:
            last[seed.seed] = ends[0]
    replace_text(folder / "lineage.md", lineage_page(runs, last, space))
    trials = [Trial(number, "failed", None, {}, error) for number, error in failed.items()]
    for number, (steps, score) in last.items():
        family = Ancestry.of(number, runs, space)
        tell(f"member {number} ended with {score:.2f} after {steps:,} {config.unit}; it comes from {family}")
        trials.append(Trial(number, "complete", score, family.settings))
    return ranked(trials)


def _result(
    trials: Sequence[Trial],
    config: ExperimentConfig,
    space: tuple[Dimension, ...],
    search: Search,
    tell: Callable[[str], None],
) -> TuningResult:
    """Trains the best trials again on fresh seeds; what is known is written down after each of them."""
    folder, kind = search.folder(config), "trial" if search.pbt_every is None else "member"
    failed = {one.number: one.error or "" for one in trials if one.status == "failed"}
    complete = [(one.number, one.score or 0.0, one.settings) for one in trials if one.status == "complete"]
    if not complete:
        first = next(iter(failed.values()), "none")
        raise ConfigError(f"no {kind} in {folder} has a score; the first failure: {first}")
    winners, unfit, summary = list[Winner](), "", folder / "summary.json"

    def known() -> TuningResult:
        best = next((one for one in trials if one.number not in failed), trials[0])
        save_config(with_values(config, best.settings), folder / "preset.yaml")
        preset = settings_with(config, best.settings).items()
        preset = {path: str(value) if isinstance(value, Linear) else value for path, value in preset}
        found = TuningResult(folder, space, tuple(trials), dict(failed), tuple(winners), best.number, preset, kind)
        page = f"# {config.algorithm_name} on {config.env.name}\n\n{found}\n\n{_trial_table(trials, kind)}\n"
        replace_text(summary, json.dumps(found.to_json(), indent=2) + "\n")
        replace_text(folder / "summary.md", page)
        return found

    for number, score, values in complete:
        if len(winners) == search.top:
            break
        if winners or not _is_of(trials, summary):  # else winners of an earlier call are there
            known()
        if any(one.settings == values for one in winners):
            continue  # a copy of another member, with the same schedules
        path = folder / "runs" / f"winner_{number}_{search.fresh_seeds}seeds"
        first = config.run.seed + _FRESH_SEED
        try:
            done = study.trained(with_values(config, values), path, search.fresh_seeds, first)
        except CheckpointError:
            raise  # which its user has to mend: the next trial is no better
        except PalaestraError as error:
            failed[number] = unfit = f"on fresh seeds: {error}"
            tell(f"{kind} {number} scored {score:.2f} in the search and failed on fresh seeds: {error}")
            continue
        scores = [evaluate_run(seed.directory, episodes=search.fresh_episodes).return_mean for seed in done.seeds]
        mean = math.fsum(scores) / len(scores)
        winners.append(Winner(number, values, score, mean, mean_interval(scores)))
        tell(f"{kind} {number} scored {score:.2f} in the search and {mean:.2f} on fresh seeds")
    if not winners:
        known()
        (folder / "preset.yaml").unlink()
        raise ConfigError(f"every {kind} of {folder} failed on fresh seeds; the last: {unfit}")
    return known()


def _is_of(trials: Sequence[Trial], summary: Path) -> bool:
    """Whether an earlier call has written what it knew of these trials; one that did not list them knew all."""
    try:
        found = parse_json(read_text(summary))
    except (CheckpointError, OSError, ValueError):
        return False
    return isinstance(found, dict) and len(found.get("trials", trials)) == len(trials)


def _trial_table(trials: Sequence[Trial], kind: str) -> str:
    """All trials with the numbers that they trained with; schedules of members are in their configurations."""
    names = {path: "" for one in trials for path, value in one.settings.items() if not isinstance(value, str)}
    rows: list[Sequence[Any]] = []
    for one in trials:
        numbers = [f"{one.settings[name]:.6g}" if name in one.settings else "" for name in names]
        rows.append([one.number, "" if one.score is None else readable(one.score), one.status, *numbers])
    return _table([kind, "score", "status", *(name.removeprefix("algorithm.") for name in names)], rows)


def _table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))
