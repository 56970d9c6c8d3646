"""Nests of any kind as JSON values and named arrays, the two things that files hold."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from palaestra.core.errors import CheckpointError
from palaestra.core.node import Node

__all__ = ["join", "split"]

_Arrays = dict[str, torch.Tensor | np.ndarray]
# Names that a safetensors file needs for itself, or a caller for the values beside the arrays.
_TAKEN = ("", "__metadata__")


def split(nest: Any) -> tuple[Any, _Arrays]:
    """Separates a nest into JSON values and named arrays.

    Args:
        nest: see `split_state`.

    Raises:
        TypeError: it holds something that cannot be saved; the message says where.
    """
    arrays: _Arrays = {}
    return _split(nest, "", arrays), arrays


def _split(value: Any, path: str, arrays: _Arrays) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        name = path
        while name in arrays or name in _TAKEN:  # {"a.b": x, "a": {"b": y}} has two arrays of one path
            name += "'"
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        parts = [_split(child, _path(path, i), arrays) for i, child in enumerate(value)]
        if isinstance(value, list):
            return parts
        names = getattr(value, "_fields", None)
        return {"$tuple": parts} if names is None else {"$record": dict(zip(names, parts, strict=True))}
    if isinstance(value, Node):
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


def join(value: Any, arrays: Mapping[str, Any], batch: Callable[[dict[str, Any]], Any]) -> Any:
    """The nest that `split` took apart.

    Args:
        value: the JSON values.
        arrays: by name.
        batch: makes a batch of its fields.

    Raises:
        CheckpointError: an array is missing, or the values are not what `split` wrote.
    """
    try:
        return _join(value, arrays, batch)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the saved values are not what this version writes: {error}") from error


def _join(value: Any, arrays: Mapping[str, Any], batch: Callable[[dict[str, Any]], Any]) -> Any:
    if isinstance(value, list):
        return [_join(child, arrays, batch) for child in value]
    if not isinstance(value, dict):
        return value
    kind = next((key for key in value if key.startswith("$")), None)
    if kind is None:
        return {key: _join(child, arrays, batch) for key, child in value.items()}
    content = value[kind]
    if kind == "$array":
        if content not in arrays:
            raise CheckpointError(f"the saved state refers to the array {content!r}, which is missing")
        return arrays[content]
    if kind == "$tuple":
        return tuple(_join(child, arrays, batch) for child in content)
    if kind == "$items":
        return {_join(key, arrays, batch): _join(child, arrays, batch) for key, child in content}
    if kind not in ("$batch", "$record"):
        raise CheckpointError(f"the saved state holds {kind!r}, which this version does not know")
    parts = {key: _join(child, arrays, batch) for key, child in content.items()}
    return batch(parts) if kind == "$batch" else _record(parts)


def _record(fields: dict[str, Any]) -> Any:
    """A named tuple of fields that only the file knows."""
    return namedtuple("Record", fields)(**fields)  # pyright: ignore[reportUntypedNamedTuple]
