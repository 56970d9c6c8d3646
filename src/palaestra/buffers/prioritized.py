"""Rows are drawn in proportion to a power of their priority.

Paper: Schaul et al. 2016, https://arxiv.org/abs/1511.05952, equation (1) and section 3.4.
Departures: draws are independent instead of stratified, so that their order is random; weights are divided by the
largest one of the draw.
"""

import functools
import itertools
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch

from palaestra.buffers.reader import StreamReader
from palaestra.buffers.samplers import Sampler, UniformSampler
from palaestra.buffers.streams import WritePositions
from palaestra.core import Batch, CheckpointError, NonFiniteError, Prioritized, Replay, ShapeError, schedule_value

__all__ = ["PrioritizedSampler", "SumTree", "sampler_of"]

_SMALLEST = 1e-6  # is added to every priority, so that none stays out for ever
_LARGEST = 1e15  # sums of a million such, squared, still fit into single precision
_SIZES = (1e-30, 1e30)  # that leaves may have, whatever the power of a priority
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

    def __len__(self) -> int:
        return len(self.leaves)

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
        size = self._levels[-1].take(node)  # with the zeros that fill up the last block
        if np.minimum.reduce(size, initial=1.0) == 0:  # rounding led astray, about one draw in 10^7, or all are 0
            node = np.where(size > 0, node, node[size.argmax()] if size.any() else self.leaves.argmax())
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

    def __reduce__(self) -> tuple[Any, ...]:
        return SumTree, (len(self.leaves),), self.state()

    def load_state(self, state: torch.Tensor) -> None:
        """Takes over the bytes of another tree.

        Args:
            state: of a tree of the same size.

        Raises:
            CheckpointError: it belongs to another size.
        """
        if tuple(state.shape) != self._memory.shape:
            raise CheckpointError(f"the saved priorities are {len(state)} bytes, but here are {len(self._memory)}")
        self._memory[:] = state.numpy()

    __setstate__ = load_state


def _size(positions: WritePositions) -> int:
    """Places of all lanes, each of which has a leaf."""
    return positions.ring_size * positions.num_lanes


@functools.cache
def _begins(count: int) -> np.ndarray:
    """[count] where each of so many blocks begins, if they lie one after another."""
    begins = np.arange(0, _FAN_OUT * count, _FAN_OUT)
    begins.flags.writeable = False
    return begins


@final
class PrioritizedSampler(Sampler):
    """Draws row i with probability pᵢ^α / Σ p^α; a new row has the highest priority seen so far.

    Drawn batches have `weight`, (N P(i))^-β divided by its largest value. Rows that cannot be learned from have no
    leaf in the sum tree, so nothing is drawn in vain. The tree is brought up to date when rows are drawn: writing
    rows costs nothing more than without priorities.

    Args:
        settings: alpha and beta; powers below 10^-30 and above 10^30 count as these.
    """

    def __init__(self, settings: Prioritized | None = None) -> None:
        self.settings = Prioritized() if settings is None else settings
        self.beta = schedule_value(self.settings.beta, 0.0)
        """Present exponent of the importance weights."""
        self._highest = 1.0  # to the power of alpha
        self._tree: SumTree | None = None
        self._drawn = np.empty(0)
        self._belongs: tuple[int, int] | None = None  # restarts and length that the tree was made for
        self._written = np.empty(0, np.int64)  # [B] rows written when it was last brought up to date
        self._end = np.empty(0, np.int64)  # [B] the first row of each lane that could not be drawn then

    def set_progress(self, progress: float) -> None:
        self.beta = schedule_value(self.settings.beta, progress)

    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        tree = self._updated(buffer, length)
        index, self._drawn = tree.draw(torch.rand(count, generator=generator, dtype=torch.float64).numpy())
        if count and self._drawn[0] == 0:
            buffer.candidates(length)  # says what is missing
            raise ShapeError(f"no row can be learned from, for episodes end at once; {buffer.held()}")
        return index

    def weight(self) -> torch.Tensor:
        weight = self._drawn / np.minimum.reduce(self._drawn)
        weight **= -self.beta
        return torch.from_numpy(weight.astype(np.float32, copy=False))

    def largest_weight(self) -> float:
        if self._tree is None:  # drawn elsewhere
            return 1.0
        least = np.minimum.reduce(self._drawn) / self._tree.total
        return float((np.count_nonzero(self._tree.leaves > 0) * least) ** -self.beta)

    def finish(self, buffer: StreamReader, batch: Batch, generator: torch.Generator) -> Batch:
        batch.__dict__["weight"] = self.weight()
        return batch

    def write_back(self, buffer: StreamReader, index: np.ndarray, priority: np.ndarray) -> None:
        if not len(index):
            return
        lowest, highest = np.minimum.reduce(priority), float(np.maximum.reduce(priority))
        if not (lowest >= 0 and highest < _LARGEST):
            text = f"priorities must be finite and at least 0, below {_LARGEST}"
            raise NonFiniteError(f"{text}; given were {priority.tolist()}")
        size = self._power(priority)
        tree, belongs, held = self._tree, self._belongs, None
        positions = buffer.positions
        if tree and belongs and belongs[0] == positions.restarts and len(tree) == _size(positions):
            held = tree.leaves.take(index)
        if tree is None or held is None or np.minimum.reduce(held) == 0:  # rows it does not know, perhaps yet
            tree = self._updated(buffer, 1 if belongs is None else abs(belongs[1]))
            held = tree.leaves.take(index)
            index, size = index[held > 0], size[held > 0]
        self._highest = max(self._highest, float(self._power(highest)))
        tree.set(index, size)

    def _power(self, priority: Any) -> Any:
        """Sizes of leaves; up to a power of 2 they are within the limits of single precision by themselves."""
        if self.settings.alpha <= 2:
            return (priority + _SMALLEST) ** self.settings.alpha
        nats = self.settings.alpha * np.log(np.asarray(priority, np.float64) + _SMALLEST)
        return np.exp(np.clip(nats, *np.log(_SIZES)))

    def _updated(self, buffer: StreamReader, length: int) -> SumTree:
        """The tree with the rows that were written since the last draw."""
        positions, tree = buffer.positions, self._tree
        belongs = (positions.restarts, -length if buffer.fixed else length)
        size = _size(positions)
        same = self._belongs == belongs and positions.lockstep and not positions.has_changes
        if tree is None or self._belongs is None or self._belongs[0] != positions.restarts:
            tree = self._tree = SumTree(size)
            tree.set(buffer.starts(length), self._highest)
        elif same and len(tree) == size and self._written.item(0) == positions.written.item(0):
            return tree
        else:
            if len(tree) < size:  # the buffer has grown behind the rows that it had
                before, tree = tree.leaves, SumTree(size)
                tree.fill(np.pad(before, (0, size - len(before))))
                self._tree = tree
            self._follow(buffer, tree, abs(self._belongs[1]))
            if self._belongs != belongs:
                leaves, starts = np.zeros_like(tree.leaves), buffer.starts(length)
                leaves[starts] = np.where(tree.leaves[starts] > 0, tree.leaves[starts], self._highest)
                tree.fill(leaves)
        self._belongs, self._written = belongs, positions.written
        self._end = positions.written - positions.counts + buffer.usable(length)
        positions.forget_changes()
        return tree

    def _follow(self, buffer: StreamReader, tree: SumTree, length: int) -> None:
        """Gives new rows their leaves, and takes those of rows that were overwritten or cannot be drawn any more."""
        positions = buffer.positions
        written, counts = positions.written, positions.counts
        end = written - counts + buffer.usable(length)
        begin = np.maximum(np.minimum(np.minimum(self._end, end), positions.kept - 1), written - counts)
        # [B] with the open one and those taken back, whose places other rows had
        rows = np.minimum(np.maximum(written, positions.furthest) + 1 - begin, positions.ring_size)
        lane = np.repeat(np.arange(positions.num_lanes), rows)
        number = np.arange(len(lane)) - np.repeat(np.cumsum(rows) - rows - begin, rows)  # in the stream of its lane
        place = (positions.cursors[lane] - (written[lane] - number)) % positions.ring_size
        index = place * positions.num_lanes + lane
        possible = (number < end[lane]) & buffer.keeps_state(place)
        size = np.zeros(len(index))
        size[possible] = np.where(buffer.may_begin(index[possible], length), self._highest, 0.0)
        tree.set(index, size)
        if positions.spare:  # rows whose content stays for the stacks of others are no longer drawn
            back = positions.counts + np.arange(1, positions.spare + 1)[:, None]
            tree.set(positions.numbers_at((positions.cursors - back) % positions.ring_size).reshape(-1), 0.0)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"highest": self._highest, "beta": self.beta}
        if self._tree is not None and self._belongs is not None:
            state |= {"tree": self._tree.state(), "size": len(self._tree.leaves)}
            state |= {"restarts": self._belongs[0], "length": self._belongs[1]}
            state |= {"written": self._written, "end": self._end}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        try:
            self._highest, self.beta = float(state["highest"]), float(state["beta"])
            self._tree = self._belongs = None
            if "tree" in state:
                self._tree = SumTree(int(state["size"]))
                self._tree.load_state(state["tree"])
                self._belongs = (int(state["restarts"]), int(state["length"]))
                self._written, self._end = np.array(state["written"]), np.array(state["end"])
        except KeyError as error:
            raise CheckpointError(f"the saved priorities have no {error}") from None


def sampler_of(plan: Replay) -> Sampler:
    """The sampler that a plan asks for.

    Args:
        plan: draws by priority where it has settings for that, else uniformly.
    """
    return UniformSampler() if plan.prioritized is None else PrioritizedSampler(plan.prioritized)
