"""What algorithms state and report: losses, gradients, updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from palaestra.core import Batch, NonFiniteError

__all__ = [
    "Gradients",
    "Losses",
    "StepResult",
    "UpdateInfo",
    "mean_metrics",
    "num_rows",
    "num_valid",
    "require_finite_gradients",
]


class Losses(NamedTuple):
    """What `GradientAlgorithm.losses` states for one minibatch."""

    terms: dict[str, Tensor]
    """Scalars to minimise, each a mean over valid rows."""
    metrics: dict[str, Tensor]
    """Scalars to report."""
    priority: Tensor | None = None
    """[N] how much each row should be sampled again; `None` where the algorithm has no opinion."""


class Gradients(NamedTuple):
    """What a gradient worker returns for one minibatch."""

    values: dict[str, Tensor]
    """Gradient by the parameter's full name."""
    num_valid: Tensor | int
    """Rows that counted: the weight when shards are combined."""
    metrics: dict[str, Tensor]
    """Scalars to report, without gradient."""
    priority: Tensor | None
    """[N] new priorities."""


StepResult: TypeAlias = tuple[dict[str, Tensor], Tensor | None]
"""What one gradient step reports: its metrics, and new priorities of its rows where the algorithm has any."""


@dataclass(slots=True)
class UpdateInfo:
    """What one update did. Metrics stay tensors until they are read, so that reporting costs nothing when unused."""

    policy_version: int
    """Version after the update."""
    gradient_steps: int
    """Optimizer steps made."""
    rows_trained: int
    """Rows learned from, each counted as often as it was used."""
    records: list[dict[str, Tensor]] = field(default_factory=list)
    """One dict of 0-dim metrics per gradient step."""

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of every metric over the update's gradient steps."""
        return mean_metrics(self.records)


def mean_metrics(records: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean of each metric over records that have it.

    Args:
        records: dicts of 0-dim tensors.
    """
    columns: dict[str, list[Tensor]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    return {name: float(torch.stack(values).float().mean()) for name, values in columns.items()}


def require_finite_gradients(metrics: Mapping[str, Tensor], num_gradient_steps: int) -> None:
    """Refuses a gradient step whose gradient is NaN or infinite.

    Args:
        metrics: of the step, with `gradient_norm/<component>`.
        num_gradient_steps: made before.

    Raises:
        NonFiniteError: names the component and has all metrics.
    """
    for name, value in metrics.items():
        if name.startswith("gradient_norm/") and not math.isfinite(value):
            state = {key: float(metric) for key, metric in metrics.items()}
            raise NonFiniteError(
                f"the gradient of {name.removeprefix('gradient_norm/')!r} is not finite after "
                f"{num_gradient_steps} gradient steps; metrics of this step: {state}. "
                "Lower the learning rate or look at the observations and rewards"
            )


def num_valid(batch: Batch) -> Tensor | int:
    """How many rows of a minibatch count.

    Args:
        batch: ready for `losses`.
    """
    return batch["valid"].sum() if "valid" in vars(batch) else num_rows(batch)


def num_rows(batch: Batch) -> int:
    """How many rows of a minibatch count, as a number.

    Args:
        batch: ready for `losses`.
    """
    fields = vars(batch)
    if "valid" in fields:
        return int(fields["valid"].sum())
    leaf = next(iter(fields.values()))
    while isinstance(leaf, Batch):
        leaf = next(iter(vars(leaf).values()))
    return leaf.shape[0]
