"""`LoadedData`: what a checkpoint keeps of data that a run draws from and never writes to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.buffers import MixtureSource, ReplayBuffer
from palaestra.core import Batch, ConfigError
from palaestra.training.collect import DataCollector

__all__ = ["LoadedData"]


class LoadedData:
    """Loaded buffers are no part of checkpoints: these have what tells the data apart, and where sampling from it is.

    Args:
        collect: of the trainer: `OfflineData`, or a collector whose source may be a mixture.
    """

    def __init__(self, collect: DataCollector) -> None:
        self._collect = collect
        self._known: dict[int, tuple[ReplayBuffer, dict[str, Any]]] = {}

    def state(self) -> list[dict[str, Any]]:
        """Of each loaded buffer; nothing where there is none."""
        return [{"data": self._identity(buffer), "sampler": buffer.sampler.state()} for buffer in self._buffers()]

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Puts back what `state` gave.

        Args:
            states: of the run that was saved.

        Raises:
            ConfigError: these are not the data that the run learned from.
        """
        buffers = self._buffers()
        if len(buffers) != len(states):
            raise ConfigError(
                f"the run learned from {len(states)} loaded data set(s), and now there are {len(buffers)}; "
                "a run goes on with the data that it began with"
            )
        for buffer, state in zip(buffers, states, strict=True):
            saved, given = state["data"], self._identity(buffer)
            if saved != given:
                raise ConfigError(
                    f"the run learned from {saved['rows']:,} loaded rows ({saved['sha256'][:12]}), but the data now "
                    f"has {given['rows']:,} ({given['sha256'][:12]}); a run goes on with the data that it began with"
                )
            buffer.sampler.load_state(state["sampler"])

    def _buffers(self) -> list[ReplayBuffer]:
        own = {id(buffer) for buffer in self._collect.buffers.values()}
        sources = [
            buffer
            for source in self._collect.sources.values()
            for buffer in (source.buffers if isinstance(source, MixtureSource) else [source])
        ]
        return [buffer for buffer in sources if isinstance(buffer, ReplayBuffer) and id(buffer) not in own]

    def _identity(self, buffer: ReplayBuffer) -> dict[str, Any]:
        """How many rows there are, and a hash of everything but the observations; found out once."""
        if id(buffer) not in self._known:
            digest = hashlib.sha256()
            for lane in range(buffer.num_lanes):
                rows = buffer.in_time_order(lane)
                for name in ("step_type", "reward", "discount", "action"):
                    value = buffer.take(name, rows[:-1] if name == "action" else rows)
                    for leaf in _leaves(value):
                        digest.update(leaf.contiguous().numpy().tobytes())
            self._known[id(buffer)] = buffer, {"rows": len(buffer), "sha256": digest.hexdigest()}
        return self._known[id(buffer)][1]


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value.values() for leaf in _leaves(part)] if isinstance(value, Batch) else [value]
