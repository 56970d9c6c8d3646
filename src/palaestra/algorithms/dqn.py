"""Deep Q-learning from replayed transitions.

Papers: Mnih et al. 2015, https://doi.org/10.1038/nature14236, equation (2); double Q-learning: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461, equation (4); dueling networks: Wang et al. 2016, https://arxiv.org/abs/1511.06581,
equation (9); prioritised replay: Schaul et al. 2016, https://arxiv.org/abs/1511.05952, algorithm 1; noisy networks:
Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, equation (12); n-step targets: Sutton and Barto 2018, equation
(7.1), without off-policy correction.
Departures: Adam instead of RMSProp; the Huber loss stands for the clipped error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.records import Losses
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig, ValueBatch
from palaestra.ops import double_q_target, huber, q_target

__all__ = ["DQN", "DQNConfig"]


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ValueBasedConfig):
    """Hyperparameters of `DQN`."""

    huber_delta: Positive[float] = 1.0
    """Error above which the loss grows linearly."""


@final
class DQN(ValueBased):
    """Learns action values from replayed transitions; acts greedily with probability 1 - epsilon.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class = DQNConfig

    def noise(self, batch: Any, generator: torch.Generator) -> ValueBatch:
        """Noise of noisy layers, if there are any."""
        return self.with_layer_noise(batch, generator)

    def losses(self, batch: ValueBatch) -> Losses:
        """Equation (2) of Mnih et al., with the target of van Hasselt et al. where `double` is set."""
        with torch.no_grad():
            mask = self.policy.action_mask(batch.next_observation)
            next_observation = self.policy.normalize(batch.next_observation)
            next_target = self.target_network(next_observation, self.noise_of(batch, 1))
            if self.config.double:
                next_online = self.network(next_observation, self.noise_of(batch, 2))
                target = double_q_target(next_online, next_target, batch.reward, batch.discount, mask)
            else:
                target = q_target(next_target, batch.reward, batch.discount, mask)
        values = self.policy.q_values(batch.observation, noise=self.noise_of(batch, 0))
        q = values.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        error = q - target
        return self.stated(huber(error, delta=self.config.huber_delta), error, q, batch)
