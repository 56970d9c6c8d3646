"""`StreamJoining`: appending fragments of streams, and whole buffers, at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from palaestra.buffers.access import StreamAccess
from palaestra.core import Batch, ShapeError, TimeStep

__all__ = ["StreamJoining", "stream_pieces"]


class StreamJoining(StreamAccess):
    """Writing many rows at once."""

    def extend(self, rows: Batch, env_id: Any = None) -> None:
        """Appends fragments of streams at once.

        The first time step takes the place of the open row, as with `open`: the fragments of a lane join where each
        begins with the step that the one before it ended with.

        Args:
            rows: an `Unroll`, or another batch with `step_type`, `reward`, `discount` and `observation`
                `[T+1, B, ...]`, `action` `[T, B, ...]`, and if they are there `policy_version`, `policy_info` and
                `state` `[T, B, ...]`.
            env_id: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for.
        """
        needed = (*self.step_fields, "action", *(("state",) if self.keeps_states else ()))
        if missing := [name for name in needed if name not in rows]:
            raise ShapeError(f"the fragment lacks the fields {missing}; it has {list(rows.keys())}")
        which, steps = self._which(env_id), len(rows.step_type) - 1
        if self._complete_only:
            self._extend_one_by_one(rows, which, steps)
            return
        checked = self._storage.checked
        kept = min(steps, self._heads.rows) if not self._growing else steps
        written = [pair for name in self.step_fields for pair in checked(name, rows[name], steps + 1, len(which))]
        acted = checked("action", rows["action"], steps, len(which))
        acted += [
            pair
            for name, empty in (("policy_version", False), ("policy_info", not self.info_fields))
            if name in rows and not empty
            for pair in checked(name, rows[name], steps, len(which))
        ]
        memory = self._states.checked("state", rows["state"], steps, len(which)) if self._states is not None else []
        self.open(TimeStep(**{name: rows[name][0] for name in self.step_fields}), which)
        if self._used:
            self._discard()
        while self._growing and self._heads.counts[which].max() + steps > self._heads.rows:
            self._grow()
        if self._log is not None:
            self._heads.write_to(self._log, at_most=self._heads.places - 1 - kept)
        self._heads.advance_many(which, steps)
        places = (self._heads.heads[which] - np.arange(kept, -1, -1)[:, None]) % self._heads.places  # [kept + 1, B]
        numbers = places * self.num_lanes + which
        self._storage.write([(path, given[steps - kept :]) for path, given in written], numbers)
        self._storage.zero([name for name in ("policy_version", "policy_info") if name not in rows], numbers[:-1])
        self._storage.write([(path, given[steps - kept :]) for path, given in acted], numbers[:-1])
        if memory and kept:
            flat = [(path, given[steps - kept :].reshape(-1, *given.shape[2:])) for path, given in memory]
            self._write_state(flat, numbers[:-1].reshape(-1))
        if self._log is not None:
            self._heads.write_to(self._log)

    def _extend_one_by_one(self, rows: Batch, which: np.ndarray, steps: int) -> None:
        arrived = [TimeStep(**{name: rows[name][t] for name in self.step_fields}) for t in range(steps + 1)]
        self.open(arrived[0], which)
        for t in range(steps):
            state = rows["state"][t] if self._states is not None else None
            self.append(rows["action"][t], arrived[t + 1], state=state, env_id=which)
            completed = (self._heads.heads[which] - 1) % self._heads.places * self.num_lanes + which
            if "policy_version" in rows:
                self._versions.reshape(-1)[completed] = rows["policy_version"][t]

    def update(self, other: StreamAccess) -> None:
        """Appends what another buffer holds, lane by lane in time order.

        Args:
            other: with the same fields and as many lanes.

        Raises:
            ShapeError: it has another number of lanes, or other fields.
        """
        if other.num_lanes != self.num_lanes:
            raise ShapeError(f"a buffer of {other.num_lanes} lanes cannot be appended to one of {self.num_lanes}")
        for lanes, rows in stream_pieces(other):
            self.extend(rows, lanes)


def stream_pieces(buffer: StreamAccess, at_most: int | None = None) -> Iterator[tuple[list[int], Batch]]:
    """What a buffer holds as `StreamJoining.extend` takes it: in one piece where lanes go together, else lane by lane.

    Args:
        buffer: to read. One that keeps a memory with some rows only cannot be taken to pieces.
        at_most: complete rows of a piece, where it shall not be larger; lanes are read one by one then.

    Yields:
        Lanes, and their rows in time order.

    Raises:
        ShapeError: memories are missing.
    """
    if at_most is None and buffer.lockstep and buffer.heads.all_open and len(buffer):
        yield list(range(buffer.num_lanes)), buffer.newest(buffer.heads.longest)
        return
    if buffer._states is not None and buffer.state_period > 1:
        raise ShapeError("a buffer that keeps a memory with some rows only cannot be appended to another")
    for lane in np.flatnonzero(buffer.heads.opened).tolist():
        stream = buffer.in_time_order(lane)
        size = at_most or len(stream)
        for begin in range(0, max(len(stream) - 1, 1), size):
            rows = stream[begin : begin + size + 1, None]
            fields = {name: buffer.take(name, rows) for name in buffer.step_fields}
            fields |= {name: buffer.take(name, rows[:-1]) for name in ("action", "policy_info", "policy_version")}
            if buffer._states is not None:
                fields["state"] = buffer._states.take("state", rows[:-1])
            yield [lane], Batch.of(fields)
