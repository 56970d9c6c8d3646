"""Storage of streams: one contiguous tensor per field, rows by lanes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.leaves import DeviceLeaf, HostLeaf, Leaf
from palaestra.buffers.memory import BOOKKEEPING, MainMemory, Memory
from palaestra.core import Batch, ShapeError, SpecTree, StepType, TensorSpec, as_array, spec_leaves

__all__ = ["LaneStorage"]


# The same function, called without releasing the interpreter lock: a row is copied in less time than that takes.
_copy_bytes = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


_FIRST = int(StepType.FIRST)


class LaneStorage:
    """Preallocated `[rows, lanes, ...]` tensors.

    Args:
        rows: rows of each lane.
        lanes: number of lanes.
        specs: spec tree of every field by name.
        stacks: whether stacks of frames are stored whole; otherwise only the newest frame of each, and what is read is
            put together from the rows before, up to the FIRST one (field `step_type`).
        name: of this storage, where its memory is files.
        memory: where the tensors lie; main memory by default.

    Raises:
        ConfigError: there is no room for them.
    """

    def __init__(
        self,
        rows: int,
        lanes: int,
        specs: Mapping[str, SpecTree],
        *,
        name: str = "rows",
        stacks: bool = True,
        memory: Memory | None = None,
    ) -> None:
        self.rows, self.lanes, self._name, self._stacks, self._memory = rows, lanes, name, stacks, memory
        self.specs = dict(specs)
        self._children: dict[str, list[str]] = {}
        stacked: dict[str, int] = {}
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for field, spec in specs.items():
            self._learn_structure(field, spec)
            for path, leaf in spec_leaves(spec, field).items():
                stacked[path] = 1 if stacks else leaf.stacked
                shapes[path] = ((rows, lanes, *(leaf.shape if stacked[path] == 1 else leaf.shape[1:])), leaf.dtype)
        # A buffer grows while a policy acts, and what is learned from must not be an inference tensor.
        with torch.inference_mode(False):
            memory = memory or MainMemory()
            tensors = memory.allocate(self._name, shapes)
            self.device = memory.device
            """Where what is read lies; `None` for main memory."""
            self._leaves: dict[str, Leaf] = {
                path: HostLeaf(tensor, stacked[path], pinned=memory.pinned)
                if memory.device is None or path in BOOKKEEPING
                else DeviceLeaf(tensor, stacked[path])
                for path, tensor in tensors.items()
            }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path; a nested field has one for each leaf."""
        return {path: leaf.tensor for path, leaf in self._leaves.items()}

    @property
    def size_bytes(self) -> int:
        """Memory of all fields."""
        return sum(leaf.tensor.nbytes for leaf in self._leaves.values())

    def checked(self, name: str, value: Any, *leading: int) -> list[tuple[str, Any]]:
        """The arrays or tensors of a value, each with the path of its leaf.

        Nothing is cast or broadcast: what an assignment would do in silence is refused.

        Args:
            name: of the field.
            value: a tensor or array; for a nested field a batch, mapping or tuple of them.
            leading: its leading dimensions; none stands for `[lanes]`.

        Raises:
            ShapeError: structure, shape or dtype is not the field's; the message says what was given and is needed.
        """
        leaf = self._leaves.get(name)
        if leaf is None:
            return [pair for path, part in self._parts(name, value) for pair in self.checked(path, part, *leading)]
        given = leaf.given(value)
        shape = (*leading, *leaf.row_shape[1:]) if leading else leaf.row_shape
        if given.shape != shape or given.dtype not in (leaf.numpy_dtype, leaf.dtype):
            _refuse(name, given, leaf.numpy_dtype, shape)
        if leaf.stacked > 1:
            given = given[(*(slice(None),) * (len(leading) or 1), -1)]
        return [(name, given)]

    def write_rows(self, names: Sequence[str], values: Sequence[Any], rows: Sequence[int]) -> None:
        """Writes one row of all lanes of several fields; if one is refused, none is written.

        Args:
            names: of the fields.
            values: one for each.
            rows: where each goes.

        Raises:
            ShapeError: see `checked`.
        """
        copies: list[tuple[int, int, int]] = []
        others: list[tuple[Leaf, int, Any]] = []
        leaves = self._leaves
        for name, value, row in zip(names, values, rows, strict=True):
            leaf = leaves.get(name)
            # `Tensor.numpy` alone would take longer than the rest: where all bytes fit, they are copied as they are
            if (
                isinstance(leaf, HostLeaf)
                and value.__class__ is Tensor
                and value.dtype is leaf.dtype
                and value.shape == leaf.row_shape
                and value.is_contiguous()
                and value.is_cpu
                and leaf.direct
            ):
                copies.append((leaf.pointer + row * leaf.row_bytes, value.data_ptr(), leaf.row_bytes))
            else:
                others += [(leaves[path], row, given) for path, given in self.checked(name, value)]
        for target, source, size in copies:
            _copy_bytes(target, source, size)
        for leaf, row, given in others:
            leaf.write_row(row, given)

    def row_writer(self) -> Callable[..., bool]:
        """A function that writes one row of all lanes as fast as can be, for rows of plain fields.

        Returns:
            `write(action, step_type, reward, discount, observation, row, next_row)`: the action goes to `row`, the rest
            to `next_row`. It says False, and has written nothing, where `write_rows` has to look at the values.
        """
        found = [self._leaves.get(name) for name in ("action", "step_type", "reward", "discount", "observation")]
        leaves = [leaf for leaf in found if isinstance(leaf, HostLeaf) and leaf.direct]
        if len(leaves) < len(found):
            return lambda *values: False
        a, k, r, c, o = leaves
        dtypes, shapes = [leaf.dtype for leaf in leaves], [leaf.row_shape for leaf in leaves]
        (da, dk, dr, dc, do), (sa, sk, sr, sc, so) = [leaf.numpy_dtype for leaf in leaves], shapes
        actions, kinds, rewards, discounts, observations = [leaf.array for leaf in leaves]
        plain, array = [Tensor] * len(leaves), np.ndarray

        def write(
            action: Any, step_type: Any, reward: Any, discount: Any, observation: Any, row: int, next_row: int
        ) -> bool:
            if observation.__class__ is array:  # one comparison after the other: lists would take twice as long
                if (
                    (action.__class__ is array and step_type.__class__ is array and reward.__class__ is array)
                    and (discount.__class__ is array and observation.dtype is do and action.dtype is da)
                    and (step_type.dtype is dk and reward.dtype is dr and discount.dtype is dc)
                    and (observation.shape == so and action.shape == sa and step_type.shape == sk)
                    and (reward.shape == sr and discount.shape == sc)
                ):
                    actions[row] = action
                    kinds[next_row] = step_type
                    rewards[next_row] = reward
                    discounts[next_row] = discount
                    observations[next_row] = observation
                    return True
                return False
            values = [action, step_type, reward, discount, observation]
            if [value.__class__ for value in values] != plain:
                return False
            if [value.dtype for value in values] != dtypes or [value.shape for value in values] != shapes:
                return False
            # `Tensor.numpy` alone would take longer than the rest: where all bytes fit, they are copied as they are
            for value in values:
                if not (value.is_contiguous() and value.is_cpu):
                    return False
            _copy_bytes(a.pointer + row * a.row_bytes, action.data_ptr(), a.row_bytes)
            _copy_bytes(k.pointer + next_row * k.row_bytes, step_type.data_ptr(), k.row_bytes)
            _copy_bytes(r.pointer + next_row * r.row_bytes, reward.data_ptr(), r.row_bytes)
            _copy_bytes(c.pointer + next_row * c.row_bytes, discount.data_ptr(), c.row_bytes)
            _copy_bytes(o.pointer + next_row * o.row_bytes, observation.data_ptr(), o.row_bytes)
            return True

        return write

    def write(self, checked: Iterable[tuple[str, Any]], numbers: np.ndarray) -> None:
        """Writes rows of some lanes.

        Args:
            checked: from `checked`.
            numbers: row numbers `t * lanes + b`, of the shape of the leading dimensions.
        """
        for path, given in checked:
            self._leaves[path].write(numbers, given)

    def zero(self, names: Iterable[str], numbers: np.ndarray) -> None:
        """Writes zeros.

        Args:
            names: of the fields.
            numbers: row numbers.
        """
        names = set(names)
        for path, leaf in self._leaves.items():
            if path.split(".")[0] in names:
                leaf.write(numbers, 0)

    def take(self, name: str, index: np.ndarray) -> Any:
        """A copy of one field at flat row numbers.

        Args:
            name: of the field.
            index: row numbers `t * lanes + b`, of any shape; past the end they start again at the front.

        Returns:
            A tensor of shape `[*index.shape, ...]`, or a `Batch` of them for a nested field.
        """
        leaf = self._leaves.get(name)
        if leaf is not None:
            rows = leaf.take(index) if leaf.stacked == 1 else self._frames(leaf, index)
            return rows if self.device is None else self._handed(rows)
        return self._nested(name, lambda path: self.take(path, index))

    def array(self, name: str) -> np.ndarray:
        """All rows of a field of bookkeeping, [rows, lanes]: a view of main memory, on every device.

        Args:
            name: `step_type` or `policy_version`.
        """
        return self._leaves[name].tensor.numpy()

    def _handed(self, rows: Tensor) -> Tensor:
        """Bookkeeping is in main memory, and is handed out with the rest."""
        return rows.to(self.device, non_blocking=True)

    def parts(self, name: str) -> list[str]:
        """Names of the parts of a nested field; none of a plain one.

        Args:
            name: of the field.
        """
        return self._children.get(name, [])

    def view(self, name: str, rows: slice) -> Any:
        """A view of consecutive rows of all lanes: no copy.

        Args:
            name: of the field.
            rows: a slice of ring positions.
        """
        leaf = self._leaves.get(name)
        if leaf is None:
            return self._nested(name, lambda path: self.view(path, rows))
        if leaf.stacked > 1:
            return self.take(name, np.arange(rows.start, rows.stop)[:, None] * self.lanes + np.arange(self.lanes))
        return leaf.tensor[rows] if self.device is None else self._handed(leaf.tensor[rows])

    # -- stacks of frames

    def _frames(self, leaf: Leaf, index: np.ndarray) -> Tensor:
        """Stacks put together: [*index.shape, stacked, ...], the newest frame last, zeros from before the episode."""
        back, kinds = np.arange(leaf.stacked - 1, -1, -1), self.array("step_type")
        index = np.asarray(index)[..., None]
        begins = kinds.take(index - self.lanes * back[1:][::-1], mode="wrap") == _FIRST
        reach = np.where(begins.any(-1, keepdims=True), begins.argmax(-1)[..., None], leaf.stacked - 1)
        return leaf.take_frames(index - self.lanes * back, back > reach)

    def write_stacks(self, name: str, value: Any, chosen: np.ndarray, numbers: np.ndarray) -> None:
        """Writes the older frames of stacks to the rows before.

        Args:
            name: of the field.
            value: `[lanes, stacked, ...]`, or a nest of them.
            chosen: [lanes] which of them.
            numbers: [n, number of chosen] row numbers, oldest first, for the frames before the newest; a leaf with
                shorter stacks has frames for the last of them.
        """
        for path, given in self._stacked_leaves(name, value):
            older = given[chosen, :-1].swapaxes(0, 1)
            self._leaves[path].write(numbers[len(numbers) - len(older) :], older)

    def stacks_agree(self, name: str, value: Any, first: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Whether stacks will be read as they are given.

        Args:
            name: of the field.
            value: `[N, stacked, ...]`, or a nest of them.
            first: [N] whether an episode begins.
            numbers: [N] where they will be written.

        Returns:
            [N] booleans.
        """
        agrees = np.ones(len(numbers), bool)
        for path, given in self._stacked_leaves(name, value):
            leaf = self._leaves[path]
            # at the row before, without its oldest frame
            older = as_array(self._frames(leaf, numbers - self.lanes))[:, 1:]
            expected = np.where(first.reshape(-1, *(1,) * (older.ndim - 1)), 0, older)
            agrees &= (given[:, :-1] == expected).reshape(len(numbers), -1).all(1)
        return agrees

    def _stacked_leaves(self, name: str, value: Any) -> list[tuple[str, np.ndarray]]:
        leaf = self._leaves.get(name)
        if leaf is None:
            return [pair for path, part in self._parts(name, value) for pair in self._stacked_leaves(path, part)]
        return [(name, np.asarray(as_array(value)))] if leaf.stacked > 1 else []

    # -- moving

    def move(self, source: Any, target: Any) -> None:
        """Copies rows of every field to other places.

        Args:
            source: row numbers.
            target: row numbers.
        """
        for leaf in self._leaves.values():
            leaf.move(source, target)

    def resized(self, rows: int, order: np.ndarray) -> LaneStorage:
        """Storage of the same fields and another length, with rows of this one at its front.

        Args:
            rows: its length.
            order: [n, lanes] which rows of each lane.
        """
        other = LaneStorage(rows, self.lanes, self.specs, name=self._name, stacks=self._stacks, memory=self._memory)
        for path, leaf in self._leaves.items():
            other._leaves[path].tensor[: len(order)] = leaf.take(order * self.lanes + np.arange(self.lanes))
        return other

    def _parts(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """The children of a nested value by path, in the order of the spec."""
        children = self._children[name]
        if isinstance(value, tuple):
            value = {str(i): part for i, part in enumerate(value)}
        given = list(value.keys()) if isinstance(value, Batch | Mapping) else type(value).__name__
        if not isinstance(value, Batch | Mapping) or set(value.keys()) != set(children):
            raise ShapeError(f"{name} has the leaves {given}, but the buffer was made for {children}")
        return [(f"{name}.{key}", value[key]) for key in children]

    def _nested(self, name: str, get: Any) -> Batch:
        return Batch.of({key: get(f"{name}.{key}") for key in self._children[name]})

    def _learn_structure(self, path: str, spec: SpecTree) -> None:
        if isinstance(spec, TensorSpec):
            return
        children = {str(key): child for key, child in (spec.items() if isinstance(spec, dict) else enumerate(spec))}
        self._children[path] = list(children)
        for key, child in children.items():
            self._learn_structure(f"{path}.{key}", child)


def _refuse(name: str, given: Any, dtype: np.dtype, shape: tuple[int, ...]) -> NoReturn:
    kind = str(given.dtype).removeprefix("torch.")
    raise ShapeError(
        f"{name} is {kind} of shape {tuple(given.shape)}, but the buffer was made for {dtype} of shape {shape}"
    )
