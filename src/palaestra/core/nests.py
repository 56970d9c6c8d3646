"""Nests as JSON values and named arrays: `split_state` takes them apart, `join_state` puts them together."""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from palaestra.core.errors import CheckpointError
from palaestra.core.fields import Fields
from palaestra.core.packed import PackedRows
from palaestra.core.reading import MOST_DIGITS
from palaestra.core.tree import plain_batch

__all__ = ["join_state", "split_state"]

_Arrays = dict[str, torch.Tensor | np.ndarray | PackedRows]
# Names that a safetensors file needs for itself, or a caller for the values beside the arrays.
_TAKEN = ("", "__metadata__")


def split_state(nest: Any) -> tuple[Any, _Arrays]:
    """Separates a nest into JSON values and named arrays; `join_state` is the inverse.

    Args:
        nest: dicts, lists, tuples, named tuples, batches, tensors, arrays, numbers, text, booleans, `None`.

    Returns:
        The nest with a reference instead of every array, and the arrays by name. numpy's numbers become Python's.

    Raises:
        TypeError: it holds anything else; the message says where.

    Examples:
        >>> split_state({"a": torch.zeros(1), "b": (1, "x")})
        ({'a': {'$array': 'a'}, 'b': {'$tuple': [1, 'x']}}, {'a': tensor([0.])})
    """
    arrays: _Arrays = {}
    return _split(nest, "", arrays), arrays


def _split(value: Any, path: str, arrays: _Arrays) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray | PackedRows):
        name = path
        while name in arrays or name in _TAKEN:  # {"a.b": x, "a": {"b": y}} has two arrays of one path
            name += "'"
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        raise TypeError(f"a number of more than {MOST_DIGITS} digits cannot be saved (at {path!r})")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        parts = [_split(child, _path(path, i), arrays) for i, child in enumerate(value)]
        if isinstance(value, list):
            return parts
        names = getattr(value, "_fields", None)
        return {"$tuple": parts} if names is None else {"$record": dict(zip(names, parts, strict=True))}
    if isinstance(value, Fields):
        return {"$batch": {key: _split(child, _path(path, key), arrays) for key, child in value.__dict__.items()}}
    if not isinstance(value, Mapping):
        where = f" (at {path!r})" if path else ""
        raise TypeError(f"a {type(value).__name__} cannot be saved{where}; use numbers, text, arrays and nests of them")
    parts = {key: _split(child, _path(path, key), arrays) for key, child in value.items()}
    # JSON has text keys only, and "$" is ours
    plain = all(isinstance(key, str) and not key.startswith("$") for key in parts)
    return parts if plain else {"$items": [[_split(key, path, {}), part] for key, part in parts.items()]}


def _path(parent: str, key: Any) -> str:
    return f"{parent}.{key}" if parent else str(key)


def join_state(value: Any, arrays: Mapping[str, Any]) -> Any:
    """The nest that `split_state` took apart.

    A file names no class of ours, so a typed layout comes back as a `Batch`, and a named tuple as one of the same
    fields.

    Args:
        value: the JSON values.
        arrays: by name.

    Raises:
        CheckpointError: an array is missing, or the values are not what `split_state` gave.
    """
    try:
        return _join(value, arrays)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the saved values are not what this version writes: {error}") from error


def _join(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_join(child, arrays) for child in value]
    if not isinstance(value, dict):
        return value
    kind = next((key for key in value if key.startswith("$")), None)
    if kind is None:
        return {key: _join(child, arrays) for key, child in value.items()}
    content = value[kind]
    if kind == "$array":
        if content not in arrays:
            raise CheckpointError(f"the saved state refers to the array {content!r}, which is missing")
        return arrays[content]
    if kind == "$tuple":
        return tuple(_join(child, arrays) for child in content)
    if kind == "$items":
        return {_join(key, arrays): _join(child, arrays) for key, child in content}
    if kind not in ("$batch", "$record"):
        raise CheckpointError(f"the saved state holds {kind!r}, which this version does not know")
    parts = {key: _join(child, arrays) for key, child in content.items()}
    # a named tuple has fields that only the file knows
    return plain_batch(parts) if kind == "$batch" else namedtuple("Record", parts)(**parts)  # pyright: ignore
