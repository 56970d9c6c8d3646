"""Soft actor-critic with critics of quantiles, the highest of which are dropped: truncated quantile critics.

Paper: Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269, equations (5) to (9) and algorithm 1. Departures: those
of `SAC`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.off_policy import OffPolicyConfig
from palaestra.algorithms.parts import SoftBatch
from palaestra.algorithms.records import Losses
from palaestra.algorithms.soft import SoftActorCritic, SoftConfig
from palaestra.core import Batch, ConfigError, RunSeeds, SpecTree
from palaestra.ops import quantile_huber

__all__ = ["QuantileSAC", "QuantileSACConfig"]


@dataclass(frozen=True, kw_only=True)
class QuantileSACConfig(SoftConfig, OffPolicyConfig):
    """Hyperparameters of `QuantileSAC`."""

    num_critics: Positive[int] = 5
    """K, critics of the ensemble; the paper's N."""
    num_quantiles: int = 25
    """Q, quantiles of each critic; the paper's M."""
    num_dropped: int = 2
    """Highest quantiles that targets leave out, for each critic; the paper's d. More is more pessimistic."""


@final
class QuantileSAC(SoftActorCritic):
    """Learns a soft policy from quantiles of the return, pooled over critics and cut off at the top.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else, or no quantile would be left.
    """

    config_class = QuantileSACConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: QuantileSACConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config = config or QuantileSACConfig()
        if not 0 <= config.num_dropped < config.num_quantiles:
            raise ConfigError(
                f"algorithm.num_dropped is {config.num_dropped} of {config.num_quantiles} quantiles; it must be at "
                "least 0 and below their number"
            )
        super().__init__(observation_spec, action_spec, config, seeds)
        middle = (torch.arange(config.num_quantiles) + 0.5) / config.num_quantiles
        self._fraction = middle.repeat(config.num_critics)  # [K Q] the paper's tau

    @staticmethod
    def critic_size(config: Any) -> int:
        """Quantiles of each critic.

        Args:
            config: hyperparameters.
        """
        return config.num_quantiles

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations."""
        return self.with_action_noise(batch, generator)

    def losses(self, batch: SoftBatch) -> Losses:
        """Equation (8) with the target of (6) and (7) for the critics, (9) for the actor."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_observation).at(batch.next_noise)
            pooled = _pooled(self.target_critic(self.policy.normalize(batch.next_observation), next_action))
            kept = pooled.sort(-1).values[:, : -self.config.num_dropped * self.config.num_critics or None]
            soft_value = kept - temperature * next_log_prob[:, None]
            target = batch.reward[:, None] + batch.discount[:, None] * soft_value  # [N, K (Q - d)]
        quantile = _pooled(self.critic(observation, batch.action))  # [N, K Q]
        fraction = self._fraction.to(quantile.device)
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
