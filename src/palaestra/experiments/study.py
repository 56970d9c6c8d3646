"""The study of a search on disk: its trials, in processes of their own or as populations, which can go on."""

import contextlib
import dataclasses
import math
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from palaestra.config.config import ExperimentConfig
from palaestra.config.dimensions import Dimension, first_values, search_space, with_values
from palaestra.core import AtLeastOne, CheckpointError, ConfigError, PalaestraError, Positive, Range, import_extra
from palaestra.core.computing import num_cores
from palaestra.core.reading import parse_json, read_lines
from palaestra.core.settings import require_ranges
from palaestra.experiments.pbt import population_space
from palaestra.experiments.seeds import GroupResult, resume_members, resume_seeds, train_members, train_seeds
from palaestra.runs import RunDirectory, find_runs, read_evaluations
from palaestra.runs.together import require_together
from palaestra.training import STOP_CODES, StoppedError, StopSignals, TrainerConfig

__all__ = ["Search", "Trial"]

_POLL_S = 0.2
_MAKING = threading.Lock()
"""Held while runs are made, which is not for several threads at once."""
_LEAST_TOGETHER = 4
"""Runs of which a population is quicker than a process for each."""
_LEAVES_S = 60.0
"""How long seeds of a search that was killed may take to save and end."""
_SAVED = "the study is saved, and the same call goes on"


@dataclass(frozen=True, kw_only=True)
class Search:
    """How far to search."""

    output: str | None = None
    """Folder of the study; one that exists is continued. By default studies/ALGORITHM_ENVIRONMENT."""
    trials: AtLeastOne[int] = 20
    """How many are begun; the first has the values of the configuration."""
    seeds: AtLeastOne[int | None] = None
    """Seeds of each trial, side by side; by default 2, and 1 with `pbt_every`."""
    jobs: AtLeastOne[int] = 1
    """Trials side by side, each with its seeds: on tensors as a population in one graph, where they can; else what a
    trial draws depends on which end first."""
    pbt_every: AtLeastOne[int | None] = None
    """Population-based training: `trials` members learn side by side, and after so many updates of each the worst fifth
    copy the best fifth and go on with other numbers."""
    prune: bool = True
    """Whether trials end early that are worse than half of those before them after as many env steps; those of a
    population do not."""
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
        idle = {"seeds": (None, 1), "jobs": (1,), "time_limit_s": (None,), "prune": (True,)}
        idle |= {"trials": range(2, 1 << 30)}
        for name, possible in idle.items() if self.pbt_every is not None else ():
            if getattr(self, name) not in possible:
                raise ConfigError(
                    f"search.{name} is {getattr(self, name)!r}, which population-based training cannot have: `trials`, "
                    "at least 2, are its members, of one seed each, which learn side by side to the end; leave it out"
                )

    @property
    def num_seeds(self) -> int:
        """Seeds of each trial."""
        return self.seeds or (2 if self.pbt_every is None else 1)

    def folder(self, config: ExperimentConfig) -> Path:
        """Where the study is.

        Args:
            config: of the user.
        """
        name = config.env.name.replace("/", "-").replace(":", "-")
        return Path(self.output or f"studies/{config.algorithm_name}_{name}")

    def begin(
        self, config: ExperimentConfig, space: Mapping[str, Sequence[float] | None] | None
    ) -> tuple[ExperimentConfig, tuple[Dimension, ...]]:
        """What it begins from, and which numbers it tries.

        Args:
            config: of the user.
            space: see `tune`.

        Raises:
            ConfigError: a path or a range is wrong, or cannot change in population-based training; it would compare
                nobody, or cannot train in one graph.
        """
        if self.pbt_every is None:
            return config, search_space(config, space)
        require_together([config])
        return population_space(config, space, self.pbt_every)


@dataclass(frozen=True)
class Trial:
    """A trial of a search, or a member of a population, that has ended."""

    number: int
    """In the name of its runs: `trial_3`, `member_3`."""
    status: Literal["complete", "pruned", "failed"]
    """A pruned one was ended early."""
    score: float | None
    """What a complete one is ranked by, and what a pruned one had come to."""
    settings: dict[str, Any]
    """What it trained with, by path; of a member, the schedules with which its last policy came about."""
    error: str | None = None
    """Why it failed."""


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Trials with the best first, and those that are not complete last."""
    return sorted(trials, key=lambda one: (one.status != "complete", -(one.score or 0.0), one.number))


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


def opened(config: ExperimentConfig, space: tuple[Dimension, ...], search: Search, tell: Callable[[str], None]) -> Any:
    """Optuna's study of a folder, made where there is none; its first trial has the values of the configuration.

    Optuna learns the nearest that can be drawn.

    Args:
        config: what it begins from.
        space: what it tries.
        search: how far to search.
        tell: called with what is damaged.

    Raises:
        CheckpointError: the journal says what cannot be.
    """
    folder, first = search.folder(config), first_values(config, space)
    _cut_damage(folder / "journal.log", tell)
    optuna = import_extra("optuna", "tune", "searching for settings")
    backend = import_extra("optuna.storages.journal", "tune", "searching for settings").JournalFileBackend
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Half of the trials before have to be better at the same env steps, of which the first fifth say too little.
    warm_up = config.trainer.total_env_steps // 5
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


def ended_trials(study: Any) -> list[Trial]:
    """The trials of Optuna's study that have ended, ranked.

    Args:
        study: see `opened`.
    """
    status: Any = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    found = [(one, one.user_attrs) for one in study.get_trials(deepcopy=False) if one.state.name in status]
    return ranked(
        Trial(one.number, status[one.state.name], one.value, own.get("settings", {}), own.get("error"))
        for one, own in found
    )


def searched(
    study: Any, config: ExperimentConfig, space: tuple[Dimension, ...], search: Search, tell: Callable[[str], None]
) -> list[Trial]:
    """Runs trials until there are enough, those first that were running when the last process ended.

    Args:
        study: see `opened`.
        config: what it begins from.
        space: what it tries.
        search: how far to search.
        tell: called with a line for each trial that has ended.

    Raises:
        StoppedError: the search was asked to stop.
    """
    began_s, leave, running = time.monotonic(), threading.Event(), dict[Future[Any], list[Any]]()
    together = _are_together(config, space, search, tell)
    waiting = [one for one in study.get_trials() if one.state.name == "RUNNING"]
    with StopSignals() as stop, ThreadPoolExecutor(search.jobs) as pool:
        try:
            while True:
                late = search.time_limit_s is not None and time.monotonic() - began_s > search.time_limit_s
                trials, free = list[Any](), 0 if late or (together and running) else search.jobs - len(running)
                alone = together and bool(waiting)  # a population goes on as it is, without new members
                while len(trials) < free and stop.received is None:
                    if not waiting and (alone or _number_asked(study) >= search.trials):
                        break
                    known = waiting.pop(0) if waiting else None
                    trials.append(_asked(study, known, config.run.seed, space, search.jobs))
                if together and trials:
                    running[pool.submit(_scored_together, trials, config, search, leave)] = trials
                for trial in () if together else trials:
                    running[pool.submit(_scored, trial, config, search, leave)] = [trial]
                if not running:
                    break
                for future in wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED).done:
                    ended = running.pop(future)
                    if together and future.exception() is None:
                        for trial, own in zip(ended, future.result(), strict=True):
                            _tell(study, trial, own, tell, config.unit)
                    else:
                        for trial in ended:
                            _tell(study, trial, future, tell, config.unit)
                if stop.received is not None:
                    leave.set()
        except KeyboardInterrupt:  # of a trial, or of someone who ended only its processes
            if stop.received is None:
                raise
        finally:
            leave.set()  # trials in other threads end as after Ctrl-C
    if stop.received is not None:
        raise StoppedError(_SAVED, stop.exit_code)
    return ended_trials(study)


def _are_together(
    config: ExperimentConfig, space: tuple[Dimension, ...], search: Search, tell: Callable[[str], None]
) -> bool:
    """Whether trials side by side are one population, which is said, or why not."""
    if search.jobs == 1 or search.jobs * search.num_seeds < _LEAST_TOGETHER:
        return False
    ends = [{one.path: one.low for one in space}, {one.path: one.high for one in space}]
    try:
        require_together([with_values(config, one) for one in ends])
    except ConfigError as error:
        tell(f"trials run in processes of their own, not as a population in one graph: {error}")
        return False
    tell(f"{search.jobs} trials at a time are a population in one graph, and train to their ends")
    return True


def _number_asked(study: Any) -> int:
    """Trials that were begun: all but the one with the values of the configuration, while it waits."""
    return sum(one.state.name != "WAITING" for one in study.get_trials(deepcopy=False))


def _asked(study: Any, known: Any, seed: int, space: tuple[Dimension, ...], jobs: int) -> Any:
    """The next trial, or one that is known and was begun, with the values that it tries."""
    optuna = import_extra("optuna", "tune", "searching for settings")
    number = _number_asked(study) if known is None else known.number
    # What a trial draws depends on its number and on those before it, not on how often the search was ended.
    own = (seed * 100_003 + number) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=own, constant_liar=jobs > 1)
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
    optuna, path = import_extra("optuna", "tune", "searching for settings"), search.folder(config) / "runs"
    reported, hopeless = set(trial.storage.get_trial(trial._trial_id).intermediate_values), False
    path /= f"trial_{trial.number}"
    seeds = range(config.run.seed, config.run.seed + search.num_seeds)

    def ended() -> bool:
        nonlocal hopeless
        for due, score in _evaluations(path, seeds, config.trainer) if search.prune else ():
            if due not in reported and not hopeless:
                reported.add(due)
                trial.report(score, due)
                hopeless = trial.should_prune()
        return hopeless or leave.is_set()

    crowded = search.jobs * search.num_seeds >= num_cores() and config.run.num_threads is None
    run = dataclasses.replace(config.run, num_threads=1) if crowded else config.run
    tried = with_values(dataclasses.replace(config, run=run), trial.user_attrs["settings"])
    try:
        done = trained(tried, path, search.num_seeds, config.run.seed, ended)
    except KeyboardInterrupt:
        if hopeless:
            raise optuna.TrialPruned from None
        raise
    return statistics.fmean(_scores(done))


def _scored_together(
    trials: Sequence[Any], config: ExperimentConfig, search: Search, leave: threading.Event
) -> list[Future[float]]:
    """The scores of trials that are trained as one population.

    Raises:
        KeyboardInterrupt: the search was asked to stop.
    """
    configs = [with_values(config, trial.user_attrs["settings"]) for trial in trials]
    seeds = range(config.run.seed, config.run.seed + search.num_seeds)
    paths = [search.folder(config) / "runs" / f"trial_{trial.number}" for trial in trials]
    scores: list[Future[float]] = []
    for done in trained_together(configs, [seeds] * len(configs), paths, ended=leave.is_set):
        scores.append(Future())
        try:
            scores[-1].set_result(statistics.fmean(_scores(done)))
        except PalaestraError as error:
            scores[-1].set_exception(error)
    return scores


def _evaluations(path: Path, seeds: Sequence[int], trainer: TrainerConfig) -> list[tuple[int, float]]:
    """Env steps at which all seeds were due to be evaluated, and the mean over them of the best evaluation so far."""
    found: list[dict[int, float]] = []
    for number in seeds:
        best, scores = -math.inf, dict[int, float]()
        for env_steps, result in read_evaluations(path / f"seed_{number}"):
            best = max(best, result["return_mean"])
            scores.setdefault(due_at(env_steps, trainer), best)
        found.append(scores)
    common = set.intersection(*map(set, found))
    return [(due, math.fsum(scores[due] for scores in found) / len(seeds)) for due in sorted(common)]


def due_at(env_steps: int, trainer: TrainerConfig) -> int:
    """When an evaluation was due; it is made when the unroll ends, which differs between seeds and trials."""
    if trainer.eval_at_steps:
        return max(step for step in (0, *trainer.eval_at_steps) if step <= env_steps)
    period = trainer.period("eval") or max(1, trainer.total_env_steps // 10)  # where seconds say when: tenths of a run
    return env_steps // period * period


def _tell(study: Any, trial: Any, future: Future[float], tell: Callable[[str], None], unit: str) -> None:
    """Writes down how a trial ended; one that was asked to stop raises what it did, and goes on with the next call."""
    optuna, error = import_extra("optuna", "tune", "searching for settings"), future.exception()
    number = trial.number
    if error is None:
        study.tell(number, future.result())
        tell(f"trial {number} scored {future.result():.2f}")
    elif isinstance(error, optuna.TrialPruned):
        study.tell(number, state=optuna.trial.TrialState.PRUNED)
        steps, score = max(study.get_trials(deepcopy=False)[number].intermediate_values.items())
        tell(f"trial {number} was pruned at {steps:,} {unit} with {score:.2f}")
    elif isinstance(error, PalaestraError) and not isinstance(error, CheckpointError):  # which its user has to mend
        trial.set_user_attr("error", str(error))
        study.tell(number, state=optuna.trial.TrialState.FAIL)
        tell(f"trial {number} failed: {error}")
    else:
        raise error


def trained(
    config: ExperimentConfig, path: Path, seeds: int, first: int, ended: Callable[[], bool] | None = None
) -> GroupResult:
    """The runs of a trial or a winner: those that are there go on.

    Raises:
        CheckpointError: see `runs_to_resume`.
        PalaestraError: a seed failed, or was never evaluated.
        KeyboardInterrupt: the seeds were asked to stop.
    """
    runs = runs_to_resume({path: range(first, first + seeds)})
    if not runs:
        run = dataclasses.replace(config.run, directory=str(path.parent), name=path.name)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_MAKING)
            made = dataclasses.replace(config, run=run)
            done = train_seeds(made, range(first, first + seeds), on_start=lambda _: stack.close(), ended=ended)
    else:
        _wait_for(runs)
        done = resume_seeds(path, ended=ended)
    if done.exit_code in STOP_CODES:
        raise StoppedError(_SAVED, done.exit_code)
    list(_scores(done))
    return done


def _scores(done: GroupResult) -> Iterator[float]:
    """The best return of each seed; refuses a group of which one failed, or was never evaluated."""
    for seed in done.seeds:
        if seed.exit_code or seed.best_return is None or not math.isfinite(seed.best_return):
            raise PalaestraError(f"seed {seed.seed} {seed.status}: {seed.error or 'no finite evaluation was made'}")
        yield seed.best_return


def trained_together(
    configs: Sequence[ExperimentConfig], seeds: Sequence[Sequence[int]], paths: Sequence[Path], **asked: Any
) -> list[GroupResult]:
    """The runs of trials or members as one population: those that are there go on.

    Raises:
        CheckpointError: see `runs_to_resume`.
        KeyboardInterrupt: they were asked to stop.
    """
    runs = runs_to_resume(dict(zip(paths, seeds, strict=True)))
    if not runs:
        run = dataclasses.replace(configs[0].run, directory=str(paths[0].parent), name=None)
        made = [dataclasses.replace(config, run=run) for config in configs]
        groups = train_members(made, seeds, names=[path.name for path in paths], **asked)
    else:
        _wait_for(runs)
        groups = resume_members(paths, **asked)
    if codes := [done.exit_code for done in groups if done.exit_code in STOP_CODES]:
        raise StoppedError(_SAVED, codes[0])
    return groups


def runs_to_resume(wanted: Mapping[Path, Sequence[int]]) -> list[RunDirectory]:
    """The runs of groups, if all are there; none where a search was killed while it made them, and these are removed.

    Args:
        wanted: seeds, by the path of the group.

    Raises:
        CheckpointError: some have begun, and others are missing or too many.
    """
    groups = [path for path in wanted if (path / "group.json").is_file() and any(path.glob("[!.]*/config.yaml"))]
    there = {str(run.path): run for run in find_runs(groups)}
    made = [str(path / f"seed_{seed}") for path, seeds in wanted.items() for seed in seeds]
    missing, more = ([one for one in made if one not in there], [one for one in there if one not in made])
    if not missing and not more:
        return [*there.values()]
    if any(RunDirectory(one).status != "created" for path in wanted for one in path.glob("[!.]*/")):
        raise CheckpointError(
            f"the runs of a study are not those that it made: missing are {', '.join(missing) or 'none'}, and too many "
            f"{', '.join(more) or 'none'}. Bring back what is missing, move away what is too many, or set search.output"
        )
    for path in wanted:
        shutil.rmtree(path, ignore_errors=True)
    return []


def _wait_for(runs: Sequence[RunDirectory]) -> None:
    """Seeds whose parent has ended save and end."""
    deadline_s = time.monotonic() + _LEAVES_S
    while any(run.status == "running" for run in runs) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
