"""C51 with everything that was known to help: Rainbow.

Paper: Hessel et al. 2018, https://arxiv.org/abs/1710.02298, section "The Integrated Agent": distributional, double,
dueling, n-step, prioritised and noisy.
Departures: noise is drawn for every row rather than once for a minibatch; exploration decays no epsilon; priorities are
the cross-entropy instead of the divergence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.c51 import C51, C51Config
from palaestra.core import Schedule
from palaestra.nn import NetworkConfig

__all__ = ["Rainbow", "RainbowConfig"]


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(C51Config):
    """Hyperparameters of `Rainbow`."""

    prioritized: bool = True
    """Whether transitions of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: float = 0.5
    """Power of the priority, at least 0; 0 draws all equally often."""
    n_step: Positive[int] = 3
    """Rewards summed before bootstrapping."""
    epsilon: Schedule = 0.0
    """Probability of a random action while collecting; noisy layers explore without."""
    double: bool = True
    """Whether the online network chooses the action whose target distribution is used."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu", dueling=True, noisy=True)
    )
    """Layers of the network."""


@final
class Rainbow(C51):
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
