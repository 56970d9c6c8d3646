"""`Batch`: the one dynamic container. Any keys, nested, numpy and torch leaves together."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch

from palaestra.core.errors import CheckpointError, ShapeError, did_you_mean
from palaestra.core.fields import Fields, joined, padded, require_same_fields
from palaestra.core.files import join_state, load_tensors, save_tensors, split_state
from palaestra.core.tree import array_of, as_array, as_tensor, index_for, register_batch, rows_by, tree_paths

__all__ = ["Batch"]


class _Method:
    """A method that a field of the same name does not hide: data descriptors come before what an instance holds."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> NoReturn:
        raise AttributeError("a method cannot be set")


class Batch(Fields):
    """Named fields that are indexed, sliced, masked and computed with together.

    Fields live in the instance's `__dict__`, so reading one costs nothing. Lists and tuples become numpy arrays,
    mappings become nested batches, lists of batches are stacked. A field may have any name; one that a method has too
    is read as `batch["map"]`. A subclass that annotates fields is a typed layout: its constructor takes those fields,
    in order or by name, and no others.

    Args:
        fields: a mapping of fields, a list of mappings that are stacked, or the values of a layout's fields in order.

    Raises:
        ShapeError: a list is ragged.
        TypeError: a layout's field is missing, unknown or given twice; or there is a value without a name.

    Examples:
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

    def __init__(self, /, *fields: Any, **named: Any) -> None:
        layout = self._layout
        if fields:
            named = _named(type(self), fields, named)
        if layout and named.keys() != set(layout):
            missing, unknown = [k for k in layout if k not in named], [k for k in named if k not in layout]
            kind = type(self).__name__
            raise TypeError(f"{kind} needs the fields {list(layout)}: missing {missing}, unknown {unknown}")
        for key, value in named.items():
            self.__dict__[key] = _converted(key, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        added = [key for key in inspect.get_annotations(cls) if not key.startswith("_")]
        if clash := [key for key in added if hasattr(cls, key)]:
            raise TypeError(f"{cls.__name__} declares the fields {clash}, which are methods or have defaults; rename")
        cls._layout = tuple(dict.fromkeys((*cls._layout, *added)))
        _protect_methods(cls)
        register_batch(cls)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """A batch of fields as they are: no conversion, no copy of a leaf, no check."""
        batch = cls.__new__(cls)
        batch.__dict__.update(fields)
        return batch

    # -- fields

    def __setattr__(self, key: str, value: Any) -> None:
        if hasattr(type(self), key):
            kind = type(self).__name__
            raise TypeError(f"{key!r} is a method of {kind}; write batch[{key!r}] for the field of that name")
        self.__dict__[key] = _converted(key, value)

    def __getattr__(self, key: str) -> Any:
        # Python and numpy look for many such names, and expect a quick answer.
        hint = "" if key.startswith("__") else did_you_mean(key, self.__dict__)
        raise AttributeError(f"{type(self).__name__} has no field {key!r}{hint}")

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
            default: returned where the field is missing.
        """
        return self.__dict__.get(key, default)

    def update(self, other: Mapping[str, Any] | Batch | None = None, /, **named: Any) -> None:
        """Sets fields in place.

        Args:
            other: fields to take over.
            named: more fields.
        """
        for key, value in {**(dict(other.items()) if other is not None else {}), **named}.items():
            self.__dict__[key] = _converted(key, value)

    def replace(self, /, **named: Any) -> Self:
        """A batch of the same kind with some fields exchanged or added; the others are shared.

        Args:
            named: the new values, taken as they are.
        """
        return type(self).of({**self.__dict__, **named})

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no fields.

        Args:
            recurse: whether fields that are empty batches themselves do not count.
        """
        nested = (isinstance(value, Batch) and value.is_empty(True) for value in self.__dict__.values())
        return all(nested) if recurse else not self.__dict__

    # -- rows

    def __len__(self) -> int:
        lengths = _lengths(self)
        if len(lengths) == 1:
            return lengths.pop()
        if not lengths:
            raise TypeError("this Batch has no rows: its fields are scalars")
        by_name = {path: len(leaf) for path, leaf in tree_paths(self).items() if np.ndim(leaf)}
        raise ShapeError(f"the fields have lengths {by_name}; every field needs the same leading dimension")

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """One field by its name; or, by an index of any kind, tensors too, the rows that numpy gives, of every leaf."""
        if isinstance(index, str):
            try:
                return self.__dict__[index]
            except KeyError:
                raise KeyError(f"no field {index!r}{did_you_mean(index, self.__dict__)}") from None
        try:
            if type(index) is np.ndarray and index.dtype.kind == "i" and index.ndim == 1:
                return self._taken(index)
            take = rows_by(index)
            rows = {k: take(v) if type(v) is not str else _refuse_text(v) for k, v in self.__dict__.items()}
            return type(self).of(rows)
        except (IndexError, TypeError, ValueError) as error:
            _raise_with_culprit(self, index, error)

    def _taken(self, index: np.ndarray) -> Self:
        """Rows by number; numpy's `take` gives what indexing gives, in half the time."""
        batch = type(self).__new__(type(self))
        rows = batch.__dict__
        for key, value in self.__dict__.items():
            if type(value) is np.ndarray and value.ndim:  # an array without rows would be repeated
                rows[key] = value.take(index, 0)
            else:
                rows[key] = value[index] if type(value) is not str else _refuse_text(value)
        return batch

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            self.__dict__[index] = _converted(index, value)
            return
        if isinstance(value, Mapping):
            value = Batch(value)
        if isinstance(value, Batch) and value.__dict__.keys() != self.__dict__.keys():
            raise ShapeError(f"rows with the fields {value.keys()} cannot be written to a Batch of {self.keys()}")
        for key, leaf in self.__dict__.items():
            given = value.__dict__[key] if isinstance(value, Batch) else value
            if isinstance(leaf, torch.Tensor) and isinstance(given, np.ndarray):
                given = torch.from_numpy(given)
            leaf[index_for(leaf, index)] = given

    def split(
        self,
        size: int,
        shuffle: bool | None = None,
        merge_last: bool = False,
        *,
        generator: torch.Generator | None = None,
    ) -> Iterator[Self]:
        """Parts of at most `size` rows.

        Args:
            size: rows in a part; -1 is all of them in one.
            shuffle: whether rows change their order first; by default, where there is a generator.
            merge_last: whether a shorter last part joins the one before.
            generator: of the order; a new one with a seed of the operating system if left out.

        Raises:
            ValueError: the size is less than 1.
        """
        if size < 1 and size != -1:
            raise ValueError(f"a Batch cannot be split into parts of {size} rows; give at least 1, or -1 for one part")
        length = len(self)
        size = max(length, 1) if size == -1 else size
        rows = self
        if generator is not None if shuffle is None else shuffle:
            if generator is None:
                generator = torch.Generator()
                generator.seed()
            rows = self[torch.randperm(length, generator=generator)]
        starts = list(range(0, length, size))
        if merge_last and len(starts) > 1 and length % size:
            starts.pop()
        ends = [*starts[1:], length]  # one more than starts where there is no row
        return (rows[start:end] for start, end in zip(starts, ends, strict=False))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """One batch with the rows of all of them.

        Args:
            batches: at least one. A field that some lack, or have as an empty batch, is zeros there; layouts need the
                same fields.

        Raises:
            ShapeError: a field cannot be joined.
        """
        return joined(padded(batches, keep_rows=True), torch.cat, np.concatenate)

    @classmethod
    def stack(cls, batches: Sequence[Self], dim: int = 0) -> Self:
        """One batch with a new dimension that numbers them.

        Args:
            batches: at least one, of the same shapes. A field that some lack, or have as an empty batch, is zeros
                there; layouts need the same fields.
            dim: where the new dimension goes.

        Raises:
            ShapeError: a field cannot be joined.
        """
        return joined(
            padded(batches, keep_rows=False),
            functools.partial(torch.stack, dim=dim),
            functools.partial(np.stack, axis=dim),
        )

    def pop(self, key: str, *default: Any) -> Any:
        """Takes a field out.

        Args:
            default: returned where the field is missing.

        Raises:
            KeyError: it is missing and there is no default.
        """
        return self.__dict__.pop(key, *default)

    # -- leaves

    def map(self, function: Callable[..., Any], *others: Batch) -> Self:
        """The function's result for every leaf.

        Args:
            function: takes a leaf, and the leaf of every other batch at the same place.
            others: batches with the same fields.

        Raises:
            ShapeError: the batches have different fields.
        """
        if others:
            require_same_fields(self, others)
        mapped: dict[str, Any] = {}
        for key, value in self.__dict__.items():
            rest = [other.__dict__[key] for other in others] if others else ()
            mapped[key] = value.map(function, *rest) if isinstance(value, Batch) else function(value, *rest)
        return type(self).of(mapped)

    def to_torch(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Every leaf as a torch tensor; numpy memory is shared where it can be.

        Args:
            dtype: cast floating-point leaves to this.

        Raises:
            TypeError: a leaf holds objects or text.
        """
        return self.map(lambda leaf: as_tensor(leaf, dtype, device))

    def to_numpy(self) -> Self:
        """Every tensor as a numpy array; CPU memory is shared. bfloat16 becomes float32."""
        return self.map(as_array)

    def save(self, path: str | Path) -> None:
        """Writes the batch to one safetensors file; no pickle is involved.

        Raises:
            TypeError: a leaf holds objects.
        """
        values, arrays = split_state(self)
        save_tensors(path, {"": json.dumps(values), **arrays})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The batch that `save` wrote; nested layouts come back as plain batches, numpy's numbers as Python's.

        So a float32 number is a `float` then, which joins to float64; an array of shape [] keeps its dtype.

        Raises:
            CheckpointError: the file is missing, damaged, or holds no batch.
        """
        arrays = load_tensors(path)
        try:
            return cls(**join_state(json.loads(arrays.pop("")), arrays).__dict__)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} holds no {cls.__name__}: {error}") from error

    def __repr__(self) -> str:
        if not self.__dict__:
            return f"{type(self).__name__}()"
        lines = [f"{type(self).__name__}("]
        for key, value in self.__dict__.items():
            text = repr(value).replace("\n", "\n" + " " * (len(key) + 6))
            lines.append(f"    {key}: {text},")
        return "\n".join([*lines, ")"])


_LEAVES = (torch.Tensor, np.ndarray, Batch, str, int, float, np.generic, type(None))


def _protect_methods(cls: type[Batch]) -> None:
    """Makes the public methods of a class come before an instance's fields."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, _Method(member))


def _named(cls: type[Batch], fields: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments by name."""
    layout = cls._layout
    if not layout:
        mapping, *others = fields
        rows = mapping if not others and isinstance(mapping, list | tuple) else ()
        if rows and all(isinstance(part, Mapping | Batch) for part in rows):
            mapping = Batch.stack([part if isinstance(part, Batch) else Batch(part) for part in rows])
        if others or not isinstance(mapping, Mapping | Batch):
            given = [type(value).__name__ for value in fields]
            raise TypeError(f"{cls.__name__} takes one mapping, or fields by name; {given} came without a name")
        return {**dict(mapping.items()), **named}
    if len(fields) > len(layout):
        raise TypeError(f"{cls.__name__} has the fields {list(layout)}, but {len(fields)} values were given")
    if twice := [key for key in layout[: len(fields)] if key in named]:
        raise TypeError(f"{cls.__name__} was given {twice} twice, by place and by name")
    return {**dict(zip(layout, fields, strict=False)), **named}


def _converted(key: str, value: Any) -> Any:
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, Mapping):
        return Batch(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return Batch(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(value, list | tuple):
        return value
    if value and all(isinstance(part, torch.Tensor) for part in value):
        return _stacked(key, value, lambda parts: torch.stack(list(parts)))
    if value and all(isinstance(part, Batch | Mapping) for part in value):
        return _stacked(key, [part if isinstance(part, Batch) else Batch(part) for part in value], Batch.stack)
    return array_of(key, value)


def _stacked(key: str, parts: Sequence[Any], stack: Callable[..., Any]) -> Any:
    try:
        return stack(parts)
    except (RuntimeError, ValueError) as error:
        raise ShapeError(f"field {key!r} is ragged: {error}") from None


def _lengths(batch: Batch) -> set[int]:
    lengths: set[int] = set()
    for value in batch.__dict__.values():
        if isinstance(value, Batch):
            lengths |= _lengths(value)
        elif np.ndim(value):
            lengths.add(len(value))
    return lengths


def _raise_with_culprit(batch: Batch, index: Any, error: Exception) -> NoReturn:
    """Raises an error of indexing again, with the leaf that refused."""
    where = ""
    for path, leaf in tree_paths(batch).items():
        try:
            _refuse_text(leaf) if isinstance(leaf, str) else rows_by(index)(leaf)
        except (IndexError, TypeError, ValueError) as refusal:
            shapes = (getattr(value, "shape", None) for value in (leaf, index))
            what, by = (
                repr(value) if shape is None else f"of shape {tuple(shape)}"
                for value, shape in zip((leaf, index), shapes, strict=True)
            )
            error, where = refusal, f" (field {path!r} {what}, index {by})"
            break
    kind = next(kind for kind in (IndexError, TypeError, ValueError) if isinstance(error, kind))
    raise kind(f"{error}{where}") from None


def _refuse_text(text: str) -> NoReturn:
    """Says that text is one value, where Python would index its letters."""
    raise TypeError("text has no rows")


_protect_methods(Batch)
register_batch(Batch)
