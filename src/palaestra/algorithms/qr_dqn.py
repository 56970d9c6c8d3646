"""Distributional Q-learning by quantile regression.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1710.10044, equations (9) to (13), algorithm 1.
Departures: what `ValueBased` offers (n-step targets, double Q-learning, dueling and noisy layers) is optional; double
Q-learning is off, as in the paper. The Huber loss is divided by its delta, as in the authors' next paper (IQN).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.parts import ValueBatch
from palaestra.algorithms.records import Losses
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig
from palaestra.nn import ReturnDistribution
from palaestra.ops import greedy_action, quantile_huber

__all__ = ["QRDQN", "QRDQNConfig"]


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(ValueBasedConfig):
    """Hyperparameters of `QRDQN`."""

    double: bool = False
    """Whether the online network chooses the action whose target quantiles are used."""
    num_quantiles: int = 50
    """N, returns that describe the distribution of each action, at the fractions (i + 1/2) / N."""
    huber_delta: Positive[float] = 1.0
    """Error above which the loss grows linearly: kappa of equation (9)."""


@final
class QRDQN(ValueBased):
    """Learns quantiles of every action's return; acts greedily on their means, with probability 1 - epsilon.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class = QRDQNConfig

    @staticmethod
    def returns(config: Any) -> ReturnDistribution:
        """Quantiles at even fractions."""
        return ReturnDistribution("quantiles", config.num_quantiles)

    def noise(self, batch: Any, generator: torch.Generator) -> ValueBatch:
        """Noise of noisy layers, if there are any."""
        return self.with_layer_noise(batch, generator)

    def losses(self, batch: ValueBatch) -> Losses:
        """Algorithm 1: the quantile Huber loss between all pairs of predicted and target quantiles."""
        network, rows = self.network, torch.arange(len(batch.action), device=batch.action.device)
        with torch.no_grad():
            next_observation = self.policy.normalize(batch.next_observation)
            next_quantile = self.target_network.outputs(next_observation, self.noise_of(batch, 1))  # [N, A, Q]
            if self.config.double:
                next_q = network(next_observation, self.noise_of(batch, 2))
            else:
                next_q = next_quantile.mean(-1)
            next_action = greedy_action(next_q, self.policy.action_mask(batch.next_observation))
            target = batch.reward[:, None] + batch.discount[:, None] * next_quantile[rows, next_action]  # [N, Q]
        outputs = network.outputs(self.policy.normalize(batch.observation), self.noise_of(batch, 0))
        quantile = outputs[rows, batch.action]  # [N, Q]
        loss = quantile_huber(quantile, target, network.support, delta=self.config.huber_delta)
        q = quantile.mean(-1)
        return self.stated(loss, target.mean(-1) - q, q, batch)
