"""Conservative Q-learning, for a fixed data set: SAC whose critics distrust actions that the data does not have.

Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779, equation (4), CQL(H), with the importance-weighted estimate
of its appendix F. Departures: those of `SAC`; the weight of the conservative term is fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.off_policy import OfflineConfig
from palaestra.algorithms.parts import SoftBatch
from palaestra.algorithms.records import Losses
from palaestra.algorithms.soft import SoftActorCritic, SoftConfig
from palaestra.core import Batch, Schedule
from palaestra.ops import squared_errors, td_target

__all__ = ["CQL", "CQLBatch", "CQLConfig"]


@dataclass(frozen=True, kw_only=True)
class CQLConfig(SoftConfig, OfflineConfig):
    """Hyperparameters of `CQL`."""

    conservative_cost: Schedule = 5.0
    """Alpha of equation (4): weight of the gap between values in general and values of the data's actions."""
    num_actions: Positive[int] = 10
    """S, actions drawn from the uniform distribution, and from the policy at each of both observations."""


class CQLBatch(SoftBatch):
    """Transitions, the noise that actions are made of, and the actions that stand for all."""

    uniform: Tensor
    """[N, S, A] in [-1, 1], uniform actions."""
    sample_noise: Tensor
    """[N, 2S, A] standard normal, for actions of the policy at `observation` and at `next_observation`."""


@final
class CQL(SoftActorCritic):
    """Learns lower bounds of the values of actions outside the data, and a soft policy on them.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = CQLConfig

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations, and of those that stand for all actions."""
        rows, size = batch.action.shape
        shape = (rows, self.config.num_actions, size)
        uniform = torch.empty(shape).uniform_(-1.0, 1.0, generator=generator)
        normal = torch.empty(rows, 2 * shape[1], size).normal_(generator=generator)
        fields: dict[str, Any] = dict(self.with_action_noise(batch, generator).items())
        return CQLBatch.of({**fields, "uniform": uniform, "sample_noise": normal})

    def losses(self, batch: CQLBatch) -> Losses:
        """Equation (4) for the critics; actor and temperature as in SAC."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_observation).at(batch.next_noise)
            next_q = self.target_critic(self.policy.normalize(batch.next_observation), next_action)  # [K, N, 1]
            soft_value = next_q.amin(0).squeeze(-1) - temperature * next_log_prob
            target = td_target(soft_value, batch.reward, batch.discount)
        q = self.critic(observation, batch.action).squeeze(-1)  # [K, N]
        gap = (self._soft_maximum(batch, observation) - q).mean(1).sum()
        action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
        least_q = self.critic(observation, action).amin(0).squeeze(-1)
        terms = {
            "critic": 0.5 * squared_errors(q, target) + self.value_of("conservative_cost") * gap,
            "actor": (temperature * log_prob - least_q).mean(),
            "temperature": self.temperature.loss(log_prob + self.target_entropy),
        }
        metrics = {"q_mean": q.mean(), "gap": gap, "entropy": -log_prob.mean(), "alpha": temperature}
        return Losses(terms, metrics)

    def _soft_maximum(self, batch: CQLBatch, observation: Any) -> Tensor:
        """[K, N] log of the integral of exp(Q) over actions, from 3S samples weighted by their densities."""
        count = self.config.num_actions
        with torch.no_grad():
            here = self.policy.distribution(_repeated(batch.observation, count)).at(batch.sample_noise[:, :count])
            there = self.policy.distribution(_repeated(batch.next_observation, count)).at(batch.sample_noise[:, count:])
            density = torch.full_like(here[1], -math.log(2.0) * batch.action.shape[-1])
            actions = torch.cat((batch.uniform, here[0], there[0]), 1)  # [N, 3S, A]
            log_density = torch.cat((density, here[1], there[1]), 1)  # [N, 3S]
        q = self.critic(_repeated(observation, 3 * count), actions).squeeze(-1)  # [K, N, 3S]
        return (q - log_density).logsumexp(-1) - math.log(3 * count)


def _repeated(observation: Any, count: int) -> Any:
    """[N, ...] -> [N, count, ...]."""

    def repeat(leaf: Tensor) -> Tensor:
        return leaf.unsqueeze(1).expand(-1, count, *leaf.shape[1:])

    return observation.map(repeat) if isinstance(observation, Batch) else repeat(observation)
