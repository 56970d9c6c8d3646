"""`Callback`: what you add to the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from palaestra.policies import Policy
from palaestra.rollout import Evaluation

if TYPE_CHECKING:
    from palaestra.algorithms import UpdateInfo
    from palaestra.training.trainer import Trainer

__all__ = ["Callback", "Evaluated"]


@dataclass(frozen=True)
class Evaluated:
    """An evaluation that has been made."""

    env_steps: int
    """When its policy was taken."""
    evaluation: Evaluation
    """What came of it."""
    best: bool
    """Whether it is the best so far; ties go to the newer one."""
    policy: Policy | torch.nn.ModuleDict
    """That was evaluated: the learning policy itself, or its copy where evaluation is asynchronous;
    all policies by name where there are several."""


class Callback:
    """Hooks into a run. Each does nothing unless you define it, and any may call `trainer.stop(reason)`.

    A callback that raises ends the run, so that a mistake in it is seen.

    Examples:
        >>> class StopWhenSure(Callback):
        ...     def evaluated(self, trainer, result):
        ...         if result.evaluation.return_ci95[0] > 475:
        ...             trainer.stop("surely above 475")
    """

    def iteration_began(self, trainer: Trainer) -> None:
        """Before each unroll.

        Args:
            trainer: of the run.
        """

    def iteration_ended(self, trainer: Trainer, updates: Mapping[str, UpdateInfo]) -> None:
        """After each iteration.

        Args:
            trainer: of the run.
            updates: what was learned in it, by policy; empty where nothing was learned yet.
        """

    def evaluated(self, trainer: Trainer, result: Evaluated) -> None:
        """After each evaluation.

        Args:
            trainer: of the run.
            result: of the evaluation.
        """

    def logged(self, trainer: Trainer, row: dict[str, float]) -> None:
        """Before each row of metrics goes to the loggers.

        Args:
            trainer: of the run.
            row: numbers by name; more may be added.
        """

    def ended(self, trainer: Trainer) -> None:
        """At the end of a run, also of one that was interrupted, before its last checkpoint.

        Args:
            trainer: of the run.
        """
