"""Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.training.loggers.network import NetworkLogger
from palaestra.training.summaries import Histogram

__all__ = ["TrackioLogger"]


class TrackioLogger(NetworkLogger):
    """Sends metrics to Trackio, which keeps them on this machine or in a Space.

    Args:
        project: of the run.
        directory: of the run; its name is the run's name.
        config: settings to show beside the run.
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
        super().__init__("trackio", "trackio")
        self._project, self._name, self._config = project, Path(directory).absolute().name, dict(config or {})
        self._space_id = space_id
        self._run: Any = None

    def open(self, position: Mapping[str, int]) -> None:
        """See `NetworkLogger.open`."""
        self._run = self.package.init(
            project=self._project, name=self._name, config=self._config, space_id=self._space_id, resume="allow"
        )

    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """See `NetworkLogger.send`."""
        values = {name: value for name, value in row.items() if not isinstance(value, Histogram)}
        self._run.log(values, step=env_steps)

    def end(self) -> None:
        """See `NetworkLogger.end`."""
        if self._run is not None:
            self._run.finish()
