"""The directory that holds everything of one run, and where such directories are."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from palaestra.config.config import ExperimentConfig, as_yaml, read_config, saved_config
from palaestra.core.errors import CheckpointError, ConfigError, did_you_mean, printable, require_kind
from palaestra.core.files import fingerprint, replace_text
from palaestra.core.reading import opened, parse_json, read_text
from palaestra.runs import records
from palaestra.runs.folders import new_folder
from palaestra.runs.records import entry_of, is_number, provenance, say_once, try_lock
from palaestra.runs.trust import config_with_record, require_plain, require_trust, sign
from palaestra.runtime import when_forked
from palaestra.training.checkpoints import CheckpointStore, step_of
from palaestra.training.learning import RunStatus

__all__ = ["RunDirectory", "begun_runs", "best_run", "find_run", "find_runs", "list_groups", "list_runs"]

_log = logging.getLogger(__name__)
_LOGS = ("metrics.jsonl", "episodes.csv")
_OF_CONFIG = ("signature", "config_sha256")
_NEWEST, _NONE = 5, "none yet; start one with `palaestra train ppo CartPole-v1`"  # said where a run is not found
_LOOKED_AT_S = 0.1  # longer than who looks whether a run is locked has its lock
_NUMBERS = ("env_steps", "train_s", "best_return", "resumed_at")
_KINDS = {**dict.fromkeys(_NUMBERS, float | int | None), "policy_lost_at": int, "reason": str | None, "overrides": list}
"""Of entries of `run.json` that readers compute with."""
_ESCAPED = re.compile(r"\\u00(?:[01][0-9a-f]|7f|[89][0-9a-f])", re.IGNORECASE)  # control characters in JSON


class RunDirectory:
    """`config.yaml`, `run.json`, metrics, checkpoints, evaluations and the policy of one run.

    Args:
        path: an existing run directory; use `create` for a new one.
    """

    def __init__(self, path: str | Path) -> None:
        self._given, self._whole = Path(path), Path(path).absolute()
        self._seen_from = None if self._given.is_absolute() else os.stat(".")
        if printable(str(path)) != str(path):
            raise ConfigError(f"the run directory {printable(str(path))} has control characters in its name; rename it")
        self._lock: IO[bytes] | None = None
        self._read: tuple[Mapping[str, Any], ExperimentConfig] | None = None

    @property
    def path(self) -> Path:
        """As it was given; the whole path while the process works in another directory, as some environments do."""
        there = self._seen_from is None or os.path.samestat(os.stat("."), self._seen_from)
        return self._given if there else self._whole

    @classmethod
    def create(cls, config: ExperimentConfig) -> RunDirectory:
        """Makes a new directory and writes `config.yaml` and `run.json`.

        Raises:
            CheckpointError: it cannot be written; nothing is left of it.
            ConfigError: the directory exists already, or cannot be made.
        """
        with new_folder(config, f"s{config.run.seed}") as (path, unfinished):
            cls(unfinished).begin(config)
        return cls(path)

    def begin(self, config: ExperimentConfig, lineage: Mapping[str, Any] | None = None) -> None:
        """Fills a directory that is empty, or does not exist.

        Args:
            config: see `create`.
            lineage: which run this one continues, and from where.
        """
        for name in ("checkpoints", "evals", "policy", "videos", "plots", "faults"):
            (self.path / name).mkdir(parents=True)
        (self.path / "run.lock").touch()
        origin = {"algorithm": config.algorithm_name, "env": config.env.name, "seed": config.run.seed}
        origin |= provenance(config.env.name)
        made = {"format": 1, "id": uuid.uuid4().hex, "status": "created", "unit": config.unit}
        self.save_config(config, **made, **origin, lineage=dict(lineage) if lineage else None)

    def save_config(self, config: ExperimentConfig, **facts: Any) -> None:
        """Writes `config.yaml`, and in `run.json` by whom it was written, and its hash.

        `run.json` is first, and knows the file of before as well, so that the two agree for whoever reads meanwhile.

        Args:
            config: what it says from now on.
            facts: what `run.json` says besides.
        """
        info, data = self.info, as_yaml(config).encode()
        before = [{name: info.get(name) for name in _OF_CONFIG}] if "config_sha256" in info else []
        made = {"signature": sign(data), "config_sha256": hashlib.sha256(data).hexdigest()}
        if not before:  # there is no directory yet
            replace_text(self.path / "config.yaml", data.decode())
        self.write_info({**facts, **made, "config_before": before})
        replace_text(self.path / "config.yaml", data.decode())
        self.write_info({"config_before": []})

    @property
    def edited(self) -> dict[str, tuple[str, str]]:
        """`config.yaml` with the hash that it had and the one that it has, where it was edited by hand."""
        try:
            data, known = config_with_record(self.path, "config_sha256")
        except CheckpointError:  # run.json is gone or damaged, of which `info` has warned
            return {}
        now = hashlib.sha256(data).hexdigest()
        if now in known or known == [None]:  # older runs have none
            return {}
        _log.warning("%s/config.yaml was edited by hand; what --override changes is checked and recorded", self.path)
        return {"config.yaml": (str(known[0])[:12], now[:12])}

    @property
    def config(self) -> ExperimentConfig:
        """What `config.yaml` says, whichever version wrote it.

        Raises:
            ConfigError: there is none, or it holds mistakes.
        """
        data = read_config(self.path / "config.yaml")
        if self._read is None or self._read[0] != data:  # a report asks ten times
            require_trust(data, self.path)
            if missing := [name for name in ("env", "algorithm", "trainer", "run") if name not in data]:
                raise ConfigError(
                    f"{self.path}/config.yaml has no {' and no '.join(missing)}: a part is gone; bring it back"
                )
            self._read = (data, saved_config(data))
        return self._read[1]

    @property
    def is_shared(self) -> bool:
        """Whether it is a shared policy, which is what its manifest says, and no run."""
        return (self.path / "manifest.json").is_file() and not (self.path / "run.json").is_file()

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` says; nothing where it is damaged, since nothing depends on it, or without such entries.

        Of a shared policy it is what its manifest says.
        """
        file = self.path / ("manifest.json" if self.is_shared else "run.json")
        try:
            info = dict(parse_json(_ESCAPED.sub("?", read_text(file)))) if file.exists() else {}
        except (CheckpointError, ValueError, TypeError) as error:
            _log.warning("%s is damaged (%s) and is begun anew", file, error)
            return {}
        for name in [name for name, kind in _KINDS.items() if name in info and not isinstance(info[name], kind)]:
            say_once(f"{file} is damaged: its {name} is {info.pop(name)!r}, which is left out")
        return info | ({"env": info.get("environment")} if self.is_shared else {})

    def checkpoints(self, *, keep: int = 3, copies: int = 2) -> CheckpointStore:
        """Its checkpoints; those of other runs are refused.

        Args:
            keep: see `CheckpointStore`.
            copies: see `CheckpointStore`.
        """
        run_id = str(self.info.get("id", ""))
        store = CheckpointStore(self.path / "checkpoints", keep=keep, copies=copies, run_id=run_id)
        store.require_there = self.require_there
        return store

    @property
    def never_saved(self) -> bool:
        """Whether it was ended before its first checkpoint.

        Raises:
            CheckpointError: it had checkpoints, and they are gone.
        """
        if not self.checkpoints().never_saved:
            return False
        info, folder = self.info, self.path / "checkpoints"
        # older runs do not say `saved`, but where they ended, or from where they were resumed
        saved = info.get("saved") or info.get("resumed_at") or (info.get("env_steps") and not info.get("error"))
        if saved or not folder.is_dir():
            raise CheckpointError(
                f"the checkpoints of the run {self.path} are gone, so it cannot go on; bring {folder} back, or begin a "
                f"new run from the policy that is left: palaestra train ... --from {shlex.quote(str(self.path))}"
            )
        return True

    @property
    def env_steps(self) -> int:
        """Env steps of the newest checkpoint that was finished; 0 without any."""
        store = CheckpointStore(self.path / "checkpoints")
        steps = [path for path in store.steps() if (path / "manifest.json").is_file()]
        return step_of(steps[-1]) if steps else 0

    @property
    def steps_done(self) -> int:
        """Env steps of the run; of one that was killed, which has not said them, those of its newest checkpoint."""
        steps = self.info.get("env_steps")
        return int(steps) if is_number(steps) and steps else self.env_steps

    @property
    def kept_return(self) -> float | None:
        """Mean return of the policy that is kept; its evaluation may have come after the newest checkpoint."""
        info = self.info
        after = info.get("policy_lost_at", -1)  # which those before had kept
        found = [(step, result) for step, result in records.read_evaluations(self.path) if step > after]
        session, since = info.get("resumes"), list[Any]()
        for step, result in found:  # one may be made again at the very step that a run continues from
            own = result.get("resumes", session if step > (info.get("resumed_at") or -1) else -1)
            since += [result] * (bool(result.get("best")) and own == session)
        if since:
            return since[-1]["return_mean"]
        means = [] if is_number(info.get("best_return")) else [result["return_mean"] for _, result in found]
        return max((one for one in (info.get("best_return"), *means) if is_number(one)), default=None)

    def forget_evaluations(self, after: int) -> None:
        """Deletes evaluations that a resumed run makes again, as rows of metrics.

        Args:
            after: env steps of the checkpoint that it continues from.
        """
        for file in (self.path / "evals").glob("*.json"):
            if file.stem.isdigit() and int(file.stem) > after:
                file.unlink()

    @property
    def status(self) -> RunStatus:
        """`created`, `running`, `done`, `interrupted`, `stopped`, `failed`; `killed` or `crashed` if it died."""
        status: Any = str(self.info.get("status", "unknown"))
        dies = status == "running" or (status == "created" and self._was_held)  # others of a group wait for their turn
        if not dies or self.in_use:
            return status
        return "crashed" if records.crash_of(self.path) else "killed"

    @property
    def _was_held(self) -> bool:
        """Whether a process has it, or had it and did not let it go."""
        lock = self.path / "run.lock"
        return lock.is_file() and lock.stat().st_size > 0

    @property
    def in_use(self) -> bool:
        """Whether a process has it, as far as the file system knows."""
        if not (self.path / "run.lock").is_file():  # nor is a pipe of a stranger's, which would not open
            return False
        try:
            with opened(self.path / "run.lock") as file:
                return not try_lock(file, shared=True)
        except (OSError, CheckpointError):
            return (self.path / "run.lock").exists()

    def log_fingerprints(self) -> dict[str, Any]:
        """Of what was logged, for `run.json` at the end of a run."""
        return {name: fingerprint(self.path / name) for name in _LOGS if (self.path / name).is_file()}

    def say_changed_logs(self) -> None:
        """Warns of logs that are not those that the run has left, once in a process."""
        logs: Any = self.info.get("logs")
        known = logs if isinstance(logs, dict) else {}
        for name in (name for name in _LOGS if name in known):
            file = self.path / name
            if not file.is_file() or records.fingerprint_of(file) != known[name]:
                say_once(f"{file} is not what the run has left: it is damaged, another run's, or was edited")

    def write_info(self, values: Mapping[str, Any]) -> None:
        """Adds entries to `run.json`.

        Args:
            values: JSON values by name.

        Raises:
            RunLostError: the directory is gone.
        """
        self.require_there()
        replace_text(self.path / "run.json", json.dumps({**self.info, **values}, indent=2) + "\n")

    def require_there(self) -> None:
        """Notices that somebody has deleted or moved the directory.

        Raises:
            RunLostError: it is gone, or another run has its name by now.
        """
        records.require_own(self.path)
        if not (self.path / "config.yaml").is_file():
            raise records.lost(self.path)

    def lock(self) -> None:
        """Claims the run for this process; the operating system lets go when the process ends, however it ends.

        Raises:
            ConfigError: another process has it.
        """
        file = (self.path / "run.lock").open("a+b", buffering=0)
        deadline = time.monotonic() + _LOOKED_AT_S
        while not (free := try_lock(file)) and time.monotonic() < deadline:
            time.sleep(_LOOKED_AT_S / 20)
        if not free:
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "another process"
            file.close()
            raise ConfigError(f"the run {self.path} is in use by {holder}; wait for it or stop it")
        file.seek(0)
        if holder := file.read().decode(errors="replace").strip():
            lost = "what it did last is lost back to its newest checkpoint"
            _log.warning("%s was held by %s, which is gone; %s", self.path, holder, lost)
        file.truncate(0)
        with suppress(OSError):  # on a full disk nobody reads who has it
            file.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        self._lock = file
        records.held[self._whole] = file, records.entry_of(self.path / "run.json", "id")
        when_forked(self, RunDirectory._close_lock)

    def unlock(self) -> None:
        """Lets the run go."""
        if self._lock is not None:
            self._lock.truncate(0)
            self._close_lock()

    def _close_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            records.held.pop(self._whole, None)
            self._lock = None


def list_runs(root: str | Path = "runs") -> list[Path]:
    """The run directories below a folder that can be read, those of groups included, in the order in which they began.

    Args:
        root: the folder.
    """
    runs = [*_folders_with("run.json", "*", root), *_folders_with("run.json", "*/*", root)]
    whole = [path for path in runs if (path / "config.yaml").is_file()]
    return sorted(whole, key=lambda path: records.begun_at(path / "run.json", path / "config.yaml"))


def list_groups(root: str | Path = "runs") -> list[Path]:
    """The directories of several seeds below a folder, in the order in which they began.

    Args:
        root: the folder.
    """
    groups = _folders_with("group.json", "*", root)
    return sorted(groups, key=lambda path: records.begun_at(path / "group.json", path / "group.json"))


def _folders_with(name: str, pattern: str, root: str | Path) -> list[Path]:
    """Whole folders with a file of this name that can be read; others may keep theirs to themselves."""
    files = [path for path in Path(root).glob(f"{pattern}/{name}") if os.access(path, os.R_OK)]
    folders = [path.parent for path in files if not _is_hidden(path.relative_to(root))]
    return [path for path in folders if printable(str(path)) == str(path)]


def find_run(name: str | Path, root: str | Path = "runs", *, of_all: str = "") -> RunDirectory:
    """A run by its path, its name below `root`, or `last`.

    Args:
        name: what the user typed.
        of_all: a call that takes a group, with `{!r}` for it, which the message names.

    Raises:
        CheckpointError: there is no such run; the message says which there are.
        ConfigError: it is a group of several.
    """
    found = find_runs([name], root)
    if len(found) > 1:
        best = best_run(found)
        such = f"{shlex.quote(str(best.path))}{'' if best.kept_return is None else ', which has the best evaluation'}"
        group = f"{best.path.parent} of {len(found)} runs"
        rest = of_all and f"; all of them: {of_all.format(str(best.path.parent))}"
        raise ConfigError(f"{name} is the group {group}; name one of them, such as {such}{rest}")
    return found[0]


def best_run(runs: Sequence[RunDirectory]) -> RunDirectory:
    """The run whose policy has the best evaluation; the first where none has any.

    Args:
        runs: at least one.
    """
    return max(runs, key=lambda run: float("-inf") if (best := run.kept_return) is None else best)


def find_runs(names: Sequence[str | Path], root: str | Path = "runs") -> list[RunDirectory]:
    """Runs by paths or names; a group of seeds stands for all its runs, and `last` for the newest group or run.

    Args:
        names: what the user typed.

    Raises:
        CheckpointError: one of them does not exist; the message says which there are.
    """
    found: list[RunDirectory] = []
    for name in names:
        require_kind(name, str | Path, "what reads a run", "its path or name, such as `directory` of its result")
        for path in _newest(root) if str(name) == "last" else (Path(name), Path(root) / name):
            if (path / "group.json").is_file():
                runs = sorted(path.glob("*/config.yaml"), key=_as_seeds)
                runs = [config for config in runs if not _is_hidden(config.relative_to(path))]
                if not runs:
                    raise CheckpointError(f"the group {path} has no runs in it; they were moved, or never made")
                require_plain(path, [config.parent for config in runs])
                for config in runs:
                    require_plain(config.parent)
                found += [RunDirectory(config.parent) for config in runs]
                break
            if (path / "config.yaml").exists():  # what is there and no file is named by who reads it
                require_plain(path)
                found.append(RunDirectory(path))
                break
        else:
            known = _known(root, str(name).removeprefix(f"{root}/"))
            if (Path(name) / "study.json").is_file():
                trial = min((Path(name) / "runs").glob("[!.]*_*"), default=Path(name) / "runs/trial_0")
                raise CheckpointError(
                    f"{name} is a study of `palaestra tune`, no run; give its trials, as {trial} or "
                    f"{trial.with_name(trial.name.split('_')[0])}_*; {name}/summary.md has their scores and settings"
                )
            if Path(name).is_dir():
                raise CheckpointError(f"{name} is no run, for it has no config.yaml{known}")
            fetch = f"; `palaestra pull {name}` gets it" if str(name).startswith("zoo:") else ""
            raise CheckpointError(f"there is no run {str(name)!r}{known}{fetch}")
    return without_copies(found)


def _is_hidden(path: Path) -> bool:
    """Whether a part of it is hidden: what is not whole yet, or what others keep beside runs, such as old versions."""
    return any(part.startswith(".") for part in path.parts)


def _as_seeds(config: Path) -> tuple[bool, int, Path]:
    """The order of a group's runs; others than those that it was made with come last."""
    return not config.parent.name.startswith("seed_"), len(str(config)), config


def without_copies(runs: Iterable[RunDirectory]) -> list[RunDirectory]:
    """Each run once: another path to it is left out, and a copy with a warning, for neither is another seed.

    Args:
        runs: of which the first of each counts. A fork has an id of its own.
    """
    kept: dict[str, RunDirectory] = {}
    for run in runs:
        path = run.path.resolve()
        first = kept.setdefault(str(entry_of(path / "run.json", "id") or path), run)
        if first.path.resolve() != path:
            say_once(f"{run.path} is a copy of {first.path} and is left out: by its run.json it is the same run")
    return list(kept.values())


def _known(root: str | Path, name: str) -> str:
    """A run or group of a similar name, or the newest."""
    runs = list_runs(root)[::-1]
    whole = list(dict.fromkeys(map(_whole, runs)))
    newest = ", ".join(path.name for path in whole[:_NEWEST])
    of = f"the newest {_NEWEST} of {len(whole)} in {root} (palaestra list runs --all --root {root})"
    known = f"; {of if len(whole) > _NEWEST else f'runs in {root}'}: {newest or _NONE}"
    return did_you_mean(name, [str(path.relative_to(root)) for path in {*runs, *whole}], known)


def begun_runs(names: Sequence[str | Path], root: str | Path = "runs") -> list[RunDirectory]:
    """`find_runs` without those that have not begun, seeds of a group that was ended early; a warning names them.

    Args:
        names: paths or names of runs and groups.
        root: where names are looked for.

    Raises:
        CheckpointError: see `find_runs`.
    """
    found = find_runs(names, root)
    begun = [run for run in found if run.info.get("status") != "created"]  # killed as it started has it not
    if begun and len(begun) < len(found):
        left_out = ", ".join(str(run.path) for run in found if run not in begun)
        _log.warning("left out, for they have not begun: %s", left_out)
    return begun or found


def _newest(root: str | Path) -> list[Path]:
    """The run that was begun last, or the group that it is of; nothing where there is none."""
    return list(map(_whole, list_runs(root)[-1:]))


def _whole(run: Path) -> Path:
    """The group that a run is of, or the run."""
    return run.parent if (run.parent / "group.json").is_file() else run
