"""Advantage actor-critic: one gradient step on each unroll.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3, with environments in lockstep in the place of
asynchronous threads.
Departures: advantages are generalised (with `gae_lambda` 1 they are the paper's); policy and value have networks of
their own, trained together by RMSProp without shared statistics; gradients are clipped by norm. With a recurrent
network, the value looks at the policy's memory, and gradients go back to the beginning of the unroll.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.actor_critic import JointActorCritic, JointConfig
from palaestra.algorithms.algorithm import Fraction, NotNegative, Positive
from palaestra.algorithms.exploration_bonus import BonusConfig
from palaestra.algorithms.parts import AdvantageBatch, state_of
from palaestra.algorithms.records import Losses
from palaestra.core import DataSource, Schedule
from palaestra.ops import explained_variance, masked_mean, policy_gradient

__all__ = ["A2C", "A2CBatch", "A2CConfig"]


@dataclass(frozen=True, kw_only=True)
class A2CConfig(JointConfig):
    """Hyperparameters of `A2C`."""

    learning_rate: NotNegative[Schedule] = 7e-4
    """Step size of RMSProp; a number or a schedule."""
    unroll_length: Positive[float] = 5
    """Time steps collected from every environment before each update."""
    gae_lambda: Fraction[Schedule] = 1.0
    """Trace decay of the advantage estimate, in [0, 1]; 1 is the n-step advantage of the paper."""
    standardize_advantage: bool = False
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""


class A2CBatch(AdvantageBatch):
    """The whole unroll; every field is [T, B, ...]."""


@final
class A2C(JointActorCritic):
    """Learns a stochastic policy and a state value, with one gradient step on each unroll of that policy.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = A2CConfig
    recurrent = True
    component = "a2c"
    optimizer = "rmsprop"

    def preprocess(self, batch: Any, source: DataSource) -> A2CBatch:
        """Adds advantages and value targets to an unroll."""
        return A2CBatch.of(self.with_advantages(batch))

    def losses(self, batch: A2CBatch) -> Losses:
        """Algorithm S3, beta being `entropy_cost`: policy gradient, value error and entropy, means over valid rows."""
        features, _ = self.policy.features(batch.observation, *state_of(batch))
        policy = self.policy.distribution_of(self.policy.head(features), self.policy.action_mask(batch.observation))
        gain = masked_mean(policy_gradient(policy.log_prob(batch.action), batch.advantage), batch.valid)
        value = self.value.of(features, batch.observation)
        value_error = masked_mean((value - batch.value_target).square(), batch.valid)
        entropy = masked_mean(policy.entropy(), batch.valid)
        total = gain + self.value_of("value_cost") * value_error - self.value_of("entropy_cost") * entropy
        return Losses({"a2c": total}, {"policy_gradient": gain, "value_error": value_error, "entropy": entropy})

    @torch.no_grad()
    def diagnostics(self, batch: A2CBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}
