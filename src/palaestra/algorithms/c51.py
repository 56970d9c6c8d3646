"""Distributional Q-learning with a fixed set of possible returns.

Paper: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, equation (7) and algorithm 1.
Departures: what `ValueBased` offers (n-step targets, double Q-learning, dueling and noisy layers) is optional; double
Q-learning is off, as in the paper. Gradients are clipped by norm. Priorities are the cross-entropy, where Hessel et al.
2018 take the divergence, which lacks the entropy of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palaestra.algorithms.parts import ValueBatch
from palaestra.algorithms.records import Losses
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig
from palaestra.nn import ReturnDistribution
from palaestra.ops import categorical_projection, greedy_action

__all__ = ["C51", "C51Config"]


@dataclass(frozen=True, kw_only=True)
class C51Config(ValueBasedConfig):
    """Hyperparameters of `C51`."""

    double: bool = False
    """Whether the online network chooses the action whose target distribution is used."""
    num_atoms: int = 51
    """Possible returns, evenly spaced."""
    min_return: float = -10.0
    """Smallest of them; no return below it can be told apart."""
    max_return: float = 10.0
    """Largest of them. The best discounted return of the task has to lie below it."""


class C51(ValueBased):
    """Learns the probability of every possible return; acts greedily on the means, with probability 1 - epsilon.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete, or there are no atoms from a low to a higher return.
    """

    config_class = C51Config

    @staticmethod
    def returns(config: Any) -> ReturnDistribution:
        """Atoms between the smallest and the largest return."""
        return ReturnDistribution("atoms", config.num_atoms, config.min_return, config.max_return)

    def noise(self, batch: Any, generator: torch.Generator) -> ValueBatch:
        """Noise of noisy layers, if there are any."""
        return self.with_layer_noise(batch, generator)

    def losses(self, batch: ValueBatch) -> Losses:
        """Algorithm 1: cross-entropy to the projected distribution of the target.

        The priority of a row is its cross-entropy.
        """
        policy, network, target = self.policy, self.network, self.target_network
        rows = torch.arange(len(batch.action), device=batch.action.device)
        with torch.no_grad():
            next_observation = policy.normalize(batch.next_observation)
            next_logits = target.outputs(next_observation, self.noise_of(batch, 1))  # [N, A, Q]
            if self.config.double:
                next_q = network(next_observation, self.noise_of(batch, 2))
            else:
                next_q = target.values(next_logits)
            next_action = greedy_action(next_q, policy.action_mask(batch.next_observation))
            next_probs = next_logits[rows, next_action].softmax(-1)
            wanted = categorical_projection(next_probs, network.support, batch.reward, batch.discount)  # [N, Q]
        logits = network.outputs(policy.normalize(batch.observation), self.noise_of(batch, 0))[rows, batch.action]
        error = -(wanted * logits.log_softmax(-1)).sum(-1)
        with torch.no_grad():
            q = logits.softmax(-1) @ network.support
        return self.stated(error, error, q, batch)
