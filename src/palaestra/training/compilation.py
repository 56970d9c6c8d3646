"""`CompiledLater`: lets policies learn eagerly first, and compiled once another process has compiled their code."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from palaestra.algorithms import Algorithm, GradientAlgorithm, UpdateInfo
from palaestra.core import ConfigError, Plan
from palaestra.core.computing import prefer_onednn, prefers_onednn
from palaestra.rollout import Collector, CompiledStep
from palaestra.runtime import Companion
from palaestra.training.callbacks import Callback
from palaestra.training.parts import TrainingRun

__all__ = ["COMPILED_AFTER", "LEAST_COMPILED", "CompiledLater", "planned_gradient_steps"]

_log = logging.getLogger(__name__)

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
        epochs, rows, size = plan.num_epochs, plan.capacity, plan.mini_batch_size
        length = plan.sequence_period or plan.mini_batch_length
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
        planned: gradient steps that the run will make, by policy that may be compiled here; of others a checkpoint's
            number does not count. Where a resumed run makes others, because its budget was changed, what was too short
            before may become compiled.
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

    def begin(self, trainer: TrainingRun) -> None:
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

    def iteration_began(self, trainer: TrainingRun) -> None:
        """See `Callback.iteration_began`: switches, where it is time."""
        for name in sorted(self._pending):
            algorithm = _gradient_algorithm(trainer, name)
            if algorithm.num_gradient_steps >= self._after[name]:
                self._wait(name)
                self._pending.discard(name)
                self._switch(name, algorithm, trainer)

    def iteration_ended(self, trainer: TrainingRun, updates: Mapping[str, UpdateInfo]) -> None:
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
        mode = torch.get_deterministic_debug_mode()
        alike = functools.partial(_prepare, prepare, torch.get_num_threads(), mode=mode, onednn=prefers_onednn())
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

    def _switch(self, name: str, algorithm: GradientAlgorithm[Any, Any], trainer: TrainingRun) -> None:
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

    def _stay_eager(self, name: str, algorithm: GradientAlgorithm[Any, Any], why: str) -> None:
        self._after.pop(name)
        self._stays[name] = why
        algorithm.uncompile()
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
        same, here = state["planned"] == self._planned, {*self._after, *self._planned}
        new = {name: after for name, after in self._after.items() if not (same and name in state["eager"])}
        self._after = new | {name: after for name, after in state["after"].items() if name in here}
        reasons = self._stays | {name: why for name, why in state["eager"].items() if name in here}
        self._stays = {name: why for name, why in reasons.items() if name not in self._after}


def _gradient_algorithm(trainer: TrainingRun, name: str) -> GradientAlgorithm[Any, Any]:
    algorithm: Algorithm[Any, Any] = trainer.algorithms[name]
    if not isinstance(algorithm, GradientAlgorithm):
        raise ConfigError(f"policy {name!r} learns by {type(algorithm).__name__}, which makes no gradient steps")
    return algorithm


def _acting(trainer: TrainingRun) -> CompiledStep | None:
    """Acting and stepping as one graph, where that is possible."""
    collector = trainer.collector
    if not isinstance(collector, Collector) or collector.preprocess is not None:
        return None
    return CompiledStep.of(collector.env, collector.policy)


def _rows(algorithm: Algorithm[Any, Any]) -> int:
    return max(1, int(getattr(algorithm.plan, "unroll_length", 1)))


def _prepare(functions: Sequence[Callable[[], None]], threads: int, *, mode: int, onednn: bool) -> None:
    """In the other process, as the first one is."""
    torch.set_num_threads(threads)
    prefer_onednn(onednn)
    torch.set_flush_denormal(True)
    if mode:
        torch.use_deterministic_algorithms(True, warn_only=mode == 1)
    for function in functions:
        function()
