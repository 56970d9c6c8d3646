"""Rows are drawn in proportion to a power of their priority.

Paper: Schaul et al. 2016, https://arxiv.org/abs/1511.05952, equation (1) and section 3.4.
Departures: draws are independent instead of stratified, so that their order is random; weights are divided by the
largest one of the draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from palaestra.buffers.samplers.sampler import Sampler
from palaestra.buffers.samplers.sum_tree import SumTree
from palaestra.core import Batch, CheckpointError, NonFiniteError, Prioritized, ShapeError, schedule_value

if TYPE_CHECKING:
    from palaestra.buffers.replay import ReplayBuffer

__all__ = ["PrioritizedSampler"]

_SMALLEST = 1e-6  # is added to every priority, so that none stays out for ever
_LARGEST = 1e15  # sums of a million such, squared, still fit into single precision


@final
class PrioritizedSampler(Sampler):
    """Draws row i with probability pᵢ^α / Σ p^α; a new row has the highest priority seen so far.

    Drawn batches have `weight`, (N P(i))^-β divided by its largest value. Rows that cannot be learned from have no
    leaf in the sum tree, so nothing is drawn in vain. The tree is brought up to date when rows are drawn: writing
    rows costs nothing more than without priorities.

    Args:
        settings: alpha and beta.
    """

    def __init__(self, settings: Prioritized | None = None) -> None:
        self.settings = Prioritized() if settings is None else settings
        self._beta = schedule_value(self.settings.beta, 0.0)
        self._highest = 1.0  # to the power of alpha
        self._tree: SumTree | None = None
        self._drawn = np.empty(0)
        self._belongs: tuple[int, int] | None = None  # restarts and length that the tree was made for
        self._written = np.empty(0, np.int64)  # [B] rows written when it was last brought up to date
        self._end = np.empty(0, np.int64)  # [B] the first row of each lane that could not be drawn then

    @property
    def beta(self) -> float:
        """Present exponent of the importance weights."""
        return self._beta

    def set_progress(self, progress: float) -> None:
        """Moves beta.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self._beta = schedule_value(self.settings.beta, progress)

    def starts(self, buffer: ReplayBuffer, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Draws rows by priority.

        Args:
            buffer: what is drawn from.
            count: how many are wanted.
            length: so many rows must follow each in its lane.
            generator: source of the choice.

        Raises:
            ConfigError: a lane has no room for so many rows.
            ShapeError: there is nothing to choose from.
        """
        tree = self._updated(buffer, length)
        index, self._drawn = tree.draw(torch.rand(count, generator=generator, dtype=torch.float64).numpy())
        if count and self._drawn[0] == 0:
            buffer.candidates(length)  # says what is missing
            raise ShapeError(f"no row can be learned from, for episodes end at once; {buffer.held()}")
        return index

    def finish(self, buffer: ReplayBuffer, batch: Batch, generator: torch.Generator) -> Batch:
        """Adds `weight`.

        Args:
            buffer: what was drawn from.
            batch: the rows of the newest `starts`.
            generator: not used.
        """
        weight = self._drawn / np.minimum.reduce(self._drawn)
        weight **= -self._beta
        batch.__dict__["weight"] = torch.from_numpy(weight.astype(np.float32, copy=False))
        return batch

    def write_back(self, index: np.ndarray, priority: np.ndarray) -> None:
        """Takes priorities; rows that were overwritten since they were drawn keep that of new rows.

        Args:
            index: [N] row numbers.
            priority: [N], at least 0.

        Raises:
            NonFiniteError: one is NaN, infinite or negative.
            ShapeError: nothing was drawn before.
        """
        tree = self._tree
        if tree is None:
            raise ShapeError("priorities were written back before anything was drawn")
        lowest, highest = np.minimum.reduce(priority), float(np.maximum.reduce(priority))
        if not (lowest >= 0 and highest < _LARGEST):
            text = f"priorities must be finite and at least 0, below {_LARGEST}"
            raise NonFiniteError(f"{text}; given were {priority.tolist()}")
        self._highest = max(self._highest, (highest + _SMALLEST) ** self.settings.alpha)
        size = (priority + _SMALLEST) ** self.settings.alpha
        kept = tree.leaves.take(index) > 0
        if np.count_nonzero(kept) < len(kept):
            index, size = index[kept], size[kept]
        tree.set(index, size)

    def _updated(self, buffer: ReplayBuffer, length: int) -> SumTree:
        """The tree with the rows that were written since the last draw."""
        heads, tree = buffer.heads, self._tree
        belongs = (heads.restarts, length)
        if tree is None or self._belongs is None or self._belongs[0] != heads.restarts:
            tree = self._tree = SumTree(heads.places * heads.num_lanes)
            tree.set(buffer.starts(length), self._highest)
        elif (
            heads.together and self._written[0] == heads.written and self._belongs == belongs and not heads.has_changes
        ):
            return tree
        else:
            self._follow(buffer, tree, self._belongs[1])
            if self._belongs != belongs:
                leaves, starts = np.zeros_like(tree.leaves), buffer.starts(length)
                leaves[starts] = np.where(tree.leaves[starts] > 0, tree.leaves[starts], self._highest)
                tree.fill(leaves)
        self._belongs = belongs
        self._written, self._end = heads.writes.copy(), self._ends(buffer, length)
        heads.forget_changes()
        return tree

    def _follow(self, buffer: ReplayBuffer, tree: SumTree, length: int) -> None:
        """Gives new rows their leaves, and takes those of rows that were overwritten or cannot be drawn any more."""
        heads = buffer.heads
        writes, end = heads.writes, self._ends(buffer, length)
        begin = np.maximum(np.minimum(self._end, heads.kept - 1), writes - heads.counts)
        rows = writes + 1 - begin  # [B] with the open one, whose place another row had
        lane = np.repeat(np.arange(heads.num_lanes), rows)
        number = np.arange(len(lane)) - np.repeat(np.cumsum(rows) - rows - begin, rows)  # in the stream of its lane
        place = (heads.heads[lane] - (writes[lane] - number)) % heads.places
        index = place * heads.num_lanes + lane
        possible = number < end[lane]
        if buffer.keeps_states:
            possible &= place % buffer.state_period == 0
        size = np.zeros(len(index))
        size[possible] = np.where(buffer.may_begin(index[possible], length), self._highest, 0.0)
        tree.set(index, size)

    def _ends(self, buffer: ReplayBuffer, length: int) -> np.ndarray:
        """[B] the first row of each lane that too few rows follow."""
        heads = buffer.heads
        return heads.writes - np.maximum(length - 1, heads.unfinished)

    def state(self) -> dict[str, Any]:
        """Priorities, the highest one, and which rows the tree knows."""
        state: dict[str, Any] = {"highest": self._highest, "beta": self._beta}
        if self._tree is not None and self._belongs is not None:
            state |= {"tree": self._tree.state(), "size": len(self._tree.leaves)}
            state |= {"restarts": self._belongs[0], "length": self._belongs[1]}
            state |= {"written": self._written, "end": self._end}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a sampler of a buffer of the same shape.

        Raises:
            CheckpointError: something is missing.
        """
        try:
            self._highest, self._beta = float(state["highest"]), float(state["beta"])
            self._tree = self._belongs = None
            if "tree" in state:
                self._tree = SumTree(int(state["size"]))
                self._tree.load_state(state["tree"])
                self._belongs = (int(state["restarts"]), int(state["length"]))
                self._written, self._end = np.array(state["written"]), np.array(state["end"])
        except KeyError as error:
            raise CheckpointError(f"the saved priorities have no {error}") from None
