"""A shard of replay: what its worker does, which lanes it has, and how parts from several are put together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers import ReplayBuffer, RowOptions
from palaestra.buffers.saving import beside, fields_of
from palaestra.core import Batch, ConfigError, OnPolicy, Replay, files, tree_map
from palaestra.distributed.config import DistributedConfig
from palaestra.runtime import Parcel, ParcelLostError

__all__ = ["ShardMap", "require_replay_shards"]


def require_replay_shards(algorithms: Mapping[str, Any], config: DistributedConfig, num_envs: int) -> None:
    """Refuses shards where nothing is replayed, or where a shard would have no lane.

    Args:
        config: with a number of shards, or none.
        num_envs: of the run; every policy has a lane for each at least.

    Raises:
        ConfigError: says what to give instead.
    """
    count = config.replay_shards
    if count is None:
        return
    if not any(isinstance(one.plan, Replay) for one in algorithms.values()):
        names = ", ".join(sorted({type(one).__name__ for one in algorithms.values()}))
        raise ConfigError(
            f"distributed.replay_shards is {count}, but {names} keeps no replay buffer; leave it out, or choose an "
            "algorithm that `palaestra list algorithms` shows with replay"
        )
    if kept := [name for name, one in algorithms.items() if isinstance(one.plan, OnPolicy) and not one.plan.clear]:
        raise ConfigError(
            f"distributed.replay_shards is {count}, but {', '.join(kept)} keeps its unrolls (clear=False) in this "
            "process; leave one of the two out"
        )
    if asked := [name for name, one in algorithms.items() if getattr(one.plan, "returns", False)]:
        raise ConfigError(
            f"distributed.replay_shards is {count}, but {', '.join(asked)} asks for returns of all that is kept "
            "(Replay.returns), and a shard knows its own alone; leave it out"
        )
    if count > num_envs:
        raise ConfigError(
            f"distributed.replay_shards is {count}, but the run has {num_envs} environments, and each lies in one "
            f"shard whole; give at most {num_envs} shards, or more env.num_envs"
        )


@dataclass(frozen=True)
class ShardMap:
    """Which shard has which lanes of each policy."""

    firsts: Mapping[str, tuple[int, ...]]
    """By policy: the first lane of each shard, and at last the number of lanes."""

    def split(self, pieces: Mapping[str, Any], first: Mapping[str, int]) -> tuple[dict[str, Any], dict[int, Parcel]]:
        """Takes the rows of policies that replay out of a fragment.

        Args:
            pieces: of the fragment; see `Fragment.pieces`.
            first: by policy, the run's number of the worker's first lane.

        Returns:
            The pieces, with no more than an index needs of these rows; and parcels of them by shard.
        """
        rest, parcels = dict(pieces), dict[int, dict[str, list[Any]]]()
        labels = dict[int, dict[str, list[Any]]]()
        for name, firsts in self.firsts.items():
            rest[name] = []
            for lanes, rows in pieces[name]:
                known = ("step_type", "discount", "policy_version")
                rest[name].append((lanes, Batch.of({key: rows[key] for key in known if key in rows})))
                shard = np.searchsorted(firsts, np.asarray(lanes) + first[name], side="right") - 1
                for number in np.unique(shard).tolist():
                    which = np.flatnonzero(shard == number)
                    part = rows if len(which) == len(lanes) else rows.map(lambda leaf, which=which: leaf[:, which])
                    own = [lanes[lane] + first[name] - firsts[number] for lane in which.tolist()]
                    parcels.setdefault(number, {}).setdefault(name, []).append((own, part))
                    kinds = np.asarray(part["step_type"])
                    labels.setdefault(number, {}).setdefault(name, []).append((own, kinds))
        return rest, {number: Parcel(content, labels[number]) for number, content in parcels.items()}

    def most(self, num_workers: int) -> int:
        """Parcels that a fragment has at most.

        Args:
            num_workers: that share the lanes evenly.
        """
        found = 0
        for firsts in self.firsts.values():
            size = firsts[-1] // num_workers
            ends = np.searchsorted(firsts, [(w * size, (w + 1) * size - 1) for w in range(num_workers)], side="right")
            found = max(found, int((ends[:, 1] - ends[:, 0]).max()) + 1)
        return found


class ShardPart(NamedTuple):
    """What a shard keeps of one policy."""

    capacity: int
    num_lanes: int
    options: RowOptions


class ReplayShard:
    """What a shard's worker is: a buffer for some lanes of each policy, which is told where to read.

    Args:
        parts: by policy.
    """

    def __init__(self, parts: Mapping[str, ShardPart]) -> None:
        self._buffers = {name: ReplayBuffer(one.capacity, one.num_lanes, **one.options) for name, one in parts.items()}
        self._saved: dict[str, dict[str, Any]] = {}

    def extend(self, parcel: Parcel, policies: Sequence[str]) -> tuple[str, list[Any]] | None:
        """Appends what a roll-out worker sent of these policies; where it is lost, says why, and what is missing."""
        try:
            sent = parcel.open()
        except ParcelLostError as error:
            missing = [
                (name, lanes, self._buffers[name].skip(kinds, lanes))
                for name, pieces in parcel.label.items()
                for lanes, kinds in (pieces if name in policies else ())
            ]
            return str(error), missing
        for name, pieces in sent.items():
            for lanes, rows in pieces if name in policies else ():
                self._buffers[name].extend(rows, lanes)
        return None

    def end_streams(self, name: str, lanes: Sequence[int]) -> None:
        """See `ReplayBuffer.end_streams`."""
        self._buffers[name].end_streams(lanes)

    def rows_of(self, name: str, index: np.ndarray, plan: Replay) -> Batch:
        """Windows or sequences that begin at rows."""
        return self._buffers[name].rows_of(plan, index)

    def take(self, name: str, index: np.ndarray, field: str) -> Any:
        """One field at rows."""
        return self._buffers[name].take(field, index)

    def place(self, positions: Mapping[str, Mapping[str, Any]]) -> None:
        """Begins empty, where the lanes of the index are."""
        for name, one in positions.items():
            self._buffers[name].positions.load_state(one)

    def copied(self) -> Parcel:
        """All that is here, for a copy."""
        return Parcel({name: buffer.state_tensors() for name, buffer in self._buffers.items()})

    def fill(self, parcel: Parcel) -> None:
        """Becomes a copy of the shard that a parcel is from.

        Raises:
            ParcelLostError: the shard is gone as well.
        """
        for name, tensors in parcel.open().items():
            self._buffers[name].load_state_tensors(tensors)

    def state(self, name: str) -> tuple[dict[str, Any], int]:
        """How the rows are cut into pieces, and how many bytes they have; `write` writes them as they are now."""
        tensors = self._saved[name] = self._buffers[name].state_tensors()
        rows = json.loads(tensors["segments"])["rows"]
        return {"segments": tensors["segments"]}, sum(tensors[field].nbytes for field in rows)

    def write(self, name: str, directory: str, new: Mapping[str, int]) -> list[str]:
        """Writes pieces into a folder; gives back the names of those that it cannot, for the folder is not here."""
        if not Path(directory).is_dir():
            return list(new)
        for file, number in new.items():
            files.save_tensors(Path(directory) / file, self.piece(name, number))
        return []

    def piece(self, name: str, number: int) -> dict[str, Any]:
        """The tensors of one piece."""
        tensors = self._saved[name]
        return files.piece_of(tensors, json.loads(tensors["segments"])["rows"], number)

    def load(
        self, name: str, parts: Sequence[tuple[Mapping[str, Any], list[int]]], positions: Mapping[str, Any]
    ) -> list[np.ndarray] | None:
        """Takes rows from saved parts; gives back the places that each has lost, or nothing if they are not here."""
        if any("directory" in part and not Path(part["directory"]).is_dir() for part, _ in parts):
            return None
        read = [fields_of(part, lanes) for part, lanes in parts]
        buffer = self._buffers[name]
        state = {**positions, **beside([fields for fields, _ in read]), "used": False}
        buffer.load_state_tensors({**state, "rows_per_lane": buffer.rows_per_lane})
        return [lost for _, lost in read]


def in_order(parts: Sequence[tuple[np.ndarray, Any]], count: int, dim: int) -> Any:
    """What shards read, in the order of a draw.

    Args:
        parts: places in the whole, and what was read for them.
        count: rows of the whole.
        dim: along which they lie; the last one of leaves that have fewer.
    """
    if len(parts) == 1:
        return parts[0][1]
    where = [torch.from_numpy(which) for which, _ in parts]

    def joined(*leaves: Tensor) -> Tensor:
        along = min(dim, leaves[0].ndim - 1)
        shape = list(leaves[0].shape)
        shape[along] = count
        whole = leaves[0].new_empty(shape)
        for place, leaf in zip(where, leaves, strict=True):
            whole.index_copy_(along, place, leaf)
        return whole

    return tree_map(joined, *(part for _, part in parts))


def index_state(index: ReplayBuffer, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an index, from that of one buffer with all rows.

    Args:
        index: as it is, empty.
        tensors: of the buffer.
    """
    own, rows = index.state_tensors(), len(tensors["field.step_type"])
    kept = ("field.step_type", "field.discount", "field.policy_version")
    empty = {
        name: tensor.new_zeros(rows, *tensor.shape[1:])
        for name, tensor in own.items()
        if name.startswith("field.") and name != "field.state.state"
    }
    rest = {name: value for name, value in tensors.items() if not name.startswith("field.") and name != "segments"}
    if "field.state.state" in own:
        slots = -(-rows // index.state_period)
        empty["field.state.state"] = own["field.state.state"].new_zeros(slots, index.num_lanes)
    return {**rest, **empty, **{name: tensors[name] for name in kept}}
