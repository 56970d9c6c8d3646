"""The rows of one tensor field: in main memory, on a device, or compressed in blocks."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.storage import Blocks
from palaestra.core import CheckpointError, PackedRows, as_array, as_tensor, import_extra, numpy_dtype
from palaestra.core.tree import take_rows

__all__: list[str] = []

_PIECE = 1024  # rows that are read at once
_SCRATCH = 2**22  # bytes of blocks that are read at once: those of the pictures of most draws


class Leaf(ABC):
    """The rows of one tensor field; row numbers are `t * lanes + b`.

    Args:
        shape: [rows, lanes, ...].
        dtype: of what rows have.
        stacked: of so many frames only the newest one is kept.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, stacked: int = 1) -> None:
        self.rows, lanes, *shape = shape
        self.stacked, self.dtype, self.numpy_dtype = stacked, dtype, numpy_dtype(dtype)
        self.row_shape = (lanes, *([stacked] if stacked > 1 else []), *shape)
        """[lanes, ...] as it is given."""

    @abstractmethod
    def given(self, value: Any) -> Any:
        """A value as `write` takes it: something with a shape and a dtype.

        Args:
            value: a tensor from anywhere, an array, or a list.
        """

    @abstractmethod
    def __setitem__(self, row: int, given: Any) -> None:
        """Writes one row of all lanes.

        Args:
            row: where.
            given: [lanes, ...].
        """

    @abstractmethod
    def write(self, numbers: np.ndarray | slice, given: Any) -> None:
        """Writes rows of some lanes, or consecutive ones of all.

        Args:
            numbers: row numbers, or a slice of ring positions.
            given: [*numbers.shape, ...], [n, lanes, ...] for a slice, or 0.
        """

    def move(self, source: np.ndarray | slice, target: np.ndarray | slice) -> None:
        """Copies rows to other places.

        Args:
            source: row numbers, or a slice of ring positions.
            target: as many.
        """
        if isinstance(source, slice):
            lanes = self.row_shape[0]
            numbers = np.arange(source.start, source.stop)[:, None] * lanes + np.arange(lanes)
        else:
            numbers = source
        self.write(target, self.given(self.take(numbers)))

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of the rows."""

    @abstractmethod
    def saved(self) -> Tensor | PackedRows:
        """All rows as files have them: a view, or blocks."""

    def load(self, saved: Tensor | PackedRows) -> None:
        """Puts rows at the front.

        Args:
            saved: that fit.
        """
        if isinstance(saved, Tensor):
            self.write(slice(0, len(saved)), self.given(saved))
            return
        source, lanes = PackedLeaf.of(saved), saved.shape[1]
        for begin in range(0, len(saved), _PIECE):
            end = min(begin + _PIECE, len(saved))
            numbers = np.arange(begin, end)[:, None] * lanes + np.arange(lanes)
            self.write(slice(begin, end), self.given(source.take(numbers)))

    @abstractmethod
    def take(self, index: np.ndarray) -> Tensor:
        """A copy of rows.

        Args:
            index: row numbers of any shape; past the end they start again at the front.
        """

    def take_frames(self, index: np.ndarray, before: np.ndarray) -> Tensor:
        """A copy of rows, with zeros instead of some.

        Args:
            index: row numbers of any shape.
            before: whether each is not to be seen.
        """
        frames = self.take(index)
        if not before.any():
            return frames
        unseen = torch.from_numpy(before).to(frames.device, non_blocking=True)
        return frames.masked_fill_(unseen.reshape(*before.shape, *(1,) * (frames.ndim - before.ndim)), 0)


@final
class HostLeaf(Leaf):
    """Rows in main memory, written and read through numpy views of them.

    Args:
        tensor: [rows, lanes, ...].
        stacked: see `Leaf`.
        pinned: whether copies lie in page-locked memory, from where they are copied to a GPU beside its computing.
    """

    def __init__(self, tensor: Tensor, stacked: int = 1, *, pinned: bool = False) -> None:
        super().__init__(tensor.shape, tensor.dtype, stacked)
        self.tensor = tensor
        self.array, self._pinned = tensor.numpy(), pinned
        self.flat = tensor.flatten(0, 1).numpy()  # [rows * lanes, ...]

    def given(self, value: Any) -> np.ndarray:
        return _array_of(value)

    def __setitem__(self, row: int, given: Any) -> None:
        self.array[row] = given

    def write(self, numbers: np.ndarray | slice, given: Any) -> None:
        (self.array if isinstance(numbers, slice) else self.flat)[numbers] = given

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def saved(self) -> Tensor:
        return self.tensor

    def take(self, index: np.ndarray) -> Tensor:
        if not self._pinned:
            return torch.from_numpy(self.flat.take(index, 0, None, "wrap"))
        rows = torch.empty((*index.shape, *self.flat.shape[1:]), dtype=self.dtype, pin_memory=True)
        self.flat.take(index, 0, rows.numpy(), "wrap")
        return rows


@final
class DeviceLeaf(Leaf):
    """Rows on a device: only row numbers, and what is given from elsewhere, are copied to it."""

    def __init__(self, tensor: Tensor, stacked: int = 1) -> None:
        super().__init__(tensor.shape, tensor.dtype, stacked)
        self.tensor = tensor
        self._flat = tensor.flatten(0, 1)  # [rows * lanes, ...]

    def given(self, value: Any) -> Any:
        return value if isinstance(value, Tensor) else np.asarray(value)

    def __setitem__(self, row: int, given: Any) -> None:
        self.tensor[row].copy_(as_tensor(given, None, None), non_blocking=True)

    def write(self, numbers: np.ndarray | slice, given: Any) -> None:
        if isinstance(numbers, slice):
            self.tensor[numbers] = given if isinstance(given, int) else as_tensor(given, None, None)
            return
        where = self._there(numbers)
        if isinstance(given, int):
            self._flat.index_fill_(0, where, given)
            return
        rows = as_tensor(given, None, None).to(self.tensor.device, non_blocking=True)
        self._flat.index_copy_(0, where, rows.reshape(where.numel(), *self._flat.shape[1:]))

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def saved(self) -> Tensor:
        return self.tensor

    def take(self, index: np.ndarray) -> Tensor:
        return take_rows(self._flat, self._there(index)).reshape(*index.shape, *self._flat.shape[1:])

    def _there(self, numbers: np.ndarray) -> Tensor:
        """[n] row numbers on the device."""
        inside = np.asarray(numbers).reshape(-1) % len(self._flat)
        return torch.from_numpy(inside).to(self.tensor.device, non_blocking=True)


@final
class PackedLeaf(Leaf):
    """Rows of pictures in compressed blocks, each of `BLOCK_ROWS` rows of one lane.

    The block that a lane is written to is open: its rows lie as they are. When a row of another block is written, the
    open one is compressed, and the other one read, for its rows are there until they are overwritten. A copy of rows
    reads the blocks that have them, a few at a time, into memory that is used again.

    Args:
        rows: of each lane.
        kept: where blocks lie.
        stacked: see `Leaf`.
        pinned: see `HostLeaf`.

    Raises:
        MissingExtraError: the codec is not installed.
    """

    def __init__(self, rows: int, kept: Blocks, stacked: int = 1, *, pinned: bool = False) -> None:
        _, lanes, block_rows, *shape = kept.open_rows.shape
        super().__init__((rows, lanes, *shape), kept.open_rows.dtype, stacked)
        library = import_extra("cramjam", "compression", "compression of replay buffers")
        self._codec, self._refused = library.lz4, (library.DecompressionError, ValueError)
        self._lanes, self._block_rows, self._shape, self._pinned = lanes, block_rows, shape, pinned
        self._blocks, self._which, self._open_rows = kept.blocks, kept.which.numpy(), kept.open_rows.numpy()
        self._packed_bytes = sum(map(len, kept.blocks))
        self._bytes = self._open_rows.reshape(2, lanes, -1).view(np.uint8)  # the same, for the codec
        self._block_bytes = self._bytes.shape[-1]
        self._each = np.arange(lanes)
        self._place: int | None = None  # of the block that is open in all lanes, if one is
        self._scratch = np.empty((0, block_rows, *shape), self.numpy_dtype)
        self._open = {number: at for lane in range(lanes) for number, at in self._open_in(lane)}
        """Where open blocks lie, by their numbers `block * lanes + lane`."""

    @classmethod
    def of(cls, saved: PackedRows) -> Self:
        """Saved rows, for reading.

        Args:
            saved: all of them.
        """
        return cls(len(saved), Blocks.around(saved.blocks, saved.shape, saved.dtype, saved.block_rows))

    def _open_in(self, lane: int) -> list[tuple[int, tuple[int, int]]]:
        """The open block of a lane, if there is one; `which` has one more than twice its place, and its side."""
        place, side = divmod(self._which.item(lane) - 1, 2)
        return [(place * self._lanes + lane, (side, lane))] if place >= 0 else []

    def given(self, value: Any) -> np.ndarray:
        return _array_of(value)

    def __setitem__(self, row: int, given: Any) -> None:
        place, inside = divmod(row, self._block_rows)
        if place != self._place:
            self._turn_to(place, range(self._lanes))
            self._place = place
        self._open_rows[self._sides(), self._each, inside] = given

    def write(self, numbers: np.ndarray | slice, given: Any) -> None:
        if isinstance(numbers, slice):
            numbers = np.arange(self.rows)[numbers][:, None] * self._lanes + self._each
        given = np.broadcast_to(given, (*numbers.shape, *self._shape)).reshape(-1, *self._shape)
        rows, lanes = np.divmod(numbers.reshape(-1), self._lanes)
        places, inside = np.divmod(rows, self._block_rows)
        self._place = None
        for place in np.unique(places):
            chosen = np.flatnonzero(places == place)
            self._turn_to(int(place), np.unique(lanes[chosen]).tolist())
            self._open_rows[self._sides()[lanes[chosen]], lanes[chosen], inside[chosen]] = given[chosen]

    def _sides(self) -> np.ndarray:
        return (self._which - 1) & 1

    def _turn_to(self, place: int, lanes: Iterable[int]) -> None:
        """Opens the block at a place in some lanes; one that is closed there is whole before the other counts as open.

        Its rows are read beside those of the block that was open, so that mapped files have one of them whole whenever
        the process ends.
        """
        for lane in lanes:
            number, side = place * self._lanes + lane, 0
            for was, at in self._open_in(lane):
                if was != number:
                    self._keep(was, self._packed(at))
                    side = 1 - at[0]
            if number not in self._open:
                self._read(number, self._bytes[side, lane])
                for was, _ in self._open_in(lane):
                    del self._open[was]
                self._which[lane] = 1 + 2 * place + side
                self._open[number] = (side, lane)

    def _keep(self, number: int, block: bytes) -> None:
        self._packed_bytes += len(block) - len(self._blocks[number])
        self._blocks[number] = block

    def _packed(self, at: tuple[int, int]) -> bytes:
        """An open block compressed, or as it is where that is not shorter."""
        packed = bytes(self._codec.compress_block(self._bytes[at], store_size=False))
        return packed if len(packed) < self._block_bytes else self._bytes[at].tobytes()

    def _read(self, number: int, out: np.ndarray) -> None:
        """Puts the bytes of a block that is not open into memory."""
        packed, found = self._blocks[number], self._block_bytes
        try:
            if 0 < len(packed) < self._block_bytes:
                found = self._codec.decompress_block_into(packed, out)
            else:
                out[:] = np.frombuffer(packed, np.uint8) if len(packed) else 0
        except self._refused:
            found = -1
        if found != self._block_bytes:
            raise CheckpointError(f"block {number} of the compressed rows is damaged; go on from another checkpoint")

    @property
    def nbytes(self) -> int:
        return self._open_rows.nbytes + self._packed_bytes

    def saved(self) -> PackedRows:
        blocks = [bytes(block) for block in self._blocks]
        for number, at in self._open.items():
            blocks[number] = self._packed(at)
        return PackedRows(blocks, (self.rows, self._lanes, *self._shape), self.dtype, self._block_rows)

    def load(self, saved: Tensor | PackedRows) -> None:
        if isinstance(saved, Tensor) or saved.block_rows != self._block_rows:
            super().load(saved)
            return
        self._which[:], self._place = 0, None
        self._open.clear()
        for number, block in enumerate(saved.blocks):
            self._keep(number, block)

    def take(self, index: np.ndarray) -> Tensor:
        rows, lanes = np.divmod(index.reshape(-1) % (self.rows * self._lanes), self._lanes)
        places, inside = np.divmod(rows, self._block_rows)
        numbers, which = np.unique(places * self._lanes + lanes, return_inverse=True)
        taken = torch.empty((*index.shape, *self._shape), dtype=self.dtype, pin_memory=self._pinned)
        out, most = taken.numpy().reshape(-1, *self._shape), max(1, _SCRATCH // self._block_bytes)
        if len(self._scratch) < (needed := min(most, len(numbers))):
            self._scratch = np.empty((needed, *self._scratch.shape[1:]), self.numpy_dtype)
        flat, memory = self._scratch.reshape(-1, *self._shape), self._scratch.reshape(len(self._scratch), -1)
        for first in range(0, len(numbers), most):
            for block, number in zip(memory.view(np.uint8), numbers[first : first + most].tolist(), strict=False):
                if number in self._open:
                    block[:] = self._bytes[self._open[number]]
                else:
                    self._read(number, block)
            if len(numbers) <= most:
                flat.take(which * self._block_rows + inside, 0, out, "clip")  # which looks at no bounds twice
            else:
                chosen = np.flatnonzero((which >= first) & (which < first + most))
                out[chosen] = flat[(which[chosen] - first) * self._block_rows + inside[chosen]]
        return taken


def _array_of(value: Any) -> np.ndarray:
    return value.numpy() if type(value) is Tensor and value.is_cpu else np.asarray(as_array(value))
