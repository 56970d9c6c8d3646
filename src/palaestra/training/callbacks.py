"""`Callback`: what you add to the training loop. It knows nothing of what callbacks of the library do."""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from palaestra.algorithms import UpdateInfo
from palaestra.core import ConfigError, TimeStep
from palaestra.policies import Policy
from palaestra.rollout import Collector, Episode, Evaluation
from palaestra.training.parts import TrainingRun

__all__ = ["Callback", "Evaluated"]

_log = logging.getLogger(__name__)


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
    """The policy that was evaluated: the learning policy itself, or its copy where evaluation is asynchronous;
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hooks = [name for name in vars(Callback) if not name.startswith("_")]
        for name in (name for name, value in vars(cls).items() if callable(value) and name not in hooks):
            if close := difflib.get_close_matches(name, hooks, n=1, cutoff=0.8):
                _log.warning("%s.%s is no hook that a run calls; did you mean %s?", cls.__name__, name, close[0])

    stepped: Callable[[TrainingRun, TimeStep], None] | None = None
    """`(trainer, time_step)`: after each env step of all environments together, with what they answered: rows [B], of
    which `prev_action` was executed. A method of yours, or `None`, which costs nothing. Steps that compiled code makes
    are then made one by one; a run that collects in other processes, or for many agents, refuses it."""
    episode_ended: Callable[[TrainingRun, Episode], None] | None = None
    """`(trainer, episode)`: once for each training episode, wherever it ran, soon after it ended. Its `info` has what
    its environment reported, such as the `tracker` of an `EnvWrapper`. A method, or `None`, which costs nothing."""

    def iteration_began(self, trainer: TrainingRun) -> None:
        """Before each unroll; once more, when the run goes on, where a signal came meanwhile.

        Args:
            trainer: of the run.
        """

    def iteration_ended(self, trainer: TrainingRun, updates: Mapping[str, UpdateInfo]) -> None:
        """After each iteration.

        Args:
            trainer: of the run.
            updates: what was learned in it, by policy; empty where nothing was learned yet.
        """

    def evaluation_began(self, trainer: TrainingRun) -> None:
        """Before each evaluation, and again before one that a signal broke off and a resumed run makes.

        Args:
            trainer: of the run, whose policies are as they will be evaluated.
        """

    def evaluated(self, trainer: TrainingRun, result: Evaluated) -> None:
        """After each evaluation.

        Args:
            trainer: of the run.
            result: of the evaluation.
        """

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """Before each row of metrics goes to the loggers.

        Args:
            trainer: of the run.
            row: numbers by name; more may be added.
        """

    def ended(self, trainer: TrainingRun) -> None:
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


def attach_steps(callbacks: Sequence[Callback], trainer: TrainingRun) -> None:
    """Has a collector call `Callback.stepped`, where a callback has it.

    Args:
        callbacks: in order.
        trainer: whose collector it is.

    Raises:
        ConfigError: env steps are made where no callback sees them.
    """
    hooks = [callback.stepped for callback in callbacks if callback.stepped is not None]
    if not hooks:
        return
    collector: Any = trainer.collector
    if not isinstance(collector, Collector):
        names = ", ".join(type(callback).__name__ for callback in callbacks if callback.stepped is not None)
        raise ConfigError(
            f"{names} has a hook stepped, but {type(collector).__name__} makes no env steps of one agent in this "
            "process, as with distributed.runtime, many agents or robots; use iteration_ended, or wrap the environment"
        )

    def stepped(time_step: TimeStep, ended: TimeStep | None) -> None:
        for rows in (time_step,) if ended is None else (ended, time_step):
            for hook in hooks:
                hook(trainer, rows)

    collector.stepped = stepped


def callback_states(callbacks: Sequence[Callback]) -> dict[str, dict[str, Any]]:
    """The states of callbacks, by class and number within the class; of the library's own, those that have any.

    Args:
        callbacks: in order.
    """
    named = _named(callbacks)
    users = {name for name, one in named.items() if not type(one).__module__.startswith("palaestra.")}
    return {name: state for name, one in named.items() if (state := one.state()) or name in users}


def load_callback_states(callbacks: Sequence[Callback], states: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts back what `callback_states` gave; those that are new, or gone, are left out.

    Args:
        callbacks: in order.
        states: from a checkpoint.
    """
    for name, callback in _named(callbacks).items():
        if states.get(name):
            callback.load_state(states[name])


def missing_callbacks(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> list[str]:
    """The classes of callbacks that a checkpoint names, and are not there.

    Args:
        callbacks: that are there, in order.
        states: from a checkpoint.
    """
    gone = {name: state for name, state in states.items() if name not in _named(callbacks)}
    return [name.rpartition(" ")[0] + ("" if state else " (without a state)") for name, state in gone.items()]


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    counts, named = Counter[str](), dict[str, Callback]()
    for callback in callbacks:
        kind = type(callback).__qualname__
        named[f"{kind} {counts[kind]}"] = callback
        counts[kind] += 1
    return named
