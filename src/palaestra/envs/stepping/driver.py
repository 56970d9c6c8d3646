"""`Driver`: what steps the environments of a `LaneEnvironment`, and where."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.envs.contract.boundary import ActionReader
from palaestra.envs.contract.episodes import LaneEpisode
from palaestra.envs.contract.rows import Rows, Specs
from palaestra.envs.supervision.faults import Fault, FaultPolicy, Incident

__all__ = ["Driver"]

Outcome = tuple[Rows, list[int], Any, Sequence[Incident]]
"""Rows that are not written to any more, lanes whose episode ended, info (a `Batch` or `()`), and what went wrong."""


class Driver(ABC):
    """Steps the bare environments of a batch, somewhere: in this process, in a thread, in worker processes."""

    specs: Specs
    """That all of them share."""
    reader: ActionReader
    """Reads their actions."""
    batch_size: int
    """B."""
    faults: FaultPolicy
    """What to do when one fails, and how long to wait for one."""
    first_id: int
    """Number of the first environment in messages, where this is a part of a larger batch."""
    lost: Callable[[Incident], Fault] | None = None
    """Makes the record of a hang that ends this process; only for drivers that step environments here."""

    @property
    def answered(self) -> bool:
        """Whether `collect` would not wait for others."""
        return True

    @abstractmethod
    def submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        """Starts a step.

        Args:
            actions: leaf arrays [B, ...], with nothing wrong.
            seeds: of the lanes that start an episode instead.
        """

    @abstractmethod
    def collect(self) -> Outcome:
        """Waits for that step."""

    @abstractmethod
    def restart(
        self, seeds: dict[int, int], *, fatal: bool
    ) -> tuple[dict[int, list[np.ndarray]], Sequence[str]] | Incident:
        """Makes the environments of some lanes again (with a new worker, if the old one is gone) and starts episodes.

        Args:
            seeds: of the episodes, by lane.
            fatal: whether the worker is gone.

        Returns:
            The leaves of their first observations, and the layers whose carried state is lost.
        """

    @abstractmethod
    def drop(self, lanes: list[int], *, fatal: bool) -> None:
        """Steps some lanes no more; their rows are FIRST and show what they showed before.

        Args:
            lanes: which.
            fatal: whether their worker is gone.
        """

    @abstractmethod
    def digests(self) -> list[str] | Incident:
        """The mark of every lane's running episode; empty where none is running."""

    @abstractmethod
    def load(self, episodes: Sequence[LaneEpisode]) -> list[int] | Incident:
        """Replays running episodes; returns the lanes whose next step starts one.

        Args:
            episodes: one for every lane.
        """

    @abstractmethod
    def attributes(self, name: str, lanes: Sequence[int]) -> list[Any] | Incident:
        """An attribute of some environments, a `Found` for each.

        Args:
            name: of it.
            lanes: whose.
        """

    @abstractmethod
    def set_attributes(self, given: Mapping[int, Mapping[str, Any]]) -> Incident | None:
        """Sets attributes now, and in environments that are made again in these lanes.

        Args:
            given: by lane and name.
        """

    @abstractmethod
    def render(self) -> np.ndarray | Incident:
        """A picture of environment 0."""

    def stop(self) -> None:
        """Ends what is left, now; by default as `close` does."""
        self.close()

    @abstractmethod
    def close(self) -> Sequence[Incident]:
        """Closes every environment; returns what went wrong in that."""
