"""`Callback`: what you add to the training loop; and `Health`, which warns of learning that goes wrong."""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from palaestra.policies import Policy
from palaestra.rollout import Evaluation

if TYPE_CHECKING:
    from palaestra.algorithms import UpdateInfo
    from palaestra.training.trainer import Trainer

__all__ = ["Callback", "Evaluated", "Health"]


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

    def evaluation_began(self, trainer: Trainer) -> None:
        """Before each evaluation, and again before one that a signal broke off and a resumed run makes.

        Args:
            trainer: of the run, whose policies are as they will be evaluated.
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

    def state(self) -> dict[str, Any]:
        """For checkpoints: what it has to know in a run that is resumed. Nothing by default."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave, before a run is resumed.

        Args:
            state: as it was; not called where it was empty.
        """


def callback_states(callbacks: Sequence[Callback]) -> dict[str, dict[str, Any]]:
    """The states of callbacks that have any, by class and number within the class.

    Args:
        callbacks: in order.
    """
    states = {name: callback.state() for name, callback in _named(callbacks).items()}
    return {name: state for name, state in states.items() if state}


def load_callback_states(callbacks: Sequence[Callback], states: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts back what `callback_states` gave; those that are new, or gone, are left out.

    Args:
        callbacks: in order.
        states: from a checkpoint.
    """
    for name, callback in _named(callbacks).items():
        if name in states:
            callback.load_state(states[name])


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    counts, named = Counter[str](), dict[str, Callback]()
    for callback in callbacks:
        kind = type(callback).__qualname__
        named[f"{kind} {counts[kind]}"] = callback
        counts[kind] += 1
    return named


_log = logging.getLogger(__name__)
_PERSISTENT = 3  # rows in a row; one bad row is noise
_MANY_STEPS = 100_000
_NORMS = 100  # of which the median is what is usual

_CAUSES = {
    "kl": "each update moves the policy too far: lower algorithm.learning_rate or num_epochs, or set a target KL",
    "entropy": "the policy stopped exploring while returns do not rise: raise entropy_cost, lower the learning rate, "
    "or look at the scale of rewards",
    "explained_variance": "values explain returns worse than a constant would: look at the scale of rewards, raise "
    "value_cost, or lower gamma",
    "gradient_norm": "the loss explodes: lower algorithm.learning_rate or max_grad_norm, normalise observations or "
    "scale rewards down",
    "q_mean": "action values diverge: lower algorithm.learning_rate, copy the target network less often "
    "(target_period, tau), lower n_step, or scale rewards down",
    "episodes": "episodes never end, so no return is known: set env.max_episode_steps",
}


@final
class Health(Callback):
    """Looks at every row of metrics and warns, once for each symptom, when it persists.

    | symptom | warned of when |
    |---|---|
    | KL | the mean KL of an update's policies exceeds 0.2 |
    | entropy | within 2% of 0, measured by what it was at first, unless learning works |
    | explained variance | below -0.5, unless learning works: equal returns have no variance to explain |
    | gradient norm | above 100 times its median so far |
    | action values | beyond 20 times the largest discounted return so far, and 100 |
    | episodes | none has ended in 100,000 env steps |

    Learning works where returns are at their best so far, and better than at first. Densities over continuous actions
    may have entropies below 0, and those say nothing.

    Args:
        stop: whether a symptom ends the run.
    """

    def __init__(self, *, stop: bool = False) -> None:
        self._stop = stop
        self.warnings: list[str] = []
        """Given so far."""
        self._rows: Counter[str] = Counter()
        self._first_entropy = self._first_return = math.nan
        self._best_return = -math.inf
        self._largest_return = 0.0
        self._norms: dict[str, deque[float]] = {}

    def logged(self, trainer: Trainer, row: dict[str, float]) -> None:
        """See `Callback.logged`; adds `health/warnings`, how many symptoms were warned of."""
        found = self._symptoms(row)
        for name in list(self._rows):
            if name not in found and self._rows[name] < _PERSISTENT:
                del self._rows[name]
        for name, what in found.items():
            self._rows[name] += 1
            if self._rows[name] == (1 if name == "episodes" else _PERSISTENT):
                text = f"after {int(row['env_steps']):,} env steps {what}. Likely: {_CAUSES[name]}"
                self.warnings.append(text)
                _log.warning("%s", text)
                if self._stop:
                    trainer.stop(text)
        row["health/warnings"] = len(self.warnings)

    def state(self) -> dict[str, Any]:
        return {
            "warnings": list(self.warnings),
            "rows": dict(self._rows),
            "first": [self._first_entropy, self._first_return],
            "largest": [self._best_return, self._largest_return],
            "norms": {name: list(norms) for name, norms in self._norms.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.warnings, self._rows = list(state["warnings"]), Counter(state["rows"])
        self._first_entropy, self._first_return = state["first"]
        self._best_return, self._largest_return = state["largest"]
        self._norms = {name: deque(norms, maxlen=_NORMS) for name, norms in state["norms"].items()}

    def _symptoms(self, row: dict[str, float]) -> dict[str, str]:
        """What looks wrong in a row; metrics that it lacks are NaN, which compares as false."""
        found: dict[str, str] = {}
        mean, entropy = row.get("return_mean", math.nan), row.get("learning/entropy", math.nan)
        kl, variance = row.get("learning/kl", math.nan), row.get("learning/explained_variance", math.nan)
        self._first_return = mean if math.isnan(self._first_return) else self._first_return
        self._first_entropy = entropy if math.isnan(self._first_entropy) else self._first_entropy
        self._best_return = max(self._best_return, mean)
        works = mean == self._best_return > self._first_return
        if kl > 0.2:
            found["kl"] = f"the mean KL of an update is {kl:.2g}"
        if variance < -0.5 and not works:
            found["explained_variance"] = f"the explained variance is {variance:.2g}"
        if row["env_steps"] >= _MANY_STEPS and not row.get("episodes"):
            found["episodes"] = "no episode has ended"
        if 0 <= entropy < 0.02 * self._first_entropy and not works and "return_mean" in row:
            found["entropy"] = f"the entropy fell from {self._first_entropy:.2g} to {entropy:.2g}"
        for name, norm in row.items():
            if name.startswith("learning/gradient_norm/"):
                before = self._norms.setdefault(name, deque(maxlen=_NORMS))
                usual, part = statistics.median(before or [norm]), name.removeprefix("learning/gradient_norm/")
                if len(before) >= 5 and norm > 100 * max(usual, 1e-6):
                    found["gradient_norm"] = f"the gradient of {part!r} is {norm:.2g} long, usually {usual:.2g}"
                else:
                    before.append(norm)
        value, largest = row.get("learning/q_mean", 0.0), abs(row.get("discounted_return_mean", 0.0))
        self._largest_return = largest = max(self._largest_return, largest)
        if largest and abs(value) > max(100.0, 20 * largest):
            found["q_mean"] = f"the mean action value is {value:.2g}, discounted returns are {largest:.2g}"
        return found
