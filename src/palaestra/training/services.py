"""Metrics to a service that may be slow, down or gone: Weights & Biases, MLflow, Trackio."""

import hashlib
import logging
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from palaestra.core import CheckpointError, import_extra
from palaestra.core.reading import read_json
from palaestra.rollout import Episode
from palaestra.training.parts import Histogram

__all__ = ["MLflowLogger", "NetworkLogger", "TrackioLogger", "WandbLogger"]

_log = logging.getLogger(__name__)
_CAPACITY = 10_000
_TAG = "palaestra.run"
_MLFLOW_BATCH, _MLFLOW_NAME = 1000, 240  # metrics a call, letters a name
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0


class NetworkLogger(ABC):
    """Sends rows of metrics to a service; training never waits for it.

    Rows go into a bounded queue, and a thread sends them in order. A call that fails is tried again, at first after a
    second, then after longer and longer, so a service that comes back gets what it missed. A row that the service will
    never take is given up at once. That, what still waits at the end of the run, and what does not fit into the queue
    are left out with a warning: `metrics.jsonl` has all of it.

    A service is a subclass with `open`, `send` and `end`; all three are called on the thread. `refused` says which
    errors of `send` are for good.

    Args:
        package: the package to import.
        extra: the extra of this project that brings it.
        close_s: how long `close` waits for rows to be sent.

    Raises:
        MissingExtraError: the package is not installed.
    """

    def __init__(self, package: str, extra: str, *, close_s: float = 10.0) -> None:
        self.package: Any = import_extra(package, extra, f"logging with {type(self).__name__}")
        self._close_s = close_s
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(_CAPACITY)
        self._thread: threading.Thread | None = None
        self._left_out, self._refused, self._closing = 0, 0, threading.Event()

    @abstractmethod
    def open(self, position: Mapping[str, int]) -> None:
        """Begins or continues a run at the service, at the `position` of `Logger.start`."""

    @abstractmethod
    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """Sends one row: numbers by name, and histograms where they were asked for; `env_steps` is the x axis."""

    def refused(self, error: Exception) -> bool:
        """Whether a row that failed so will never be taken. May be replaced; by default what cannot be written down."""
        return isinstance(error, TypeError | UnicodeError)

    @abstractmethod
    def end(self) -> None:
        """Ends the run at the service."""

    # -- what a trainer calls

    def start(self, position: Mapping[str, int]) -> None:
        """See `Logger.start`."""
        self._closing.clear()
        self._put(lambda: self.open(position))
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._thread.start()

    def metrics(self, row: Mapping[str, Any]) -> None:
        """See `Logger.metrics`."""
        copied = dict(row)
        self._put(lambda: self._send(copied))

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:  # noqa: B027 - nothing to send
        """Episodes are in the metrics as averages."""

    def close(self) -> None:
        """See `Logger.close`; returns after `close_s` at the latest.

        Raises:
            TimeoutError: rows were not sent.
        """
        if self._thread is None:
            return
        self._put(self.end)
        self._closing.set()
        self._thread.join(self._close_s)
        missing = self._queue.qsize() + self._thread.is_alive() + self._left_out
        said = [f"{missing} call(s) could not be made in {self._close_s:g} s"] if missing else []
        said += [f"{self._refused} row(s) were refused"] if self._refused else []
        self._thread, self._left_out, self._refused = None, 0, 0
        if said:
            raise TimeoutError(f"{', '.join(said)}; metrics.jsonl has all of the metrics")

    def _send(self, row: Mapping[str, Any]) -> None:
        try:
            self.send(row, int(row["env_steps"]))
        except Exception as error:
            if not self.refused(error):
                raise
            self._refused += 1
            if self._refused == 1:
                _log.warning("%s: rows are left out which the service refuses: %r", type(self).__name__, error)

    def _put(self, call: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self._left_out += 1
            if self._left_out == 1:
                _log.warning("%s: the service does not keep up, rows are left out from now on", type(self).__name__)

    def _work(self) -> None:
        deadline_s = None
        while True:
            if self._closing.is_set():
                deadline_s = deadline_s or time.monotonic() + self._close_s
                if self._queue.empty() or time.monotonic() > deadline_s:
                    return
            try:
                call = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            self._try_until_it_works(call)

    def _try_until_it_works(self, call: Callable[[], None]) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return call()
            except Exception as error:  # of any make: a service must not end a run
                if self._closing.is_set():
                    self._left_out += 1
                    _log.warning("%s failed: %r", type(self).__name__, error)
                    return None
                if wait_s == _FIRST_WAIT_S:
                    _log.warning("%s failed and will be tried again: %r", type(self).__name__, error)
                self._closing.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _named(directory: str | Path) -> tuple[str, str]:
    """A run's name at a service, which of a group's runs has the group's in front, and an identity of its own."""
    folder = Path(directory).absolute()
    in_group = (folder.parent / "group.json").is_file()
    name = f"{folder.parent.name}/{folder.name}" if in_group else folder.name
    try:
        return name, str(read_json(folder / "run.json")["id"])[:16]  # a run's own, wherever it is moved
    except (CheckpointError, KeyError, TypeError):
        return name, hashlib.sha256(str(folder).encode()).hexdigest()[:16]


class _RunLogger(NetworkLogger):
    """A service whose package has `init`, which gives a run with `log` and `finish`.

    Args:
        package: see `NetworkLogger`; its extra has the same name.
        directory: of the run; its name is the run's name, after the group's if it is in one.
        config: settings to show with the run.
        options: of `init`.
    """

    def __init__(self, package: str, directory: str | Path, config: Mapping[str, Any] | None, **options: Any) -> None:
        super().__init__(package, package)
        self._options = {"name": _named(directory)[0], "resume": "allow", "config": dict(config or {}), **options}
        self._run: Any = None

    def open(self, position: Mapping[str, int]) -> None:
        """See `NetworkLogger.open`."""
        self._run = self.package.init(**self._options)

    def end(self) -> None:
        """See `NetworkLogger.end`."""
        if self._run is not None:
            self._run.finish()


class WandbLogger(_RunLogger):
    """Sends metrics to Weights & Biases; a run that is resumed continues there as well.

    Args:
        project: at the service.
        directory: of the run; its name is the run's name, after the group's if it is in one.
        config: settings to show with the run.
        mode: `"offline"` writes files that `wandb sync` sends later; by default what `WANDB_MODE` says, else online.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(
        self,
        project: str,
        directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        folder = Path(directory).absolute()
        options = {"project": project, "mode": mode, "id": _named(folder)[1], "dir": str(folder)}
        super().__init__("wandb", folder, config, **options)

    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """See `NetworkLogger.send`."""
        values = dict(row)
        for name, value in row.items():
            if isinstance(value, Histogram):
                values[name] = self.package.Histogram(np_histogram=(value.counts, value.edges))
        self._run.log(values, step=env_steps)


class MLflowLogger(NetworkLogger):
    """Sends metrics to an MLflow server, or into a local database; a resumed run continues there as well.

    A name has what MLflow allows in it: `info/x@max` becomes `info/x.max`, and `info/speed (m/s)` becomes
    `info/speed _m/s_`. Two names that would become one are told apart by a number behind the second.

    Args:
        experiment: at the server.
        directory: of the run; its name is the run's name, after the group's if it is in one.
        config: settings to show beside the run.
        tracking_uri: of the server; by default what MLflow itself takes from its environment.

    Raises:
        MissingExtraError: mlflow is not installed.
    """

    def __init__(
        self,
        experiment: str,
        directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        super().__init__("mlflow", "mlflow")
        self._experiment, self._config = experiment, dict(config or {})
        self._name, self._identity = _named(directory)
        self._tracking_uri = tracking_uri
        self._client: Any = None
        self._run_id, self._names = "", dict[str, str]()

    def open(self, position: Mapping[str, int]) -> None:
        """See `NetworkLogger.open`."""
        self._client = client = self.package.MlflowClient(tracking_uri=self._tracking_uri)
        found = client.get_experiment_by_name(self._experiment)
        experiment = client.create_experiment(self._experiment) if found is None else found.experiment_id
        if not self._run_id:  # else it was made here, and its settings were not taken
            same = f"tags.{_TAG} = '{self._identity}'"
            runs = client.search_runs([experiment], filter_string=same) if position["env_steps"] else []
            if runs:
                self._run_id = runs[0].info.run_id
                return
            self._run_id = client.create_run(experiment, run_name=self._name, tags={_TAG: self._identity}).info.run_id
        for name, value in self._config.items():
            client.log_param(self._run_id, self._name_of(name), value)

    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """See `NetworkLogger.send`."""
        metric, now_ms = self.package.entities.Metric, int(1000 * time.time())
        values = [
            metric(self._name_of(name), float(value), now_ms, env_steps)
            for name, value in row.items()
            if isinstance(value, float | int)
        ]
        for first in range(0, len(values), _MLFLOW_BATCH):
            self._client.log_batch(self._run_id, metrics=values[first : first + _MLFLOW_BATCH])

    def refused(self, error: Exception) -> bool:
        """See `NetworkLogger.refused`."""
        return getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE" or super().refused(error)

    def _name_of(self, name: str) -> str:
        """MLflow allows letters, digits, `_-.: /`, and paths that stay as they are."""
        if name not in self._names:
            allowed = re.sub(r"[^\w\-.: /]", "_", name.replace("@", "."))
            path = (
                "/".join(part for part in allowed.split("/") if part.strip(".")).lstrip(".")[:_MLFLOW_NAME].rstrip("/")
                or "_"
            )
            taken, number, own = set(self._names.values()), 1, path
            while own in taken:
                number += 1
                own = f"{path} {number}"
            self._names[name] = own
        return self._names[name]

    def end(self) -> None:
        """See `NetworkLogger.end`."""
        if self._run_id:
            self._client.set_terminated(self._run_id)


class TrackioLogger(_RunLogger):
    """Sends metrics to Trackio, which keeps them on this machine or in a Space.

    Args:
        project: of the run.
        directory: of the run; its name is the run's name, after the group's if it is in one.
        config: settings to show with the run.
        space_id: where to show it, `"user/space"`; `None` is on this machine.

    Raises:
        MissingExtraError: trackio is not installed.
    """

    def __init__(
        self,
        project: str,
        directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        space_id: str | None = None,
    ) -> None:
        super().__init__("trackio", directory, config, project=project, space_id=space_id)

    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """See `NetworkLogger.send`."""
        values = {name: value for name, value in row.items() if not isinstance(value, Histogram)}
        self._run.log(values, step=env_steps)
