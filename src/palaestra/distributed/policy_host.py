"""`PolicyHost`: where the algorithms of some policies live and learn."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palaestra.algorithms import Algorithm, Gradients, StepResult, UpdateInfo
from palaestra.core import Batch, NonFiniteError, Plan, shards
from palaestra.distributed.gradient_workers import LossState, apply_shards

__all__ = ["HostTask", "PolicyHost", "ShardedStep", "Updated"]


class HostTask(NamedTuple):
    """One update, as a driver asks a host for it."""

    version: int
    """Number of the state that the update starts from."""
    state: dict[str, Any] | None
    """That state, for a host that does not have it; else `None`."""
    drawn: Batch
    """What the driver drew from the policy's source."""
    generator: Tensor
    """State of `Algorithm.minibatch_generator` after the draw."""
    progress: float
    """Where schedules are, in [0, 1]."""
    num_shards: int
    """Into how many parts minibatches are cut for gradient workers; 0 where the host computes gradients itself."""


class ShardedStep(NamedTuple):
    """A host needs the gradients of a minibatch to go on."""

    state: LossState
    """Of the algorithm; its version is counted by the host."""
    parts: list[Batch]
    """Shards of the minibatch."""


class Updated(NamedTuple):
    """An update has ended."""

    result: UpdateInfo | NonFiniteError
    """What it did, or why it stopped."""
    state: dict[str, Any]
    """`Algorithm.state_tensors` after it; what the acting policy draws from means nothing here."""
    write_backs: list[tuple[Tensor, Tensor]]
    """Row numbers and priorities, in the order in which they were written back."""
    began_s: float
    """`time.monotonic()` of this machine when it began."""
    ended_s: float
    """And when it ended."""


class PolicyHost:
    """Keeps the algorithms and optimizers of policies, and learns from what it is sent.

    Args:
        algorithms: by policy name; they are the host's own from now on.
    """

    def __init__(self, algorithms: Mapping[str, Algorithm[Any]]) -> None:
        self._algorithms = dict(algorithms)
        self._versions: dict[str, int] = {}
        self._running: dict[str, _Running] = {}

    def update(self, policy: str, task: HostTask) -> ShardedStep | Updated:
        """Begins an update: all of it, or up to the first minibatch that gradient workers have to see.

        Args:
            policy: its name.
            task: what to do.
        """
        algorithm = self._algorithms[policy]
        known = self._versions.pop(policy, None)
        if task.state is not None:
            algorithm.load_state_tensors(task.state)
        elif known != task.version:
            raise RuntimeError(f"this host has version {known} of policy {policy!r}, not {task.version}")
        algorithm.set_progress(task.progress)
        algorithm.minibatch_generator.set_state(task.generator)
        self._give_up(policy)
        running = self._running[policy] = _Running(algorithm, task)
        if task.num_shards:
            running.thread.start()
            return self._answer(policy)
        try:
            return self._ended(policy, algorithm.update(running.source))
        except NonFiniteError as error:
            return self._ended(policy, error)

    def step(self, policy: str, gradients: Sequence[Gradients]) -> ShardedStep | Updated:
        """Takes the gradient step that an update waits for, and goes on to the next one.

        Args:
            policy: its name.
            gradients: of all shards of the minibatch, in their order.
        """
        self._running[policy].gradients.put(gradients)
        return self._answer(policy)

    def _answer(self, policy: str) -> ShardedStep | Updated:
        answer = self._running[policy].answers.get()
        if isinstance(answer, ShardedStep):
            return answer
        if isinstance(answer, UpdateInfo | NonFiniteError):
            return self._ended(policy, answer)
        del self._running[policy]
        raise answer

    def _give_up(self, policy: str) -> None:
        """Ends an update that nobody waits for any more."""
        if policy in self._running:
            self._running.pop(policy).gradients.put(None)

    def __del__(self) -> None:
        for policy in list(self._running):
            self._give_up(policy)

    def _ended(self, policy: str, result: UpdateInfo | NonFiniteError) -> Updated:
        running = self._running.pop(policy)
        self._versions[policy] = running.task.version + 1
        state = self._algorithms[policy].state_tensors()
        return Updated(result, state, running.source.write_backs, running.began_s, time.monotonic())


class _Drawn:
    """A data source that has been drawn from already."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.write_backs: list[tuple[Tensor, Tensor]] = []

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        return self._batch

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        self.write_backs.append((indices, priority))


class _GivenUpError(Exception):
    """An update that waits for gradients will get none."""


class _Running:
    """An update that has begun; in a thread of its own where it waits for gradients from elsewhere."""

    def __init__(self, algorithm: Algorithm[Any], task: HostTask) -> None:
        self.source, self.task, self.began_s = _Drawn(task.drawn), task, time.monotonic()
        self.gradients = queue.SimpleQueue[Sequence[Gradients] | None]()
        """What the update waits for; `None` ends it."""
        self.answers = queue.SimpleQueue[ShardedStep | UpdateInfo | Exception]()
        """What it asks for, and at last what it did or why it failed."""
        self.thread = threading.Thread(target=self._update, args=(algorithm,), daemon=True)

    def _update(self, algorithm: Any) -> None:
        def step(minibatch: Batch) -> StepResult:
            parts = shards(minibatch, algorithm.plan, self.task.num_shards)
            self.answers.put(ShardedStep(LossState.of(algorithm, 0), parts))
            gradients = self.gradients.get()
            if gradients is None:
                raise _GivenUpError
            return apply_shards(algorithm, gradients)

        try:
            self.answers.put(algorithm.update(self.source, step))
        except Exception as error:
            self.answers.put(error)
