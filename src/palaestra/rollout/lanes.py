"""Rows of some lanes: out of and into nests of tensors [B, ...]."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch

__all__ = ["put_rows", "take_rows"]


def take_rows(nest: Any, lanes: Any) -> Any:
    """A copy of the rows of some lanes.

    Args:
        nest: tensors [B, ...] in batches, dicts and tuples.
        lanes: [n] which, or `...` for all.

    Returns:
        The same structure, leaves [n, ...].
    """
    if isinstance(nest, Tensor):
        return nest.clone() if lanes is ... else nest[torch.from_numpy(lanes)]
    return _map(lambda leaf: take_rows(leaf, lanes), nest)


def put_rows(nest: Any, lanes: np.ndarray, rows: Any) -> Any:
    """The nest with the rows of some lanes replaced; its tensors are left as they are.

    Args:
        nest: tensors [B, ...] in batches, dicts and tuples.
        lanes: [n] which.
        rows: the same structure, leaves [n, ...]; what only it or only the nest has is left out.
    """
    if isinstance(nest, Tensor):
        return nest.index_copy(0, torch.from_numpy(lanes), rows)
    if isinstance(nest, Batch | dict):
        common = {key: put_rows(nest[key], lanes, rows[key]) for key in nest.keys() if key in rows.keys()}  # noqa: SIM118 - a batch's own iteration is over rows
        return Batch.of(common) if isinstance(nest, Batch) else common
    if not isinstance(nest, tuple) or not isinstance(rows, tuple):
        return ()
    parts = [put_rows(part, lanes, new) for part, new in zip(nest, rows, strict=False)]
    return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)


def _map(function: Any, nest: Any) -> Any:
    if isinstance(nest, Batch):
        return nest.map(function)
    if isinstance(nest, dict):
        return {key: function(value) for key, value in nest.items()}
    parts = [function(part) for part in nest]
    return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
