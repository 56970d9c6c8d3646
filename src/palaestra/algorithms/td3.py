"""Twin delayed deep deterministic policy gradient.

Paper: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, algorithm 1, equations (10) and (14). Departures: an
actor that is due is differentiated at the same weights as the critics, then stepped together with them; noise is in
units of raw actions, which lie in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from palaestra.algorithms.algorithm import NotNegative, Positive
from palaestra.algorithms.deterministic import DeterministicActorCritic, SmoothedBatch
from palaestra.algorithms.off_policy import OffPolicyConfig
from palaestra.algorithms.parts import Transitions, n_step_transitions
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, RunSeeds, Schedule, SpecTree
from palaestra.ops import squared_errors
from palaestra.policies import GaussianNoise

__all__ = ["TD3", "TD3Config"]


@dataclass(frozen=True, kw_only=True)
class TD3Config(OffPolicyConfig):
    """Hyperparameters of `TD3`."""

    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""
    target_noise_std: NotNegative[float] = 0.2
    """Standard deviation of the noise on target actions, in raw units."""
    target_noise_clip: NotNegative[float] = 0.5
    """Largest noise on target actions, in raw units."""
    policy_period: Positive[int] = 2
    """Gradient steps of the critics from one of the actor, and of all target networks, to the next."""


@final
class TD3(DeterministicActorCritic):
    """Learns one action for each state by ascending a learned value, with targets from the lesser of two.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = TD3Config

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: TD3Config | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        super().__init__(observation_spec, action_spec, config, seeds)
        self.policy.exploration = GaussianNoise(self.config.exploration_std, minimum=-1.0, maximum=1.0)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return n_step_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Equation (14): the smoothing noise of target actions."""
        return self.with_target_noise(batch, generator)

    def losses(self, batch: SmoothedBatch) -> Losses:
        """Equation (10) for the critics; the deterministic policy gradient for the actor, where it is due."""
        observation = self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [2, N]
        terms = {"critic": squared_errors(q, self.target(batch, batch.noise))}
        if self.is_due("actor"):
            action = self.policy.action(batch.observation)
            terms["actor"] = -self.critic(observation, action, members=slice(1)).mean()
        return Losses(terms, {"q_mean": q.mean()})
