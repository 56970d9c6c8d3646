"""What algorithms that learn from stored transitions share: settings, and the layout of a transition."""

from __future__ import annotations

from dataclasses import dataclass, field

from palaestra.algorithms.algorithm import AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.exploration_bonus import BonusConfig
from palaestra.core import Offline, Replay, Schedule
from palaestra.nn import NetworkConfig

__all__ = [
    "BootstrapConfig",
    "NStepConfig",
    "OffPolicyConfig",
    "OfflineConfig",
    "ReplayConfig",
    "TransitionConfig",
]


@dataclass(frozen=True, kw_only=True)
class TransitionConfig(AlgorithmConfig):
    """Hyperparameters of every algorithm that learns from stored transitions."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters."""


@dataclass(frozen=True, kw_only=True)
class NStepConfig(AlgorithmConfig):
    """Hyperparameters of every algorithm that bootstraps from the row n steps later."""

    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig(NStepConfig):
    """Hyperparameters of every algorithm whose critics learn from target networks that follow slowly."""

    tau: Fraction[Schedule] = 0.005
    """Share of the way that target networks go towards the online ones, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(NStepConfig, TransitionConfig):
    """Hyperparameters of every algorithm that learns from a replay buffer while it collects."""

    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    @property
    def plan(self) -> Replay:
        """The data these settings ask for."""
        return Replay(
            unroll_length=self.unroll_length,
            capacity=self.capacity,
            gradient_steps=self.gradient_steps,
            mini_batch_size=self.mini_batch_size,
            learning_starts=self.learning_starts,
            n_step=self.n_step,
        )


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(BootstrapConfig, ReplayConfig):
    """Hyperparameters of every actor-critic that learns from a replay buffer while it collects."""


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(BootstrapConfig, TransitionConfig):
    """Hyperparameters of every actor-critic that learns from a fixed data set."""

    @property
    def plan(self) -> Offline:
        """The data these settings ask for."""
        return Offline(gradient_steps=self.gradient_steps, mini_batch_size=self.mini_batch_size, n_step=self.n_step)
