"""What a logger is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from palaestra.rollout import Episode

__all__ = ["Logger"]


class Logger(Protocol):
    """Takes what a run has to say. A logger that raises is dropped with a warning; training goes on."""

    def start(self, position: Mapping[str, int]) -> None:
        """The run begins or goes on.

        Args:
            position: `metrics` rows and `episodes` already logged and `env_steps` taken; whatever lies beyond (from a
                process that was killed after its last checkpoint) is to be discarded.
        """
        ...

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.

        Args:
            row: numbers by name, and a `Histogram` where one was asked for; `env_steps` is the x axis.
        """
        ...

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Training episodes that ended.

        Args:
            env_steps: when they were reported.
            episodes: in the order in which they ended.
        """
        ...

    def close(self) -> None:
        """The run ends."""
        ...
