"""`Logger`: what takes metrics; into files, and for TensorBoard."""

import contextlib
import csv
import io
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from palaestra.core import CheckpointError, ConfigError
from palaestra.core.reading import opened
from palaestra.rollout import Episode
from palaestra.training.parts import Histogram

__all__ = ["FileLogger", "Logger", "TensorBoardLogger"]

_log = logging.getLogger(__name__)
_MOST_WAITING_BYTES = 2**24
_LONGEST_PAUSE = 15  # calls


class Logger(Protocol):
    """Takes what a run reports. One that raises misses that, with a warning, and gets later reports after a pause."""

    def start(self, position: Mapping[str, int]) -> None:
        """The run begins or resumes.

        Args:
            position: `metrics` rows and `episodes` already logged and `env_steps` taken; whatever lies beyond (from a
                process that was killed after its last checkpoint) is to be discarded.
        """

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.

        Args:
            row: numbers by name, and a `Histogram` where one was asked for; `env_steps` is the x axis.
        """

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Training episodes that ended.

        Args:
            env_steps: when they were reported.
            episodes: in the order in which they ended.
        """

    def close(self) -> None:
        """The run ends."""


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics as every logger can write it: numbers of Python, texts and histograms.

    Args:
        row: also with numbers of NumPy and tensors of one element, as callbacks may add them.

    Raises:
        ConfigError: an entry is something else.
    """
    plain = dict[str, Any]()
    for name, value in row.items():
        if value is not None and not isinstance(value, float | int | str | Histogram):
            try:
                value = value.item() if hasattr(value, "item") else float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"a callback put {name!r} into a row of metrics, which is no number: {value!r}"
                ) from error
        plain[name.encode(errors="replace").decode()] = value  # a name may hold what is no text
    return plain


class LoggerGroup:
    """Tells loggers what a run has to say. One that fails is told again later, and what it missed is counted.

    Args:
        loggers: of any make.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._all = [_Told(logger) for logger in loggers]

    def start(self, position: Mapping[str, int]) -> None:
        """See `Logger.start`."""
        for told in self._all:
            told.position = dict(position)
            told.call("start", 0)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """See `Logger.metrics`."""
        for told in self._all:
            told.call("metrics", 1, row)

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """See `Logger.episodes`."""
        for told in self._all:
            told.call("episodes", len(episodes), env_steps, episodes)

    def close(self) -> list[str]:
        """See `Logger.close`.

        Returns:
            What was not logged, a sentence for each logger that missed something.
        """
        return [missing for told in self._all if (missing := told.close())]


class _Told:
    """One logger, and what it missed."""

    def __init__(self, logger: Logger) -> None:
        self._logger, self.position = logger, dict[str, int]()
        self._name = type(logger).__name__
        self._started = False
        self._failures: dict[str, int] = {}  # of each method in a row, and how many calls it is spared
        self._pause: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def call(self, method: str, count: int, *arguments: Any) -> None:
        """Tells it something, unless it failed a short while ago.

        Args:
            method: of the logger.
            count: how many rows or episodes it misses otherwise.
            arguments: of the method.
        """
        try:
            if self._pause.get(method):
                self._pause[method] -= 1
            else:
                self._tell(method, arguments)
                return
        except Exception as error:  # a logger of any make must not end a run
            failures = self._failures.get(method, 0)
            self._pause[method], self._failures[method] = min(2**failures - 1, _LONGEST_PAUSE), failures + 1
            if not failures:
                _log.warning("%s.%s failed (%r); it is told again later", self._name, method, error)
        self._missed[method] = self._missed.get(method, 0) + count

    def _tell(self, method: str, arguments: Sequence[Any]) -> None:
        if not self._started:
            self._logger.start(self.position)
            self._started = True
        if method != "start":
            getattr(self._logger, method)(*arguments)
        if self._failures.pop(method, 0):
            _log.warning("%s works again; it has missed %s", self._name, self._missing())

    def close(self) -> str:
        """Ends it; returns what it missed, in a sentence, or nothing."""
        said, started, self._started = "", self._started, False
        try:
            if started:
                self._logger.close()
        except Exception as error:
            said = f"{self._name}: {error}"
        if any(self._missed.values()):
            said = f"{said or self._name} missed {self._missing()}"
        if said:
            _log.warning("not logged: %s", said)
        return said

    def _missing(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in self._missed.items() if count) or "nothing"


class FileLogger:
    """Writes `metrics.jsonl` and `episodes.csv` into a run directory, a line at a time.

    Lines that cannot be written, on a full disk say, wait in memory (16 MiB of them) until there is room; half a line
    is taken back. `close` raises where some are left.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._metrics: _Lines | None = None
        self._episodes: _Lines | None = None

    def start(self, position: Mapping[str, int]) -> None:
        """See `Logger.start`."""
        header, last = "env_steps,return,length,env_id,info\n", position["env_steps"]
        self._metrics = _Lines(self._directory / "metrics.jsonl", position["metrics"], last, "")
        self._episodes = _Lines(self._directory / "episodes.csv", position["episodes"], last, header)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """See `Logger.metrics`."""
        assert self._metrics is not None
        self._metrics.write(json.dumps(dict(row), default=Histogram.to_json) + "\n", 1)

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """See `Logger.episodes`."""
        assert self._episodes is not None
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for e in episodes:
            writer.writerow([env_steps, e.episode_return, e.length, e.env_id, json.dumps(e.info) if e.info else ""])
        self._episodes.write(text.getvalue(), len(episodes))

    def close(self) -> None:
        """See `Logger.close`.

        Raises:
            OSError: lines are left that could not be written.
        """
        left = [said for file in (self._metrics, self._episodes) if file is not None and (said := file.close())]
        self._metrics = self._episodes = None
        if left:
            raise OSError("; ".join(left))


class _Lines:
    """A file of whole lines; those that do not fit on the disk wait.

    Args:
        path: of the file; what comes after its first rows is cut off, also half a line.
        rows: how many to keep at most; there are fewer where somebody has taken some out.
        last: env steps of the last one to keep.
        header: its first line.
    """

    def __init__(self, path: Path, rows: int, last: int, header: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = len(header.encode())
        self._waiting, self._rows, self._left_out = b"", 0, 0
        self._error: OSError | None = None
        with opened(path) as file:
            kept = 0
            if len(file.read(self._size)) < self._size:
                self._size, self._waiting = 0, header.encode()
            while kept < rows and (line := file.readline()).endswith(b"\n") and _env_steps(line) <= last:
                self._size, kept = self._size + len(line), kept + 1
        if kept < rows:
            _log.warning("%s has %d of the %d rows that were written before the checkpoint", path, kept, rows)
        os.ftruncate(self._file, self._size)
        self._flush()

    def write(self, lines: str, rows: int) -> None:
        """Writes lines, or lets them wait.

        Args:
            lines: of text.
            rows: how many rows they are.
        """
        data = lines.encode()
        if len(self._waiting) + len(data) > max(_MOST_WAITING_BYTES, len(data)):
            self._left_out += rows
        else:
            self._waiting, self._rows = self._waiting + data if self._waiting else data, self._rows + rows
        self._flush()

    def _flush(self) -> None:
        done, data = 0, self._waiting
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:] if done else data, self._size + done)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            if self._error is None:
                _log.warning("%s cannot be written (%s); its rows wait until there is room", self._path, error)
            self._error = error
            return
        if self._error is not None:
            _log.warning("%s is written again; %d row(s) had to wait", self._path, self._rows)
            self._error = None
        self._size, self._waiting, self._rows = self._size + done, b"", 0

    def close(self) -> str:
        """Closes the file; returns which rows it lacks, in a sentence, or nothing."""
        self._flush()
        os.close(self._file)
        missing = self._rows + self._left_out
        return f"{missing:,} row(s) of {self._path.name} could not be written ({self._error})" if missing else ""


def _env_steps(line: bytes) -> float:
    """Those of a row of either file; 0 where it does not say."""
    try:
        return float(json.loads(line)["env_steps"] if line.startswith(b"{") else line.partition(b",")[0])
    except (ValueError, KeyError, TypeError):
        return 0.0


_OUTCOMES = ("return_mean", "length_mean", "discounted_return_mean", "eval/return_mean")
_AGAINST = "against "  # begins names of what has another axis than env steps


def _cut_events(directory: Path, last: int) -> None:
    """Cuts off the event files of earlier processes what these wrote beyond an env step, on all axes."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

    own = re.compile(r"events\.out\.tfevents\.\d{10}\.(?!.*\.\d+\.\d+$).+\.\d+")  # two numbers are of other writers
    for path in sorted((path for path in directory.iterdir() if own.fullmatch(path.name)), reverse=True):
        began = last
        with contextlib.suppress(CheckpointError, DecodeError), opened(path) as file:  # what is damaged stays
            for begin, record in _records(file):
                event = Event.FromString(record)
                if event.session_log.status == SessionLog.START:  # what was before, older versions have left there
                    began = event.step - 1
                elif event.step > last and not any(one.tag.startswith(_AGAINST) for one in event.summary.value):
                    os.truncate(path, begin)
                    break
        last = min(last, began)


def _records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Where each whole record begins, and its content: behind its length and a checksum, and before another one."""
    begin = 0
    while len(head := file.read(12)) == 12:
        size = int.from_bytes(head[:8], "little")
        if len(record := file.read(size + 4)) < size + 4:
            return
        yield begin, record[:size]
        begin += 16 + size


class TensorBoardLogger:
    """Writes rows of metrics for TensorBoard against env steps, and outcomes also against episodes and updates.

    Args:
        directory: of the event files.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._resumed_at = 0
        self._writer: Any = None

    def start(self, position: Mapping[str, int]) -> None:
        """See `Logger.start`."""
        self._resumed_at = position["env_steps"]

    def metrics(self, row: Mapping[str, Any]) -> None:
        """See `Logger.metrics`."""
        # importing TensorBoard takes a while; the first step need not wait for it
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        def write(**fields: Any) -> None:
            self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

        if self._writer is None:  # not TensorBoard's own writer, whose thread ends with a traceback of its own
            self._directory.mkdir(parents=True, exist_ok=True)
            before = self._resumed_at > 0 or any(self._directory.glob("events.out.tfevents.*"))
            if self._resumed_at:
                _cut_events(self._directory, self._resumed_at)
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
            self._writer = RecordWriter((self._directory / name).open("ab"))
            write(file_version="brain.Event:2")
            # one that runs hides, from the second start on, what it has read of a process that was killed
            write(step=self._resumed_at + before, session_log=SessionLog(status=SessionLog.START))
        whole, by_episode, by_update = [], [], []
        for name, value in row.items():
            if isinstance(value, Histogram):
                whole.append(Summary.Value(tag=name, histo=value.to_proto(HistogramProto)))
            elif name == "env_steps" or not isinstance(value, float | int):  # a text
                continue
            else:
                whole.append(Summary.Value(tag=name, simple_value=value))
            if name in _OUTCOMES:
                by_episode.append(Summary.Value(tag=f"{_AGAINST}episodes/{name}", simple_value=value))
                by_update.append(Summary.Value(tag=f"{_AGAINST}updates/{name}", simple_value=value))
        for x, values in (("env_steps", whole), ("episodes", by_episode), ("policy_version", by_update)):
            if values and x in row:
                write(step=int(row[x]), summary=Summary(value=values))
        self._writer.flush()

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Episodes are in the metrics as averages."""

    def close(self) -> None:
        """See `Logger.close`."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
