"""From a configuration to a finished run, and on from where one stopped.

It knows no kind of learner; what a run keeps is `runs`' affair.
"""

import dataclasses
import functools
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch

from palaestra.analysis.report import run_html, write_report
from palaestra.buffers import ReplayBuffer
from palaestra.config.config import ExperimentConfig, config_from_mapping, require_workers
from palaestra.config.presets import OTHER_NAMES, AlgorithmOrName, algorithm_name, preset
from palaestra.core import CheckpointError, ConfigError, EnvError, RunLostError, left_as_found
from palaestra.core.errors import require_kind
from palaestra.envs import Fault
from palaestra.envs.env_config import env_name
from palaestra.envs.supervision.watchdog import last_words
from palaestra.experiments.elastic import FollowScale
from palaestra.experiments.seeds import GroupResult, train_seeds
from palaestra.policies import Policy
from palaestra.runs import FaultRecord, Learner, RunDirectory, evaluation_environment, find_run, make_learner, making
from palaestra.runs.build import make_compiled_later, make_console, make_trainer, require_hooks
from palaestra.runs.computed import computed_by
from palaestra.runs.lineage import begin_from, changed_config, for_new_run, fork_run, go_on
from palaestra.runs.records import KeepFaults, NoteLeaks, crashes_told, kind_of, networks_of, process_info, write_lost
from palaestra.runs.records import now as time_now
from palaestra.runtime import entitled
from palaestra.runtime.messages import require_guard
from palaestra.training import Callback, Logger, StopSignals, Trainer, TrainingRun, TrainResult, acting_policy

__all__ = ["RunResult", "require_same_task", "resume", "run", "train"]

_log = logging.getLogger(__name__)
_NO_END = dict.fromkeys(("env_steps", "train_s", "reason", "error", "ended", "not_logged", "logs"))
"""What `run.json` says of an end, while there is none."""
_LOGS, _LARGEST_FOR_REPORT_BYTES = ("metrics.jsonl", "episodes.csv"), 20_000_000


@dataclass(frozen=True)
class RunResult:
    """A run that has come to its end, or was interrupted."""

    directory: Path
    """Everything it left."""
    result: TrainResult
    """How it ended."""
    policy: Policy | torch.nn.ModuleDict = field(repr=False)
    """As it is after the last update; the directory's `policy/` has the one of the best evaluation. Of several, a
    `ModuleDict` by name."""
    unit: str = "env steps"
    """What `result.env_steps` counts: `updates` of a run that learns from data alone."""

    def __repr__(self) -> str:
        end = "" if self.result.evaluation is None else f", {self.result.evaluation}"
        status = f"{self.result.status} after {self.result.env_steps:,} {self.unit}{end}"
        return f"RunResult({str(self.directory)!r}, {status})"

    def _repr_html_(self) -> str:
        """Shows a table and a curve in a notebook."""
        return run_html(RunDirectory(self.directory))


@overload
def train(
    algorithm: AlgorithmOrName,
    env: Any,
    /,
    *,
    config: ExperimentConfig | None = None,
    seeds: int | Sequence[int],
    progress: bool = False,
    **settings: Any,
) -> GroupResult: ...
@overload
def train(
    algorithm: AlgorithmOrName,
    env: Any,
    /,
    *,
    config: ExperimentConfig | None = None,
    progress: bool = False,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> RunResult: ...
def train(
    algorithm: AlgorithmOrName,
    env: Any,
    /,
    *,
    config: ExperimentConfig | None = None,
    seeds: int | Sequence[int] | None = None,
    progress: bool = False,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> RunResult | GroupResult:
    """Trains an agent: the command `palaestra train` as a function.

    Args:
        algorithm: its name, for example `"ppo"`, or its class.
        env: as `EnvConfig.name`; or a class or function that makes environments, or one itself, which is copied for
            each lane. What no module defines at its top trains in this process alone, and is resumed in no other.
        config: what settings that are not given come from; by default the preset of the two.
        seeds: trains so many seeds, or these ones, side by side in processes of their own; see `train_seeds`.
        progress: whether to show how it goes, as the command does.
        loggers: further loggers; not for several seeds.
        callbacks: hooks of your own; for several seeds by name, `run__callbacks=("my_package:MyCallback",)`.
        settings: by their path with `__` for dots, `trainer__total_env_steps=20_000, run__seed=3`.

    Raises:
        ConfigError: a setting is unknown or wrong; nothing has been started then.

    Examples:
        >>> import palaestra, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> done = palaestra.train("ppo", "CartPole-v1", trainer__total_env_steps=512, run__directory=folder)
        >>> done.result.status
        'done'
    """
    config = asked_config(algorithm, env, config, settings)
    if seeds is not None:
        if loggers or callbacks:
            raise ConfigError(
                "several seeds train in processes of their own, which `loggers` and `callbacks` cannot reach; name "
                'callbacks instead: run__callbacks=("my_package:MyCallback",)'
            )
        return train_seeds(config, seeds, progress=progress)
    return run(config, progress=progress, loggers=loggers, callbacks=callbacks)


def asked_config(
    algorithm: AlgorithmOrName, env: Any, config: ExperimentConfig | None, settings: Mapping[str, Any]
) -> ExperimentConfig:
    """The configuration that `train` and others are asked for.

    Args:
        algorithm: see `train`.
        env: see `train`.
        config: see `train`.
        settings: see `train`.

    Raises:
        ConfigError: a setting is unknown or wrong, or the configuration is for something else.
    """
    algorithm, name = algorithm_name(algorithm), env_name(env)
    base = preset(algorithm, name) if config is None else config
    require_kind(base, ExperimentConfig, "config", "an ExperimentConfig, such as load_config('my.yaml')")
    asked = config_from_mapping(ExperimentConfig, settings, base=base)
    require_workers(asked, settings)
    require_same_task(asked, algorithm, name)
    return asked


def require_same_task(config: ExperimentConfig, algorithm: str, env: str) -> None:
    """Refuses a configuration that is for something else than what was asked for.

    Args:
        config: from a file, say.
        algorithm: as it was named beside it.
        env: as it was named beside it.

    Raises:
        ConfigError: they differ.
    """
    if (config.algorithm_name, config.env.name) != (OTHER_NAMES.get(algorithm, algorithm), env):
        raise ConfigError(
            f"the configuration is for {config.algorithm_name} on {config.env.name}, "
            f"but {algorithm} on {env} was named; leave one of them out, or make them agree"
        )


@left_as_found()
def run(
    config: ExperimentConfig,
    *,
    progress: bool = False,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    on_start: Callable[[Path], None] | None = None,
) -> RunResult:
    """Trains by a configuration, in a new run directory.

    Args:
        progress: whether to show how it goes, as the command does.
        loggers: besides the run's own files and TensorBoard.
        callbacks: besides those that `run.callbacks` names.
        on_start: called with the run directory once it exists.

    Raises:
        ConfigError: the settings do not fit together, or a new process imports the script; no environment has been
            stepped then.
    """
    require_guard()
    require_hooks(loggers, callbacks)
    learner = make_learner(for_new_run(config))
    begin_from(learner)  # what does not fit is said before there is a directory
    data = learner.load_data(new=True)
    hooks: dict[str, Any] = {"progress": progress, "loggers": loggers, "callbacks": callbacks}
    with StopSignals(grace_s=config.trainer.grace_s), ExitStack() as stack:  # now there is something to resume
        directory = RunDirectory.create(learner.config)
        if on_start is not None:
            on_start(directory.path)
        trainer = _entered(stack, active(directory, learner, data, **hooks), unused=directory.path)
        return ended(directory, trainer, trainer.run())


@left_as_found()
def resume(
    name: str | Path,
    *,
    root: str | Path = "runs",
    fork: bool | str = False,
    progress: bool = False,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    on_start: Callable[[Path], None] | None = None,
    **settings: Any,
) -> RunResult:
    """Goes on with a run from its newest valid checkpoint; one that has never saved any begins, with a warning.

    Args:
        name: path or name of the run, or `last`.
        fork: whether to continue in a new run directory, of this name if it is a text, and leave the old one as it is.
        progress: whether to show how it goes, as the command does.
        loggers: besides the run's own files and TensorBoard.
        callbacks: besides those that `run.callbacks` names.
        on_start: called with the run directory before anything is done there.
        settings: by their path with `__` for dots, to continue with others than the run began with; `run.json` records
            them.

    Raises:
        CheckpointError: there is no such run, or its checkpoints are damaged.
        ConfigError: another process has the run, a new process imports the script, or a setting cannot change in a run
            that continues.
    """
    require_guard()
    require_hooks(loggers, callbacks)
    directory = find_run(name, root, of_all="palaestra.resume_seeds({!r})")
    config = changed_config(directory, settings)
    learner = make_learner(config)
    data = learner.load_data()
    if fork or isinstance(fork, str):  # an empty name is refused
        directory = fork_run(directory, fork if isinstance(fork, str) else None, root)
        here = directory.config.run
        run = dataclasses.replace(config.run, name=here.name, directory=here.directory)
        learner.config = dataclasses.replace(config, run=run)
    if on_start is not None:
        on_start(directory.path)
    hooks: dict[str, Any] = {"progress": progress, "loggers": loggers, "callbacks": callbacks}
    with ExitStack() as stack:
        made = active(directory, learner, data, **hooks, resumed=True)
        trainer = _entered(stack, made, unused=directory.path if fork else None)
        return ended(directory, trainer, trainer.run())


def _entered(stack: ExitStack, made: AbstractContextManager[Trainer], *, unused: Path | None) -> Trainer:
    """The trainer of a run; what its user has to mend first leaves no directory that nobody could go on with.

    Args:
        unused: the directory, if it is new.
    """
    try:
        return stack.enter_context(made)
    except (CheckpointError, ConfigError):
        if unused is not None and not RunDirectory(unused).in_use:
            shutil.rmtree(unused, ignore_errors=True)
        raise


@contextmanager
def active(
    directory: RunDirectory,
    learner: Learner,
    data: Mapping[str, ReplayBuffer],
    *,
    progress: bool = False,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    resumed: bool = False,
) -> Iterator[Trainer]:
    """The trainer of a run directory that exists, ready to run; what breaks it off in between is written down.

    Args:
        learner: from `make_learner`; its configuration is written there where it differs, once the checkpoint fits.
        data: from `Learner.load_data`.
        progress: whether to show how it goes.
        loggers: besides the run's own files and TensorBoard.
        callbacks: besides those that `run.callbacks` names.
        resumed: whether to continue from the newest valid checkpoint; a run without any begins, with a warning.

    Raises:
        CheckpointError: its checkpoints are damaged.
        ConfigError: another process has the run.
    """
    config, networks = learner.config, networks_of(learner.algorithms)
    loggers = [*loggers, *([make_console(learner, networks)] if progress else [])]
    with ExitStack() as stack:
        stack.enter_context(StopSignals(grace_s=config.trainer.grace_s))
        directory.lock()
        stack.callback(directory.unlock)
        stack.enter_context(entitled("run", directory.path))
        stack.enter_context(crashes_told(directory.path))
        stack.push(functools.partial(_recorded, directory))
        collecting = stack.enter_context(_begun(directory, learner).collecting(data))
        stack.enter_context(_environment_here(config))
        trainer = make_trainer(learner, collecting, directory.path, loggers, callbacks)
        faults = KeepFaults(collecting.reporter, directory.path)
        later = make_compiled_later(learner, lambda record: _note(directory, {"compiled": record}))
        leaks = NoteLeaks(directory.path, here=_steps_here(config))
        trainer.callbacks += [faults, _StillThere(directory), FollowScale(directory.path), leaks, later]
        stack.callback(later.end)
        if resumed:
            go_on(directory, trainer, config, collecting.reporter)
        later.begin(trainer)
        here = computed_by(config.env.name, trainer.learner, config.run.device)
        facts = {"process": process_info(), **here, "networks": networks}
        directory.write_info({**_NO_END, "status": "running", **facts})
        try:
            with last_words(functools.partial(_hung, directory, trainer, faults)):
                yield trainer
        except BaseException as error:
            _broken_off(directory, trainer, faults, error, restart=not making.may_restart(config.env))
            raise


def _broken_off(
    directory: RunDirectory, trainer: Trainer, faults: KeepFaults, error: BaseException, *, restart: bool
) -> None:
    """Writes down what broke a run off while it ran.

    Raises:
        RunLostError: its directory is gone, and no signal ended it.
    """
    status, steps = "stopped" if isinstance(error, KeyboardInterrupt) else "failed", trainer.collector.env_steps
    try:
        directory.require_there()
        if status == "failed":
            _advise(error, directory, faults.write(steps, error), restart=restart)
        reached = {"env_steps": steps, "best_return": trainer.best_return}
        _end(directory, {"status": status, "error": f"{type(error).__name__}: {error}", **reached})
    except RunLostError as lost:
        record = FaultRecord(type(lost).__name__, str(lost), env_steps=steps)
        with suppress(OSError):  # the folder that it lay in may be gone as well
            lost.add_note(f"recorded    {write_lost(directory.path, record)}")
        if status == "failed":
            raise lost from error
    except OSError as full:  # the first cause is what the user needs
        _log.warning("how %s ended could not be written: %s", directory.path, full)


def _recorded(directory: RunDirectory, kind: Any, error: BaseException | None, trace: Any) -> None:
    """Writes down what broke a run off before it ran, but for what its user has to mend first."""
    recorded = any(note.startswith("recorded") for note in getattr(error, "__notes__", ()))
    if recorded or error is None or isinstance(error, ConfigError | CheckpointError | KeyboardInterrupt):
        return
    with suppress(OSError, RunLostError):
        _advise(error, directory, KeepFaults(None, directory.path).write(directory.steps_done, error))
        directory.write_info({"status": "failed", "error": f"{type(error).__name__}: {error}", "ended": time_now()})


def _begun(directory: RunDirectory, learner: Learner) -> Learner:
    """The learner, computing as the run did before, with the policies that it begins with; a checkpoint has its own."""
    making.compute_as_before(learner.config, directory.info)
    if directory.never_saved and (origin := begin_from(learner)):
        if directory.info.get("began_from", origin) != origin:
            raise ConfigError(
                f"{directory.path} has saved nothing yet, and the policy that it began with is another now: "
                f"{origin['path']} was trained on; begin a new run"
            )
        directory.write_info({"began_from": origin})
    return learner


def _environment_here(config: ExperimentConfig) -> AbstractContextManager[object]:
    """An environment in a thread of this process, where a run that evaluates nothing has its own in others alone.

    What environments register, configure or log when they are made is then there in this process as well, if the run
    asks for it by `run.eval_vectorization`; nothing steps it.
    """
    if config.trainer.eval_episodes or config.run.eval_vectorization != "thread" or _steps_here(config):
        return nullcontext()
    return evaluation_environment(config, config.run.seed, 1)[0]


def _steps_here(config: ExperimentConfig) -> bool:
    """Whether environments of the training are stepped in this process."""
    return config.env.vectorization != "process" and config.distributed.runtime not in ("process", "ray")


def _hung(directory: RunDirectory, trainer: Trainer, faults: KeepFaults, fault: Fault) -> None:
    """Writes down, in the thread of the watchdog, that a hang is about to end this process."""
    error, env_steps = fault.error(), trainer.collector.env_steps
    record = faults.write(env_steps, error)
    facts = {"error": f"{type(error).__name__}: {error}", "env_steps": env_steps, "ended": time_now()}
    directory.write_info({"status": "failed", **facts})
    _advise(error, directory, record)
    sys.stderr.write("".join(f"{note}\n" for note in getattr(error, "__notes__", ())))


def ended(directory: RunDirectory, trainer: Trainer, result: TrainResult) -> RunResult:
    """Writes down how a run ended.

    Args:
        result: of `Trainer.run`.
    """
    facts = {"env_steps": result.env_steps, "train_s": result.train_s, "best_return": result.best_return}
    facts |= {"reason": result.reason or None, "not_logged": list(result.not_logged) or None}
    _end(directory, {"status": result.status, "error": None, **facts})
    return RunResult(directory.path, result, acting_policy(trainer.algorithms), directory.config.unit)


class _StillThere(Callback):
    """Ends a run whose directory is gone, and writes down that there was a checkpoint."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """See `Callback.logged`."""
        self._directory.require_there()
        if not self._directory.info.get("saved") and self._directory.env_steps:
            _note(self._directory, {"saved": True})


def _note(directory: RunDirectory, facts: dict[str, Any]) -> None:
    """Adds to `run.json` while a run goes on, which a full disk is no reason to end."""
    try:
        directory.write_info(facts)
    except OSError as error:
        _log.warning("%s/run.json cannot be written: %s", directory.path, error)


def _advise(error: BaseException, directory: RunDirectory, record: Path | None, *, restart: bool = True) -> None:
    """Adds to an error that ended a run what there is to look at and to do."""
    if record is not None:
        error.add_note(f"recorded    {record}")
    if kind_of(error) == EnvError.__name__ and not restart:
        error.add_note(f"instead     --env.on-fault restart, or palaestra check-env {directory.config.env.name!r}")
    if directory.checkpoints().steps():
        error.add_note(f"next        palaestra resume {shlex.quote(str(directory.path))}")


def _end(directory: RunDirectory, facts: dict[str, Any]) -> None:
    """Writes how a run ended, and its report where that is a matter of a moment."""
    directory.write_info({**facts, "ended": time_now(), "logs": directory.log_fingerprints()})
    try:
        sizes = [path.stat().st_size for name in _LOGS if (path := directory.path / name).exists()]
        if max(sizes, default=0) < _LARGEST_FOR_REPORT_BYTES:
            write_report([directory.path], directory.path / "report.html")
    except Exception as error:  # a picture must not end a run in another way
        _log.warning("the report of %s could not be written: %r", directory.path, error)
