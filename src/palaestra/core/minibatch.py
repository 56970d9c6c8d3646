"""Cutting the data of one update into minibatches."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, final

import optree
import torch
from torch import Tensor

from palaestra.core.batch import Batch
from palaestra.core.errors import ShapeError
from palaestra.core.plan import OnPolicy, Plan, Replay
from palaestra.core.tree import device_of, take_rows, tree_leaves, tree_paths

__all__ = ["Minibatches", "equal_minibatches", "minibatches", "sequences", "shards"]

_MANY_ROWS = 1 << 16


def minibatches(batch: Batch, plan: Plan, *, generator: torch.Generator) -> Iterator[Batch]:
    """The minibatches of one update, in the order in which they are learned from.

    On-policy data `[T, B, ...]` is cut into sequences, shuffled over all of them and divided, `plan.num_epochs` times
    with a new order each time; time order inside a sequence stays. `sequences` says what becomes of steps that do not
    fill one. Minibatches are equally large, and as many as bring them nearest to `plan.mini_batch_size`: 500 rows in
    256s are two of 250, 264 in 32s eight of 33. A whole replay buffer is gone through the same way. A sample of one is
    already in random order and is divided into `plan.gradient_steps` parts.

    Args:
        batch: every leaf `[T, B, ...]` for an on-policy plan; `[N, ...]` or `[L, N, ...]` for a sample, where a leaf
            `[N]` beside sequences has one value for each of them.

    Yields:
        `[N, ...]` where sequences have length 1, else `[L, N, ...]`.

    Raises:
        ShapeError: leaves that are to be cut differ in `[T, B]`, or there are fewer steps than one sequence needs.
    """
    passes = equal_minibatches(batch, plan, generator=generator)
    return (minibatch for equal in passes for minibatch in equal)


@final
class Minibatches(Sequence[Batch]):
    """Equally large minibatches that lie together.

    Args:
        rows: of all, `[K * N, ...]`, or `[L, K * N, ...]` where they are sequences.
        number: K.
        dim: where rows or sequences are counted, 0 or 1.
    """

    def __init__(self, rows: Batch, number: int, dim: int) -> None:
        self.rows, self._number, self._dim = rows, number, dim
        if number == 1:
            self._minibatches = [rows]

    def __len__(self) -> int:
        return self._number

    @functools.cached_property
    def _minibatches(self) -> Any:
        rows: Any = self.rows
        leaves, structure = optree.tree_flatten(rows)
        if surplus := _total(rows, self._dim) % self._number:
            raise ShapeError(
                f"{self._number} equal minibatches are needed, but {surplus} rows or sequences are left over"
            )
        columns = [leaf.tensor_split(self._number, min(self._dim, leaf.ndim - 1)) for leaf in leaves]
        return [structure.unflatten(part) for part in zip(*columns, strict=True)]

    def __getitem__(self, place: Any) -> Any:
        return self._minibatches[place]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._minibatches)

    def of(self, rows: Batch) -> Self:
        """As many minibatches of other rows.

        Args:
            rows: with the same leading dimensions.
        """
        return type(self)(rows, self._number, self._dim)

    def in_parts(self, size: int) -> Sequence[Self]:
        """The same in parts of so many minibatches.

        Args:
            size: divides their number.
        """
        whole = self if size == 1 else type(self)(self.rows, self._number // size, self._dim)
        return [self] if size == self._number else [type(self)(rows, size, self._dim) for rows in whole]


def equal_minibatches(
    batch: Batch, plan: Plan, *, generator: torch.Generator, renew: Callable[[], Batch] | None = None
) -> Iterator[Minibatches]:
    """The same minibatches, those of a pass that are equally large together.

    Args:
        batch: see `minibatches`.
        renew: makes on-policy data anew for every pass but the first, of the same shapes; by default it stays.
    """
    dim = 0 if plan.mini_batch_length == 1 else 1
    if isinstance(plan, Replay) and plan.num_epochs is not None:
        for _ in range(plan.num_epochs):
            yield from _shuffled(batch, _total(batch, dim), plan.mini_batch_size, dim, generator)
        return
    if not isinstance(plan, OnPolicy):
        yield Minibatches(batch, plan.gradient_steps, dim)
        return
    steps, num_lanes = _leading(batch)[:2]
    length = plan.mini_batch_length
    if length is not None and 1 < length >= steps:  # episodes may be shorter: all of it is a sequence
        length = None
    rows = sequences(batch, length)
    total = _leading(rows)[dim]
    for epoch in range(plan.num_epochs):
        if epoch and renew is not None:
            rows = sequences(renew(), length)
        yield from _shuffled(rows, total, plan.mini_batch_size or num_lanes, dim, generator)


def _shuffled(rows: Batch, total: int, size: int, dim: int, generator: torch.Generator) -> list[Minibatches]:
    """One pass over all rows or sequences, in a new order, in minibatches of nearly such a size.

    The number of minibatches is `total / size`, rounded to the nearest whole number, and their sizes differ by one at
    most: 264 rows in 32s become 8 times 33, 257 in 16s 17 and 15 times 16, and 380 in 256s one of 380. So a minibatch
    never exceeds `size` by more than half.
    """
    number = max(1, round(total / size))
    if number > 1:
        order = _order(total, generator, device_of(rows))
        rows = rows.map(lambda leaf: leaf.index_select(1, order) if min(dim, leaf.ndim - 1) else take_rows(leaf, order))
    if larger := total % number:  # by one
        cut = larger * (total // number + 1)
        parts = ((slice(0, cut), larger), (slice(cut, total), number - larger))
        return [Minibatches(_rows(rows, part, dim), count, dim) for part, count in parts]
    return [Minibatches(rows, number, dim)]


def _order(total: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """A random order; that of very many rows on a GPU is drawn there, from a seed of the generator: it would wait."""
    if device.type == "cpu" or total < _MANY_ROWS:
        return torch.randperm(total, generator=generator).to(device)
    seed = int(torch.randint(1 << 62, (), generator=generator))
    return torch.randperm(total, generator=torch.Generator(device).manual_seed(seed), device=device)


def sequences(batch: Batch, length: int | None) -> Batch:
    """Cuts `[T, B, ...]` along time into sequences of equal length.

    Steps at the end that do not fill a sequence are left out. With a memory, which is stored as `state`, they become
    one with copies of the last step that are not learned from: `valid` is 0 there, and the memory starts anew.

    Args:
        batch: every leaf `[T, B, ...]`.
        length: of a sequence; `None` is T.

    Returns:
        `[T * B, ...]` for length 1, else `[length, N * B, ...]`, where N is T / length, rounded down; with `valid` and
        `state` up.

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
    if {"valid", "state"} <= vars(batch).keys():
        batch = _filled_up(batch, -steps % length)
    count = _leading(batch)[0] // length

    def cut(leaf: Tensor) -> Tensor:
        if length == 1:
            return leaf.flatten(0, 1)
        parts = leaf[: count * length].unflatten(0, (count, length))  # [count, L, B, ...]
        return parts.transpose(0, 1).flatten(1, 2)

    return batch.map(cut)


def _filled_up(batch: Batch, lacking: int) -> Batch:
    """With so many copies of the last step behind it that do not count; copies, for zeros may be no observation."""
    if not lacking:
        return batch
    filled = batch.map(lambda leaf: torch.cat((leaf, leaf[-1:].expand(lacking, *leaf.shape[1:]))))
    for name in {"valid", "step_type"} & vars(filled).keys():
        filled[name][-lacking:] = 0  # which is FIRST
    return filled


def shards(minibatch: Batch, plan: Plan, count: int) -> list[Batch]:
    """Cuts a minibatch into parts of nearly equal size: rows, or whole sequences where it consists of them.

    Args:
        minibatch: one of `minibatches`.
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
