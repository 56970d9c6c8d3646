"""Proximal policy optimization with a clipped surrogate objective.

Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equations (7), (9) and (11).
Departures: advantages are standardised over the whole unroll; gradients are clipped by norm; the value loss is not
clipped. With a recurrent network, the value looks at the policy's memory, and gradients go back through time as far as
the beginning of a minibatch's sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.actor_critic import AdvantageBatch, JointActorCritic, JointConfig, MinibatchConfig
from palaestra.algorithms.algorithm import Annealed, Positive
from palaestra.algorithms.exploration_bonus import BonusConfig
from palaestra.algorithms.memory import memory_of
from palaestra.algorithms.records import Losses
from palaestra.core import DataSource, OnPolicy, Schedule
from palaestra.ops import clipped_surrogate, explained_variance, row_weights, weighted_sum

__all__ = ["PPO", "PPOBatch", "PPOConfig"]


@dataclass(frozen=True, kw_only=True)
class PPOConfig(JointConfig, MinibatchConfig):
    """Hyperparameters of `PPO`."""

    num_epochs: Positive[int] = 4
    """How often each unroll is gone through."""
    mini_batch_length: Positive[int] = 16
    """Time steps in a sequence, for a recurrent network; without one, rows are learned from one by one."""
    clip: Annealed[Schedule] = 0.2
    """Epsilon of equation (7): the probability ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    value_cost: Schedule = 0.5
    """c1 of equation (9)."""
    entropy_cost: Schedule = 0.0
    """c2 of equation (9)."""
    target_kl: Positive[float | None] = None
    """An update ends at the first minibatch on which the policy has moved further from the one that acted, in nats."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    @property
    def plan(self) -> OnPolicy:
        """The data these settings ask for: rows, or sequences where the network has a memory."""
        length = self.mini_batch_length if self.network.recurrent else 1
        size = max(1, self.mini_batch_size // length)
        return dataclasses.replace(super().plan, mini_batch_size=size, mini_batch_length=length)


class PPOBatch(AdvantageBatch):
    """One minibatch; every field is [N, ...], or [T, N, ...] for a recurrent network."""

    log_prob: Tensor


@final
class PPO(JointActorCritic):
    """Learns a stochastic policy and a state value from unrolls of that same policy.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = PPOConfig
    recurrent = True
    stored_fields = ("log_prob",)
    component = "ppo"

    def preprocess(self, batch: Any, source: DataSource) -> PPOBatch:
        """Adds advantages and value targets to an unroll."""
        return PPOBatch.of(self.with_advantages(batch))

    def losses(self, batch: PPOBatch) -> Losses:
        """Equation (9): clipped surrogate, value error and entropy, each a mean over valid rows."""
        weight = row_weights(batch.valid)
        features, _ = self.policy.features(batch.observation, *memory_of(batch))
        policy = self.policy.distribution_of(self.policy.head(features), self.policy.action_mask(batch.observation))
        log_ratio = policy.log_prob(batch.action) - batch.log_prob
        surrogate = weighted_sum(clipped_surrogate(log_ratio, batch.advantage, epsilon=self.value_of("clip")), weight)
        value_error = weighted_sum((self.value_network(features).squeeze(-1) - batch.value_target).square(), weight)
        total = surrogate + self.value_of("value_cost") * value_error
        if self.config.entropy_cost:
            total = total - self.value_of("entropy_cost") * weighted_sum(policy.entropy(), weight)
        with torch.no_grad():
            metrics = {
                "surrogate": surrogate,
                "value_error": value_error,
                "entropy": weighted_sum(policy.entropy(), weight),
                "kl": weighted_sum(log_ratio.expm1() - log_ratio, weight),
            }
        return Losses({"ppo": total}, metrics)

    def stop_early(self, metrics: Mapping[str, Tensor]) -> bool:
        """Whether the policy has moved as far as `target_kl` allows."""
        return self.config.target_kl is not None and float(metrics["kl"]) > self.config.target_kl

    @torch.no_grad()
    def diagnostics(self, batch: PPOBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}
