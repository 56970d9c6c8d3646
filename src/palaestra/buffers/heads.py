"""Where each lane of a ring of rows is written next, and which rows it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from palaestra.core import CheckpointError

__all__ = ["WriteHeads"]

_ALL = np.iinfo(np.int64).max


class WriteHeads:
    """A write head per lane in rings of `rows + spare + 1` places: complete rows, and after them the open one.

    As long as all lanes are written together, one pair of numbers stands for all of them and a vector step is one
    contiguous row. From the first write to some lanes on, each lane has its own pair.

    Args:
        num_lanes: number of lanes.
        rows: complete rows that a lane can hold.
        spare: places behind the oldest row whose content stays; frames of its stack lie there.
    """

    def __init__(self, num_lanes: int, rows: int, spare: int = 0) -> None:
        self.num_lanes, self.rows, self.spare = num_lanes, rows, spare
        self.last_place = rows + spare
        """After this one a ring begins again."""
        self.together = True
        """Whether all lanes are at the same place."""
        self.head, self.count = spare, 0
        """Place of the open row and number of complete rows of every lane; meaningless once they are apart."""
        self._heads, self._counts = np.full(num_lanes, spare), np.zeros(num_lanes, np.int64)
        self.opened = np.zeros(num_lanes, bool)
        """[B] which lanes have an open row."""
        self.all_open = False
        """Whether every lane has one."""
        self.unfinished = np.zeros(num_lanes, np.int64)
        """[B] complete rows of the episode that is still running; kept only where the buffer asks for it."""
        self.written, self._written = 0, np.zeros(num_lanes, np.int64)
        """Rows completed in each lane since the last `restart`; the first is meaningless once lanes are apart."""
        self.restarts = 0
        """How often rows were forgotten or moved: row numbers from before mean other rows since."""
        self.exchanges = 0
        """How often rows were taken back, or open rows exchanged."""
        self.kept = np.full(num_lanes, _ALL)
        """[B] so many rows of each lane are what they were before rows were taken back or open rows exchanged."""
        self.has_changes = False
        """Whether any row is not `kept`."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> WriteHeads:
        """Those that a saved buffer had.

        Args:
            state: with what `state` gave, and `rows_per_lane`.

        Raises:
            CheckpointError: something is missing.
        """
        try:
            rows = int(state["rows_per_lane"])
            heads = cls(len(state["head"]), rows, int(state["places"]) - rows - 1)
        except KeyError as error:
            raise CheckpointError(f"the saved buffer has no {error}") from None
        heads.load_state(state)
        return heads

    @property
    def places(self) -> int:
        """Rows of a ring."""
        return self.rows + self.spare + 1

    @property
    def heads(self) -> np.ndarray:
        """[B] place of each lane's open row."""
        return np.full(self.num_lanes, self.head) if self.together else self._heads

    @property
    def counts(self) -> np.ndarray:
        """[B] complete rows of each lane."""
        return np.full(self.num_lanes, self.count) if self.together else self._counts

    @property
    def writes(self) -> np.ndarray:
        """[B] rows completed in each lane since the last `restart`: the index in its stream of the open row."""
        return np.full(self.num_lanes, self.written) if self.together else self._written

    @property
    def total(self) -> int:
        """Complete rows over all lanes."""
        return self.count * self.num_lanes if self.together else int(self._counts.sum())

    @property
    def longest(self) -> int:
        """Complete rows of the lane that holds most."""
        return self.count if self.together else int(self._counts.max())

    @property
    def shortest(self) -> int:
        """Complete rows of the lane that holds fewest."""
        return self.count if self.together else int(self._counts.min())

    def open(self, lanes: np.ndarray) -> None:
        """Says that lanes have an open row from now on.

        Args:
            lanes: distinct.
        """
        self.opened[lanes] = True
        self.all_open = bool(self.opened.all())

    def advance(self) -> None:
        """Completes the open rows of all lanes, which are together."""
        self.written += 1
        self.head = 0 if self.head == self.last_place else self.head + 1
        if self.count < self.rows:
            self.count += 1

    def advance_lanes(self, lanes: np.ndarray) -> None:
        """Completes the open rows of some lanes, which from now on are apart.

        Args:
            lanes: distinct.
        """
        self._separate()
        after = self._heads[lanes] + 1
        after[after == self.places] = 0
        self._heads[lanes] = after
        self._counts[lanes] += 1
        self._written[lanes] += 1
        np.minimum(self._counts, self.rows, out=self._counts)

    def advance_many(self, lanes: np.ndarray, rows: int) -> None:
        """Completes so many rows of some lanes at once.

        Args:
            lanes: distinct, in rising order if they are all.
            rows: how many of each.
        """
        if self.together and len(lanes) == self.num_lanes:
            self.head, self.count = (self.head + rows) % self.places, min(self.count + rows, self.rows)
            self.written += rows
            return
        self._separate()
        self._heads[lanes] = (self._heads[lanes] + rows) % self.places
        self._counts[lanes] = np.minimum(self._counts[lanes] + rows, self.rows)
        self._written[lanes] += rows

    def rewind(self, lanes: np.ndarray, rows: np.ndarray) -> None:
        """Takes the newest complete rows of some lanes back.

        Args:
            lanes: distinct.
            rows: how many of each; more than it holds are all that it holds.
        """
        self._separate()
        rows = np.minimum(rows, self._counts[lanes])
        self._written[lanes] -= rows
        self.exchange(lanes)
        self._heads[lanes] = (self._heads[lanes] - rows) % self.places
        self._counts[lanes] -= rows

    def exchange(self, lanes: np.ndarray) -> None:
        """Notes that the open rows of some lanes are others than they were.

        Args:
            lanes: distinct.
        """
        self.exchanges += 1
        self.kept[lanes] = np.minimum(self.kept[lanes], self.writes[lanes])
        self.has_changes = bool((self.kept != _ALL).any())

    @property
    def stamp(self) -> tuple[int, ...]:
        """Changes whenever a row does."""
        return (
            self.restarts,
            self.exchanges,
            self.written * self.num_lanes if self.together else int(self._written.sum()),
        )

    def forget_changes(self) -> None:
        """Begins to count anew what is `kept`; for whoever follows the changes."""
        self.kept[:] = _ALL
        self.has_changes = False

    def keep(self, counts: np.ndarray) -> None:
        """Forgets all but the newest complete rows of each lane.

        Args:
            counts: [B] how many to keep.
        """
        self._separate()
        self.restarts += 1
        self._counts[:] = np.minimum(self._counts, counts)

    def restart(self, counts: np.ndarray | int, rows: int | None = None) -> None:
        """Says that the complete rows lie at the front of the rings, behind the spare places.

        Args:
            counts: how many rows each lane holds.
            rows: what a lane can hold from now on.
        """
        self.restarts += 1
        self.rows = self.rows if rows is None else rows
        self.last_place = self.rows + self.spare
        counts = np.full(self.num_lanes, counts)
        self.together = bool((counts == counts[0]).all())
        self.count = self.written = int(counts[0])
        self.head = self.count + self.spare
        self._counts[:] = self._written[:] = counts
        self._heads[:] = counts + self.spare

    def newest(self, rows: int, *, and_open: bool) -> slice | np.ndarray:
        """Places of the newest complete rows in time order.

        Args:
            rows: T; a lane that holds fewer repeats its oldest one in front.
            and_open: whether the open row comes after them.

        Returns:
            A slice where the rows of all lanes lie together, else [T, B].
        """
        length = rows + and_open
        if self.together and self.count >= rows and (start := self.head - rows) >= 0:
            return slice(start, start + length)
        age = np.minimum(np.arange(rows, rows - length, -1)[:, None], self.counts)  # [T, B] rows before the open one
        return (self.heads - age) % self.places

    def numbers(self, lanes: np.ndarray) -> np.ndarray:
        """Row numbers of open rows in `[rows * lanes]` storage.

        Args:
            lanes: which lanes.
        """
        return (self.head if self.together else self._heads[lanes]) * self.num_lanes + lanes

    def numbers_at(self, places: np.ndarray) -> np.ndarray:
        """Row numbers of places of all lanes.

        Args:
            places: [..., B].
        """
        return places * self.num_lanes + np.arange(self.num_lanes)

    def pick(self, number: np.ndarray, usable: np.ndarray | int) -> np.ndarray:
        """Row numbers of the n-th usable rows, counted over all lanes from the oldest on.

        Args:
            number: [N] below the sum over lanes.
            usable: how many of the oldest rows of each lane count; one number where all lanes are together.
        """
        places, lanes = self.places, self.num_lanes
        if not isinstance(usable, np.ndarray):
            first = (self.head - self.count) % places * lanes
            return number + first if first + usable * lanes <= places * lanes else (number + first) % (places * lanes)
        ends = np.cumsum(usable)
        lane = np.searchsorted(ends, number, side="right")
        age = number - (ends - usable)[lane]
        return (self.heads[lane] - self.counts[lane] + age) % places * lanes + lane

    def aligned(self, usable: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where usable rows lie whose place is a multiple of a period.

        Args:
            usable: [B] how many of the oldest rows of each lane count.
            period: at least 1.

        Returns:
            For each lane: the first such multiple from its oldest row on, how many there are up to the end of the ring,
            and how many after it.
        """
        oldest = (self.heads - self.counts) % self.places
        end = oldest + usable
        first = -(-oldest // period)
        before = np.maximum(-(-np.minimum(end, self.places) // period) - first, 0)
        return first, before, -(-np.maximum(end - self.places, 0) // period)

    def pick_aligned(self, number: np.ndarray, usable: np.ndarray, period: int) -> np.ndarray:
        """Row numbers of the n-th of the rows that `aligned` tells of.

        Args:
            number: [N] below their sum over lanes.
            usable: how many of the oldest rows of each lane count.
            period: at least 1.
        """
        first, before, after = self.aligned(usable, period)
        ends = np.cumsum(before + after)
        lane = np.searchsorted(ends, number, side="right")
        order = number - (ends - before - after)[lane]
        multiple = np.where(order < before[lane], first[lane] + order, order - before[lane])
        return multiple * period * self.num_lanes + lane

    def write_to(self, log: np.ndarray, at_most: int | None = None) -> None:
        """Writes place and number of rows of every lane, each lane's in one go.

        Args:
            log: [B] int64; lanes without an open row stay 0.
            at_most: so many rows of each lane outlive what is written next; `None` is all.
        """
        counts = self.counts if at_most is None else np.minimum(self.counts, max(at_most, 0))
        if self.together and self.all_open and at_most is None:
            log[:] = (self.head << 32) | self.count
        else:
            log[self.opened] = ((self.heads << 32) | counts)[self.opened]

    def read_from(self, log: np.ndarray) -> None:
        """Takes over what `write_to` wrote; a lane without an entry was never opened.

        Args:
            log: [B] int64.
        """
        self.opened = log != 0
        self.all_open = bool(self.opened.all())
        self._heads[:] = np.where(self.opened, log >> 32, self.spare)
        self._counts[:] = self._written[:] = log & 0xFFFFFFFF
        self.together = bool((self._heads == self._heads[0]).all() and (self._counts == self._counts[0]).all())
        self.head, self.count, self.written = (int(x[0]) for x in (self._heads, self._counts, self._written))
        self.restarts += 1

    def state(self) -> dict[str, Any]:
        """Everything by name, for a checkpoint."""
        return {
            "head": self.heads.copy(),
            "count": self.counts.copy(),
            "written": self.writes.copy(),
            "opened": self.opened.copy(),
            "unfinished": self.unfinished.copy(),
            "kept": self.kept.copy(),
            "places": self.places,
            "restarts": self.restarts,
            "exchanges": self.exchanges,
            "together": self.together,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of as many lanes with rings of the same length.

        Raises:
            CheckpointError: something is missing, or belongs to another number of lanes.
        """
        try:
            mine = {"head": self._heads, "count": self._counts, "written": self._written}
            mine |= {"opened": self.opened, "unfinished": self.unfinished, "kept": self.kept}
            for name, array in mine.items():
                if np.shape(state[name]) != array.shape:
                    raise CheckpointError(f"the saved buffer has {len(state[name])} lanes, but this one {len(array)}")
                array[:] = state[name]
            if state["places"] != self.places:
                raise CheckpointError(
                    f"the rings of the saved buffer have {state['places']} places, but here {self.places}: "
                    "memory, mapped files and stacks of frames need different ones"
                )
            self.together = bool(state["together"])
            self.restarts, self.exchanges = int(state["restarts"]), int(state["exchanges"])
        except KeyError as error:
            raise CheckpointError(f"the saved buffer has no {error}") from None
        self.head, self.count, self.written = int(self._heads[0]), int(self._counts[0]), int(self._written[0])
        self.all_open = bool(self.opened.all())
        self.has_changes = bool((self.kept != _ALL).any())

    def _separate(self) -> None:
        if self.together:
            self._heads[:], self._counts[:], self._written[:] = self.head, self.count, self.written
            self.together = False
