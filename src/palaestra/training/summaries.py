"""Numbers and histograms from anywhere in a run, into the rows of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms import GradientAlgorithm
from palaestra.core import Batch, DataSource, minibatches
from palaestra.policies import Phase
from palaestra.training.callbacks import Callback
from palaestra.training.parts import Histogram, TrainingRun, part_name

__all__ = ["Histograms", "Summary"]


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

    def iteration_began(self, trainer: TrainingRun) -> None:
        """See `Callback.iteration_began`."""
        self._iterations += 1

    def logged(self, trainer: TrainingRun, row: dict[str, Any]) -> None:
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
    step, and nothing in between. Of a pass over data without repetition (`WholeSampler`) it takes the rows it draws.
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

    def logged(self, trainer: TrainingRun, row: dict[str, Any]) -> None:
        """See `Callback.logged`."""
        for policy, algorithm in trainer.algorithms.items():
            version = algorithm.policy_version
            if isinstance(algorithm, GradientAlgorithm) and self._seen.get(policy, 0) != version:  # else nothing is new
                self._seen[policy] = version
                prefix = part_name("histogram", policy, "/")
                row |= self._of_policy(prefix, algorithm, trainer.collector.sources[policy])

    def _of_policy(self, prefix: str, algorithm: Any, source: DataSource) -> dict[str, Histogram]:
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
