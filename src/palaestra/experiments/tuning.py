"""Search for settings: trials of several seeds in processes of their own, in a study on disk that can be continued."""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from palaestra.analysis.curves import mean_interval
from palaestra.analysis.evaluation import evaluate_run
from palaestra.config.config import ExperimentConfig, config_from_mapping, config_to_mapping, save_config
from palaestra.config.dimensions import Dimension, first_values, search_space, with_values
from palaestra.config.presets import preset
from palaestra.core import AtLeastOne, ConfigError, PalaestraError, Positive, Range, import_extra, require_ranges
from palaestra.core.computing import num_cores
from palaestra.core.errors import CheckpointError, require_kind
from palaestra.core.files import replace_text
from palaestra.core.reading import parse_json, read_lines, read_text
from palaestra.experiments.run import require_same_task
from palaestra.experiments.seeds import GroupResult, resume_seeds, train_seeds
from palaestra.runs.build import require_fit
from palaestra.runs.records import read_evaluations
from palaestra.runs.run_directory import find_runs
from palaestra.training import StoppedError, StopSignals, TrainerConfig

__all__ = ["Search", "TuningResult", "Winner", "tune"]

_FRESH_SEED = 10_000
"""Added to the run seed for the winners."""
_EVALUATION_SEED = 20_000
"""Added to the run seed for their last evaluation."""
_POLL_S = 0.2
_MAKING = threading.Lock()
"""Held while runs are made, which is not for several threads at once."""
_LEAVES_S = 60.0
"""How long seeds of a search that was killed may take to save and end."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How far to search."""

    output: str = "study"
    """Folder of the study; one that exists is continued."""
    trials: AtLeastOne[int] = 20
    """How many are begun; the first has the values of the configuration."""
    seeds: AtLeastOne[int] = 2
    """Seeds of each trial, side by side."""
    jobs: AtLeastOne[int] = 1
    """Trials side by side, each with its seeds; with more than one, what a trial draws depends on which end first."""
    prune: bool = True
    """Whether trials end early that are worse than half of those before them after as many env steps."""
    time_limit_s: Positive[float | None] = None
    """Begin no further trial after so many seconds of this call; the winners come after that."""
    top: AtLeastOne[int] = 3
    """How many of the best trials are trained again."""
    fresh_seeds: Annotated[int, Range(ge=2)] = 5
    """Seeds of each of them that no trial had."""
    fresh_episodes: AtLeastOne[int] = 100
    """Episodes that score each of these seeds."""

    def __post_init__(self) -> None:
        require_ranges(self, "search.")


@dataclass(frozen=True)
class Winner:
    """One of the best trials, trained again."""

    trial: int
    """Number of the trial."""
    settings: dict[str, float]
    """What it had drawn, by path."""
    search_score: float
    """What it was chosen by: mean over seeds of the best evaluation."""
    fresh_score: float
    """Mean over fresh seeds of the best policy's return in episodes of its own."""
    fresh_ci95: tuple[float, float]
    """95% bootstrap interval of that mean over seeds."""

    @property
    def winners_curse(self) -> float:
        """By how much the search overstates it: `search_score` minus `fresh_score`."""
        return self.search_score - self.fresh_score


@dataclass(frozen=True)
class TuningResult:
    """What a search has found."""

    directory: Path
    """Folder of the study; `preset.yaml` in it is for `palaestra train --config`."""
    space: tuple[Dimension, ...]
    """What was searched."""
    complete: int
    """Trials with a score."""
    pruned: int
    """Trials that were ended early."""
    failed: dict[int, str]
    """What went wrong in the others, by number."""
    winners: tuple[Winner, ...]
    """Best first, by the score of the search; the first one's settings are the preset."""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        winners = [{**dataclasses.asdict(one), "winners_curse": one.winners_curse} for one in self.winners]
        return {**dataclasses.asdict(self), "directory": str(self.directory), "winners": winners}

    def __str__(self) -> str:
        head = f"{self.complete} trials are complete, {self.pruned} were pruned, {len(self.failed)} failed."
        table = ["| trial | search | fresh seeds | 95% interval | winner's curse |", "|---|---|---|---|---|"]
        lines = [head, "", *table]
        for one in self.winners:
            low, high = one.fresh_ci95
            scores = f"{one.search_score:.1f} | {one.fresh_score:.1f} | {low:.1f} to {high:.1f}"
            lines.append(f"| {one.trial} | {scores} | {one.winners_curse:.1f} |")
        lines += ["", f"The preset has the settings of trial {self.winners[0].trial}, the best by the search:", ""]
        lines += [f"- {path}: {value:.6g}" for path, value in self.winners[0].settings.items()]
        return "\n".join([*lines, *(f"- trial {number} failed: {error}" for number, error in self.failed.items())])


def tune(
    algorithm: str,
    env: str,
    /,
    *,
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
        algorithm: its name, for example `"dqn"`.
        env: where it learns, as `EnvConfig.name`.
        search: how far to search, and where the study is.
        space: changes of what is searched, as in `search_space`.
        on_trial: called with a line for each trial and winner that has ended.
        settings: as of `train`: `config=`, or single settings by their path.

    Raises:
        ConfigError: settings or ranges are wrong, the folder is another study's or in use, or no trial has a score.
        MissingExtraError: Optuna is not installed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the study is saved.
    """
    search, tell = Search() if search is None else search, on_trial or (lambda _: None)
    require_kind(search, Search, "tune, as search,", "a Search(...); ranges are its `space`")
    base = settings.pop("config", None) or preset(algorithm, env)
    require_same_task(base, algorithm, env)
    config = config_from_mapping(ExperimentConfig, settings, base=base)
    if config.algorithm.rewards.thresholds:
        raise ConfigError(
            "algorithm.rewards.thresholds are constraints, which the score of a trial does not know: settings that "
            "break them would win. Leave them out, and give weights"
        )
    require_fit(config)
    dimensions = search_space(config, space)
    if not config.trainer.eval_episodes:
        raise ConfigError("trainer.eval_episodes is 0, so trials have no score; give a number of at least 1")
    folder = Path(search.output)
    with _held(folder, config, dimensions, search):
        _cut_damage(folder / "journal.log", tell)
        study = _study(folder, dimensions, first_values(config, dimensions), config.trainer.total_env_steps // 5)
        _search(study, config, dimensions, search, tell)
        result = _result(study, config, dimensions, search, tell)
    save_config(with_values(config, result.winners[0].settings), folder / "preset.yaml")
    replace_text(folder / "summary.json", json.dumps(result.to_json(), indent=2) + "\n")
    replace_text(folder / "summary.md", f"# {algorithm} on {env}\n\n{result}\n")
    return result


@contextlib.contextmanager
def _held(folder: Path, config: ExperimentConfig, space: tuple[Dimension, ...], search: Search) -> Iterator[None]:
    """Holds the folder for this process, and refuses one that has another question's answers."""
    if (folder / "runs").is_dir() and not (folder / "study.json").exists():
        raise ConfigError(f"{folder} has runs and no study, whose trials would take their place; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another process searches in {folder}; wait for it, or give another folder") from None
        asked = {"config": config_to_mapping(config), "seeds": search.seeds, "space": [str(one) for one in space]}
        text, file = json.dumps(asked, indent=2) + "\n", folder / "study.json"
        if file.exists() and read_text(file) != text:
            raise ConfigError(f"{folder} holds a study with other settings, seeds or space; give another folder")
        replace_text(file, text)
        yield


def _cut_damage(file: Path, tell: Callable[[str], None]) -> None:
    """Takes away what a machine that went down has left of a line, and all from a line on that is damaged.

    Trials that are gone from a journal are asked again, and find their runs.
    """
    kept = 0
    for number, line in enumerate(read_lines(file) if file.exists() else (), 1):
        with contextlib.suppress(ValueError, TypeError, LookupError):
            if parse_json(line)["op_code"] >= 0 and line.endswith(b"\n"):
                kept += len(line)
                continue
        if line.endswith(b"\n"):
            tell(f"{file} is damaged in line {number}; trials from there on are asked again, and find their runs")
        os.truncate(file, kept)
        return


def _study(folder: Path, space: tuple[Dimension, ...], first: Mapping[str, float], warm_up: int) -> Any:
    """The study of a folder, made where there is none; its first trial has values that are given.

    Optuna learns the nearest that can be drawn.
    """
    optuna = import_extra("optuna", "tune", "searching for settings")
    backend = import_extra("optuna.storages.journal", "tune", "searching for settings").JournalFileBackend
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Half of the trials before have to be better at the same env steps, of which the first fifth say too little.
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=warm_up)
    named: dict[str, Any] = {"study_name": "tune", "direction": "maximize", "load_if_exists": True}
    try:
        storage = optuna.storages.JournalStorage(backend(str(folder / "journal.log")))
        study = optuna.create_study(storage=storage, pruner=pruner, **named)
    except (LookupError, TypeError, ValueError, AssertionError) as error:
        raise CheckpointError(f"{folder / 'journal.log'} is damaged: {error!r}; give another folder") from error
    if not study.get_trials(deepcopy=False):
        drawn = {one.path: one.stored(float(first[one.path])) for one in space}
        study.enqueue_trial(drawn, user_attrs={"settings": dict(first)})
    return study


def _search(
    study: Any, config: ExperimentConfig, space: tuple[Dimension, ...], search: Search, tell: Callable[[str], None]
) -> None:
    """Runs trials until there are enough, those first that were running when the last process ended."""
    began_s, leave, running = time.monotonic(), threading.Event(), dict[Future[float], Any]()
    waiting = [one for one in study.get_trials() if one.state.name == "RUNNING"]
    with StopSignals() as stop, ThreadPoolExecutor(search.jobs) as pool:
        try:
            while True:
                late = search.time_limit_s is not None and time.monotonic() - began_s > search.time_limit_s
                while len(running) < search.jobs and not late and stop.received is None:
                    if not waiting and _number_asked(study) >= search.trials:
                        break
                    trial = _asked(study, waiting.pop(0) if waiting else None, config.run.seed, space, search.jobs)
                    running[pool.submit(_scored, trial, config, search, leave)] = trial
                if not running:
                    break
                for future in wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED).done:
                    _tell(study, running.pop(future), future, tell)
                if stop.received is not None:
                    leave.set()
        except KeyboardInterrupt:  # of a trial, or of someone who ended only its processes
            if stop.received is None:
                raise
        finally:
            leave.set()  # trials in other threads end as after Ctrl-C
    if stop.received is not None:
        raise StoppedError("the study is saved, and the same call goes on", stop.exit_code)


def _number_asked(study: Any) -> int:
    """Trials that were begun: all but the one with the values of the configuration, while it waits."""
    return sum(one.state.name != "WAITING" for one in study.get_trials(deepcopy=False))


def _asked(study: Any, known: Any, seed: int, space: tuple[Dimension, ...], jobs: int) -> Any:
    """The next trial, or one that is known and was begun, with the values that it tries."""
    optuna = import_extra("optuna", "tune", "searching for settings")
    number = _number_asked(study) if known is None else known.number
    # What a trial draws depends on its number and on those before it, not on how often the search was ended.
    study.sampler = optuna.samplers.TPESampler(seed=seed * 100_003 + number, constant_liar=jobs > 1)
    trial = study.ask() if known is None else optuna.Trial(study, known._trial_id)
    values = {one.path: one.suggest(trial) for one in space}
    if "settings" not in trial.user_attrs:
        trial.set_user_attr("settings", values)
    return trial


def _scored(trial: Any, config: ExperimentConfig, search: Search, leave: threading.Event) -> float:
    """The score of a trial, which is trained in processes of its own; called in a thread for each.

    Raises:
        TrialPruned: Optuna's; its evaluations are worse than those of most others after as many env steps.
        PalaestraError: a seed failed, or was never evaluated.
        KeyboardInterrupt: the search was asked to stop.
    """
    optuna, path = import_extra("optuna", "tune", "searching for settings"), Path(search.output) / "runs"
    reported, hopeless = set(trial.storage.get_trial(trial._trial_id).intermediate_values), False
    path /= f"trial_{trial.number}"

    def ended() -> bool:
        nonlocal hopeless
        for due, score in _evaluations(path, search.seeds, config.trainer) if search.prune else ():
            if due not in reported and not hopeless:
                reported.add(due)
                trial.report(score, due)
                hopeless = trial.should_prune()
        return hopeless or leave.is_set()

    crowded = search.jobs * search.seeds >= num_cores() and config.run.num_threads is None
    run = dataclasses.replace(config.run, num_threads=1) if crowded else config.run
    tried = with_values(dataclasses.replace(config, run=run), trial.user_attrs["settings"])
    try:
        done = _trained(tried, path, search.seeds, config.run.seed, ended)
    except KeyboardInterrupt:
        if hopeless:
            raise optuna.TrialPruned from None
        raise
    return math.fsum(seed.best_return or 0.0 for seed in done.seeds) / search.seeds


def _evaluations(path: Path, seeds: int, trainer: TrainerConfig) -> list[tuple[int, float]]:
    """Env steps at which all seeds were due to be evaluated, and the mean over them of the best evaluation so far."""
    found: list[dict[int, float]] = []
    for seed in path.glob("seed_*"):
        best, scores = -math.inf, dict[int, float]()
        for env_steps, result in read_evaluations(seed):
            best = max(best, result["return_mean"])
            scores.setdefault(_due(env_steps, trainer), best)
        found.append(scores)
    common = set.intersection(*map(set, found)) if len(found) == seeds else set[int]()
    return [(due, math.fsum(scores[due] for scores in found) / seeds) for due in sorted(common)]


def _due(env_steps: int, trainer: TrainerConfig) -> int:
    """When an evaluation was due; it is made when the unroll ends, which differs between seeds and trials."""
    if trainer.eval_at_steps:
        return max(step for step in (0, *trainer.eval_at_steps) if step <= env_steps)
    period = trainer.period("eval") or max(1, trainer.total_env_steps // 10)  # where seconds say when: tenths of a run
    return env_steps // period * period


def _tell(study: Any, trial: Any, future: Future[float], tell: Callable[[str], None]) -> None:
    """Writes down how a trial ended; one that was asked to stop raises what it did, and goes on with the next call."""
    optuna, error = import_extra("optuna", "tune", "searching for settings"), future.exception()
    number = trial.number
    if error is None:
        study.tell(number, future.result())
        tell(f"trial {number} scored {future.result():.2f}")
    elif isinstance(error, optuna.TrialPruned):
        study.tell(number, state=optuna.trial.TrialState.PRUNED)
        steps, score = max(study.get_trials(deepcopy=False)[number].intermediate_values.items())
        tell(f"trial {number} was pruned at {steps:,} env steps with {score:.2f}")
    elif isinstance(error, PalaestraError):
        trial.set_user_attr("error", str(error))
        study.tell(number, state=optuna.trial.TrialState.FAIL)
        tell(f"trial {number} failed: {error}")
    else:
        raise error


def _trained(
    config: ExperimentConfig, path: Path, seeds: int, first: int, ended: Callable[[], bool] | None = None
) -> GroupResult:
    """The runs of a trial or a winner: those that are there go on.

    Raises:
        PalaestraError: a seed failed, or was never evaluated.
        KeyboardInterrupt: the seeds were asked to stop.
    """
    runs = find_runs([path]) if (path / "group.json").is_file() and [*path.glob("seed_*/run.json")] else []
    if len(runs) < seeds:
        shutil.rmtree(path, ignore_errors=True)  # it was killed while the runs were being made
        run = dataclasses.replace(config.run, directory=str(path.parent), name=path.name)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_MAKING)
            made = dataclasses.replace(config, run=run)
            done = train_seeds(made, range(first, first + seeds), on_start=lambda _: stack.close(), ended=ended)
    else:
        deadline_s = time.monotonic() + _LEAVES_S
        while any(run.status == "running" for run in runs) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)  # they save, as their parent has ended
        done = resume_seeds(path, ended=ended)
    if done.exit_code in (130, 143):
        raise StoppedError("the seeds are saved", done.exit_code)
    for seed in done.seeds:
        if seed.exit_code or seed.best_return is None or not math.isfinite(seed.best_return):
            raise PalaestraError(f"seed {seed.seed} {seed.status}: {seed.error or 'no finite evaluation was made'}")
    return done


def _result(
    study: Any, config: ExperimentConfig, space: tuple[Dimension, ...], search: Search, tell: Callable[[str], None]
) -> TuningResult:
    """Trains the best trials again on fresh seeds."""
    folder, trials = Path(search.output), study.get_trials(deepcopy=False)
    complete = sorted((one for one in trials if one.state.name == "COMPLETE"), key=lambda one: (-one.value, one.number))
    failed = {one.number: one.user_attrs.get("error", "") for one in trials if one.state.name == "FAIL"}
    if not complete:
        raise ConfigError(f"no trial in {folder} has a score; the first failure: {next(iter(failed.values()), 'none')}")
    winners, unfit = list[Winner](), ""
    for trial in complete:
        if len(winners) == search.top:
            break
        values = trial.user_attrs["settings"]
        path = folder / "runs" / f"winner_{trial.number}_{search.fresh_seeds}seeds"
        first = config.run.seed + _FRESH_SEED
        try:
            done = _trained(with_values(config, values), path, search.fresh_seeds, first)
        except PalaestraError as error:
            failed[trial.number] = unfit = f"on fresh seeds: {error}"
            tell(f"trial {trial.number} scored {trial.value:.2f} in the search and failed on fresh seeds: {error}")
            continue
        asked: dict[str, Any] = {"episodes": search.fresh_episodes, "seed": config.run.seed + _EVALUATION_SEED}
        scores = [evaluate_run(seed.directory, **asked).return_mean for seed in done.seeds]
        mean = math.fsum(scores) / len(scores)
        winners.append(Winner(trial.number, values, trial.value, mean, mean_interval(scores)))
        tell(f"trial {trial.number} scored {trial.value:.2f} in the search and {mean:.2f} on fresh seeds")
    if not winners:
        raise ConfigError(f"every trial of {folder} failed on fresh seeds; the last: {unfit}")
    pruned = sum(one.state.name == "PRUNED" for one in trials)
    return TuningResult(folder, space, len(complete), pruned, failed, tuple(winners))
