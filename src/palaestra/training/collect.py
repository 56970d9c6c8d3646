"""What a trainer needs of whatever collects, and of where the data is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from palaestra.core import DataSource
from palaestra.rollout import CollectInfo, Episode

__all__ = ["DataCollector", "Source"]


class Source(DataSource, Protocol):
    """A data source that can be part of a checkpoint."""

    def state_tensors(self) -> dict[str, Any]:
        """What it holds, by name."""
        ...

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave."""
        ...


class DataCollector(Protocol):
    """What a trainer collects with: a `Collector`, `OfflineData`, or a roll-out manager of a distributed run."""

    env_steps: int

    @property
    def num_lanes(self) -> int:
        """Streams that are collected side by side."""
        ...

    @property
    def buffers(self) -> Mapping[str, Source]:
        """Where what was collected lies, by policy name: part of checkpoints."""
        ...

    @property
    def sources(self) -> Mapping[str, DataSource]:
        """What each policy learns from: its buffer, a mixture with loaded data, or loaded data alone."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause` before it had all its rows."""
        ...

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Collects for one training iteration, or goes on with an unfinished unroll.

        Args:
            length: time steps from every environment.
            random: names of the policies that act at random.
        """
        ...

    def pause(self) -> None:
        """Ends a running unroll as soon as it can; called in a signal handler."""
        ...

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        ...
