"""`Batch`: the one dynamic container. Any keys, nested, numpy and torch leaves together."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import optree
import torch
from torch.utils import _pytree as torch_pytree

from palaestra.core.errors import ShapeError, did_you_mean
from palaestra.core.storage import load_tensors, save_tensors

__all__ = ["Batch"]


class Batch:
    """Named fields that are indexed, sliced, masked and computed with together.

    Fields live in the instance's `__dict__`, so reading one costs nothing. Lists and tuples become numpy arrays,
    mappings become nested batches, lists of batches are stacked. A subclass that annotates fields is a typed layout:
    its constructor takes those fields, in order or by name, and no others.

    Args:
        fields: a mapping of fields, or the values of a layout's fields in order.
        named: fields by name.

    Raises:
        ShapeError: a list is ragged.
        TypeError: a layout's field is missing or unknown, or a name is one of `Batch`'s own methods.

    Example:
        >>> data = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
        >>> data[:, 1] += 6
        >>> data[-1]
        Batch(
            obs: Batch(
                     index: array([0., 6., 0.]),
                 ),
            act: tensor([0., 6.]),
        )
    """

    _layout: tuple[str, ...] = ()

    def __init__(self, *fields: Any, **named: Any) -> None:
        layout = self._layout
        if fields and isinstance(fields[0], Mapping | Batch) and not layout:
            named = {**dict(fields[0].items()), **named}
        elif fields:
            named = {**dict(zip(layout, fields, strict=False)), **named}
        if layout and set(named) != set(layout):
            missing, unknown = [k for k in layout if k not in named], [k for k in named if k not in layout]
            kind = type(self).__name__
            raise TypeError(f"{kind} needs the fields {list(layout)}: missing {missing}, unknown {unknown}")
        for key, value in named.items():
            setattr(self, key, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._layout = (*cls._layout, *(k for k in cls.__dict__.get("__annotations__", {}) if not k.startswith("_")))
        _register(cls)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """A batch of fields as they are: no conversion, no copy of a leaf, no check.

        Args:
            fields: by name.
        """
        batch = cls.__new__(cls)
        batch.__dict__.update(fields)
        return batch

    # -- fields

    def __setattr__(self, key: str, value: Any) -> None:
        if key in _RESERVED:
            raise TypeError(f"{key!r} is a method of Batch and cannot name a field; choose another name")
        self.__dict__[key] = _converted(key, value)

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no field {key!r}{did_you_mean(key, self.__dict__)}")

    def __contains__(self, key: object) -> bool:
        return key in self.__dict__

    def keys(self) -> Sequence[str]:
        """Names of the fields, in the order they were set."""
        return list(self.__dict__)

    def values(self) -> Sequence[Any]:
        """The fields' values."""
        return list(self.__dict__.values())

    def items(self) -> Sequence[tuple[str, Any]]:
        """(name, value) pairs."""
        return list(self.__dict__.items())

    def get(self, key: str, default: Any = None) -> Any:
        """One field, or a default where there is none.

        Args:
            key: its name.
            default: returned where the field is missing.
        """
        return self.__dict__.get(key, default)

    def update(self, other: Mapping[str, Any] | Batch | None = None, **named: Any) -> None:
        """Sets fields in place.

        Args:
            other: fields to take over.
            named: more fields.
        """
        for key, value in {**(dict(other.items()) if other is not None else {}), **named}.items():
            setattr(self, key, value)

    def replace(self, **named: Any) -> Self:
        """A batch of the same kind with some fields exchanged or added; the others are shared.

        Args:
            named: the new values, taken as they are.
        """
        return self.of({**self.__dict__, **named})

    @property
    def is_empty(self) -> bool:
        """Whether there are no fields."""
        return not self.__dict__

    # -- rows

    def __len__(self) -> int:
        fields = self.__dict__.items()
        lengths = {key: len(value) for key, value in fields if isinstance(value, Batch) or np.ndim(value)}
        if not lengths:
            raise TypeError("this Batch has no rows: its fields are scalars")
        if len(set(lengths.values())) > 1:
            raise ShapeError(f"the fields have lengths {lengths}; every field needs the same leading dimension")
        return next(iter(lengths.values()))

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """One field by its name; or, by anything that indexes an array, the same rows of every leaf."""
        if type(index) is str:
            try:
                return self.__dict__[index]
            except KeyError:
                raise KeyError(f"no field {index!r}{did_you_mean(index, self.__dict__)}") from None
        try:
            return self.of({key: value[index] for key, value in self.__dict__.items()})
        except (TypeError, IndexError) as error:
            raise type(error)(f"{error}{self._culprit(index)}") from None

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            setattr(self, index, value)
            return
        if isinstance(value, Batch) and value.keys() != self.keys() and set(value.keys()) != set(self.keys()):
            raise ShapeError(f"rows with the fields {value.keys()} cannot be written to a Batch of {self.keys()}")
        for key, leaf in self.__dict__.items():
            leaf[index] = value.__dict__[key] if isinstance(value, Batch) else value

    def _culprit(self, index: Any) -> str:
        for key, value in self.__dict__.items():
            try:
                value[index]
            except (TypeError, IndexError):
                shape = tuple(value.shape) if hasattr(value, "shape") else repr(value)
                return f" (field {key!r}: {shape}, index {index!r})"
        return ""

    def split(self, size: int, *, generator: torch.Generator | None = None, merge_last: bool = False) -> Iterator[Self]:
        """Parts of at most `size` rows.

        Args:
            size: rows in a part.
            generator: shuffles the rows first; `None` keeps their order.
            merge_last: whether a shorter last part joins the one before.
        """
        length = len(self)
        rows = self if generator is None else self[torch.randperm(length, generator=generator)]
        starts = list(range(0, length, size))
        if merge_last and len(starts) > 1 and length % size:
            starts.pop()
        for start, end in zip(starts, [*starts[1:], length], strict=True):
            yield rows[start:end]

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """One batch with the rows of all of them.

        Args:
            batches: at least one; all with the same fields.

        Raises:
            ShapeError: their fields differ.
        """
        return _join(batches, torch.cat, np.concatenate)

    @classmethod
    def stack(cls, batches: Sequence[Self], dim: int = 0) -> Self:
        """One batch with a new dimension that numbers them.

        Args:
            batches: at least one; all with the same fields and shapes.
            dim: where the new dimension goes.

        Raises:
            ShapeError: their fields differ.
        """
        return _join(batches, lambda xs: torch.stack(xs, dim), lambda xs: np.stack(xs, dim))

    # -- leaves

    def map(self, function: Callable[..., Any], *others: Batch) -> Self:
        """The function's result for every leaf.

        Args:
            function: takes a leaf, and the leaf of every other batch at the same place.
            others: batches with the same fields.
        """
        return self.of(
            {
                key: value.map(function, *(other.__dict__[key] for other in others))
                if isinstance(value, Batch)
                else function(value, *(other.__dict__[key] for other in others))
                for key, value in self.__dict__.items()
            }
        )

    def to_torch(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Every leaf as a torch tensor; numpy memory is shared where it can be.

        Args:
            dtype: cast floating-point leaves to this.
            device: move there.

        Raises:
            TypeError: a leaf holds objects or text.
        """

        def convert(leaf: Any) -> torch.Tensor:
            array = leaf if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
            if isinstance(array, np.ndarray):
                if array.dtype.kind not in "fiubc":
                    sample = array.reshape(-1)[:3]
                    raise TypeError(f"a leaf of dtype {array.dtype} ({sample} ...) cannot become a tensor")
                array = torch.from_numpy(array)
            return array.to(device=device, dtype=dtype if dtype is not None and array.is_floating_point() else None)

        return self.map(convert)

    def to_numpy(self) -> Self:
        """Every tensor as a numpy array; CPU memory is shared."""
        return self.map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf)

    def save(self, path: str | Path) -> None:
        """Writes the batch to one safetensors file; no pickle is involved.

        Args:
            path: of the file.
        """
        save_tensors(path, {".".join(key): leaf for key, leaf in _flat(self)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The batch that `save` wrote.

        Args:
            path: of the file.
        """
        root: dict[str, Any] = {}
        for key, leaf in load_tensors(path).items():
            *parents, name = key.split(".")
            node = root
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = leaf
        return cls(**root)

    # -- arithmetic over leaves

    def _binary(self, other: Any, function: Callable[[Any, Any], Any]) -> Self:
        return self.map(function, other) if isinstance(other, Batch) else self.map(lambda leaf: function(leaf, other))

    def _inplace(self, other: Any, function: Callable[[Any, Any], Any]) -> Self:
        for key, value in self._binary(other, function).__dict__.items():
            self.__dict__[key] = value
        return self

    def __add__(self, other: Any) -> Self:
        return self._binary(other, operator.add)

    def __sub__(self, other: Any) -> Self:
        return self._binary(other, operator.sub)

    def __mul__(self, other: Any) -> Self:
        return self._binary(other, operator.mul)

    def __truediv__(self, other: Any) -> Self:
        return self._binary(other, operator.truediv)

    def __iadd__(self, other: Any) -> Self:
        return self._inplace(other, operator.iadd)

    def __isub__(self, other: Any) -> Self:
        return self._inplace(other, operator.isub)

    def __imul__(self, other: Any) -> Self:
        return self._inplace(other, operator.imul)

    def __itruediv__(self, other: Any) -> Self:
        return self._inplace(other, operator.itruediv)

    def __repr__(self) -> str:
        if self.is_empty:
            return f"{type(self).__name__}()"
        lines = [f"{type(self).__name__}("]
        for key, value in self.__dict__.items():
            text = repr(value).replace("\n", "\n" + " " * (len(key) + 6))
            lines.append(f"    {key}: {text},")
        return "\n".join([*lines, ")"])


_RESERVED = frozenset(name for name in dir(Batch) if not name.startswith("__"))


def _converted(key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray | Batch | str | int | float | np.generic) or value is None:
        return value
    if isinstance(value, Mapping):
        return Batch(value)
    if isinstance(value, list | tuple):
        return _array(key, value)
    return value


def _array(key: str, values: Sequence[Any]) -> Any:
    if values and all(isinstance(value, torch.Tensor) for value in values):
        return torch.stack(list(values))
    if values and all(isinstance(value, Batch | Mapping) for value in values):
        return Batch.stack([value if isinstance(value, Batch) else Batch(value) for value in values])
    try:
        array = np.asanyarray(values)
    except ValueError as error:
        raise ShapeError(f"field {key!r} is ragged: {error}; pad it, or keep its parts in separate fields") from None
    return array.astype(object) if array.dtype.kind in "US" else array


def _join(batches: Sequence[Any], torch_join: Callable[..., Any], numpy_join: Callable[..., Any]) -> Any:
    if not batches:
        raise ShapeError("no batches were given; at least one is needed")
    first = batches[0]
    fields: dict[str, Any] = {}
    for batch in batches:
        if batch.__dict__.keys() != first.__dict__.keys():
            raise ShapeError(f"batches have different fields: {first.keys()} and {batch.keys()}; they must be equal")
    for key, value in first.__dict__.items():
        leaves = [batch.__dict__[key] for batch in batches]
        try:
            if isinstance(value, Batch):
                fields[key] = _join(leaves, torch_join, numpy_join)
            elif isinstance(value, torch.Tensor):
                fields[key] = torch_join(leaves)
            else:
                fields[key] = numpy_join(leaves)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ShapeError):
                raise
            raise ShapeError(f"field {key!r} cannot be joined: {error}") from None
    return type(first).of(fields)


def _flat(batch: Batch, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in batch.items():
        if isinstance(value, Batch):
            yield from _flat(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _register(cls: type[Batch]) -> None:
    """Makes a batch class a node of optree and torch pytrees, with its fields in sorted order."""

    def flatten(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
        keys = tuple(sorted(batch.__dict__))
        return [batch.__dict__[key] for key in keys], keys

    def flatten_with_entries(batch: Batch) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
        children, keys = flatten(batch)
        return children, keys, keys

    optree.register_pytree_node(
        cls,
        flatten_with_entries,  # pyright: ignore[reportArgumentType]
        lambda keys, children: cls.of(dict(zip(keys, children, strict=True))),  # pyright: ignore[reportArgumentType]
        namespace=optree.registry.__GLOBAL_NAMESPACE,  # pyright: ignore[reportAttributeAccessIssue]
    )
    torch_pytree.register_pytree_node(
        cls,
        flatten,
        lambda children, keys: cls.of(dict(zip(keys, children, strict=True))),
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )


_register(Batch)
