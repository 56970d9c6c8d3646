"""What a run writes down about itself: where it comes from, and `faults/NNNN.json`, what went wrong."""

import contextlib
import datetime
import faulthandler
import fcntl
import functools
import json
import logging
import math
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, TypeGuard

from palaestra.algorithms import Algorithm
from palaestra.core import POLICY, CheckpointError, ConfigError, RunLostError
from palaestra.core.files import fingerprint, replace_text, told_once
from palaestra.core.reading import NewLines, read_json, read_text
from palaestra.envs import EventLog
from palaestra.envs.supervision.places import place_of, places_kept
from palaestra.envs.supervision.watchdog import guarded
from palaestra.nn import model_summary, without_mask
from palaestra.policies import RandomPolicy, copy_policy, load_policy
from palaestra.runs.computed import computed_by
from palaestra.runtime import LOOK_PERIOD_S, LeakWatch, RemoteError
from palaestra.training import Callback, TrainingRun, policy_folder

__all__ = ["FaultRecord", "read_evaluations", "read_faults"]

_log = logging.getLogger(__name__)
CRASH, PLACES = "faults/crash.txt", "faults/crash.places"
_HANDLED = {"restart": "restarted", "drop": "dropped", "warn": "warned"}
held: dict[Path, tuple[IO[bytes], Any]] = {}
"""The locks of the runs that this process has, by the whole path."""
_newest: dict[Path, int] = {}  # number of the last fault, by the folder that this process writes to
_LEAKED_BYTES = 1 << 30  # what compiling, or the first update of a large network, does not take


@functools.cache
def say_once(text: str) -> None:
    """Warns, once in a process, however often a file is read."""
    _log.warning("%s", text)


def fingerprint_of(file: Path) -> dict[str, Any]:
    """Hash and size of a file, which is read again only when it has changed: reports and plots ask many times.

    Args:
        file: its path.
    """
    state = file.stat()
    return _fingerprint(file, state.st_size, state.st_mtime_ns, state.st_ino)


@functools.lru_cache(1024)
def _fingerprint(file: Path, *state: int) -> dict[str, Any]:
    return fingerprint(file)


def pass_on(output: NewLines, who: str, said: set[str]) -> None:
    """Warns of what another process has warned of since this was asked last.

    Args:
        output: of that process.
        who: it is.
        said: what is not said again; grows.
    """
    for line in output.read():
        if line.startswith("WARNING  ") and line not in said:
            said.add(line)
            _log.warning("%s: %s", who, line.removeprefix("WARNING  "))


def now() -> str:
    """The local time as ISO 8601 with its offset, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def begun_at(record: Path, made: Path) -> tuple[float, int]:
    """When a run or a group was begun, to be compared; times of files change when they are copied, or a run goes on.

    Args:
        record: says when.
        made: a file of the same moment, whose time counts where that is not known, and within a second.
    """
    changed_ns = made.stat().st_ctime_ns
    try:
        return datetime.datetime.fromisoformat(entry_of(record, "started")).timestamp(), changed_ns
    except (TypeError, ValueError, OverflowError):
        return changed_ns // 10**9, changed_ns


def process_info() -> dict[str, Any]:
    """This process: number, machine and folder."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "folder": os.getcwd()}


def provenance(env: str = "") -> dict[str, Any]:
    """What `run.json` says about a run's origin, as JSON values.

    Args:
        env: name of its environment.
    """
    return {
        "command": sys.argv,
        "started": now(),
        "process": process_info(),
        **computed_by(env),
        "git": _git_revision(),
    }


def networks_of(algorithms: Mapping[str, Algorithm[Any, Any]]) -> dict[str, str]:
    """What was built: layers and parameters of every network that learns, by its name.

    Args:
        algorithms: by policy name; of several, the name of a network begins with it.
    """
    return {
        name if policy == POLICY else f"{policy}.{name}": text + (_acts_on(algorithm) if number == 0 else "")
        for policy, algorithm in algorithms.items()
        for number, (name, text) in enumerate(model_summary(algorithm.model).items())
    }


def _acts_on(algorithm: Algorithm[Any, Any]) -> str:
    """What a policy sees of what by its name is for learning alone; empty where there is nothing."""
    spec, config = without_mask(algorithm.policy.observation_spec), algorithm.config
    keys = [*spec] if isinstance(spec, dict) and not algorithm.team else []
    privileged = [key for key in keys if key.startswith(("privileged", "critic"))]
    rest = ",".join(key for key in keys if key not in privileged)
    if not privileged or not rest or not hasattr(config, "network"):
        return ""
    return f"; the policy sees {', '.join(privileged)}: --algorithm.network.policy-sees {rest} keeps that from it"


def network_lines(networks: Mapping[str, str]) -> list[str]:
    """The same as text, one line a network.

    Args:
        networks: from `networks_of`.
    """
    return [f"network     {name}  {text}" for name, text in networks.items()]


def _git_revision() -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


@dataclass(frozen=True)
class FaultRecord:
    """One fault."""

    kind: str
    """Class of the error, for example `EnvError`."""
    message: str
    """What the user was told."""
    time: str = field(default_factory=now)
    """When it was written, ISO 8601."""
    env_steps: int | None = None
    """Env steps of the run by then."""
    action: str = "stopped"
    """What was done about it: the run `stopped`; the environment or the worker was `restarted` or `dropped`; or the
    user was `warned`, and the run went on."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else is known, as JSON values: environment, seed, episode, step, last action, signal."""
    trace: str = ""
    """The traceback as text."""


def write_fault(directory: str | Path, fault: FaultRecord) -> Path:
    """Writes the next file of a run's `faults/`.

    Args:
        fault: what happened.

    Returns:
        The file.

    Raises:
        RunLostError: see `require_own`.
    """
    require_own(Path(directory))
    folder = Path(directory) / "faults"
    folder.mkdir(exist_ok=True)
    number = _newest.get(folder.resolve())
    if number is None:
        number = max((int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()), default=0)
    while (path := folder / f"{number + 1:04d}.json").exists():  # another process has written, too
        number += 1
    _written(path, fault)
    _newest[folder.resolve()] = number + 1
    return path


def write_lost(directory: str | Path, fault: FaultRecord) -> Path:
    """Writes the record of a run whose directory is gone beside where that was.

    Args:
        directory: where it was.
        fault: what happened.

    Returns:
        The file.
    """
    return _written(Path(f"{directory}.lost.json"), fault)


def _written(path: Path, fault: FaultRecord) -> Path:
    replace_text(path, json.dumps(asdict(fault), indent=2, default=str) + "\n")
    return path


@contextlib.contextmanager
def crashes_told(directory: Path) -> Iterator[None]:
    """While entered, a crash of this process leaves the stacks of its threads in the run, for the next start.

    With them it leaves where its environments were. One that hangs and lets no other thread run is made a crash, too.
    Where `faulthandler` is enabled already, somebody else gets the stacks.

    Args:
        directory: the run's; what an earlier crash left there becomes the record of a fault now.
    """
    path, places = (directory / CRASH).absolute(), (directory / PLACES).absolute()
    if stacks := crash_of(directory):
        place = place_of(places, stacks)
        message = f"{_crashed(**place)}:\n{stacks}"
        record = write_fault(directory, FaultRecord("EnvError", message, details=place, trace=stacks))
        _log.warning("the last time %s ran, %s(recorded in %s)", directory, message, record)
    if faulthandler.is_enabled():
        with told_once():
            yield
        return
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with path.open("a") as file, places_kept(places), guarded(path), told_once():
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()
            with contextlib.suppress(RunLostError):  # else it is another run's
                require_own(path.parents[1])
                path.unlink(missing_ok=True)


def _crashed(env_id: int | None = None, episode: int = -1, seed: int | None = None, step: int = 0) -> str:
    """What is said of a crash, by where it was."""
    if env_id is None:
        return "its process crashed, likely inside an environment that it stepped itself"
    doing = f"step {step}" if step else "its reset"
    return f"its process crashed in environment {env_id}, in episode {episode} (seed {seed}), at {doing}"


def crash_of(directory: Path) -> str:
    """The stacks that a crash of a run left; empty if it did not crash, or has been continued.

    Args:
        directory: the run's.
    """
    path = directory / CRASH
    return read_text(path, errors="replace") if path.is_file() and not path.is_symlink() else ""


def read_faults(directory: str | Path) -> list[FaultRecord]:
    """The faults of a run, in order.

    Raises:
        CheckpointError: a file is damaged.
    """
    faults = []
    for path in sorted((Path(directory) / "faults").glob("*.json"), key=lambda path: (len(path.name), path.name)):
        try:
            fault = FaultRecord(**read_json(path))
            texts = (fault.kind, fault.message, fault.time, fault.action, fault.trace)
            if not all(isinstance(one, str) for one in texts) or not isinstance(fault.env_steps, int | None):
                raise TypeError("its env steps must be a number or null, and all else but `details` text")
            faults.append(fault)
        except (CheckpointError, TypeError) as error:
            raise CheckpointError(
                f"{path} is no record of a fault: {error}; delete it, nothing depends on it"
            ) from None
    return faults


class Reporter(Protocol):
    """Environments, or who has those of workers or agents: they know their faults and how exactly they resume."""

    @property
    def faults(self) -> EventLog:
        """Records in the order in which they happened; more may follow."""
        ...

    @property
    def resume(self) -> str:
        """`exact` or `statistical`."""
        ...


class KeepFaults(Callback):
    """Writes what environments report, at every row of metrics and at the end.

    Args:
        env: whose `faults` grow; `None` where a run has none.
    """

    def __init__(self, env: Reporter | None, path: Path) -> None:
        self._env, self._given, self._path = env, path, path.absolute()  # environments may change the working directory
        self._written = 0

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """See `Callback.logged`; what a full disk has no room for is written later."""
        try:
            self.write(trainer.collector.env_steps)
        except OSError as error:
            _log.warning("faults of environments cannot be written (%s); they are when there is room", error)

    def ended(self, trainer: TrainingRun) -> None:
        """See `Callback.ended`."""
        self.write(trainer.collector.env_steps)

    def write(self, env_steps: int, error: BaseException | None = None) -> Path | None:
        """Writes what is new, and the error that ends the run unless it is one of these.

        Args:
            env_steps: of the run by now.
            error: as it was caught.

        Returns:
            The file of what ends the run; `None` if nothing does.
        """
        ended: Path | None = None
        faults = self._env.faults if self._env is not None else EventLog()
        new = faults.since(self._written)
        if missing := faults.total - self._written - len(new):
            told = f"{missing:,} faults since the last row of metrics are not written down, for only the newest are"
            counts = {f"{kind}, {who}": count for (kind, who), count in faults.counts.items()}
            write_fault(self._path, FaultRecord("FaultsMissing", told, now(), env_steps, "warned", counts))
            self._written += missing
        for fault in new:
            handled = _HANDLED.get(fault.handled, "stopped")
            kind = type(fault.error()).__name__
            path = write_fault(self._path, FaultRecord(kind, str(fault), now(), env_steps, handled, asdict(fault)))
            self._written += 1
            if fault.handled == "raise" and ended is None:
                ended = path
        if error is not None and ended is None:
            trace, facts = "".join(traceback.format_exception(error)), dict(getattr(error, "facts", {}))
            record = FaultRecord(kind_of(error), str(error), env_steps=env_steps, details=facts, trace=trace)
            ended = write_fault(self._path, record)
        return ended and self._given / ended.relative_to(self._path)


def kind_of(error: BaseException) -> str:
    """The class of an error; of one in a worker, that which it had there.

    Args:
        error: as it was caught.
    """
    return error.kind if isinstance(error, RemoteError) else type(error).__name__


class NoteLeaks(Callback):
    """Looks, once a second at most, whether the process of the run leaks; warns of it and writes it down.

    Args:
        here: whether environments are stepped in this process, so that they are the likely cause.
    """

    def __init__(self, path: Path, *, here: bool) -> None:
        self._path, self._here = path.absolute(), here
        self._watch, self._look_at_s = LeakWatch(memory_bytes=_LEAKED_BYTES), 0.0

    def iteration_ended(self, trainer: TrainingRun, updates: Mapping[str, Any]) -> None:
        """See `Callback.iteration_ended`."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_PERIOD_S
        allowed = sum(getattr(buffer, "size_bytes", 0) for buffer in trainer.collector.buffers.values())
        for what, detail in self._watch.look(allowed):
            whose = "which steps the environments itself" if self._here else "whose environments are in others"
            text = f"the process of the run, {whose}, leaks {what}: {detail}"
            _log.warning("%s", text)
            steps, kind = trainer.collector.env_steps, {"kind": "leak"}
            with contextlib.suppress(OSError):  # a full disk: the run goes on, as it does without its checkpoints
                write_fault(self._path, FaultRecord("EnvError", text, env_steps=steps, action="warned", details=kind))


def policies_are_kept(run: Path, algorithms: Mapping[str, Algorithm[Any, Any]]) -> bool:
    """Whether the policies of the best evaluation are there and whole; else there is a warning.

    Args:
        run: its directory.
        algorithms: of its policies, by name.
    """
    for name, algorithm in algorithms.items():
        folder = policy_folder(run / "policy", name)
        try:
            if not isinstance(algorithm.policy, RandomPolicy):  # that of a task which only watches
                load_policy(folder)
        except CheckpointError as error:
            _log.warning("the policy in %s is replaced after the next evaluation: %s", folder, error)
            return False
        except ConfigError:  # an encoder without a name, say: only the code of the run can make it
            continue
    return True


def copy_policies(run: Path, target: Path, kept_return: Callable[[], float | None]) -> float | None:
    """Copies the policies that a run has kept; it may go on meanwhile, and keep others.

    Args:
        run: its directory.
        target: another run's.
        kept_return: says what those that are kept now have earned.

    Returns:
        What those that were copied have.
    """
    while True:
        earned = kept_return()
        for described in (run / "policy").glob("**/policy.json"):
            folder = target / described.parent.relative_to(run)
            folder.mkdir(parents=True, exist_ok=True)
            copy_policy(described.parent, folder)
        if kept_return() == earned:
            return earned


def entry_of(record: Path, name: str) -> Any:
    """What the record of a run or a group says, such as its `id`; `None` where that is not known.

    Args:
        record: `run.json` or `group.json`.
        name: of the entry.
    """
    try:
        return read_json(record).get(name)
    except (CheckpointError, AttributeError):
        return None


def lost(run: Path) -> RunLostError:
    """What ends a run that can save nothing more.

    Args:
        run: its directory.
    """
    return RunLostError(
        f"the run directory {run} is gone: it was deleted, moved or unmounted while the run went on. "
        "Nothing more can be saved, so the run ends"
    )


def require_own(run: Path) -> None:
    """Notices that a run which this process has lies elsewhere by now, and another has its name.

    Args:
        run: its directory.

    Raises:
        RunLostError: it does.
    """
    lock, own = held.get(run.absolute(), (None, None))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # nobody else's is there
        same = lock is None or os.path.samestat(os.stat(run / "run.lock"), os.fstat(lock.fileno()))
        if not same and (own is None or entry_of(run / "run.json", "id") != own):  # or a disk was mounted anew
            raise lost(run)


def write_evaluation(run: Path, env_steps: int, record: Mapping[str, Any]) -> None:
    """Writes a file of a run's `evals/`, which names the run.

    Args:
        env_steps: of the run by then.
        record: the result.

    Raises:
        RunLostError: see `require_own`.
    """
    require_own(run)
    own = {name: entry_of(run / "run.json", entry) for name, entry in (("run", "id"), ("resumes", "resumes"))}
    text = json.dumps({**record, **own}, indent=2)
    replace_text(run / "evals" / f"{env_steps}.json", f"{text}\n")


def read_evaluations(run: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """Env steps and result of each of a run's evaluations, in order; others are left out with a warning.

    These are damaged ones, and those of another run, by the name that older ones do not have.
    """
    found, own = [], entry_of(Path(run) / "run.json", "id")
    for path in (Path(run) / "evals").glob("*.json"):
        if not path.stem.isdigit():
            continue
        try:
            record = read_json(path)
            numbers = [record["return_mean"], record["length_mean"], record["episodes"], *record["returns"]]
            low, high = record["return_ci95"]
            if not record["returns"] or not all(map(is_number, [*numbers, low, high])):
                raise ValueError("numbers are needed")
            if not all(isinstance(record.get(name, {}), dict) for name in ("parts", "policies")):
                raise ValueError("`parts` and `policies` must be objects")
            if own and record.get("run") not in (own, None):
                raise ValueError(f"it is of the run {record['run']}, this one is {own}")
            found.append((int(path.stem), record))
        except (CheckpointError, ValueError, TypeError, KeyError) as error:
            say_once(f"{path} is no evaluation of this run ({error!r}) and is left out")
    return sorted(found, key=lambda pair: pair[0])


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Locks an open file until it is closed, if no other process has it; a warning says where nothing can be locked.

    Args:
        file: to lock.
        shared: whether others may lock it so as well.

    Returns:
        Whether no other process is known to have it.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        say_once(
            f"this file system has no locks ({error.strerror}): a run that goes on counts as killed, and nothing keeps "
            "another process from going on with it as well"
        )
    return True


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number, and can be drawn.

    Args:
        value: of a row of metrics.
    """
    return isinstance(value, int | float) and math.isfinite(value)
