"""Soft actor-critic with twin critics and an automatic temperature.

Paper: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equations (5), (6), (9) and (18), and algorithm 1 with
its minimum of two critics. Departures: critics, actor and temperature are differentiated at the same weights, then
stepped together; the temperature is learned through its logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from palaestra.algorithms.off_policy import OffPolicyConfig
from palaestra.algorithms.records import Losses
from palaestra.algorithms.soft import SoftActorCritic, SoftBatch, SoftConfig
from palaestra.core import Batch
from palaestra.ops import squared_errors, td_target

__all__ = ["SAC", "SACConfig"]


@dataclass(frozen=True, kw_only=True)
class SACConfig(SoftConfig, OffPolicyConfig):
    """Hyperparameters of `SAC`."""


@final
class SAC(SoftActorCritic):
    """Learns a random policy that gets much return and stays as random as its target entropy says.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = SACConfig

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations."""
        return self.with_action_noise(batch, generator)

    def losses(self, batch: SoftBatch) -> Losses:
        """Equation (5) with the target of (6) for the critics, (9) for the actor, (18) for the temperature."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_observation).at(batch.next_noise)
            next_q = self.target_critic(self.policy.normalize(batch.next_observation), next_action)  # [K, N, 1]
            soft_value = next_q.amin(0).squeeze(-1) - temperature * next_log_prob
            target = td_target(soft_value, batch.reward, batch.discount)
        q = self.critic(observation, batch.action).squeeze(-1)  # [K, N]
        action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
        least_q = self.critic(observation, action).amin(0).squeeze(-1)
        terms = {
            "critic": 0.5 * squared_errors(q, target),
            "actor": (temperature * log_prob - least_q).mean(),
            "temperature": self.temperature.loss(log_prob + self.target_entropy),
        }
        return Losses(terms, {"q_mean": q.mean(), "entropy": -log_prob.mean(), "alpha": temperature})
