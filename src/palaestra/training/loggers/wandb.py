"""Weights & Biases."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from palaestra.training.loggers.network import NetworkLogger
from palaestra.training.summaries import Histogram

__all__ = ["WandbLogger"]


class WandbLogger(NetworkLogger):
    """Sends metrics to Weights & Biases; a run that is resumed goes on there as well.

    Args:
        project: at the service.
        directory: of the run; its name is the run's name.
        config: settings to show beside the run.
        mode: `"offline"` writes files that `wandb sync` sends later.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(
        self,
        project: str,
        directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        super().__init__("wandb", "wandb")
        self._project, self._directory, self._config = project, Path(directory).absolute(), dict(config or {})
        self._mode = mode
        self._run: Any = None

    def open(self, position: Mapping[str, int]) -> None:
        """See `NetworkLogger.open`."""
        self._run = self.package.init(
            project=self._project,
            name=self._directory.name,
            id=hashlib.sha256(str(self._directory).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(self._directory),
            config=self._config,
            mode=self._mode,
        )

    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """See `NetworkLogger.send`."""
        values = {
            name: self.package.Histogram(np_histogram=(value.counts, value.edges))
            if isinstance(value, Histogram)
            else value
            for name, value in row.items()
        }
        self._run.log(values, step=env_steps)

    def end(self) -> None:
        """See `NetworkLogger.end`."""
        if self._run is not None:
            self._run.finish()
