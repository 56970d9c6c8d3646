"""Buffers in files: as folders of their own, and as the tensors of a checkpoint, cut into segments."""

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.buffers.lane_storage import ACTED_FIELDS, LAST
from palaestra.buffers.streams import RowOptions, Streams, WritePositions
from palaestra.core import CheckpointError, ConfigError, PackedRows, SpecError, files, spec_from_json, spec_to_json
from palaestra.core.reading import read_json

_log = logging.getLogger(__name__)
_FORMAT_VERSION = 1
_SPECS = [name for name in RowOptions.__annotations__ if name.endswith("_spec")]
_SETTINGS = {
    "state_period": 1,
    "complete_episodes_only": False,
    "stack_num": 1,
    "sample_avail": False,
    "compression": "none",
}
_SEGMENTS = 256  # of a large buffer; so one hundredth of new rows is in three or four of them
_SMALLEST = 2**17  # bytes: a file for each piece is worth that much


def stream_tensors(streams: Streams) -> dict[str, Any]:
    """What the streams hold, by name; tensors are views of it.

    Args:
        streams: that are saved.
    """
    positions = streams.positions
    wrapped = bool((positions.cursors < positions.counts + positions.spare).any())
    rows = positions.ring_size if wrapped else int(positions.cursors.max()) + 1
    fields: dict[str, Any] = {f"field.{name}": tensor[:rows] for name, tensor in streams.storage.tensors.items()}
    if streams.states is not None:
        slots = -(-rows // streams.state_period)
        fields |= {f"field.{name}": tensor[:slots] for name, tensor in streams.states.tensors.items()}
    return {**fields, **positions.state(), "rows_per_lane": positions.rows, "state_period": streams.state_period}


def without_leftovers(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved buffer with zeros where no row lies: whatever earlier rows left there, nothing reads.

    Two buffers with the same rows are equal by this, even where one was loaded and never held the earlier rows. An open
    row has no action yet. Compressed fields stay as they are.

    Args:
        saved: of `stream_tensors`, with anything else besides.
    """
    places, kinds = int(saved["places"]), saved["field.step_type"]
    cursors, counts, opened = (np.asarray(saved[name]) for name in ("head", "count", "opened"))
    spare = places - int(saved["rows_per_lane"]) - 1
    age = (cursors - np.arange(len(kinds))[:, None]) % places  # [rows, B] rows before the open one
    arrived = (age <= counts + spare) & ((age > 0) | opened)
    acted = arrived & (age > 0)
    cleaned = dict(saved)
    for name, tensor in saved.items():
        if name.startswith("field.") and not isinstance(tensor, PackedRows):
            held = acted if name.split(".")[1] in (*ACTED_FIELDS, "state") else arrived
            if len(tensor) < len(held):  # hidden states, of which one is kept in some rows
                held = held[:: int(saved.get("state_period", 1))]
            cleaned[name] = tensor.clone()
            cleaned[name][torch.from_numpy(~held)] = 0
    return cleaned


def load_stream_tensors(streams: Streams, tensors: Mapping[str, Any]) -> None:
    """Puts back what `stream_tensors` gave.

    Args:
        streams: with the same specs, lanes and capacity.
        tensors: by name.

    Raises:
        CheckpointError: something is missing or does not fit.
    """
    positions, rows = streams.positions, tensors.get("rows_per_lane", 0)
    period = tensors.get("state_period", streams.state_period)  # what a shard puts together from parts has none
    if streams.states is not None and period != streams.state_period:
        raise CheckpointError(
            f"the saved buffer has a hidden state with one row in {period}, but this one with one in "
            f"{streams.state_period}, its mini_batch_length"
        )
    if rows != positions.rows:
        if not streams.growing:
            raise CheckpointError(f"the saved buffer has {rows} rows per lane, but this one has {positions.rows}")
        streams.resize(rows, np.empty((0, streams.num_lanes), np.int64))
        positions.restart(0, rows)
    streams.storage.load(tensors)
    if streams.states is not None:
        streams.states.load(tensors)
    positions.load_state(tensors)
    if lost := tensors.get("lost"):
        _close_gaps(streams, lost, json.loads(tensors["segments"])["rows"]["field.step_type"])
    streams.write_log()


def _close_gaps(streams: Streams, lost: Sequence[int], places: int) -> None:
    """Makes rows whose contents are lost ends of episodes, so that nothing is learned from them or across them."""
    positions, kinds = streams.positions, streams.storage.step_types.reshape(-1, streams.num_lanes)
    kinds[gaps(lost, places, positions.ring_size, positions.spare)] = LAST
    positions.restarts += 1  # samplers begin anew
    count = sum(min(places, positions.ring_size - number * places) for number in lost) * streams.num_lanes
    _log.warning("what %s of the %s rows of a replay buffer held is lost", f"{count:,}", f"{kinds.size:,}")


def gaps(lost: Sequence[int], places: int, ring_size: int, spare: int) -> np.ndarray:
    """Places that cannot be learned from: those of lost pieces, the one before each, and those whose stacks reach in.

    Args:
        lost: numbers of pieces.
        places: in a piece.
        ring_size: of all.
        spare: frames of a stack before a row.
    """
    first = np.asarray(lost)[:, None] * places
    rows = first + np.arange(-1, places + spare)
    return rows[rows < np.minimum(first + places, ring_size) + spare] % ring_size


# -- buffers whose lanes lie in shards: {"index": state of the index, "shards": {number: its pieces and lanes}}


def shards_of(saved: Mapping[str, Any]) -> list[tuple[range, Mapping[str, Any]]]:
    """The parts of a saved buffer, in order, each with the lanes that it holds; one part where it was not in shards.

    Args:
        saved: of `ShardedReplay.state_tensors` or `ReplayBuffer.state_tensors`, as a checkpoint gives it back.
    """
    if "shards" not in saved:
        return [(range(len(saved["head"])), saved)]
    shards = [saved["shards"][str(number)] for number in range(len(saved["shards"]))]
    return [(range(*shard["lanes"]), shard) for shard in shards]


def fields_of(shard: Mapping[str, Any], lanes: Sequence[int]) -> tuple[dict[str, Any], np.ndarray]:
    """Fields of some lanes of one part, read from its files where they lie there.

    Args:
        shard: of `shards_of`.
        lanes: as the part numbers them.

    Returns:
        Tensors by name, and places of its lanes that cannot be learned from, for their pieces are damaged.

    Raises:
        CheckpointError: a file is missing or is none.
    """
    joined, lost = shard, np.empty(0, np.int64)
    if "directory" in shard:
        joined = files.join_elsewhere(shard)
        places = json.loads(shard["segments"])["rows"]["field.step_type"]
        lost = gaps(joined.get("lost", ()), places, shard["places"], shard["spare"])
    fields = {name: tensor[:, lanes] for name, tensor in joined.items() if name.startswith("field.")}
    kinds = fields["field.step_type"]
    kinds[lost[lost < len(kinds)]] = LAST
    return fields, lost


def beside(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of several parts as those of one, lane beside lane.

    Args:
        parts: tensors by name, [rows, lanes, ...]; what one has fewer rows of is zeros.
    """
    fields: dict[str, Any] = {}
    for name in parts[0]:
        if isinstance(parts[0][name], PackedRows):
            fields[name] = PackedRows.beside([part[name] for part in parts])
            continue
        rows = max(len(part[name]) for part in parts)
        padded = [
            torch.cat([part[name], part[name].new_zeros(rows - len(part[name]), *part[name].shape[1:])])
            for part in parts
        ]
        fields[name] = torch.cat(padded, 1)
    return fields


def gathered(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The state of one buffer with the rows of all shards.

    Args:
        saved: of `ShardedReplay.state_tensors`, as a checkpoint gives it back.
    """
    read = [(lanes, *fields_of(shard, range(len(lanes)))) for lanes, shard in shards_of(saved)]
    state = dict(saved["index"])
    if any(len(lost) for _, _, lost in read):
        state["restarts"] += 1  # samplers begin anew
    return state | beside([fields for _, fields, _ in read])


class SegmentKeys:
    """Keys of consecutive places of a ring; a key is new whenever one of its rows was written.

    Args:
        positions: of the ring.
        multiple: the places of a segment are a multiple of this.
        size_bytes: of all rows.
    """

    def __init__(self, positions: WritePositions, multiple: int, size_bytes: int) -> None:
        size = positions.ring_size
        places = max(-(-size // _SEGMENTS), -(-_SMALLEST * size // size_bytes))
        self.places = -(-places // multiple) * multiple
        """Places in a segment."""
        self._positions, self._identity = positions, uuid.uuid4().hex
        self._versions = np.zeros(-(-size // self.places), np.int64)
        self._seen: tuple[int, int] | None = None
        self._exchanges = 0
        self._seen_cursors = self._seen_written = np.empty(0, np.int64)

    def keys(self, used: int, rewritten: int) -> list[str]:
        """The keys of the present contents.

        Args:
            used: so many places from the front on hold anything.
            rewritten: so many rows before the write positions of the call before were written again since.
        """
        positions, seen = self._positions, (self._positions.restarts, self._positions.rewrites)
        new = positions.written - self._seen_written if self._seen == seen else None
        if new is None or new.max() + rewritten + 1 >= positions.ring_size:
            self._versions += 1
        elif new.any() or rewritten or positions.exchanges != self._exchanges:
            rows = new + rewritten + 1  # from the row that was open then to the one that is
            offset = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows) - rewritten
            places = (np.repeat(self._seen_cursors, rows) + offset) % positions.ring_size
            self._versions[np.unique(places // self.places)] += 1
        self._seen, self._seen_cursors, self._seen_written = seen, positions.cursors, positions.written
        self._exchanges = positions.exchanges
        held = [min(self.places, used - first) for first in range(0, used, self.places)]
        return [f"{self._identity}-{i}-{self._versions[i]}-{rows}" for i, rows in enumerate(held)]

    def describe(self, streams: Streams, tensors: Mapping[str, Any], rewritten: int) -> str:
        """How a checkpoint cuts the fields, so that it writes only what is new since the one before.

        Args:
            streams: whose rows they are.
            tensors: from `stream_tensors`.
            rewritten: see `keys`.
        """
        keys = self.keys(len(tensors["field.step_type"]), rewritten)
        places = {f"field.{name}": self.places for name in streams.storage.tensors}
        if streams.states is not None:
            places |= {f"field.{name}": self.places // streams.state_period for name in streams.states.tensors}
        return files.describe_segments(keys, places)


def write_buffer(directory: Path, shape: Mapping[str, Any], options: RowOptions, tensors: Mapping[str, Any]) -> None:
    """Writes a folder aside and gives it its name when it is whole and on the disk.

    Args:
        directory: must not exist yet, or be empty.
        shape: capacity and lanes, and the origin.
        options: what a row consists of.
        tensors: what the buffer holds.

    Raises:
        ConfigError: the folder exists.
        CheckpointError: it cannot be written; nothing is left of it.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise ConfigError(f"{directory} exists already; give another name or delete it")
    described = {
        **shape,
        **{name: options.get(name, default) for name, default in _SETTINGS.items()},
        "specs": {name: spec_to_json(_plain(spec)) for name in _SPECS if (spec := options.get(name)) is not None},
    }
    with files.whole_folder(directory, "buffer") as temporary:
        files.save_tensors(temporary / "rows.safetensors", tensors)
        files.write_json(temporary / "buffer.json", described)
        files.seal(temporary, _FORMAT_VERSION)


def read_buffer(directory: Path) -> tuple[dict[str, Any], RowOptions, dict[str, Any]]:
    """What `write_buffer` wrote, after comparing every hash.

    Args:
        directory: its folder.

    Returns:
        Capacity and lanes, and the origin; what a row consists of; and what the buffer held.

    Raises:
        CheckpointError: a file is missing, damaged, of another kind or of a newer format; the message names it.
    """
    files.check_files(directory, files.read_manifest(directory, _FORMAT_VERSION)["files"])
    try:
        described = read_json(directory / "buffer.json")
        options: dict[str, Any] = {name: spec_from_json(spec) for name, spec in described["specs"].items()}
        options |= {name: described[name] for name in _SETTINGS if name in described}
        shape = {name: described[name] for name in ("capacity", "num_lanes")}
        shape["origin"] = {str(name): str(text) for name, text in described.get("origin", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SpecError) as error:
        raise CheckpointError(f"{directory / 'buffer.json'} describes no buffer: {error!r}") from error
    return shape, RowOptions(**options), files.load_tensors(directory / "rows.safetensors")


def _plain(spec: Any) -> Any:
    return dict(spec) if isinstance(spec, Mapping) else spec
