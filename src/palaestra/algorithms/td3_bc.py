"""TD3 with behaviour cloning, for a fixed data set.

Paper: Fujimoto and Gu 2021, https://arxiv.org/abs/2106.06860, equations (3) to (5). Departures: those of `TD3`; the
scale of the action values in (5) is their mean over all the data of an update, before its first gradient step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import NotNegative, Positive
from palaestra.algorithms.deterministic import DeterministicActorCritic, SmoothedBatch
from palaestra.algorithms.off_policy import OfflineConfig
from palaestra.algorithms.parts import n_step_transitions
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, Schedule
from palaestra.ops import squared_errors

__all__ = ["TD3BC", "TD3BCBatch", "TD3BCConfig"]


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(OfflineConfig):
    """Hyperparameters of `TD3BC`."""

    value_weight: Schedule = 2.5
    """Alpha of equation (5): how much values count beside imitation; 0 is behaviour cloning."""
    target_noise_std: NotNegative[float] = 0.2
    """Standard deviation of the noise on target actions, in raw units."""
    target_noise_clip: NotNegative[float] = 0.5
    """Largest noise on target actions, in raw units."""
    policy_period: Positive[int] = 2
    """Gradient steps of the critics from one of the actor, and of all target networks, to the next."""
    normalize_observation: bool = True
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""


class TD3BCBatch(SmoothedBatch):
    """Transitions, the noise on their target actions, and the scale of values."""

    q_scale: Tensor
    """[N] mean size of the action values; the same number in every row."""


@final
class TD3BC(DeterministicActorCritic):
    """Learns actions of high value close to those of the data.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = TD3BCConfig

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        """Reduces n-step windows to transitions, and measures the size of action values: the divisor in (5)."""
        found = n_step_transitions(batch, self.value_of("gamma"))
        observation = self.policy.normalize(found.observation)
        q = self.critic(observation, self.policy.action(found.observation), members=slice(1))
        return Batch.of({**dict(found.items()), "q_scale": q.abs().mean().expand(len(found.index))})

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The smoothing noise of target actions."""
        return TD3BCBatch.of(dict(self.with_target_noise(batch, generator).items()))

    def losses(self, batch: TD3BCBatch) -> Losses:
        """Equation (10) of TD3 for the critics; (3) with the weight of (5) for the actor, where it is due."""
        observation = self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [2, N]
        terms = {"critic": squared_errors(q, self.target(batch, batch.noise))}
        metrics = {"q_mean": q.mean()}
        if self.is_due("actor"):
            action = self.policy.action(batch.observation)
            value = self.critic(observation, action, members=slice(1)).reshape(-1)
            distance = (action - batch.action).square().mean(-1)
            weight = self.value_of("value_weight") / (batch.q_scale + 1e-6)
            terms["actor"] = (distance - weight * value).mean()
            metrics["distance"] = distance.mean()
        return Losses(terms, metrics)
