"""Distributional Q-learning with a network that knows the quantile at any fraction.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1806.06923, equations (2) to (4).
Departures: acting averages evenly spaced fractions instead of random ones, so it draws no random numbers; risk-averse
distortions are left out. What `ValueBased` offers (n-step targets, double Q-learning) is optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.parts import ValueBatch
from palaestra.algorithms.records import Losses
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig
from palaestra.nn import ReturnDistribution
from palaestra.ops import greedy_action, quantile_huber

__all__ = ["IQN", "IQNBatch", "IQNConfig"]


@dataclass(frozen=True, kw_only=True)
class IQNConfig(ValueBasedConfig):
    """Hyperparameters of `IQN`."""

    double: bool = False
    """Whether the online network chooses the action whose target quantiles are used."""
    num_fractions: Positive[int] = 8
    """N, random fractions at which the prediction is compared, in each row."""
    num_target_fractions: Positive[int] = 8
    """N', random fractions of the target."""
    num_acting_fractions: Positive[int] = 32
    """K, evenly spaced fractions over which the value of an action is averaged."""
    huber_delta: Positive[float] = 1.0
    """Error above which the loss grows linearly: kappa of equation (3)."""


class IQNBatch(ValueBatch):
    """One minibatch; every field is [N, ...]."""

    fraction: Tensor
    """[N, Q] in [0, 1)."""
    next_fraction: Tensor
    """[N, Q'] in [0, 1)."""


@final
class IQN(ValueBased):
    """Learns the whole quantile function of every action's return; acts greedily, with probability 1 - epsilon.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete, or the network's config asks for dueling or noisy layers.
    """

    config_class = IQNConfig

    @staticmethod
    def returns(config: Any) -> ReturnDistribution:
        """A quantile function."""
        return ReturnDistribution("implicit", config.num_acting_fractions)

    def noise(self, batch: Any, generator: torch.Generator) -> IQNBatch:
        """The random fractions of the prediction and the target."""
        sizes = (self.config.num_fractions, self.config.num_target_fractions)
        drawn = torch.rand((len(batch.reward), sum(sizes)), generator=generator)
        fraction, next_fraction = drawn.split(sizes, -1)
        return IQNBatch.of({**dict(batch.items()), "fraction": fraction, "next_fraction": next_fraction})

    def losses(self, batch: IQNBatch) -> Losses:
        """Equation (3): the quantile Huber loss between all pairs of sampled quantiles."""
        network, rows = self.network, torch.arange(len(batch.action), device=batch.action.device)
        with torch.no_grad():
            next_observation = self.policy.normalize(batch.next_observation)
            chooser = network if self.config.double else self.target_network
            next_action = greedy_action(chooser(next_observation), self.policy.action_mask(batch.next_observation))
            next_quantile = self.target_network.outputs(next_observation, batch.next_fraction)[rows, next_action]
            target = batch.reward[:, None] + batch.discount[:, None] * next_quantile  # [N, Q']
        outputs = network.outputs(self.policy.normalize(batch.observation), batch.fraction)
        quantile = outputs[rows, batch.action]  # [N, Q]
        loss = quantile_huber(quantile, target, batch.fraction, delta=self.config.huber_delta)
        q = quantile.mean(-1)
        return self.stated(loss, target.mean(-1) - q, q, batch)
