"""`GradWorker`: computes gradients for whoever asks, and remembers nothing that an answer depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from palaestra.algorithms import GradientAlgorithm, Gradients
from palaestra.core import Batch
from palaestra.policies import Phase

__all__ = ["GradWorker", "LossState"]


class LossState(NamedTuple):
    """All that the losses of an algorithm depend on, besides the minibatch."""

    version: int
    """Distinct for every state of a policy; a worker that has it loads nothing."""
    model: dict[str, Any]
    """Parameters and buffers."""
    normalizer: dict[str, Any]
    """Of observations; empty where there is none."""
    num_gradient_steps: int
    """Which loss terms are due depends on it."""
    progress: float
    """Where schedules are, in [0, 1]."""

    @classmethod
    def of(cls, algorithm: GradientAlgorithm[Any], version: int) -> LossState:
        """The state that an algorithm is in.

        Args:
            algorithm: which.
            version: of the state.
        """
        normalizer = algorithm.policy.normalizer
        return cls(
            version,
            dict(algorithm.model.state_dict()),
            {} if normalizer is None else dict(normalizer.state_dict()),
            algorithm.num_gradient_steps,
            algorithm.progress,
        )

    def load_into(self, algorithm: GradientAlgorithm[Any]) -> None:
        """Puts an algorithm of the same configuration into this state.

        Args:
            algorithm: which.
        """
        algorithm.model.load_state_dict(self.model)
        if algorithm.policy.normalizer is not None:
            algorithm.policy.normalizer.load_state_dict(self.normalizer)
        algorithm.num_gradient_steps = self.num_gradient_steps
        algorithm.set_progress(self.progress)


class GradWorker:
    """A stateless worker: what it answers depends on nothing but the state and the shard that it was sent.

    Args:
        algorithms: by policy name; they are the worker's own from now on.
    """

    def __init__(self, algorithms: Mapping[str, GradientAlgorithm[Any]]) -> None:
        self._algorithms = dict(algorithms)
        self._versions: dict[str, int] = {}

    def gradients(self, policy: str, state: LossState, shard: Batch) -> Gradients:
        """Gradients of a policy's losses.

        Args:
            policy: its name.
            state: of its algorithm.
            shard: a minibatch, or a part of one.
        """
        algorithm = self._algorithms[policy]
        if self._versions.get(policy) != state.version:
            self._versions.pop(policy, None)
            state.load_into(algorithm)
            self._versions[policy] = state.version
        with algorithm.policy.in_phase(Phase.UPDATE):
            return algorithm.gradients(shard)
