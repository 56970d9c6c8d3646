"""TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.rollout import Episode
from palaestra.training.summaries import Histogram

__all__ = ["TensorBoardLogger"]

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
