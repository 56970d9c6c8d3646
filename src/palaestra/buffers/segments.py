"""`SegmentKeys`: which parts of a ring are still what they were when it was last saved."""

from __future__ import annotations

import uuid

import numpy as np

from palaestra.buffers.heads import WriteHeads

__all__ = ["SegmentKeys"]

_SEGMENTS = 256  # of a large buffer; so one hundredth of new rows is in three or four of them
_SMALLEST = 2**17  # bytes: a file for each piece is worth that much


class SegmentKeys:
    """Keys of consecutive places of a ring; a key is new whenever one of its rows was written.

    Args:
        heads: of the ring.
        multiple: the places of a segment are a multiple of this.
        size_bytes: of all rows.
    """

    def __init__(self, heads: WriteHeads, multiple: int, size_bytes: int) -> None:
        places = max(-(-heads.places // _SEGMENTS), -(-_SMALLEST * heads.places // size_bytes))
        self.places = -(-places // multiple) * multiple
        """Places in a segment."""
        self._heads, self._identity = heads, uuid.uuid4().hex
        self._versions = np.zeros(-(-heads.places // self.places), np.int64)
        self._seen: tuple[int, int] | None = None
        self._seen_heads = self._seen_writes = np.empty(0, np.int64)

    def keys(self, used: int, rewritten: int) -> list[str]:
        """The keys of the present contents.

        Args:
            used: so many places from the front on hold anything.
            rewritten: so many rows before the write heads of the call before were written again since.
        """
        heads, seen = self._heads, (self._heads.restarts, self._heads.exchanges)
        new = heads.writes - self._seen_writes if self._seen == seen else None
        if new is None or new.max() + rewritten + 1 >= heads.places:
            self._versions += 1
        elif new.any() or rewritten:
            rows = new + rewritten + 1  # from the row that was open then to the one that is
            offset = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows) - rewritten
            places = (np.repeat(self._seen_heads, rows) + offset) % heads.places
            self._versions[np.unique(places // self.places)] += 1
        self._seen, self._seen_heads, self._seen_writes = seen, heads.heads.copy(), heads.writes.copy()
        held = [min(self.places, used - first) for first in range(0, used, self.places)]
        return [f"{self._identity}-{i}-{self._versions[i]}-{rows}" for i, rows in enumerate(held)]
