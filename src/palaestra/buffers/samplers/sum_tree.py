"""`SumTree`: numbers that are drawn in proportion to their size, many at a time."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import torch

from palaestra.core import CheckpointError

__all__ = ["SumTree"]

_SHIFT = 5
_FAN_OUT = 1 << _SHIFT  # as many as an integer has bits: a draw packs one comparison with each sum into one
_TOP = 1024  # sums of the highest level: so many are gone through by one cumulative sum
_ONES, _LAST = np.ones(_FAN_OUT, np.float32), np.array(_FAN_OUT - 1, np.uint8)


class SumTree:
    """Leaves, and above them the sums of every 32; as many levels as bring the highest one to about a thousand sums.

    A draw goes down one level at a time for all its numbers together. Two levels below the top serve a million leaves.
    The highest level is in double precision, to tell one of a million leaves from another. Below it only the rest of a
    number within a block is looked for, in single precision.

    Args:
        size: number of leaves, all 0 at first.
    """

    def __init__(self, size: int) -> None:
        sizes = [size]
        while sizes[0] > _TOP:
            sizes.insert(0, -(-sizes[0] // _FAN_OUT))
        lengths = [sizes[0] * _FAN_OUT**depth for depth in range(len(sizes))]
        ends = 4 * np.cumsum([2 * lengths[0], *lengths[1:]])
        self._memory = np.zeros(ends[-1], np.uint8)
        self._levels = [self._memory[: ends[0]].view(np.float64)]
        self._levels += [self._memory[a:b].view(np.float32) for a, b in itertools.pairwise(ends)]
        self._blocks = [level.reshape(-1, _FAN_OUT) for level in self._levels[1:]]
        self._copied = np.empty((0, _FAN_OUT), np.float32)
        self.leaves = self._levels[-1][:size]
        """[size] change them with `set` alone; in double precision where they are the highest level."""

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._levels[0].sum())

    def set(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """Changes leaves and the sums above them.

        Args:
            index: [N] leaves; of those named twice the last value stays.
            value: [N] or one for all, at least 0 and at most 10^30, so that no sum overflows.
        """
        self._levels[-1][index] = value
        if len(index) > len(self.leaves) // _FAN_OUT:
            self._sum_up()
            return
        children = self._room(len(index))
        for level, blocks in zip(self._levels[-2::-1], self._blocks[::-1], strict=True):
            index = index >> _SHIFT
            blocks.take(index, 0, children, "clip")
            level[index] = children.dot(_ONES)

    def fill(self, leaves: np.ndarray) -> None:
        """Changes all leaves.

        Args:
            leaves: [size], at least 0.
        """
        self.leaves[:] = leaves
        self._sum_up()

    def _sum_up(self) -> None:
        for level, blocks in zip(self._levels[-2::-1], self._blocks[::-1], strict=True):
            level[:] = blocks.dot(_ONES)

    def draw(self, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Leaves, each with a probability in proportion to its size.

        Args:
            uniform: [N] independent numbers in [0, 1).

        Returns:
            [N] their indices and [N] their sizes, none of which is 0 as long as any leaf is not.
        """
        ends = self._levels[0].cumsum()
        rest = uniform * ends[-1]
        node = ends[:-1].searchsorted(rest, "right")
        rest -= ends.take(node) - self._levels[0].take(node)
        rest = rest.astype(np.float32)
        base = _begins(len(node))
        sums = self._room(len(node))
        running, first = torch.from_numpy(sums), sums[:, 0]
        for level, blocks in zip(self._levels[1:], self._blocks, strict=True):
            blocks.take(node, 0, sums, "clip")
            first -= rest  # to compare all sums with 0 takes a third of the time that a number for each row does
            running.cumsum_(1)
            # the number of sums that are not larger: bits of one integer, twice as fast as a search
            place = np.bitwise_count(np.packbits(sums <= 0).view(np.uint32))
            np.minimum(place, _LAST, out=place)
            node <<= _SHIFT
            node += place
            if level is not self._levels[-1]:
                rest = level.take(node) - sums.take(base + place)
        size = self.leaves.take(node)
        if np.count_nonzero(size) < len(size) and size.any():  # rounding led astray: about one draw in 10^7
            node = np.where(size > 0, node, node[size.argmax()])
            size = self.leaves.take(node)
        return node, size

    def _room(self, count: int) -> np.ndarray:
        """[N, fan-out] for copies of so many blocks; a call that asks next may have the same memory."""
        if len(self._copied) < count:
            self._copied = np.empty((count, _FAN_OUT), np.float32)
        return self._copied[:count]

    def state(self) -> torch.Tensor:
        """The bytes of leaves and sums, for a checkpoint: sums made anew could differ by rounding."""
        return torch.from_numpy(self._memory)

    def load_state(self, state: torch.Tensor) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a tree of the same size.

        Raises:
            CheckpointError: it belongs to another size.
        """
        if tuple(state.shape) != self._memory.shape:
            raise CheckpointError(f"the saved priorities are {len(state)} bytes, but here are {len(self._memory)}")
        self._memory[:] = state.numpy()


@functools.cache
def _begins(count: int) -> np.ndarray:
    """[count] where each of so many blocks begins, if they lie one after another."""
    begins = np.arange(0, _FAN_OUT * count, _FAN_OUT)
    begins.flags.writeable = False
    return begins
