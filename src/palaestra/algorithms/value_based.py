"""What algorithms that learn action values from replayed data have in common: DQN and its descendants, and R2D2."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import ReplayConfig
from palaestra.algorithms.parts import ValueBatch, n_step_transitions
from palaestra.algorithms.records import Losses
from palaestra.core import DataSource, Linear, Prioritized, Replay, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption, ReturnDistribution
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["QLearning", "QLearningConfig", "ValueBased", "ValueBasedConfig"]


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(ReplayConfig):
    """Hyperparameters of every algorithm that learns action values from replayed data."""

    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam; a number or a schedule."""
    capacity: Positive[int] = 100_000
    """Rows the replay buffer keeps."""
    target_period: Positive[int] = 250
    """Gradient steps between two copies of the online to the target network."""
    epsilon: Schedule = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    max_grad_norm: Positive[float] = 10.0
    """Longest gradient, Euclidean norm over all parameters."""
    prioritized: bool = False
    """Whether data of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: float = 0.6
    """Power of the priority, at least 0; 0 draws all equally often."""
    priority_beta: Schedule = field(default_factory=lambda: Linear(0.4, 1.0))
    """How far importance weights correct for that, in [0, 1]; 1 is completely."""

    @property
    def plan(self) -> Replay:
        """The data these settings ask for."""
        priority = Prioritized(alpha=self.priority_alpha, beta=self.priority_beta) if self.prioritized else None
        return dataclasses.replace(super().plan, prioritized=priority)


@dataclass(frozen=True, kw_only=True)
class ValueBasedConfig(QLearningConfig):
    """Hyperparameters of every algorithm that learns action values from replayed transitions."""

    mini_batch_size: Positive[int] = 128
    """Transitions in a minibatch."""
    double: bool = True
    """Whether the online network chooses the action whose target value is used."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of the network; `dueling` and `noisy` are options of it."""


class QLearning(GradientAlgorithm[ValueGreedyPolicy]):
    """An epsilon-greedy policy on learned action values, and a target network that is copied now and then.

    A subclass states its data, `losses`, and `returns` where its network describes distributions. Components are `q`
    and `target_q`.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class: ClassVar[Any]

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: Any,
        config: Any = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or self.config_class(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = ValueGreedyPolicy.build(
                observation_spec,
                action_spec,
                config.network,
                normalize=config.normalize_observation,
                returns=self.returns(config),
            )
        policy.exploration = EpsilonGreedy(action_spec.num, config.epsilon)
        self.network: Any = policy.network
        self.target_network: Any = copy.deepcopy(self.network)
        model = CoreModel(
            {"q": self.network, "target_q": self.target_network},
            {"q": OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)},
        )
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    @staticmethod
    def returns(config: Any) -> ReturnDistribution | None:
        """How the network describes the distribution of returns; by default it says one value for each action.

        Args:
            config: hyperparameters.
        """
        return None

    @final
    def after_step(self) -> None:
        """Copies the online to the target network every `target_period` gradient steps."""
        if self.num_gradient_steps % self.config.target_period == 0:
            self.model.sync("target_q", source="q")


class ValueBased(QLearning):
    """Learns action values from replayed transitions with a target network; acts greedily with probability 1 - epsilon.

    A subclass states `losses`, and `returns` where its network describes distributions.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete.
    """

    @final
    def preprocess(self, batch: Any, source: DataSource) -> ValueBatch:
        """Reduces n-step windows to transitions."""
        reduced = n_step_transitions(batch, self.value_of("gamma"), ValueBatch)
        if self.config.prioritized:
            reduced.weight = batch.weight
        return reduced

    @final
    def stated(self, loss: Tensor, error: Tensor, q: Tensor, batch: ValueBatch) -> Losses:
        """What `losses` returns: the mean of all rows' losses, each times its importance weight, and new priorities.

        Args:
            loss: [N], differentiable.
            error: [N] how wrong each row was; its size becomes the row's priority.
            q: [N] values of the actions, to report.
            batch: the minibatch.

        Returns:
            One term, `q`.
        """
        if not self.config.prioritized:
            return Losses({"q": loss.mean()}, {"q_mean": q.mean()})
        return Losses({"q": (batch.weight * loss).mean()}, {"q_mean": q.mean()}, error.detach().abs())

    @final
    def with_layer_noise(self, batch: ValueBatch, generator: torch.Generator) -> ValueBatch:
        """Adds the noise of noisy layers, own to every row; for the hook `noise` of a subclass.

        Args:
            batch: after `preprocess`.
            generator: source of the noise.
        """
        if not self.policy.noise_size:
            return batch
        shape = (len(batch.reward), 3, self.policy.noise_size)
        return batch.replace(noise=torch.randn(shape, generator=generator))

    @final
    def noise_of(self, batch: ValueBatch, which: int) -> Tensor | None:
        """One of the three noises of a minibatch, or `None` where no layer is noisy.

        Args:
            batch: the minibatch.
            which: as in `ValueBatch.noise`.
        """
        return batch.noise[:, which] if self.policy.noise_size else None
