"""What a trainer is put together from: a collector, and what learns, by the names of the policies.

These are contracts: the loop knows no other collector and no other learner, and a callback no other run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch

from palaestra.algorithms import Algorithm, UpdateInfo
from palaestra.core import POLICY, ConfigError, DataSource, NonFiniteError, RowsLostError
from palaestra.policies import Policy
from palaestra.rollout import CollectInfo, Collector, Episode, Metric, OfflineData, OfflineFirst
from palaestra.training.config import TrainerConfig

__all__ = [
    "Ask",
    "DataCollector",
    "GradientSteps",
    "Histogram",
    "PolicyManager",
    "SelfPaced",
    "SimplePolicyManager",
    "Source",
    "TrainingRun",
    "acting_policy",
    "named_policies",
    "part_name",
    "policy_folder",
]


class Source(DataSource, Protocol):
    """A data source that can be part of a checkpoint."""

    def state_tensors(self) -> dict[str, Any]:
        """What it holds, by name."""
        ...

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave."""


class DataCollector(Protocol):
    """What a trainer collects with: a `Collector`, `OfflineData`, or a roll-out manager of a distributed run."""

    env_steps: int

    @property
    def num_lanes(self) -> int:
        """Streams that are collected side by side."""
        ...

    @property
    def buffers(self) -> Mapping[str, Source]:
        """Where what was collected lies, by policy name: part of checkpoints."""
        ...

    @property
    def sources(self) -> Mapping[str, DataSource]:
        """What each policy learns from: its buffer, a mixture with loaded data, or loaded data alone."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause` before it had all its rows."""
        ...

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Collects for one training iteration, or continues an unfinished unroll.

        Args:
            length: time steps from every environment.
            random: names of the policies that act at random.
        """
        ...

    def pause(self) -> None:
        """Ends a running unroll as soon as it can; called in a signal handler."""

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""


Updated: TypeAlias = UpdateInfo | NonFiniteError
"""What an update did, or why it was not applied."""


@runtime_checkable
class PolicyManager(Protocol):
    """Contract of what the policies of a run learn in: this process, others, or other machines."""

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
        """By policy name, in an order that never changes: this process's copies, with the newest weights."""
        ...

    def update(self, sources: Mapping[str, DataSource]) -> Mapping[str, Updated | Sequence[Updated]]:
        """One update of each named policy; other policies stay as they are.

        Args:
            sources: what each learns from.

        Returns:
            What each update did, or why it was not applied; policies whose rows are lost are left out. Of a policy that
            has made several updates (see `SelfPaced`), all of them, in order.
        """
        ...

    def set_progress(self, progress: float) -> None:
        """Moves everything that follows a schedule.

        Args:
            progress: in [0, 1].
        """
        for algorithm in self.algorithms.values():
            algorithm.set_progress(progress)

    def state(self) -> dict[str, Any]:
        """For a checkpoint, by policy name."""
        return {name: algorithm.state_tensors() for name, algorithm in self.algorithms.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint.

        Args:
            state: from `state`.
        """
        for name, algorithm in self.algorithms.items():
            algorithm.load_state_tensors(state[name])

    def close(self) -> None:
        """Ends whatever runs elsewhere."""


def manager_of(learner: Any, collector: Any, eval_epsilon: float) -> PolicyManager:
    """Where a trainer's policies learn.

    Args:
        learner: an algorithm, or a manager of several.
        collector: of the trainer.
        eval_epsilon: of the policies.

    Raises:
        ConfigError: it is something else; or the collector acts with a policy that an algorithm does not learn; or one
            of them has no epsilon.
        ShapeError: actions of loaded data are not as the policies sample them.
    """
    if isinstance(learner, Algorithm):
        if isinstance(collector, Collector) and collector.policy is not learner.policy:
            raise ConfigError(
                f"the collector acts with another policy than the one that this {type(learner).__name__} learns; make "
                "it by Collector.of(env, algorithm)"
            )
        learner = SimplePolicyManager({POLICY: learner})
    if not hasattr(learner, "algorithms"):
        raise ConfigError(f"Trainer was given a {type(learner).__name__}; give an algorithm, or a PolicyManager")
    for algorithm in learner.algorithms.values():
        algorithm.policy.eval_epsilon = eval_epsilon
    if isinstance(collector, OfflineData | OfflineFirst):
        collector.require_units_of({name: one.policy for name, one in learner.algorithms.items()})
    return learner


class GradientSteps(Protocol):
    """Makes the updates of algorithms of this process with gradients that are computed elsewhere."""

    def update(self, policy: str, source: DataSource) -> UpdateInfo:
        """One update of the named policy."""
        ...

    def metrics(self) -> dict[str, float]:
        """How those who compute them do, for a row of metrics."""
        ...

    def close(self) -> None:
        """Ends whatever runs elsewhere."""


@runtime_checkable
class SelfPaced(Protocol):
    """A policy manager whose policies learn while data is collected, when what acts says so: robots.

    A trainer gives such a manager no sources; its `update` reports all updates since the last call.
    """

    unroll_length: float
    """Time steps from every environment in a training iteration."""


class SimplePolicyManager(PolicyManager):
    """Policies that learn in this process, one after another.

    Args:
        algorithms: by policy name.
        gradient_workers: compute the gradients of these very algorithms (`distributed.GradientWorkers`); `None`
            computes them here.

    Raises:
        ConfigError: there is none.
    """

    def __init__(
        self, algorithms: Mapping[str, Algorithm[Any, Any]], *, gradient_workers: GradientSteps | None = None
    ) -> None:
        if not algorithms:
            raise ConfigError("a run needs at least one policy that learns")
        self._algorithms = dict(algorithms)
        self.gradient_workers = self._workers = gradient_workers
        """Compute gradients; `None` where they are computed here."""

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
        """See `PolicyManager.algorithms`."""
        return self._algorithms

    def update(self, sources: Mapping[str, DataSource]) -> Mapping[str, UpdateInfo | NonFiniteError]:
        """See `PolicyManager.update`.

        Args:
            sources: what each learns from.
        """
        results: dict[str, UpdateInfo | NonFiniteError] = {}
        for name, source in sources.items():
            try:
                if self._workers is None:
                    results[name] = self._algorithms[name].begin_update(source)
                else:
                    results[name] = self._workers.update(name, source)
            except NonFiniteError as error:
                results[name] = error
            except RowsLostError:  # there will be rows again; that some are gone was said when it was found
                continue
        return results

    def metrics(self) -> dict[str, float]:
        """How the gradient workers do, for a row of metrics; nothing without any."""
        return {} if self._workers is None else self._workers.metrics()

    def close(self) -> None:
        """Ends the gradient workers, if there are any."""
        if self._workers is not None:
            self._workers.close()


class TrainingRun(Protocol):
    """A run as its callbacks see it; `Trainer` is one."""

    callbacks: list[Any]
    """Hooks of the run, in the order in which they are called."""
    metrics: list[Metric]
    """What rows of metrics say about episodes."""
    best_return: float | None
    """The best mean return of all evaluations so far."""

    @property
    def config(self) -> TrainerConfig:
        """Budget and periods."""
        ...

    @property
    def collector(self) -> DataCollector:
        """What collects."""
        ...

    @property
    def learner(self) -> PolicyManager:
        """The policies' learners."""
        ...

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
        """What learns, by policy name."""
        ...

    @property
    def progress(self) -> float:
        """The share of the budget that is used, in [0, 1]."""
        ...

    def stop(self, reason: str) -> None:
        """Ends the run after this iteration.

        Args:
            reason: for the record of the run.
        """

    def save(self, *, final: bool = False) -> None:
        """Saves a checkpoint.

        Args:
            final: whether it is the last one.
        """


class Ask(NamedTuple):
    """What a run in steps is about to do: an unroll, or an update."""

    random: Collection[str] = ()
    """Policies that will act at random in the unroll."""
    sources: Mapping[str, DataSource] | None = None
    """What policies will learn from; `None` before an unroll."""


@dataclass(frozen=True)
class Histogram:
    """Counts of values by bin."""

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


def acting_policy(algorithms: Mapping[str, Algorithm[Any, Any]]) -> Policy | torch.nn.ModuleDict:
    """What acts for a run: the policy, or all of them by name where there are several.

    Args:
        algorithms: by policy name.
    """
    if list(algorithms) == [POLICY]:
        return algorithms[POLICY].policy
    return torch.nn.ModuleDict({name: algorithm.policy for name, algorithm in algorithms.items()})


def named_policies(acting: Policy | torch.nn.ModuleDict) -> dict[str, Policy]:
    """By name, what `acting_policy` gave.

    Args:
        acting: one policy, or several by name.
    """
    if isinstance(acting, Policy):
        return {POLICY: acting}
    return {name: policy for name, policy in acting.items() if isinstance(policy, Policy)}


def part_name(kind: str, policy: str, separator: str = ".") -> str:
    """What something of a policy is called: its kind alone in a run of one unnamed policy.

    Args:
        kind: of thing, for example `algorithm`.
        policy: its name.
        separator: between the two.

    Examples:
        >>> part_name("buffer", "policy"), part_name("buffer", "buyer")
        ('buffer', 'buffer.buyer')
    """
    return kind if policy == POLICY else f"{kind}{separator}{policy}"


def policy_folder(home: Path, policy: str) -> Path:
    """The folder of what belongs to a policy: that of all in a run of one unnamed policy.

    Args:
        home: of all policies.
        policy: the name of one.
    """
    return home if policy == POLICY else home / policy
