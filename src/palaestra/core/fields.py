"""`Fields`: what batches compute and are compared with, and how several become one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from palaestra.core.errors import ShapeError
from palaestra.core.tree import array_of

__all__: list[str] = []


_Operator: TypeAlias = Callable[[Any, Any], Any]


def _operators(function: _Operator, inplace: _Operator) -> tuple[_Operator, _Operator, _Operator]:
    """Methods of an operator: with the batch on its left, on its right, and in place."""

    def left(batch: Any, other: Any) -> Any:
        return (
            batch.map(function, other) if isinstance(other, Fields) else batch.map(lambda leaf: function(leaf, other))
        )

    def right(batch: Any, other: Any) -> Any:
        return batch.map(lambda leaf: function(other, leaf))

    return left, right, lambda batch, other: _compute_inplace(batch, other, inplace)


class Fields:
    """Named values in `__dict__`, some of them `Fields` again: arithmetic over leaves, and equality."""

    _layout: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """One with these fields."""
        raise NotImplementedError

    def map(self, function: Callable[..., Any], *others: Any) -> Self:
        """The function's result for every leaf.

        Args:
            function: takes a leaf, and the leaf of every other one at the same place.
            others: with the same fields.
        """
        raise NotImplementedError

    @property
    def shape(self) -> list[int]:
        """The shape that all leaves have, dimension by dimension the smallest; `[]` where one has none, as in Tianshou.

        A field of this name is `batch["shape"]`.
        """
        shapes = [value.shape if isinstance(value, Fields) else np.shape(value) for value in self.__dict__.values()]
        return [min(sizes) for sizes in zip(*shapes, strict=False)]

    __add__, __radd__, __iadd__ = _operators(operator.add, operator.iadd)
    __sub__, __rsub__, __isub__ = _operators(operator.sub, operator.isub)
    __mul__, __rmul__, __imul__ = _operators(operator.mul, operator.imul)
    __truediv__, __rtruediv__, __itruediv__ = _operators(operator.truediv, operator.itruediv)

    def __neg__(self) -> Self:
        return self.map(operator.neg)

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same fields with equal values: one answer, not one for each row."""
        if not isinstance(other, Fields):
            return NotImplemented
        fields, others = self.__dict__, other.__dict__
        return fields.keys() == others.keys() and all(_equal(value, others[key]) for key, value in fields.items())

    __hash__ = object.__hash__


def require_same_fields(batch: Fields, others: Sequence[Any]) -> None:
    """Refuses batches whose fields are not those of the first."""
    for other in others:
        if not isinstance(other, Fields) or other.__dict__.keys() != batch.__dict__.keys():
            given = list(other.__dict__) if isinstance(other, Fields) else type(other).__name__
            raise ShapeError(f"batches have different fields: {list(batch.__dict__)} and {given}; they must be equal")


def _equal(one: Any, other: Any) -> bool:
    """Whether two values of a field are equal."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def padded(batches: Sequence[Any], *, keep_rows: bool) -> Sequence[Any]:
    """The batches with zeros where they lack a field that another one has; themselves where all have the same."""
    if not batches or not all(_open(batch) for batch in batches) or _alike(batches):
        return batches
    keys = dict.fromkeys(key for batch in batches for key in batch.__dict__)
    columns = [_padded([batch.__dict__.get(key) for batch in batches], batches, keep_rows) for key in keys]
    return [type(batches[0]).of(dict(zip(keys, row, strict=True))) for row in zip(*columns, strict=True)]


def _padded(values: Sequence[Any], batches: Sequence[Any], keep_rows: bool) -> Sequence[Any]:
    """What batches have under one key; those that have nothing get zeros, of as many rows as they have."""
    there = [value for value in values if not _lacks(value)]
    if 0 < len(there) < len(values):
        rows = [
            len(batch) if keep_rows and _lacks(value) else None for value, batch in zip(values, batches, strict=True)
        ]
        values = [_zeros(there[0], n) if _lacks(value) else value for value, n in zip(values, rows, strict=True)]
    return padded(values, keep_rows=keep_rows) if all(isinstance(value, Fields) for value in values) else values


def _lacks(value: Any) -> bool:
    return value is None or (isinstance(value, Fields) and not value.__dict__)


def _open(batch: Any) -> bool:
    """Whether a batch may have any fields: it is no layout."""
    return isinstance(batch, Fields) and not type(batch)._layout


def _alike(batches: Sequence[Any]) -> bool:
    """Whether all have the same fields, and nested batches too."""
    first = batches[0].__dict__
    if any(not _open(batch) or batch.__dict__.keys() != first.keys() for batch in batches):
        return False
    nested = [key for key, value in first.items() if isinstance(value, Fields)]
    return all(_alike([batch.__dict__[key] for batch in batches]) for key in nested)


def _zeros(like: Any, rows: int | None) -> Any:
    """Zeros as another value is, with as many rows; `None` keeps its shape."""
    if isinstance(like, Fields):
        return like.map(lambda leaf: _zeros(leaf, rows))
    shape = np.shape(like) if rows is None else (rows, *np.shape(like)[1:])
    if isinstance(like, torch.Tensor):
        return like.new_zeros(shape)
    array = np.asarray(like)
    return np.full(shape, None) if array.dtype.kind in "OUS" else np.zeros(shape, array.dtype)


def joined(batches: Sequence[Any], torch_join: Callable[..., Any], numpy_join: Callable[..., Any]) -> Any:
    """One batch of the first one's class, each leaf made of the leaves at the same place."""
    if not batches:
        raise ShapeError("no batches were given; at least one is needed")
    first = batches[0]
    require_same_fields(first, batches[1:])
    fields: dict[str, Any] = {}
    for key, value in first.__dict__.items():
        leaves = [batch.__dict__[key] for batch in batches]
        if isinstance(value, Fields):
            fields[key] = joined(leaves, torch_join, numpy_join)
            continue
        try:
            fields[key] = torch_join(leaves) if isinstance(value, torch.Tensor) else array_of(key, numpy_join(leaves))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ShapeError(f"field {key!r} cannot be joined: {error}") from None
    return type(first).of(fields)


def _compute_inplace(batch: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Runs an in-place operator on every leaf."""
    if isinstance(other, Fields):
        require_same_fields(batch, [other])
    fields = batch.__dict__
    for key, value in fields.items():
        operand = other.__dict__[key] if isinstance(other, Fields) else other
        nested = isinstance(value, Fields)
        fields[key] = _compute_inplace(value, operand, function) if nested else function(value, operand)
    return batch
