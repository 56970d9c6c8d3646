"""Where rows lie: main memory, mapped files or a device; a buffer that does not fit is refused beforehand."""

import errno
import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from palaestra.core import CheckpointError, ConfigError, numpy_dtype, require_device
from palaestra.core.computing import control_groups, memory_bytes
from palaestra.core.reading import read_json

__all__ = ["DeviceMemory", "MainMemory", "MappedFiles", "Storage", "available_bytes"]

_PAGE, _LENGTH = 4096, 4  # bytes: what a disk takes at least, and the length of a block before it
BOOKKEEPING = ("step_type", "policy_version")
"""Fields that are in main memory whatever the storage is: samplers read them at every draw."""

BLOCK_ROWS = 8
"""Rows of a lane in a compressed block, by measurement: 16 take 0.76 of the memory, and 1.4 times as long to read."""

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class BlockList(Protocol):
    """Blocks by number; an empty one is zeros."""

    def __getitem__(self, number: int, /) -> Any: ...
    def __setitem__(self, number: int, block: bytes, /) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...


class Blocks(NamedTuple):
    """Where compressed rows lie."""

    which: Tensor
    """[lanes] int64: which block of a lane is open; 0 is none."""
    open_rows: Tensor
    """[2, lanes, rows of a block, ...]: rows of open blocks, and room for those that are opened next."""
    blocks: BlockList
    """The others, by number `block * lanes + lane`."""

    @classmethod
    def around(
        cls, blocks: BlockList, shape: Sequence[int], dtype: torch.dtype, block_rows: int = BLOCK_ROWS
    ) -> "Blocks":
        """Blocks with none of them open.

        Args:
            blocks: of all lanes for the first rows, then for the next.
            shape: [rows, lanes, ...].
            dtype: of the rows.
            block_rows: rows of a block.
        """
        lanes = shape[1]
        open_rows = torch.zeros(2, lanes, block_rows, *shape[2:], dtype=dtype)
        return cls(torch.zeros(lanes, dtype=torch.int64), open_rows, blocks)


class Storage(ABC):
    """Where the rows of a buffer lie."""

    mapped = False
    """Whether the rows are files, which outlive the process."""
    pinned = False
    """Whether what is handed out lies in page-locked memory."""
    device: torch.device | None = None
    """Where rows lie besides bookkeeping; `None` for main memory."""

    @abstractmethod
    def allocate(self, name: str, shapes: Shapes) -> dict[str, Tensor]:
        """Tensors: zeros, or what was there before.

        Args:
            name: of this set of tensors.
            shapes: shape and dtype of each.

        Raises:
            ConfigError: there is no room.
            CheckpointError: what is there was made for something else.
        """

    def allocate_blocks(self, name: str, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Blocks:
        """Room for compressed rows, with what was there before. How much it takes is known when they are written.

        Args:
            name: of the set of tensors.
            path: of the field.
            shape: [rows, lanes, ...].
            dtype: of the rows.

        Raises:
            ConfigError: there is no room, or nothing can be compressed here.
            CheckpointError: what is there was made for something else.
        """
        if self.device is not None:
            raise ConfigError(f"compression is for rows in main memory or in files, and these lie on {self.device}")
        return Blocks.around([b""] * _blocks(shape), shape, dtype)


@final
class MainMemory(Storage):
    """Main memory. A buffer that does not fit is refused before any of it is taken, instead of being killed later.

    Args:
        pinned: whether rows, and copies that are drawn from them, lie in page-locked memory. From there a copy to a GPU
            runs beside its computing. The system cannot use such memory for anything else, and taking much of it
            takes long.
        together: buffers of this size that take memory of this machine at the same time; each has its share.

    Raises:
        ConfigError: pinned memory was asked for and there is no CUDA.
    """

    def __init__(self, *, pinned: bool = False, together: int = 1) -> None:
        if pinned and not torch.cuda.is_available():
            raise ConfigError(
                "MainMemory(pinned=True) is for copies to a GPU, but torch finds no CUDA here; leave `pinned` out"
            )
        self.pinned, self._together = pinned, together

    def allocate(self, name: str, shapes: Shapes) -> dict[str, Tensor]:
        require_memory(shapes, self._together)
        if self.pinned:
            return {path: torch.zeros(shape, dtype=dtype, pin_memory=True) for path, (shape, dtype) in shapes.items()}
        # of numpy, which asks the system for huge pages: rows at random places are read a sixth faster from them
        return {path: torch.from_numpy(np.zeros(shape, numpy_dtype(dtype))) for path, (shape, dtype) in shapes.items()}


@final
class DeviceMemory(Storage):
    """Memory of a device: rows are written and drawn there, and only row numbers go to it.

    Step types and policy versions stay in main memory, where samplers look at them; they are handed out on the device
    with everything else.

    Args:
        device: `"cuda"` or `"cuda:1"`; `"cpu"` computes the same in main memory.

    Raises:
        ConfigError: there is no such device; the message says which there are.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = require_device(str(device), "DeviceMemory")

    def allocate(self, name: str, shapes: Shapes) -> dict[str, Tensor]:
        assert self.device is not None
        there = {path: spec for path, spec in shapes.items() if path not in BOOKKEEPING}
        here = {path: spec for path, spec in shapes.items() if path in BOOKKEEPING}
        _require_room(there, free_bytes(self.device), str(self.device), "rows in main memory (leave `storage` out)")
        tensors = {path: torch.zeros(shape, dtype=dtype, device=self.device) for path, (shape, dtype) in there.items()}
        return {**MainMemory().allocate(name, here), **tensors}


def free_bytes(device: torch.device) -> int | None:
    """Memory of a device that is free for this process; `None` where that is unknown.

    Args:
        device: which.
    """
    if device.type != "cuda":
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch gives that back


@final
class MappedFiles(Storage):
    """Files of a folder that are mapped into memory: the system keeps in memory what is used, and writes back the rest.

    Rows are in the files as soon as they are appended, so that a process which is killed loses none that was complete:
    a buffer made for the same folder continues with them. What a sampler knows is not there; a checkpoint has it.

    Args:
        directory: made where it is missing. Only one process may write to it.
    """

    mapped = True

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._made: dict[str, str] = {}  # what each new file is of; some file systems ignore case

    def allocate(self, name: str, shapes: Shapes) -> dict[str, Tensor]:
        self._make(name, shapes, {})
        return {path: self._mapped(name, path, shape, dtype) for path, (shape, dtype) in shapes.items()}

    def allocate_blocks(self, name: str, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Blocks:
        name, lanes, block = f"{name}.{path}", shape[1], (BLOCK_ROWS, *shape[2:])
        slots = _blocks(shape), -(-(_LENGTH + _size(block, dtype)) // _PAGE) * _PAGE
        needed: Shapes = {"which": ((lanes,), torch.int64), "open_rows": ((2, lanes, *block), dtype)}
        self._make(name, {**needed, f"of {slots}": ((0,), torch.uint8)}, {"blocks": math.prod(slots)})
        which, open_rows = (self._mapped(name, one, *spec) for one, spec in needed.items())
        mapped = self._mapped(name, "blocks", slots, torch.uint8)
        return Blocks(which, open_rows, BlockFile(self._file(name, "blocks"), mapped.numpy()))

    def _make(self, name: str, shapes: Shapes, holes: Mapping[str, int]) -> None:
        """Makes files of zeros where there are none; those of `holes` take room where something is written.

        The layout is there as `.tmp` while they are made, so that files without one have lost it.
        """
        layout = {path: [list(shape), str(dtype)] for path, (shape, dtype) in shapes.items()}
        described = self.directory / f"{name.replace('/', '_')}.json"
        self._require_apart(name, shapes, new=not described.exists())
        if described.exists():
            self._require_same(described, layout)
            return
        making, files = described.with_suffix(".tmp"), [self._file(name, path) for path in (*shapes, *holes)]
        if (left := next((file for file in files if file.exists()), None)) and not making.exists():
            raise CheckpointError(
                f"{described}, which says what {left.name} holds, is missing; bring it back or give another directory; "
                "delete these files if a run was killed before it began"
            )
        for file in files:
            file.unlink(missing_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.directory).free
        _require_room(shapes, free, f"the disk of {self.directory}", "another directory for MappedFiles")
        making.write_text(json.dumps(layout))
        for path, (shape, dtype) in shapes.items():
            _reserve(self._file(name, path), _size(shape, dtype))
        for path, size in holes.items():
            with self._file(name, path).open("wb") as file:
                file.truncate(size)
        making.rename(described)  # last: a folder with a description is whole

    def _mapped(self, name: str, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        file, size = self._file(name, path), _size(shape, dtype)
        found = file.stat().st_size if file.is_file() else "no"
        if found != size:
            raise CheckpointError(f"{file} has {found} bytes instead of {size}: it is missing or was cut off")
        if size == 0:
            return torch.zeros(shape, dtype=dtype)
        return torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=dtype).reshape(shape)

    def _require_apart(self, name: str, paths: Iterable[str], *, new: bool) -> None:
        for path in paths:
            file, own = str(self._file(name, path)).casefold(), f"{name}.{path}"
            if (other := self._made.get(file, own)) != own:
                raise ConfigError(
                    f"mapped files have no names apart for {other!r} and {own!r}, where / is _ and case may not count; "
                    "give one another name"
                )
            self._made |= {file: own} if new else {}

    def _require_same(self, described: Path, layout: Mapping[str, list[object]]) -> None:
        if (found := read_json(described)) != layout:
            raise CheckpointError(
                f"{described} describes rows of {found}, but this buffer needs {layout}; "
                "give the same specs, lanes and capacity, or another directory"
            )

    def _file(self, name: str, path: str) -> Path:
        return self.directory / f"{f'{name}.{path}'.replace('/', '_')}.bin"


def _reserve(path: Path, size: int) -> None:
    """Makes a file of zeros with room of its own: where there is none, who writes to a mapped file is killed."""
    with path.open("wb") as file:
        file.truncate(size)
        try:
            if size and hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise ConfigError(
                f"the buffer needs {_gigabytes(size)} for {path}, which cannot be had: {error}; give a smaller "
                "capacity or another directory for MappedFiles"
            ) from error


@final
class BlockFile:
    """Blocks in a file, each at the beginning of a slot that has room for it; only what is written is on the disk.

    Args:
        file: of whole slots.
        slots: [blocks, bytes], mapped from it.
    """

    def __init__(self, file: Path, slots: np.ndarray) -> None:
        self._file, self._slots = file, slots

    def __getitem__(self, number: int) -> np.ndarray:
        length = int.from_bytes(self._slots[number, :_LENGTH].tobytes(), "little")
        return self._slots[number, _LENGTH : _LENGTH + length]

    def __setitem__(self, number: int, block: bytes) -> None:
        begin, file = number * self._slots.shape[1], os.open(self._file, os.O_WRONLY)
        try:  # where the disk is full this is an error, and no signal
            if os.pwrite(file, block, begin + _LENGTH) < len(block):
                raise OSError(errno.ENOSPC, "a block of the buffer cannot be written", str(self._file))
            os.pwrite(file, len(block).to_bytes(_LENGTH, "little"), begin)
        finally:
            os.close(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self._slots)))


@final
class LoadedTensors(Storage):
    """Loaded tensors, for reading; nothing is copied.

    Args:
        tensors: by name, with as many rows as were written.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def allocate(self, name: str, shapes: Shapes) -> dict[str, Tensor]:
        return {path: saved_field(self.tensors, path, shape, dtype) for path, (shape, dtype) in shapes.items()}

    def allocate_blocks(self, name: str, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Blocks:
        saved: Any = saved_field(self.tensors, path, shape, dtype)
        return Blocks.around(saved.blocks, saved.shape, dtype, saved.block_rows)


def _blocks(shape: Sequence[int]) -> int:
    return -(-shape[0] // BLOCK_ROWS) * shape[1]


def saved_field(tensors: Mapping[str, Tensor], path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The saved rows of one field.

    Args:
        tensors: of a saved buffer.
        path: of the field.
        shape: needed, but for the number of rows.
        dtype: needed.

    Raises:
        CheckpointError: the field is missing or does not fit.
    """
    saved = tensors.get(f"field.{path}")
    given = None if saved is None else (tuple(saved.shape[1:]), saved.dtype)
    needed = (tuple(shape[1:]), dtype)
    if saved is None or given != needed:
        raise CheckpointError(f"the saved buffer field {path!r} has rows of {given}, but this one of {needed}")
    return saved


def available_bytes() -> int | None:
    """Main memory that is free for this process: of the machine, and of its container; `None` where that is unknown."""
    found = [value for value in (_free_of_machine(), *_free_of_cgroups(control_groups("memory"))) if value is not None]
    return min(found, default=None)


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):  # not on Linux: all that there is, for more never fits
        return memory_bytes()


def _free_of_cgroups(groups: Iterable[Path]) -> list[int | None]:
    """Memory that the limits of both kinds of control groups leave."""
    return [_free_of_group(folder, *names) for folder in groups for names in (_V1, _V2)]


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def _free_of_group(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group here, or the limit is "max"
        return None
    return max(0, most - used + int(statistics.get(reclaimable, 0)))


def require_memory(shapes: Shapes, together: int = 1) -> None:
    """Refuses what main memory has no room for, before any of it is taken.

    Args:
        shapes: shape and dtype of each tensor, by name.
        together: see `MainMemory`.

    Raises:
        ConfigError: says how much is needed, how much there is, and the ways out.
    """
    free, where = available_bytes(), "main memory"
    way_out = "storage=MappedFiles(directory) to keep rows on a disk"
    if together > 1 and free is not None:
        free, where = free // together, f"each of {together} shards on this machine"
        way_out = "shards on several machines (runtime=ray with an address)"
    _require_room(shapes, free, where, way_out)


def _require_room(shapes: Shapes, free: int | None, where: str, way_out: str) -> None:
    sizes = {path: _size(shape, dtype) for path, (shape, dtype) in shapes.items()}
    needed = sum(sizes.values())
    if free is not None and needed > free:
        largest = max(sizes, key=lambda path: sizes[path])
        raise ConfigError(
            f"the buffer needs {_gigabytes(needed)} ({largest} alone {_gigabytes(sizes[largest])}), but {where} has "
            f"{_gigabytes(free)} free; options: a smaller capacity, {way_out}, uint8 instead of float observations, "
            "frames of a stack stored once (a spec with `stacked`)"
        )


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * torch.empty(0, dtype=dtype).element_size()


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB ({size:,} bytes)"
