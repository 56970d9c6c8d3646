"""`OfflineData`: loaded buffers in the place of a collector."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, ShapeError
from palaestra.rollout.collect_info import CollectInfo
from palaestra.rollout.episodes import Episode

__all__ = ["OfflineData"]


class OfflineData:
    """A fixed data set to learn from: `Trainer(OfflineData(buffer), algorithm)`.

    There are no env steps offline, so an update takes the place of an env step, everywhere: in the budget
    `total_env_steps`, in every period, in schedules and on the x axis of metrics.

    Args:
        data: the buffer that holds the data, or those of several policies by name; they are never written to.

    Raises:
        ShapeError: there is none, or one is empty.
    """

    def __init__(self, data: ReplayBuffer | Mapping[str, ReplayBuffer]) -> None:
        sources = {POLICY: data} if isinstance(data, ReplayBuffer) else dict(data)
        if not sources or not all(len(buffer) for buffer in sources.values()):
            raise ShapeError("the buffer of an offline run is empty; load or collect data into it first")
        self._sources = sources
        self.env_steps = 0
        """Updates so far."""

    @property
    def num_lanes(self) -> int:
        """Streams of the data."""
        return sum(buffer.num_lanes for buffer in self._sources.values())

    @property
    def buffers(self) -> dict[str, ReplayBuffer]:
        """None: loaded data does not change, so it is no part of checkpoints."""
        return {}

    @property
    def sources(self) -> dict[str, ReplayBuffer]:
        """What each policy learns from: its buffer."""
        return self._sources

    @property
    def unfinished(self) -> bool:
        """Never: nothing is collected."""
        return False

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Counts one update; nothing is collected.

        Args:
            length: ignored.
            random: ignored.
        """
        self.env_steps += 1
        return CollectInfo(0)

    def pause(self) -> None:
        """Nothing runs that could be paused."""

    def drain(self) -> list[Episode]:
        """No episodes end."""
        return []

    def state(self) -> dict[str, Any]:
        """The count; the data is not part of a checkpoint."""
        return {"env_steps": self.env_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a run on the same data.
        """
        self.env_steps = state["env_steps"]
