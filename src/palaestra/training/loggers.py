"""`Logger`: what takes metrics; into files, and for TensorBoard."""

import csv
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from palaestra.rollout import Episode
from palaestra.training.summaries import Histogram

__all__ = ["FileLogger", "Logger", "TensorBoardLogger"]


class Logger(Protocol):
    """Takes what a run has to say. A logger that raises is dropped with a warning; training continues."""

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


class FileLogger:
    """Writes `metrics.jsonl` and `episodes.csv` into a run directory, a line at a time.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: str | Path) -> None:
        self._metrics_path = Path(directory) / "metrics.jsonl"
        self._episodes_path = Path(directory) / "episodes.csv"
        self._metrics: TextIO | None = None
        self._episodes: TextIO | None = None

    def start(self, position: Mapping[str, int]) -> None:
        """See `Logger.start`."""
        header = "env_steps,return,length,env_id,info\n"
        self._metrics = _reopened(self._metrics_path, position["metrics"], "")
        self._episodes = _reopened(self._episodes_path, position["episodes"], header)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """See `Logger.metrics`."""
        assert self._metrics is not None
        self._metrics.write(json.dumps(dict(row), default=Histogram.to_json) + "\n")
        self._metrics.flush()

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """See `Logger.episodes`."""
        assert self._episodes is not None
        writer = csv.writer(self._episodes, lineterminator="\n")
        for e in episodes:
            writer.writerow([env_steps, e.episode_return, e.length, e.env_id, json.dumps(e.info) if e.info else ""])
        self._episodes.flush()

    def close(self) -> None:
        """See `Logger.close`."""
        for file in (self._metrics, self._episodes):
            if file is not None:
                file.close()


def _reopened(path: Path, rows: int, header: str) -> TextIO:
    """Opens a file for appending after its first rows; the rest is cut off, also half a line."""
    if not path.exists():
        path.write_text(header)
    size = len(header.encode())
    with path.open("rb+") as file:
        file.seek(size)
        for _ in range(rows):
            size += len(file.readline())
        os.ftruncate(file.fileno(), size)
    return path.open("a")


_OUTCOMES = ("return_mean", "length_mean", "discounted_return_mean", "eval/return_mean")


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
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._directory))
            if self._resumed_at:  # TensorBoard then hides what a killed process wrote after its last checkpoint
                start = SessionLog(status=SessionLog.START)
                self._writer.add_event(Event(wall_time=time.time(), step=self._resumed_at + 1, session_log=start))
        whole, by_episode, by_update = [], [], []
        for name, value in row.items():
            if isinstance(value, Histogram):
                whole.append(Summary.Value(tag=name, histo=value.to_proto(HistogramProto)))
            elif name != "env_steps":
                whole.append(Summary.Value(tag=name, simple_value=value))
            if name in _OUTCOMES:
                by_episode.append(Summary.Value(tag=f"against episodes/{name}", simple_value=value))
                by_update.append(Summary.Value(tag=f"against updates/{name}", simple_value=value))
        for x, values in (("env_steps", whole), ("episodes", by_episode), ("policy_version", by_update)):
            if values and x in row:
                self._writer.add_event(Event(wall_time=time.time(), step=int(row[x]), summary=Summary(value=values)))

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Episodes are in the metrics as averages."""

    def close(self) -> None:
        """See `Logger.close`."""
        if self._writer is not None:
            self._writer.close()
