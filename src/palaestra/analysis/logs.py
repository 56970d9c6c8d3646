"""Learning curves in the logs of other libraries: Stable-Baselines3, CleanRL, RLlib and Tianshou, and plain tables.

A log whose steps go back was continued: what comes later replaces all that the log had from there on, as after a return
to a checkpoint. So a log that begins anew counts from its last beginning. `LoggedRun.replaced` says how much went.
"""

import csv
import io
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.analysis.curves import thinned_metrics
from palaestra.core import CheckpointError, ConfigError, import_extra
from palaestra.core.reading import opened, opened_text, parse_json, read_bytes
from palaestra.runs import RunDirectory, read_evaluations
from palaestra.runs.run_directory import without_copies

__all__ = ["LoggedRun", "read_logs"]

_METRICS = (  # evaluations first, then training
    "eval/return_mean", "eval/mean_reward", "test/returns_stat/mean", "test/reward",
    "evaluation/env_runners/episode_return_mean", "env_runners/episode_return_mean", "episode_return_mean",
    "episode_reward_mean", "rollout/ep_rew_mean", "charts/episodic_return", "train/returns_stat/mean", "train/reward",
    "return_mean",
)  # fmt: skip
_STEPS = (
    "env_steps", "time/total_timesteps", "num_env_steps_sampled_lifetime",
    "env_runners/num_env_steps_sampled_lifetime", "timesteps_total",
)  # fmt: skip
_LARGEST_BYTES = 2**28
_MOST_FILES = 10_000
_SAME_END = 1.05


@dataclass(frozen=True)
class LoggedRun:
    """The learning curve of one run."""

    path: Path
    """The file that it was read from."""
    metric: str
    """What the scores are."""
    points: np.ndarray
    """[n, 2], (env steps, score), in the order of env steps."""
    environment: str = ""
    """The environment, where the log names it."""
    algorithm: str = ""
    """The algorithm, which only tables name."""
    replaced: int = 0
    """Points of earlier sessions, which a later one replaced."""
    task: str = ""
    """All that decides returns there and what is counted, where that is known: as of runs of this library."""
    directory: RunDirectory | None = None
    """Of a run of this library."""

    @property
    def unit(self) -> str:
        """What its steps are: `env steps`, or `updates` of a run that learns from data alone."""
        return self.directory.config.unit if self.directory else "env steps"

    @property
    def end(self) -> float:
        """Env steps of its last score."""
        return float(self.points[-1, 0])

    @property
    def budget(self) -> int | None:
        """Env steps, or updates, that a run of this library was asked for, if it has done them."""
        own = self.directory
        return own.config.trainer.total_env_steps if own and own.status == "done" else None

    def ends_near(self, end: float) -> bool:
        """Whether its last score is not later, or by about an unroll.

        Args:
            end: env steps.
        """
        return self.end <= _SAME_END * end

    def scored_at(self, until: float = math.inf) -> float:
        """Env steps of the newest score that `score` counts, by the same arguments.

        Args:
            until: see `score`.

        Raises:
            ConfigError: the run begins after `until`.
        """
        return float(self._before(until)[-1, 0])

    def score(self, until: float = math.inf) -> float:
        """Mean score over the last tenth of the env steps up to `until`, or the newest before, if there is none.

        Args:
            until: env steps; a point up to 5% later counts, for runs of one length end an unroll earlier or later.
                By default the run's own end.

        Raises:
            ConfigError: the run begins after `until`.
        """
        points = self._before(until)
        begin = min(0.9 * min(until, self.end), points[-1, 0])
        return float(points[points[:, 0] >= begin, 1].mean())

    def _before(self, until: float) -> np.ndarray:
        points = self.points[self.points[:, 0] <= _SAME_END * until]
        if not len(points):
            raise ConfigError(
                f"the first score in {self.path} ({self.metric}) is at {self.points[0, 0]:,.0f} env steps, and the "
                f"last of another run of its environment at {until:,.0f}: they have none in common"
            )
        return points


def read_logs(path: str | Path) -> list[LoggedRun]:
    """Every run in a file or below a folder; of a folder with several logs of one run, one is read, as of copies.

    Known are runs of this library, `evaluations.npz`, `progress.csv` and `*.monitor.csv` of Stable-Baselines3,
    `result.json` and `progress.csv` of RLlib, TensorBoard events (CleanRL, Tianshou), and tables with the columns
    algorithm, environment, seed, score and, if they are curves, step, which rises within a seed. Nothing in a log is
    executed.

    Raises:
        ConfigError: there is no log, or none with a return yet; or a table has two rows of one seed.
        CheckpointError: a log is damaged; the message names file and line.
        MissingExtraError: TensorBoard events need tensorboard.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        return _file(path)
    if (path / "metrics.jsonl").exists():
        return [_own(path)]
    found: list[LoggedRun] = []
    folders = {file.parent for file in _files(path)}
    for folder in sorted(folders):
        found += _folder(folder)
    once = without_copies([run.directory for run in found if run.directory])
    found = [run for run in found if run.directory in (None, *once)]
    if not found:
        raise ConfigError(f"there is no log in {path}; known are {', '.join(_READERS)}, and runs of palaestra")
    return found


def _files(folder: Path) -> list[Path]:
    """Its logs; what is hidden is not whole yet, or an old version of something."""
    found, seen = list[Path](), 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if (seen := seen + len(names)) > _MOST_FILES:
            raise ConfigError(f"{folder} has more than {_MOST_FILES} files; name the folders of the runs")
        files = [Path(place, name) for name in names if not name.startswith(".")]
        found += [one for one in files if one.name == "metrics.jsonl" or any(map(one.match, _READERS))]
    return found


def _folder(folder: Path) -> list[LoggedRun]:
    if (folder / "metrics.jsonl").exists():
        return [_own(folder)]
    if folder.name == "tensorboard" and (folder.parent / "metrics.jsonl").exists():
        return []  # the same run again
    for pattern in _READERS:
        files = sorted(folder.glob(pattern))
        if files and pattern == "*monitor.csv":
            return [_monitor(files)]
        if files and pattern == "events.out.tfevents.*":
            return [_events(folder)]
        if files:
            return _with_environment(_file(files[0]), folder)
    return []


def _with_environment(runs: list[LoggedRun], folder: Path) -> list[LoggedRun]:
    """What a monitor file beside the log says about the environment."""
    monitors = sorted(folder.glob("*monitor.csv"))
    env = _monitor(monitors).environment if monitors else ""
    return [replace(run, environment=run.environment or env) for run in runs]


def _file(path: Path) -> list[LoggedRun]:
    if path.match("*monitor.csv"):
        return [_monitor([path])]
    for pattern, reader in _READERS.items():
        if path.match(pattern):
            return [reader(path)]
    if path.suffix == ".csv":
        return _table(path)
    raise ConfigError(f"{path} is not a log that is known; known are {', '.join(_READERS)}, and tables as .csv")


def _own(folder: Path) -> LoggedRun:
    config = (directory := RunDirectory(folder)).config
    known: dict[str, Any] = {"task": f"{config.task}, by {config.unit}", "directory": directory}
    if evaluations := read_evaluations(folder):  # rows of metrics repeat the newest until the next
        points = [(env_steps, result["return_mean"]) for env_steps, result in evaluations]
        return replace(_logged(folder / "metrics.jsonl", "eval/return_mean", points, config.env.name), **known)
    rows = thinned_metrics(folder, "eval/return_mean")
    return replace(_curve(folder / "metrics.jsonl", list(enumerate(rows, 1)), config.env.name), **known)


def _rows(path: Path, skip: int = 0, *, table: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields of each row; of a log half a last line is left out, whose numbers may be cut."""
    try:
        with opened_text(path, _LARGEST_BYTES) as file:
            for _ in range(skip):
                file.readline()
            reader = csv.DictReader(file if table else (line for line in file if line.endswith("\n")))
            for row in reader:
                if None in row:
                    raise CheckpointError(f"{path}, line {reader.line_num + skip}: more fields than columns")
                yield reader.line_num + skip, row
    except csv.Error as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _number(path: Path, line: int, name: str, text: Any) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise CheckpointError(f"{path}, line {line}: {name} is {text!r}; it must be a finite number")
    return value


def _curve(path: Path, rows: list[tuple[int, Mapping[str, Any]]], environment: str = "") -> LoggedRun:
    """The first metric that is known, against the first counter of env steps that stands in the same log."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    step = next((name for name in _STEPS if name in names), "")
    for metric in _METRICS if step else ():
        points = [
            (_number(path, line, step, row[step]), _number(path, line, metric, row[metric]))
            for line, row in rows
            if str(row.get(metric)).lower() not in ("none", "", "nan") and row.get(step) not in (None, "")
        ]
        if points:
            return _logged(path, metric, points, environment)
    if not rows:
        raise ConfigError(f"{path} has no row yet; leave it out, or wait for one")
    raise CheckpointError(f"{path} has no return that is known against env steps; it has {', '.join(names)}")


def _logged(
    path: Path, metric: str, points: Sequence[tuple[float, float]], environment: str = "", algorithm: str = ""
) -> LoggedRun:
    """A run of points as they were written: where steps go back, what follows replaces what is there from that step."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if kept and point[0] < kept[-1][0]:
            while kept and kept[-1][0] >= point[0]:
                kept.pop()
        kept.append(point)
    return LoggedRun(path, metric, np.asarray(kept, np.float64), environment, algorithm, len(points) - len(kept))


def _progress(path: Path) -> LoggedRun:
    return _curve(path, list(_rows(path)))


def _result(path: Path) -> LoggedRun:
    """RLlib: a JSON object a line."""
    rows: list[tuple[int, Mapping[str, Any]]] = []
    environment = ""
    with opened_text(path, _LARGEST_BYTES, errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                record = parse_json(line)
                environment = environment or str((record.get("config") or {}).get("env") or "")
                rows.append((number, dict(_flat(record))))
            except (ValueError, AttributeError) as error:
                if rows and not line.endswith("\n"):
                    break  # half a last line
                raise CheckpointError(f"{path}, line {number}: not a JSON object: {error}") from error
    return _curve(path, rows, environment)


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict):
            if name != "config":
                yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _monitor(paths: list[Path]) -> LoggedRun:
    """Stable-Baselines3: an episode a line (r return, l length, t seconds), a file for each parallel environment.

    Seconds that go back are a new session, without a head of its own; they say nothing of env steps, so the last one
    counts alone, and of several files those that have it.
    """
    sessions: dict[Path, list[list[tuple[float, float, float]]]] = {}
    environment = ""
    for path in paths:
        with opened_text(path, _LARGEST_BYTES, errors="replace") as file:
            text = file.readline(2**16)
        if not text:  # nothing has been written yet
            continue
        try:
            head = parse_json(text.removeprefix("#"))
            environment = environment or str(head.get("env_id") or "")
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}, line 1: it must be a JSON object behind #: {error}") from error
        start, last = _number(path, 1, "t_start", head.get("t_start", 0)), math.inf
        for line, row in _rows(path, skip=1):
            time, length, value = (_number(path, line, name, row.get(name)) for name in "tlr")
            if time < last:
                sessions.setdefault(path, []).append([])
            sessions[path][-1].append((start + time, length, value))
            last = time
    if not sessions:
        raise ConfigError(f"{paths[0]} has no episode yet; leave it out, or wait for one")
    newest = max(map(len, sessions.values()))
    counted = sorted(episode for parts in sessions.values() if len(parts) == newest for episode in parts[-1])
    every = sum(len(episodes) for parts in sessions.values() for episodes in parts)
    lengths, values = np.asarray(counted)[:, 1:].T
    points = np.stack([lengths.cumsum(), values], axis=1)
    return LoggedRun(paths[0], "episode return", points, environment, replaced=every - len(counted))


def _evaluations(path: Path) -> LoggedRun:
    """Stable-Baselines3: timesteps [n], results [n, episodes]; pickled arrays are refused."""
    try:
        file = io.BytesIO(read_bytes(path, _LARGEST_BYTES))
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_BYTES:
                raise ValueError("unpacked it is too large")
        with np.load(file, allow_pickle=False) as arrays:
            steps, results = (np.asarray(arrays[name], np.float64) for name in ("timesteps", "results"))
        points = np.stack([steps, results.reshape(len(steps), -1).mean(axis=1) if len(steps) else steps], axis=1)
        if not np.isfinite(points).all():
            raise ValueError("an evaluation is not finite")
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} is not an evaluations.npz of plain numbers: {error}") from error
    if not len(points):
        raise ConfigError(f"{path} has no evaluation yet; leave it out, or wait for one")
    return _logged(path, "eval/mean_reward", points.tolist())


def _events(path: Path) -> LoggedRun:
    """TensorBoard: a file, or a folder with the files of one run; scalars as numbers or, newer, as tensors."""
    for file in [path] if path.is_file() else path.glob("events.out.tfevents.*"):
        opened(file, _LARGEST_BYTES).close()
    why = f"reading {path}"
    module = import_extra("tensorboard.backend.event_processing.event_accumulator", "tensorboard", why)
    array = import_extra("tensorboard.util.tensor_util", "tensorboard", why).make_ndarray
    events = module.EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        events.Reload()
        plain, kinds = events.Tags()["scalars"], events.summary_metadata
        tensors = [name for name in events.Tags()["tensors"] if kinds[name].plugin_data.plugin_name == "scalars"]
        names = [*plain, *tensors]
        metric = next((name for name in _METRICS if name in names), "")
        points = [(event.step, event.value) for event in (events.Scalars(metric) if metric in plain else ())]
        if metric in tensors:
            points += [(event.step, float(array(event.tensor_proto))) for event in events.Tensors(metric)]
    except Exception as error:  # the library raises what its parts raise
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if not names:
        raise ConfigError(f"{path} has no scalar yet; leave it out, or wait for one")
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        raise CheckpointError(f"{path} has no return that is known; its scalars: {', '.join(names)}")
    folder = path.parent if path.is_file() else path
    parts = folder.name.split("__")  # CleanRL: environment__file__seed__time
    return _logged(path, metric, finite, parts[0] if len(parts) == 4 else "")


def _table(path: Path) -> list[LoggedRun]:
    needed = ("algorithm", "environment", "seed", "score")
    runs: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for line, row in _rows(path, table=True):
        if missing := [name for name in needed if row.get(name) is None]:
            raise CheckpointError(f"{path}, line {line}: no {missing[0]}; columns are {', '.join(needed)} (and step)")
        step = _number(path, line, "step", row.get("step") or 0)
        name, env, seed = key = (row["algorithm"], row["environment"], row["seed"])
        if (points := runs.setdefault(key, [])) and step <= points[-1][0]:
            raise ConfigError(
                f"{path}, line {line}: step {step:,.0f} of seed {seed} of {name} in {env} stands behind its step "
                f"{points[-1][0]:,.0f}; a seed is one run, whose steps rise: sort them, or give each run its seed"
            )
        points.append((step, _number(path, line, "score", row["score"])))
    if not runs:
        raise ConfigError(f"{path} has no row; columns are {', '.join(needed)} (and step)")
    return [_logged(path, "score", points, env, name) for (name, env, _), points in runs.items()]


_READERS = {
    "evaluations.npz": _evaluations,
    "result.json": _result,
    "progress.csv": _progress,
    "*monitor.csv": _monitor,
    "events.out.tfevents.*": _events,
}
"""By name of the file, the most telling first."""
