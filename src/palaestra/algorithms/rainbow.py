"""C51 with everything that was known to help: Rainbow.

Paper: Hessel et al. 2018, https://arxiv.org/abs/1710.02298, section "The Integrated Agent": distributional, double,
dueling, n-step, prioritised and noisy.
Departures: noise is drawn for every row rather than once for a minibatch; exploration decays no epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch

from palaestra.algorithms.c51 import categorical_losses
from palaestra.algorithms.records import Losses
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig, ValueBatch
from palaestra.core import Schedule
from palaestra.nn import NetworkConfig, ReturnDistribution

__all__ = ["Rainbow", "RainbowConfig"]


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(ValueBasedConfig):
    """Hyperparameters of `Rainbow`."""

    prioritized: bool = True
    """Whether transitions of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: float = 0.5
    """Power of the priority, at least 0; 0 draws all equally often."""
    n_step: int = 3
    """Rewards summed before bootstrapping."""
    epsilon: Schedule = 0.0
    """Probability of a random action while collecting; noisy layers explore without."""
    num_atoms: int = 51
    """Possible returns, evenly spaced."""
    min_return: float = -10.0
    """Smallest of them; no return below it can be told apart."""
    max_return: float = 10.0
    """Largest of them. The best discounted return of the task has to lie below it."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu", dueling=True, noisy=True)
    )
    """Layers of the network."""


@final
class Rainbow(ValueBased):
    """Learns the probability of every possible return from prioritised n-step transitions; explores by noisy layers.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete, or there are no atoms from a low to a higher return.
    """

    config_class = RainbowConfig

    @staticmethod
    def returns(config: Any) -> ReturnDistribution:
        """Atoms between the smallest and the largest return."""
        return ReturnDistribution("atoms", config.num_atoms, config.min_return, config.max_return)

    def noise(self, batch: Any, generator: torch.Generator) -> ValueBatch:
        """Noise of noisy layers."""
        return self.with_layer_noise(batch, generator)

    def losses(self, batch: ValueBatch) -> Losses:
        """See `c51.categorical_losses`."""
        return categorical_losses(self, batch)
