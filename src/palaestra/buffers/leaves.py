"""The rows of one plain field, in main memory or on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.core import as_array, as_tensor, numpy_dtype

__all__ = ["DeviceLeaf", "HostLeaf", "Leaf"]


class Leaf(ABC):
    """A tensor of rows; row numbers are `t * lanes + b`.

    Args:
        tensor: [rows, lanes, ...].
        stacked: of so many frames only the newest one is in the tensor.
    """

    def __init__(self, tensor: Tensor, stacked: int = 1) -> None:
        self.tensor, self.stacked, self.dtype = tensor, stacked, tensor.dtype
        self.numpy_dtype = numpy_dtype(tensor.dtype)
        lanes, *shape = tensor.shape[1:]
        self.row_shape = (lanes, *([stacked] if stacked > 1 else []), *shape)
        """[lanes, ...] as it is given."""
        self.direct = False
        """Whether bytes of a row that is given can be copied as they are."""

    @abstractmethod
    def given(self, value: Any) -> Any:
        """A value as `write` takes it: something with a shape and a dtype.

        Args:
            value: a tensor from anywhere, an array, or a list.
        """

    @abstractmethod
    def write_row(self, row: int, given: Any) -> None:
        """Writes one row of all lanes.

        Args:
            row: where.
            given: [lanes, ...].
        """

    @abstractmethod
    def write(self, numbers: np.ndarray, given: Any) -> None:
        """Writes rows of some lanes.

        Args:
            numbers: row numbers.
            given: [*numbers.shape, ...], or 0.
        """

    @abstractmethod
    def take(self, index: np.ndarray) -> Tensor:
        """A copy of rows.

        Args:
            index: row numbers of any shape; past the end they start again at the front.
        """

    @abstractmethod
    def take_frames(self, index: np.ndarray, before: np.ndarray) -> Tensor:
        """A copy of rows, with zeros in the place of some.

        Args:
            index: row numbers of any shape.
            before: whether each is not to be seen.
        """

    @final
    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copies rows to other places.

        Args:
            source: row numbers.
            target: row numbers.
        """
        self.write(target, self.given(self.take(source)))


@final
class HostLeaf(Leaf):
    """Rows in main memory, written and read through numpy views of them.

    Args:
        tensor: [rows, lanes, ...].
        stacked: see `Leaf`.
        pinned: whether copies lie in page-locked memory, from where they go to a GPU beside its computing.
    """

    def __init__(self, tensor: Tensor, stacked: int = 1, *, pinned: bool = False) -> None:
        super().__init__(tensor, stacked)
        self.array = tensor.numpy()
        self.flat = tensor.flatten(0, 1).numpy()  # [rows * lanes, ...]
        self.row_bytes, self.pointer = tensor[:1].nbytes, tensor.data_ptr()
        self.direct, self._pinned = stacked == 1, pinned

    def given(self, value: Any) -> np.ndarray:
        return value.numpy() if type(value) is Tensor and value.is_cpu else np.asarray(as_array(value))

    def write_row(self, row: int, given: Any) -> None:
        self.array[row] = given

    def write(self, numbers: np.ndarray, given: Any) -> None:
        self.flat[numbers] = given

    def take(self, index: np.ndarray) -> Tensor:
        if not self._pinned:
            return torch.from_numpy(self.flat.take(index, 0, None, "wrap"))
        rows = torch.empty((*index.shape, *self.flat.shape[1:]), dtype=self.dtype, pin_memory=True)
        self.flat.take(index, 0, rows.numpy(), "wrap")
        return rows

    def take_frames(self, index: np.ndarray, before: np.ndarray) -> Tensor:
        frames = self.take(index)
        if before.any():
            frames.numpy()[before] = 0
        return frames


@final
class DeviceLeaf(Leaf):
    """Rows on a device: only row numbers, and what is given from elsewhere, go there.

    Args:
        tensor: [rows, lanes, ...].
        stacked: see `Leaf`.
    """

    def __init__(self, tensor: Tensor, stacked: int = 1) -> None:
        super().__init__(tensor, stacked)
        self._flat = tensor.flatten(0, 1)  # [rows * lanes, ...]

    def given(self, value: Any) -> Any:
        return value if isinstance(value, Tensor) else np.asarray(value)

    def write_row(self, row: int, given: Any) -> None:
        self.tensor[row].copy_(as_tensor(given, None, None), non_blocking=True)

    def write(self, numbers: np.ndarray, given: Any) -> None:
        where = self._there(numbers)
        if isinstance(given, int):
            self._flat.index_fill_(0, where, given)
            return
        rows = as_tensor(given, None, None).to(self.tensor.device, non_blocking=True)
        self._flat.index_copy_(0, where, rows.reshape(where.numel(), *self._flat.shape[1:]))

    def take(self, index: np.ndarray) -> Tensor:
        return self._flat.index_select(0, self._there(index)).reshape(*index.shape, *self._flat.shape[1:])

    def take_frames(self, index: np.ndarray, before: np.ndarray) -> Tensor:
        frames = self.take(index)
        unseen = torch.from_numpy(before).to(frames.device, non_blocking=True)
        return frames.masked_fill_(unseen.reshape(*before.shape, *(1,) * (frames.ndim - before.ndim)), 0)

    def _there(self, numbers: np.ndarray) -> Tensor:
        """[n] row numbers on the device."""
        inside = np.asarray(numbers).reshape(-1) % len(self._flat)
        return torch.from_numpy(inside).to(self.tensor.device, non_blocking=True)
