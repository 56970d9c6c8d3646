"""`Callback`: what you add to the training loop; `Health` warns when learning goes wrong, `CompiledLater` compiles."""

from __future__ import annotations

import difflib
import functools
import logging
import math
import re
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from palaestra.algorithms import Algorithm, GradientAlgorithm
from palaestra.core import ConfigError, Plan
from palaestra.core.computing import prefer_onednn, prefers_onednn
from palaestra.policies import Policy
from palaestra.rollout import Collector, CompiledStep, Evaluation
from palaestra.runtime import Companion

if TYPE_CHECKING:
    from palaestra.algorithms import UpdateInfo
    from palaestra.training.trainer import Trainer

__all__ = [
    "COMPILED_AFTER",
    "LEAST_COMPILED",
    "Callback",
    "CompiledLater",
    "Evaluated",
    "Health",
    "planned_gradient_steps",
]


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

    def iteration_began(self, trainer: Trainer) -> None:
        """Before each unroll; once more, when the run goes on, where a signal came meanwhile.

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


def missing_callbacks(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> list[str]:
    """The classes of callbacks that have a state in a checkpoint, and are not there.

    Args:
        callbacks: that are there, in order.
        states: from a checkpoint.
    """
    return [name.rpartition(" ")[0] for name in states if name not in _named(callbacks)]


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


_LEARNED = re.compile(r"learning/(?:(?P<policy>.+)/)?(?P<metric>kl|entropy|explained_variance|q_mean|gradient_norm/.+)")


@final
class Health(Callback):
    """Looks at every row of metrics and warns, once for each symptom and policy, when it persists.

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
        self._first_entropies: dict[str, float] = {}
        self._first_return = math.nan
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
                cause = _CAUSES[name.partition("/")[0]]
                text = f"after {int(row['env_steps']):,} env steps {what}. Likely: {cause}"
                self.warnings.append(text)
                _log.warning("%s", text)
                if self._stop:
                    trainer.stop(text)
        row["health/warnings"] = len(self.warnings)

    def state(self) -> dict[str, Any]:
        return {
            "warnings": list(self.warnings),
            "rows": dict(self._rows),
            "first": [dict(self._first_entropies), self._first_return],
            "largest": [self._best_return, self._largest_return],
            "norms": {name: list(norms) for name, norms in self._norms.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.warnings, self._rows = list(state["warnings"]), Counter(state["rows"])
        first, self._first_return = state["first"]  # older checkpoints have one number, which is seen anew
        self._first_entropies = dict(first) if isinstance(first, Mapping) else {}
        self._best_return, self._largest_return = state["largest"]
        self._norms = {name: deque(norms, maxlen=_NORMS) for name, norms in state["norms"].items()}

    def _symptoms(self, row: Mapping[str, float]) -> dict[str, str]:
        """What looks wrong in a row, by cause and policy; metrics that it lacks are NaN, which compares as false."""
        found: dict[str, str] = {}
        mean = row.get("return_mean", math.nan)
        self._first_return = mean if math.isnan(self._first_return) else self._first_return
        self._best_return = max(self._best_return, mean)
        self._largest_return = max(self._largest_return, abs(row.get("discounted_return_mean", 0.0)))
        works = mean == self._best_return > self._first_return
        if row["env_steps"] >= _MANY_STEPS and not row.get("episodes"):
            found["episodes"] = "no episode has ended"
        for name, value in row.items():
            if (match := _LEARNED.fullmatch(name)) and (wrong := self._wrong(name, match["metric"], value, works)):
                cause, policy = match["metric"].partition("/")[0], match["policy"]
                found[f"{cause}/{policy}" if policy else cause] = f"{wrong} (policy {policy!r})" if policy else wrong
        return found

    def _wrong(self, name: str, metric: str, value: float, works: bool) -> str | None:
        """What looks wrong in one number of a policy's learning."""
        if metric == "kl" and value > 0.2:
            return f"the mean KL of an update is {value:.2g}"
        if metric == "explained_variance" and value < -0.5 and not works:
            return f"the explained variance is {value:.2g}"
        if metric == "entropy" and not math.isnan(value):
            first = self._first_entropies.setdefault(name, value)
            if 0 <= value < 0.02 * first and not works and math.isfinite(self._first_return):
                return f"the entropy fell from {first:.2g} to {value:.2g}"
        largest = self._largest_return
        if metric == "q_mean" and largest and abs(value) > max(100.0, 20 * largest):
            return f"the mean action value is {value:.2g}, discounted returns are {largest:.2g}"
        if metric.startswith("gradient_norm/"):
            before, part = self._norms.setdefault(name, deque(maxlen=_NORMS)), metric.partition("/")[2]
            usual = statistics.median(before or [value])
            if len(before) >= 5 and value > 100 * max(usual, 1e-6):
                return f"the gradient of {part!r} is {value:.2g} long, usually {usual:.2g}"
            before.append(value)
        return None


COMPILED_AFTER = 10_000
"""Gradient steps before compiled code takes over: 10 to 100 s, in which another process compiles it."""
LEAST_COMPILED = 50_000
"""Gradient steps of a run that is worth it: the rest then saves a multiple of the seconds that the switch takes."""
_WAIT_S = 0.1  # how often the end of the other process is looked for


def planned_gradient_steps(plan: Plan, total_env_steps: int, num_lanes: int) -> int:
    """About how many gradient steps a run will make: a function of its settings alone.

    Args:
        plan: the data that the algorithm wants.
        total_env_steps: of the run; updates, where nothing is collected.
        num_lanes: environments (or agents) that collect.

    Examples:
        >>> from palaestra.core import OnPolicy, Replay
        >>> planned_gradient_steps(OnPolicy(unroll_length=128, num_epochs=4, mini_batch_size=256, mini_batch_length=1),
        ...                        100_000, num_lanes=8)
        1562
        >>> planned_gradient_steps(Replay(unroll_length=1, learning_starts=10_000), 100_000, num_lanes=1)
        90000
    """
    if plan.data == "offline":
        return total_env_steps * plan.gradient_steps
    iterations = total_env_steps / (plan.unroll_length * num_lanes)
    if plan.data == "replay":
        iterations *= max(0.0, 1 - plan.learning_starts / total_env_steps)
        epochs, rows, length, size = plan.num_epochs, plan.capacity, plan.mini_batch_length, plan.mini_batch_size
        if epochs is None:
            return int(iterations * plan.gradient_steps)
    else:
        epochs, length = plan.num_epochs, plan.mini_batch_length or plan.unroll_length
        rows, size = plan.capacity or plan.unroll_length * num_lanes, plan.mini_batch_size or num_lanes
    return int(iterations * epochs * max(1.0, rows / length / size))


@final
class CompiledLater(Callback):
    """Lets policies learn eagerly until a fixed gradient step, and compiled from there on.

    What eager updates learn from is noted, and another process compiles for it, at the lowest priority, into PyTorch's
    cache on disk. When a policy has made its number of gradient steps, the next iteration waits until that process has
    ended, takes the code from the cache, and learns compiled; where a `Collector` acts on environments of tensors, it
    acts compiled as well. Compiled and eager numbers differ by rounding, and when the switch comes does not depend on
    the clock, nor on the other process: so equal runs are equal. Checkpoints hold the number; a resumed run keeps it.

    What cannot be compiled stays eager, with a warning.

    Args:
        after: gradient steps, by policy; those that are left out stay eager.
        stays: why the others do.
        planned: gradient steps that the run will make, by policy. Where a resumed run makes others, because its budget
            was changed, what was too short before may become compiled.
        tell: takes `record` at the start, and when a policy that should have been compiled stays eager.

    Examples:
        >>> from palaestra.training import CompiledLater
        >>> CompiledLater({"policy": 10_000}).record()
        {'after': {'policy': 10000}, 'eager': {}, 'planned': {}}
    """

    def __init__(
        self,
        after: Mapping[str, int],
        stays: Mapping[str, str] | None = None,
        planned: Mapping[str, int] | None = None,
        *,
        tell: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self._tell = tell
        self._after, self._stays, self._planned = dict(after), dict(stays or {}), dict(planned or {})
        self._pending: set[str] = set()
        self._compiled_for: dict[str, int] = {}  # examples of each policy that the other process was given
        self._companion: Companion | None = None

    def record(self) -> dict[str, Any]:
        """For people and files: the switches, and why there is none."""
        return {"after": dict(self._after), "eager": dict(self._stays), "planned": dict(self._planned)}

    def begin(self, trainer: Trainer) -> None:
        """Before the first iteration, after a checkpoint was loaded.

        Args:
            trainer: that has not begun.
        """
        for name, after in list(self._after.items()):
            algorithm = _gradient_algorithm(trainer, name)
            try:
                algorithm.compile(after=after)
            except ConfigError as error:
                self._stay_eager(name, algorithm, str(error))
                continue
            if algorithm.num_gradient_steps < after:
                self._pending.add(name)
            elif isinstance(trainer.collector, Collector):
                trainer.collector.compile()
        if self._after or self._stays:
            self._tell(self.record())

    def iteration_began(self, trainer: Trainer) -> None:
        """See `Callback.iteration_began`: switches, where it is time."""
        for name in sorted(self._pending):
            algorithm = _gradient_algorithm(trainer, name)
            if algorithm.num_gradient_steps >= self._after[name]:
                self._wait(name)
                self._pending.discard(name)
                self._switch(name, algorithm, trainer)

    def iteration_ended(self, trainer: Trainer, updates: Mapping[str, UpdateInfo]) -> None:
        """See `Callback.iteration_ended`: lets the other process compile for what is new."""
        if not self._pending or (self._companion is not None and self._companion.wait() is None):
            return
        algorithms = {name: _gradient_algorithm(trainer, name) for name in sorted(self._pending)}
        known = {name: len(algorithm.examples) for name, algorithm in algorithms.items()}
        if new := [name for name, count in known.items() if count > self._compiled_for.get(name, 0)]:
            prepare: list[Callable[[], None]] = [algorithms[name].prepare for name in new]
            if not self._compiled_for and (graph := _acting(trainer)) is not None:
                prepare.append(functools.partial(graph.prepare, _rows(algorithms[new[0]])))
            self.end()
            self._start(prepare)
            self._compiled_for.update(known)

    def _start(self, prepare: Sequence[Callable[[], None]]) -> None:
        exact = torch.are_deterministic_algorithms_enabled()
        alike = functools.partial(_prepare, prepare, torch.get_num_threads(), exact=exact, onednn=prefers_onednn())
        try:
            self._companion = Companion(alike)
        except (ConfigError, OSError) as error:
            _log.warning("no other process compiles beside this one, so that training waits for it later: %s", error)

    def _wait(self, name: str) -> None:
        if self._companion is None:
            return
        began, said = time.monotonic(), False
        while (ended := self._companion.wait(_WAIT_S)) is None:
            if not said and time.monotonic() - began > 1:
                said = True
                _log.warning("policy %r waits for compiled code, which is being made", name)
        if said:
            _log.warning("policy %r has waited for %.0f s", name, time.monotonic() - began)
        if ended:
            _log.warning("the process that compiles %s; training waits while this one does", ended)
        self.end()

    def _switch(self, name: str, algorithm: GradientAlgorithm[Any], trainer: Trainer) -> None:
        began = time.monotonic()
        try:
            algorithm.prepare()
        except ConfigError as error:
            self._stay_eager(name, algorithm, str(error))
            self._tell(self.record())
            return
        if (graph := _acting(trainer)) is not None and isinstance(trainer.collector, Collector):
            try:
                graph.prepare(_rows(algorithm))
                trainer.collector.compile(graph)
            except Exception as error:  # of any kind: the environment's own code
                _log.warning("steps of the environment stay eager: %s", f"{error}".strip().partition("\n")[0])
        steps, seconds = algorithm.num_gradient_steps, time.monotonic() - began
        _log.info("policy %r learns compiled after %d gradient steps; the switch took %.1f s", name, steps, seconds)

    def _stay_eager(self, name: str, algorithm: GradientAlgorithm[Any], why: str) -> None:
        self._after.pop(name)
        self._stays[name] = why
        algorithm.leave_eager()
        _log.warning("policy %r stays eager: %s", name, why)

    def end(self) -> None:
        """Ends the other process, if there is one."""
        if self._companion is not None:
            self._companion.end()
        self._companion = None

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return self.record() if self._after or self._stays else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Callback.load_state`."""
        same = state["planned"] == self._planned
        new = {name: after for name, after in self._after.items() if not (same and name in state["eager"])}
        self._after = new | state["after"]
        reasons = self._stays | state["eager"]
        self._stays = {name: why for name, why in reasons.items() if name not in self._after}


def _gradient_algorithm(trainer: Trainer, name: str) -> GradientAlgorithm[Any]:
    algorithm: Algorithm[Any] = trainer.algorithms[name]
    if not isinstance(algorithm, GradientAlgorithm):
        raise ConfigError(f"policy {name!r} learns by {type(algorithm).__name__}, which makes no gradient steps")
    return algorithm


def _acting(trainer: Trainer) -> CompiledStep | None:
    """Acting and stepping as one graph, where that is possible."""
    collector = trainer.collector
    if not isinstance(collector, Collector) or collector.preprocess is not None:
        return None
    return CompiledStep.of(collector.env, collector.policy)


def _rows(algorithm: Algorithm[Any]) -> int:
    return max(1, int(getattr(algorithm.plan, "unroll_length", 1)))


def _prepare(functions: Sequence[Callable[[], None]], threads: int, *, exact: bool, onednn: bool) -> None:
    """In the other process, as the first one is."""
    torch.set_num_threads(threads)
    prefer_onednn(onednn)
    torch.set_flush_denormal(True)
    if exact:
        torch.use_deterministic_algorithms(True)
    for function in functions:
        function()
