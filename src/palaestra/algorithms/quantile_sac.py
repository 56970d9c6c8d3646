"""Soft actor-critic with critics of quantiles, the highest of which are dropped: truncated quantile critics.

Paper: Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269, equations (5) to (9) and algorithm 1. Departures: those
of `SAC`; critics have two layers of 256 units instead of three of 512; two quantiles are dropped in every task, where
the paper has none for HalfCheetah and five for Hopper.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, ConfigError, DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import quantile_huber
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["QuantileSAC", "QuantileSACConfig"]


@dataclass(frozen=True, kw_only=True)
class QuantileSACConfig(AlgorithmConfig):
    """Hyperparameters of `QuantileSAC`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction, or the entropy of the steps between."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    num_critics: Positive[int] = 5
    """K, critics of the ensemble; the paper's N."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""
    num_quantiles: Positive[int] = 25
    """Q, quantiles of each critic; the paper's M."""
    num_dropped: NotNegative[int] = 2
    """Highest quantiles that targets leave out, for each critic; the paper's d. More is more pessimistic."""

    plan_class = Replay


class QuantileSAC(GradientAlgorithm[SquashedGaussianPolicy, QuantileSACConfig]):
    """Learns a soft policy from quantiles of the return, pooled over critics and cut off at the top.

    Raises:
        ConfigError: the action space is something else, or no quantile would be left.
    """

    config_class = QuantileSACConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: QuantileSACConfig) -> None:
        if not 0 <= config.num_dropped < config.num_quantiles:
            raise ConfigError(
                f"algorithm.num_dropped is {config.num_dropped} of {config.num_quantiles} quantiles; it must be at "
                "least 0 and below their number"
            )
        actor, critic = config.network.parts("actor", "critic")
        self.policy = SquashedGaussianPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.critic = EnsembleNetwork(
            observation_spec, config.num_quantiles, config.num_critics, critic, action_size=size
        )
        self.temperature = parts.Temperature(config.initial_temperature)
        self.target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        options = {"actor": adam, "critic": adam, "temperature": slow}
        self.model = CoreModel({**networks, "temperature": self.temperature}, options)
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations."""
        return parts.action_noise(batch, generator)

    def losses(self, batch: parts.SoftBatch) -> Losses:
        """Equation (8) with the target of (6) and (7) for the critics, (9) for the actor."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_observation).at(batch.next_noise)
            pooled = _pooled(self.target_critic(self.policy.normalize(batch.next_observation), next_action))
            kept = pooled.sort(-1).values[:, : -self.config.num_dropped * self.config.num_critics or None]
            soft_value = kept - temperature * next_log_prob[:, None]
            target = batch.reward[:, None] + batch.bootstrap[:, None] * soft_value  # [N, K (Q - d)]
        quantile = _pooled(self.critic(observation, batch.action))  # [N, K Q]
        middle = (torch.arange(self.config.num_quantiles, device=quantile.device) + 0.5) / self.config.num_quantiles
        fraction = middle.repeat(self.config.num_critics)  # [K Q] the paper's tau
        action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
        mean_q = self.critic(observation, action).mean((0, 2))
        terms = {
            # `quantile_huber` adds up over quantiles, the paper's (8) takes their mean
            "critic": quantile_huber(quantile, target, fraction).mean() / quantile.shape[-1],
            "actor": (temperature * log_prob - mean_q).mean(),
            "temperature": self.temperature.loss(log_prob + self.target_entropy),
        }
        return Losses(terms, {"q_mean": quantile.mean(), "entropy": -log_prob.mean(), "alpha": temperature})


def _pooled(quantile: Tensor) -> Tensor:
    """[K, N, Q] -> [N, K Q]."""
    return quantile.transpose(0, 1).flatten(1)
