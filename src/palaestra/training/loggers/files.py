"""JSON lines and CSV in the run directory: the record that every run keeps."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from palaestra.rollout import Episode
from palaestra.training.summaries import Histogram

__all__ = ["FileLogger"]


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
