"""Numbers and histograms from anywhere in a run, into the rows of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.algorithms import GradientAlgorithm
from palaestra.core import Batch, DataSource, minibatches
from palaestra.policies import Phase
from palaestra.training.callbacks import Callback
from palaestra.training.parts import part_name

if TYPE_CHECKING:
    from palaestra.training.trainer import Trainer

__all__ = ["Histogram", "Histograms", "Summary"]


@dataclass(frozen=True)
class Histogram:
    """How often values fall where."""

    counts: tuple[int, ...]
    """Values in each bin."""
    edges: tuple[float, ...]
    """Ends of the bins, one more than there are."""
    total: float
    """Sum of the values."""
    total_square: float
    """Sum of their squares."""

    @classmethod
    def of(cls, values: Any, bins: int = 30) -> Histogram:
        """The histogram of an array; values that are not finite are left out.

        Args:
            values: numbers of any shape.
            bins: of equal width between the smallest and the largest value.

        Examples:
            >>> Histogram.of([0.0, 1.0, 1.0, 4.0], bins=2)
            Histogram(counts=(3, 1), edges=(0.0, 2.0, 4.0), total=6.0, total_square=18.0)
        """
        on_host = values.double().numpy(force=True) if isinstance(values, torch.Tensor) else values
        array = np.asarray(on_host, np.float64).ravel()
        array = array[np.isfinite(array)]
        try:
            counts, edges = np.histogram(array, bins)
        except ValueError:  # numbers so large that nothing lies between them
            if bins < 1:
                raise
            ends = np.nextafter([array.min(), array.max()], [-np.inf, np.inf])
            counts, edges = np.histogram(array, 1, (ends[0], ends[1]))
        return cls(tuple(counts.tolist()), tuple(edges.tolist()), float(array.sum()), float(np.square(array).sum()))

    def to_json(self) -> dict[str, list[float]]:
        """Counts and edges as JSON values."""
        return {"counts": list(self.counts), "edges": list(self.edges)}

    def to_proto(self, kind: Any) -> Any:
        """The same as TensorBoard has it.

        Args:
            kind: TensorBoard's `HistogramProto`.
        """
        sums = {"num": sum(self.counts), "sum": self.total, "sum_squares": self.total_square}
        return kind(min=self.edges[0], max=self.edges[-1], bucket_limit=self.edges[1:], bucket=self.counts, **sums)


@final
class Summary(Callback):
    """Collects numbers and histograms, and puts them into the next row of metrics.

    Numbers of one name are averaged over the row; of a histogram's name the newest counts.

    Args:
        every: training iterations from one that records to the next.

    Examples:
        >>> summary = Summary()
        >>> with summary.scope("actor"):
        ...     summary.scalar("temperature", 0.5)
        ...     summary.scalar("temperature", 1.5)
        >>> row = {}
        >>> summary.logged(None, row)
        >>> row
        {'actor/temperature': 1.0}
    """

    def __init__(self, *, every: int = 1) -> None:
        self._every, self._iterations = every, 0
        self._scopes: list[str] = []
        self._conditions: list[Callable[[], bool]] = []
        self._numbers: dict[str, list[float]] = {}
        self._histograms: dict[str, Histogram] = {}

    @property
    def records(self) -> bool:
        """Whether something is recorded at this moment: ask before computing what is costly."""
        return self._iterations % self._every == 0 and all(condition() for condition in self._conditions)

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Puts a name and a slash before every name inside; scopes nest.

        Args:
            name: of the scope.
        """
        return _pushed(self._scopes, name)

    def record_if(self, condition: Callable[[], bool]) -> AbstractContextManager[None]:
        """Records inside only where a condition holds.

        Args:
            condition: asked at every record.
        """
        return _pushed(self._conditions, condition)

    def scalar(self, name: str, value: float | Tensor) -> None:
        """Records a number.

        Args:
            name: below the scopes.
            value: of one element.
        """
        if self.records:
            self._numbers.setdefault("/".join([*self._scopes, name]), []).append(float(value))

    def histogram(self, name: str, values: Any) -> None:
        """Records a histogram.

        Args:
            name: below the scopes.
            values: numbers of any shape.
        """
        if self.records:
            self._histograms["/".join([*self._scopes, name])] = Histogram.of(values)

    def iteration_began(self, trainer: Trainer) -> None:
        """See `Callback.iteration_began`."""
        self._iterations += 1

    def logged(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """See `Callback.logged`."""
        row |= {name: sum(values) / len(values) for name, values in self._numbers.items()}
        row |= self._histograms
        self._numbers, self._histograms = {}, {}

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        histograms = {name: astuple(found) for name, found in self._histograms.items()}
        return {"iterations": self._iterations, "numbers": self._numbers, "histograms": histograms}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Callback.load_state`."""
        self._iterations = state["iterations"]
        self._numbers = {name: list(values) for name, values in state["numbers"].items()}
        self._histograms = {
            name: Histogram(tuple(counts), tuple(edges), *sums)
            for name, (counts, edges, *sums) in state["histograms"].items()
        }


@contextmanager
def _pushed(stack: list[Any], item: Any) -> Iterator[None]:
    stack.append(item)
    try:
        yield
    finally:
        stack.pop()


@final
class Histograms(Callback):
    """Adds histograms of observations, actions and gradients to every row of metrics.

    Data and gradients are those of one more draw, from which nothing is learned; so each row costs about a gradient
    step, and nothing in between.
    """

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._seen: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {"generator": self._generator.get_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Callback.load_state`."""
        self._generator.set_state(state["generator"])

    def logged(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """See `Callback.logged`."""
        for policy, algorithm in trainer.algorithms.items():
            version = algorithm.policy_version
            if isinstance(algorithm, GradientAlgorithm) and self._seen.get(policy, 0) != version:  # else nothing is new
                self._seen[policy] = version
                prefix = part_name("histogram", policy, "/")
                row |= self._of_policy(prefix, algorithm, trainer.collector.sources[policy])

    def _of_policy(self, prefix: str, algorithm: GradientAlgorithm[Any], source: DataSource) -> dict[str, Histogram]:
        drawn: Any = algorithm.on_device(source.draw(algorithm.plan, self._generator))
        if algorithm.rewards is not None:
            drawn = drawn.replace(reward=algorithm.rewards(drawn["reward"]))
        observation = drawn["observation"]
        if algorithm.plan.data == "on-policy":  # the row after the last action
            observation = observation[:-1]
        row = _histograms(f"{prefix}/observation", observation)
        row |= _histograms(f"{prefix}/action", drawn["action"])
        with algorithm.policy.in_phase(Phase.UPDATE):
            batch = algorithm.prepared(drawn, drawn, source, self._generator)
            minibatch = next(iter(minibatches(batch, algorithm.plan, generator=self._generator)))
            gradients = algorithm.gradients(minibatch).values
        return row | {f"{prefix}/gradient/{name}": Histogram.of(value) for name, value in gradients.items()}


def _histograms(name: str, values: Any) -> dict[str, Histogram]:
    if not isinstance(values, Batch):
        return {name: Histogram.of(values)}
    parts = [_histograms(f"{name}/{key}", part) for key, part in values.items()]
    return {key: histogram for part in parts for key, histogram in part.items()}
