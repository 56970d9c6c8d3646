"""Cutting the data of one update into minibatches."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from palaestra.core.batch import Batch
from palaestra.core.errors import ShapeError
from palaestra.core.plan import OnPolicy, Plan, Replay
from palaestra.core.tree import device_of, tree_leaves, tree_paths

__all__ = ["minibatches", "sequences", "shards"]

_MANY_ROWS = 1 << 16


def minibatches(
    batch: Batch, plan: Plan, *, generator: torch.Generator, renew: Callable[[], Batch] | None = None
) -> Iterator[Batch]:
    """The minibatches of one update, in the order in which they are learned from.

    On-policy data `[T, B, ...]` is cut into sequences, shuffled over all of them and divided, `plan.num_epochs` times
    with a new order each time; time order inside a sequence stays. Minibatches are equally large, and as many as bring
    them nearest to `plan.mini_batch_size`: 500 rows in 256s are two of 250, 264 in 32s eight of 33. A whole replay
    buffer is gone through the same way. A sample of one is already in random order and is divided into
    `plan.gradient_steps` parts.

    Args:
        batch: every leaf `[T, B, ...]` for an on-policy plan; `[N, ...]` or `[L, N, ...]` for a sample, where a leaf
            `[N]` beside sequences has one value for each of them.
        plan: what the algorithm asked for.
        generator: source of the order.
        renew: makes on-policy data anew for every pass but the first, of the same shapes; by default it stays.

    Yields:
        `[N, ...]` where sequences have length 1, else `[L, N, ...]`.

    Raises:
        ShapeError: leaves that are to be cut differ in `[T, B]`, or there are fewer steps than one sequence needs.
    """
    dim = 0 if plan.mini_batch_length == 1 else 1
    if isinstance(plan, Replay) and plan.num_epochs is not None:
        for _ in range(plan.num_epochs):
            yield from _shuffled(batch, _total(batch, dim), plan.mini_batch_size, dim, generator)
        return
    if not isinstance(plan, OnPolicy):
        if plan.gradient_steps == 1:
            yield batch
            return
        for i in range(plan.gradient_steps):
            yield _rows(batch, slice(i * plan.mini_batch_size, (i + 1) * plan.mini_batch_size), dim)
        return
    num_lanes = _leading(batch)[1]
    rows = sequences(batch, plan.mini_batch_length)
    for epoch in range(plan.num_epochs):
        if epoch and renew is not None:
            rows = sequences(renew(), plan.mini_batch_length)
        yield from _shuffled(rows, _leading(rows)[dim], plan.mini_batch_size or num_lanes, dim, generator)


def _shuffled(rows: Batch, total: int, size: int, dim: int, generator: torch.Generator) -> Iterator[Batch]:
    """One pass over all rows or sequences, in a new order, in minibatches of nearly such a size."""
    size = _even_size(total, size)
    if size < total:
        order = _order(total, generator, device_of(rows))
        rows = rows.map(lambda leaf: leaf.index_select(min(dim, leaf.ndim - 1), order))
    for start in range(0, total, size):
        yield _rows(rows, slice(start, start + size), dim)


def _order(total: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """A random order; that of very many rows on a GPU is drawn there, from a seed of the generator: it would wait."""
    if device.type == "cpu" or total < _MANY_ROWS:
        return torch.randperm(total, generator=generator).to(device)
    seed = int(torch.randint(1 << 62, (), generator=generator))
    return torch.randperm(total, generator=torch.Generator(device).manual_seed(seed), device=device)


def sequences(batch: Batch, length: int | None) -> Batch:
    """Cuts `[T, B, ...]` along time into sequences of equal length; surplus steps at the end are left out.

    Args:
        batch: every leaf `[T, B, ...]`.
        length: of a sequence; `None` is T.

    Returns:
        `[T * B, ...]` for length 1, else `[length, (T // length) * B, ...]`.

    Raises:
        ShapeError: leaves differ in `[T, B]`, or there are fewer steps than one sequence needs.
    """
    steps = _leading(batch)[0]
    if length is None or length == steps != 1:
        return batch
    if length > steps:
        raise ShapeError(f"mini_batch_length is {length} but the unroll has {steps} steps; unroll at least as many")
    shapes = {path: tuple(leaf.shape[:2]) for path, leaf in tree_paths(batch).items()}
    if len(set(shapes.values())) > 1:
        raise ShapeError(f"the fields have the leading shapes {shapes}; to be cut into minibatches they must be equal")
    count = steps // length

    def cut(leaf: Tensor) -> Tensor:
        if length == 1:
            return leaf.flatten(0, 1)
        parts = leaf[: count * length].unflatten(0, (count, length))  # [count, L, B, ...]
        return parts.transpose(0, 1).flatten(1, 2)

    return batch.map(cut)


def shards(minibatch: Batch, plan: Plan, count: int) -> list[Batch]:
    """Cuts a minibatch into parts of nearly equal size: rows, or whole sequences where it consists of them.

    Args:
        minibatch: one of `minibatches`.
        plan: what the algorithm asked for.
        count: parts; fewer are returned where there are fewer rows or sequences.

    Examples:
        >>> from palaestra.core import Replay
        >>> [len(part.x) for part in shards(Batch(x=torch.arange(7)), Replay(unroll_length=1), 3)]
        [2, 2, 3]
    """
    dim = 0 if plan.mini_batch_length == 1 else 1
    total = _total(minibatch, dim)
    count = min(count, total)
    return [_rows(minibatch, slice(i * total // count, (i + 1) * total // count), dim) for i in range(count)]


def _even_size(total: int, size: int) -> int:
    """A minibatch size near `size` that leaves no tiny last minibatch.

    The number of minibatches is `total / size`, rounded to the nearest whole number: 264 rows in 32s become 8 times 33,
    500 in 256s twice 250, and 380 in 256s one of 380. So a minibatch never exceeds `size` by more than half.
    """
    return math.ceil(total / max(1, round(total / size))) if size < total else total


def _total(batch: Batch, dim: int) -> int:
    """Rows, or sequences, beside which a leaf `[N]` may have one value for each."""
    return next(leaf.shape[dim] for leaf in tree_leaves(batch) if leaf.ndim > dim)


def _leading(batch: Batch) -> tuple[int, ...]:
    """Shape of the first leaf."""
    return tuple(next(iter(tree_leaves(batch))).shape)


def _rows(batch: Batch, rows: slice, dim: int) -> Batch:
    if dim == 0:
        return batch[rows]
    return batch.map(lambda leaf: leaf[rows] if leaf.ndim == 1 else leaf[:, rows])
