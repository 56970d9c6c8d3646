"""Randomized ensembled double Q-learning: many critics, many gradient steps per env step.

Paper: Chen et al. 2021, https://arxiv.org/abs/2101.05982, algorithm 1. Departures: those of `SAC`; the actor's step is
made together with the last one of the critics.
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
from palaestra.ops import squared_errors, td_target

__all__ = ["REDQ", "REDQBatch", "REDQConfig"]


@dataclass(frozen=True, kw_only=True)
class REDQConfig(SoftConfig, OffPolicyConfig):
    """Hyperparameters of `REDQ`."""

    gradient_steps: Positive[int] = 20
    """Gradient steps in one update: the paper's update-to-data ratio G."""
    num_critics: Positive[int] = 10
    """K, critics of the ensemble; the paper's N."""
    subset_size: int = 2
    """M, critics drawn for each gradient step, whose minimum is the target."""
    policy_period: Positive[int] = 20
    """Gradient steps of the critics from one of actor and temperature to the next."""


class REDQBatch(SoftBatch):
    """Transitions, the noise that actions are made of, and the critics that are asked for targets."""

    subset: Tensor
    """[N, M] int64 in 0 ... K - 1; the same in all rows of a minibatch."""


@final
class REDQ(SoftActorCritic):
    """Learns a soft policy from the mean of many critics, each of which learns from the minimum of a random few.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else, or the subset is larger than the ensemble.
    """

    config_class = REDQConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: REDQConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config = config or REDQConfig()
        if not 1 <= config.subset_size <= config.num_critics:
            raise ConfigError(
                f"algorithm.subset_size is {config.subset_size} of {config.num_critics} critics; it must be at least 1 "
                "and at most their number"
            )
        self.term_periods = {"actor": config.policy_period, "temperature": config.policy_period}
        super().__init__(observation_spec, action_spec, config, seeds)

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations, and a subset of critics for each minibatch."""
        config = self.config
        order = torch.rand(config.gradient_steps, config.num_critics, generator=generator)
        subset = order.argsort(-1)[:, : config.subset_size]  # [U, M]
        fields: dict[str, Any] = dict(self.with_action_noise(batch, generator).items())
        return REDQBatch.of({**fields, "subset": subset.repeat_interleave(config.mini_batch_size, 0)})

    def losses(self, batch: REDQBatch) -> Losses:
        """Algorithm 1: line 9 is the target, line 10 the critics' loss, line 12 the actor's."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        with torch.no_grad():
            next_observation = self.policy.normalize(batch.next_observation)
            next_action, next_log_prob = self.policy.distribution(batch.next_observation).at(batch.next_noise)
            next_q = self.target_critic(next_observation, next_action, members=batch.subset[0])  # [M, N, 1]
            soft_value = next_q.amin(0).squeeze(-1) - temperature * next_log_prob
            target = td_target(soft_value, batch.reward, batch.discount)
        q = self.critic(observation, batch.action).squeeze(-1)  # [K, N]
        terms = {"critic": 0.5 * squared_errors(q, target)}
        metrics = {"q_mean": q.mean(), "q_std": q.std(0, correction=0).mean(), "alpha": temperature}
        if self.is_due("actor"):
            action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
            mean_q = self.critic(observation, action).mean(0).squeeze(-1)
            terms["actor"] = (temperature * log_prob - mean_q).mean()
            terms["temperature"] = self.temperature.loss(log_prob + self.target_entropy)
            metrics["entropy"] = -log_prob.mean()
        return Losses(terms, metrics)
