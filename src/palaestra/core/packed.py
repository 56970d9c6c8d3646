"""`PackedRows`: compressed rows as files and checkpoints hold them. Who can read them is in `palaestra.buffers`."""

import itertools
from collections.abc import Sequence
from typing import Any, Self, final

import torch

__all__ = ["PackedRows"]


@final
class PackedRows:
    """Rows `[rows, lanes, ...]` in compressed blocks; a block has some consecutive rows of one lane.

    It is cut and joined as a tensor is, without reading a block.

    Args:
        blocks: those of all lanes for the first rows, then for the next; an empty one is zeros.
        shape: [rows, lanes, ...]; the last block of a lane may have more rows, which mean nothing.
        dtype: of the rows.
        block_rows: rows of a block.

    Raises:
        ValueError: these are not as many blocks as the shape has.
    """

    def __init__(self, blocks: Sequence[bytes], shape: Sequence[int], dtype: torch.dtype, block_rows: int) -> None:
        self.blocks, self.shape, self.dtype, self.block_rows = list(blocks), tuple(shape), dtype, block_rows
        if len(self.blocks) != -(-self.shape[0] // block_rows) * self.shape[1]:
            raise ValueError(f"{len(self.blocks)} blocks of {block_rows} rows were given for rows of {self.shape}")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of the blocks."""
        return sum(map(len, self.blocks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedRows):
            return NotImplemented
        return (len(self), self._layout, self.blocks) == (len(other), other._layout, other.blocks)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def _layout(self) -> tuple[Any, ...]:
        return self.shape[1:], self.dtype, self.block_rows

    def __getitem__(self, index: slice | tuple[slice, Sequence[int]]) -> "PackedRows":
        """Consecutive rows from the beginning of a block on; of all lanes, or of some.

        Raises:
            ValueError: they begin inside a block.
        """
        rows, lanes = index if isinstance(index, tuple) else (index, range(self.shape[1]))
        begin, end, _ = rows.indices(len(self))
        if begin % self.block_rows:
            raise ValueError(f"rows from {begin} on do not begin with a block of {self.block_rows}")
        wide, end = self.shape[1], max(begin, end)
        first, last = begin // self.block_rows, -(-end // self.block_rows)
        chosen = [self.blocks[block * wide + lane] for block in range(first, last) for lane in lanes]
        return PackedRows(chosen, (end - begin, len(lanes), *self.shape[2:]), self.dtype, self.block_rows)

    def new_zeros(self, rows: int, lanes: int, *shape: int) -> "PackedRows":
        """Zeros of the same kind.

        Args:
            rows: how many.
            lanes: how many.
            shape: of one row.
        """
        empty = [b""] * (-(-rows // self.block_rows) * lanes)
        return PackedRows(empty, (rows, lanes, *shape), self.dtype, self.block_rows)

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> "PackedRows":
        """Parts one after the other in time.

        Args:
            parts: at least one; all but the last end with a block.

        Raises:
            ValueError: they do not fit together.
        """
        first = parts[0]
        if any(part._layout != first._layout for part in parts):
            raise ValueError("the parts have different shapes")
        blocks = [block for part in parts for block in part.blocks]
        return PackedRows(blocks, (sum(map(len, parts)), *first.shape[1:]), first.dtype, first.block_rows)

    @classmethod
    def beside(cls, parts: Sequence[Self]) -> "PackedRows":
        """Lanes of parts beside each other; what one has fewer rows of is zeros.

        Args:
            parts: at least one, with blocks of the same length.
        """
        first, rows = parts[0], max(map(len, parts))
        blocks: list[bytes] = []
        for block in range(-(-rows // first.block_rows)):
            for part in parts:
                wide = part.shape[1]
                blocks += part.blocks[block * wide : (block + 1) * wide] or [b""] * wide
        shape = (rows, sum(part.shape[1] for part in parts), *first.shape[2:])
        return PackedRows(blocks, shape, first.dtype, first.block_rows)

    def apart(self) -> tuple[list[Any], torch.Tensor]:
        """What files have: values that say how long blocks are and what they hold, and the bytes of all."""
        lengths, joined = [len(block) for block in self.blocks], bytearray(b"".join(self.blocks))
        layout = [lengths, self.shape, str(self.dtype).removeprefix("torch."), self.block_rows]
        return layout, torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)

    @classmethod
    def joined(cls, layout: Sequence[Any], data: torch.Tensor) -> "PackedRows":
        """What `apart` took apart.

        Args:
            layout: the values.
            data: the bytes.

        Raises:
            ValueError: they do not fit together.
        """
        lengths, shape, dtype, block_rows = layout
        ends = [0, *itertools.accumulate(lengths)]
        kind = getattr(torch, str(dtype), None)
        if min(lengths, default=0) < 0 or ends[-1] != data.numel():
            raise ValueError(f"packed rows have {ends[-1]} bytes, but {data.numel()} are there")
        if not isinstance(kind, torch.dtype) or len(shape) < 2 or min(*shape, block_rows - 1) < 0:
            raise ValueError(f"rows {shape} of {dtype!r} in blocks of {block_rows} are none")
        whole = data.numpy().tobytes()
        return cls([whole[begin:end] for begin, end in itertools.pairwise(ends)], shape, kind, block_rows)


def cat_rows(parts: Sequence[Any]) -> Any:
    """Rows one after the other.

    Args:
        parts: tensors, or packed rows.
    """
    return PackedRows.cat(parts) if isinstance(parts[0], PackedRows) else torch.cat(list(parts))
