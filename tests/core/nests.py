"""Random nests for property tests, and what equality of two of them means."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from palaestra.core import Batch

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")


def array(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Numbers that differ from row to row."""
    numbers = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, size=shape)
    return numbers.astype(dtype)


@st.composite
def batches(draw: Callable[..., Any], rows: int | None = None, depth: int = 2) -> Batch:
    """Batches of numpy and torch leaves with one leading dimension, nested up to two levels deep."""
    count = draw(st.integers(1, 7)) if rows is None else rows
    batch = Batch()
    for name in draw(
        st.lists(st.sampled_from(["a", "b", "x.y", "map", "items", "é"]), min_size=1, max_size=3, unique=True)
    ):
        if depth and draw(st.booleans()):
            batch[name] = draw(batches(rows=count, depth=depth - 1))
            continue
        shape = (count, *draw(st.lists(st.integers(1, 3), max_size=2)))
        leaf = array(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)))
        batch[name] = torch.from_numpy(leaf) if draw(st.booleans()) else leaf
    return batch


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves by path, walked without the library's help."""
    if isinstance(value, Batch):
        return {k: v for key, part in value.__dict__.items() for k, v in leaves(part, f"{path}/{key}").items()}
    return {path: value}


def assert_same(left: Any, right: Any) -> None:
    """Equal structure, kinds, dtypes, shapes and bits."""
    mine, theirs = leaves(left), leaves(right)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        other = theirs[path]
        assert type(value) is type(other), path
        if isinstance(value, torch.Tensor):
            assert value.dtype == other.dtype, path
            np.testing.assert_array_equal(value.numpy(), other.numpy(), err_msg=path)
        elif isinstance(value, np.ndarray | np.generic):
            assert value.dtype == other.dtype, path
            np.testing.assert_array_equal(value, other, err_msg=path)
        else:
            assert value == other, path
