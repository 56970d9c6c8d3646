"""How a gradient step is made: `EagerSteps`, `ShardedSteps` with gradients from elsewhere, `CompiledSteps` as a graph.

A stepper takes the minibatches of an update and gives one result for each gradient step. It knows when a gradient that
is not finite is found out. It knows nothing of what is learned, nor where minibatches come from.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import UpdateInfo
from palaestra.core import Batch, Minibatches, NonFiniteError

__all__ = ["GradientStep", "ShardedSteps", "StepResult", "Stepper"]


class StepResult(NamedTuple):
    """What one gradient step reports."""

    metrics: dict[str, Tensor]
    """0-dim."""
    priority: Tensor | None
    """[N] how much each of its rows should be sampled again; `None` where the algorithm has no opinion."""
    num_valid: Tensor | int
    """Rows that counted."""
    minibatch: Any = None
    """What was learned from, where its rows have priorities."""


GradientStep: TypeAlias = Callable[[Batch], StepResult]
"""Makes one gradient step on a minibatch, with gradients from wherever it gets them; ends with `apply_shards`."""


class Stepper(ABC):
    """Makes gradient steps of an update."""

    @abstractmethod
    def steps(self, passes: Iterable[Minibatches]) -> Iterator[StepResult]:
        """Makes a gradient step for each minibatch, when its result is asked for.

        Raises:
            NonFiniteError: a gradient is NaN or infinite; holds the minibatch.
        """

    def awaited(self, info: UpdateInfo) -> UpdateInfo:
        """What to wait for before the steps of an update are known to be finite: nothing, for each step was asked."""
        return info


@final
class EagerSteps(Stepper):
    """Computes gradients and applies them, operation by operation.

    Args:
        algorithm: a `GradientAlgorithm`.
        note: called with the minibatches of each pass before it begins.
    """

    def __init__(self, algorithm: Any, note: Callable[[Minibatches], None] | None = None) -> None:
        self._algorithm, self._note = algorithm, note

    def steps(self, passes: Iterable[Minibatches]) -> Iterator[StepResult]:
        algorithm = self._algorithm
        for minibatches in passes:
            if self._note is not None:
                self._note(minibatches)
            for minibatch in minibatches:
                gradients = algorithm.gradients(minibatch)
                try:
                    metrics = algorithm.apply(gradients)
                except NonFiniteError as error:
                    error.batch = minibatch
                    raise
                yield StepResult(metrics, gradients.priority, gradients.num_valid, minibatch)


@final
class ShardedSteps(Stepper):
    """Gradients are computed elsewhere, such as in gradient workers, each on a shard of a minibatch.

    Args:
        gradient_step: makes the step for one minibatch.
    """

    def __init__(self, gradient_step: GradientStep) -> None:
        self._gradient_step = gradient_step

    def steps(self, passes: Iterable[Minibatches]) -> Iterator[StepResult]:
        for minibatch in itertools.chain.from_iterable(passes):
            try:
                yield self._gradient_step(minibatch)._replace(minibatch=minibatch)
            except NonFiniteError as error:
                error.batch = minibatch
                raise


def num_rows(batch: Batch) -> int:
    """How many rows a minibatch has, which is ready for `losses`."""
    # by name where it can be: PyTorch 2.11 traces no iteration over fields
    leaf = batch["action"] if "action" in vars(batch) else next(iter(vars(batch).values()))
    while isinstance(leaf, Batch):
        leaf = next(iter(vars(leaf).values()))
    return leaf.shape[0]


class MemberAverages:
    """Means over the gradient steps of an update, of each of M members that learn side by side.

    Args:
        number: M.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._sums: dict[tuple[str, ...], Tensor] = {}

    def add(self, part: slice, active: Tensor, metrics: Mapping[str, Tensor], rows: Tensor) -> None:
        """Takes a gradient step of those members of a part that made it.

        Args:
            part: of the members.
            active: [G] which of them made it.
            metrics: [G] each.
            rows: [G] that they learned from.
        """
        names = (*metrics, "rows", "steps")
        values = torch.stack([*metrics.values(), rows, torch.ones_like(rows)])
        if names not in self._sums:
            self._sums[names] = torch.zeros(len(names), self._number, dtype=torch.float64)
        self._sums[names][:, part] += torch.where(active, values, 0.0)

    def give(self, infos: Mapping[int, UpdateInfo]) -> None:
        """Writes them into the reports of members: of each metric over the steps that had it.

        Args:
            infos: by the member's number.
        """
        names = [*dict.fromkeys(name for given in self._sums for name in given)]
        sums, counts = torch.zeros(2, len(names), self._number, dtype=torch.float64)
        for given, found in self._sums.items():
            places = [names.index(name) for name in given]
            sums[places] += found
            counts[places] += found[-1]
        means, made, whole = (sums / counts).float().T.contiguous(), (counts > 0).T.tolist(), sums.T.tolist()
        for place, info in infos.items():
            totals = dict(zip(names, whole[place], strict=True))
            if totals.get("steps"):
                found = zip(names, means[place].unbind(), made[place], strict=True)
                info.records.append({name: mean for name, mean, had in found if had and name not in ("rows", "steps")})
                info.gradient_steps += int(totals["steps"])
                info.rows += int(totals["rows"])
