"""Advantage actor-critic: one gradient step on each unroll.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3, with environments in lockstep instead of
asynchronous threads.
Departures: advantages are generalised (with `gae_lambda` 1 they are the paper's); policy and value have networks of
their own, trained together by RMSProp without shared statistics; gradients are clipped by norm. With a recurrent
network, the value looks at the policy's memory, and gradients go back to the beginning of the unroll.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import DataSource, OnPolicy, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import explained_variance, masked_mean, policy_gradient
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["A2C", "A2CConfig"]


@dataclass(frozen=True, kw_only=True)
class A2CConfig(AlgorithmConfig):
    """Hyperparameters of `A2C`."""

    unroll_length: Positive[float] = 5
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 1.0
    """Trace decay of the advantage estimate, in [0, 1]; 1 is the n-step advantage of the paper."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network. They share the recurrent cells, if any, and, trained together, the image encoder."""
    learning_rate: NotNegative[Schedule] = 7e-4
    """Step size of RMSProp; a number or a schedule."""
    value_cost: NotNegative[Schedule] = 0.5
    """Weight of the value error."""
    entropy_cost: Finite[Schedule] = 0.01
    """Weight of the entropy."""
    max_grad_norm: Limit[float] = 0.5
    """Gradients are clipped to this Euclidean norm over all parameters."""
    standardize_advantage: bool = False
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = OnPolicy


class A2C(GradientAlgorithm[StochasticPolicy, A2CConfig]):
    """Learns a stochastic policy and a state value, with one gradient step on each unroll of that policy.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = A2CConfig
    usual_lanes = 8
    recurrent = True
    compiles_preprocess = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: A2CConfig) -> None:
        layers, _ = config.network.parts("policy", "value")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.value = parts.StateValue(self.policy, observation_spec, config.network)
        networks = nn.ModuleDict({"policy": self.policy.network, "value": self.value.network})
        option = OptimizerOption("rmsprop", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        self.model = CoreModel({"a2c": networks}, {"a2c": option})

    def preprocess(self, batch: Any, source: DataSource) -> parts.AdvantageBatch:
        """Adds advantages and value targets to an unroll."""
        return parts.advantages(self, batch, source=source)

    def losses(self, batch: parts.AdvantageBatch) -> Losses:
        """Algorithm S3, beta being `entropy_cost`: policy gradient, value error and entropy, means over valid rows."""
        features, _ = self.policy.features(batch.observation, *parts.state_of(batch))
        policy = self.policy.distribution_of(self.policy.head(features), self.policy.action_mask(batch.observation))
        policy_loss = masked_mean(policy_gradient(policy.log_prob(batch.action), batch.advantage), batch.valid)
        value = self.value.of(features, batch.observation)
        value_error = masked_mean((value - batch.value_target).square(), batch.valid)
        entropy = masked_mean(policy.entropy(), batch.valid)
        total = policy_loss + self.value_of("value_cost") * value_error - self.value_of("entropy_cost") * entropy
        return Losses({"a2c": total}, {"policy_gradient": policy_loss, "value_error": value_error, "entropy": entropy})

    def diagnostics(self, batch: parts.AdvantageBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}
