"""State of any nesting as JSON values and named arrays, the two things a checkpoint holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palaestra.core.batch import Batch
from palaestra.core.errors import CheckpointError

__all__ = ["join_state", "split_state"]


def split_state(nest: Any) -> tuple[Any, dict[str, torch.Tensor | np.ndarray]]:
    """Separates a nest into JSON values and named arrays; `join_state` is the inverse.

    Args:
        nest: dicts with string keys, lists, tuples, batches, tensors, arrays, numbers, text, booleans, `None`.

    Returns:
        The nest with a reference in the place of every array, and the arrays by name.

    Raises:
        TypeError: it holds anything else.

    Example:
        >>> split_state({"a": torch.zeros(1), "b": (1, "x")})
        ({'a': {'$array': 'a'}, 'b': {'$tuple': [1, 'x']}}, {'a': tensor([0.])})
    """
    arrays: dict[str, torch.Tensor | np.ndarray] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor | np.ndarray):
            arrays[path] = value
            return {"$array": path}
        if isinstance(value, np.generic):
            return value.item()
        if value is None or isinstance(value, str | bool | int | float):
            return value
        children = {str(key): child for key, child in _children(value)}
        walked = {key: walk(child, f"{path}.{key}" if path else key) for key, child in children.items()}
        if isinstance(value, list | tuple):
            return list(walked.values()) if isinstance(value, list) else {"$tuple": list(walked.values())}
        return walked if isinstance(value, dict) else {"$batch": walked}

    return walk(nest, ""), arrays


def join_state(value: Any, arrays: dict[str, Any]) -> Any:
    """The nest that `split_state` took apart.

    Args:
        value: the JSON values.
        arrays: by name.

    Raises:
        CheckpointError: an array is missing.
    """
    if isinstance(value, list):
        return [join_state(child, arrays) for child in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        if value["$array"] not in arrays:
            raise CheckpointError(f"the saved state refers to the array {value['$array']!r}, which is missing")
        return arrays[value["$array"]]
    if "$tuple" in value:
        return tuple(join_state(child, arrays) for child in value["$tuple"])
    if "$batch" in value:
        return Batch.of({key: join_state(child, arrays) for key, child in value["$batch"].items()})
    return {key: join_state(child, arrays) for key, child in value.items()}


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if hasattr(value, "items"):
        return list(value.items())
    raise TypeError(f"a {type(value).__name__} cannot be saved; use numbers, text, arrays and nests of them")
