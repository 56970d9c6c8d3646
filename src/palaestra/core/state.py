"""State of any nesting as JSON values and named arrays, the two things a checkpoint holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palaestra.core.batch import Batch
from palaestra.core.nest import join, split

__all__ = ["join_state", "split_state"]


def split_state(nest: Any) -> tuple[Any, dict[str, torch.Tensor | np.ndarray]]:
    """Separates a nest into JSON values and named arrays; `join_state` is the inverse.

    Args:
        nest: dicts, lists, tuples, named tuples, batches, tensors, arrays, numbers, text, booleans, `None`.

    Returns:
        The nest with a reference in the place of every array, and the arrays by name. numpy's numbers become Python's.

    Raises:
        TypeError: it holds anything else; the message says where.

    Examples:
        >>> split_state({"a": torch.zeros(1), "b": (1, "x")})
        ({'a': {'$array': 'a'}, 'b': {'$tuple': [1, 'x']}}, {'a': tensor([0.])})
    """
    return split(nest)


def join_state(value: Any, arrays: dict[str, Any]) -> Any:
    """The nest that `split_state` took apart.

    A file names no class of ours, so a typed layout comes back as a `Batch`, and a named tuple as one of the same
    fields.

    Args:
        value: the JSON values.
        arrays: by name.

    Raises:
        CheckpointError: an array is missing, or the values are not what `split_state` gave.
    """
    return join(value, arrays, Batch.of)
