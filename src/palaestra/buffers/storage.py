"""Storage of streams: one contiguous tensor per field, rows by lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, ShapeError, SpecTree, TensorSpec, spec_leaves

__all__ = ["LaneStorage"]


class LaneStorage:
    """Preallocated `[rows, lanes, ...]` tensors, written through numpy views of the same memory.

    Args:
        rows: rows of each lane.
        lanes: number of lanes.
        specs: spec tree of every field by name.
    """

    def __init__(self, rows: int, lanes: int, specs: Mapping[str, SpecTree]) -> None:
        self.rows, self.lanes = rows, lanes
        self.specs = dict(specs)
        self.tensors: dict[str, Tensor] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._flat: dict[str, np.ndarray] = {}
        for name, spec in specs.items():
            for path, leaf in spec_leaves(spec, name).items():
                tensor = leaf.zeros(rows, lanes)
                self.tensors[path] = tensor
                self._arrays[path] = tensor.numpy()
                self._flat[path] = tensor.flatten(0, 1).numpy()

    @property
    def size_bytes(self) -> int:
        """Memory of all fields."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, name: str, index: Any, value: Any) -> None:
        """Writes one field of one or more rows.

        Args:
            name: of the field.
            index: anything that indexes `[rows, lanes]`.
            value: a tensor, or a nest of tensors for a nested spec.
        """
        if isinstance(value, Tensor):
            self._arrays[name][index] = value.numpy()
        elif isinstance(value, Batch):
            for key, part in value.items():
                self.write(f"{name}.{key}", index, part)
        else:
            self._arrays[name][index] = value

    def check(self, name: str, value: Any, *leading: int) -> None:
        """Refuses a value whose structure, shape or dtype is not the field's; writing alone would broadcast or cast.

        Args:
            name: of the field.
            value: a tensor or a nest of tensors.
            leading: the leading dimensions it must have.

        Raises:
            ShapeError: names the leaf, what was given and what is needed.
        """
        given = {path: leaf for path, leaf in _leaves(name, value)}
        needed = spec_leaves(self.specs[name], name)
        if given.keys() != needed.keys():
            raise ShapeError(f"{name} has the leaves {sorted(given)}, but the buffer was made for {sorted(needed)}")
        for path, spec in needed.items():
            leaf = torch.as_tensor(given[path])
            shape = (*leading, *spec.shape)
            if tuple(leaf.shape) != shape or leaf.dtype != spec.dtype:
                raise ShapeError(
                    f"{path} is {leaf.dtype} of shape {tuple(leaf.shape)}, but the buffer was made for {spec.dtype} "
                    f"of shape {shape}"
                )

    def take(self, name: str, index: np.ndarray) -> Any:
        """A copy of one field at flat row numbers.

        Args:
            name: of the field.
            index: row numbers `t * lanes + b`, of any shape.

        Returns:
            A tensor of shape `[*index.shape, ...]`, or a `Batch` of them for a nested field.
        """
        spec = self.specs[name]
        return self._nest(spec, name, lambda path: torch.from_numpy(self._flat[path].take(index, axis=0)))

    def flat(self, name: str) -> np.ndarray:
        """All rows of a plain field as `[rows * lanes, ...]`: a view.

        Args:
            name: of the field.
        """
        return self._flat[name]

    def view(self, name: str, rows: slice) -> Any:
        """A view of consecutive rows of all lanes: no copy.

        Args:
            name: of the field.
            rows: a slice of ring positions.
        """
        return self._nest(self.specs[name], name, lambda path: self.tensors[path][rows])

    def move_row(self, source: int, target: int) -> None:
        """Copies one row of all lanes to another place.

        Args:
            source: ring position.
            target: ring position.
        """
        for array in self._arrays.values():
            array[target] = array[source]

    def _nest(self, spec: SpecTree, path: str, get: Any) -> Any:
        if isinstance(spec, TensorSpec):
            return get(path)
        items = spec.items() if isinstance(spec, dict) else enumerate(spec)
        return Batch.of({str(key): self._nest(child, f"{path}.{key}", get) for key, child in items})


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, Batch):
        return [(path, value)]
    return [leaf for key, part in value.items() for leaf in _leaves(f"{path}.{key}", part)]
