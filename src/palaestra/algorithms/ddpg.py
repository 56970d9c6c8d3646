"""Deep deterministic policy gradient.

Paper: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, equations (4) to (6) and algorithm 1. Departures:
independent Gaussian instead of Ornstein-Uhlenbeck noise; one learning rate; neither weight decay nor batch
normalisation; actor and critic are differentiated at the same weights, then stepped together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from palaestra.algorithms.algorithm import NotNegative
from palaestra.algorithms.deterministic import DeterministicActorCritic
from palaestra.algorithms.off_policy import OffPolicyConfig
from palaestra.algorithms.parts import Transitions, n_step_transitions
from palaestra.algorithms.records import Losses
from palaestra.core import DataSource, RunSeeds, Schedule, SpecTree
from palaestra.ops import squared_errors
from palaestra.policies import GaussianNoise

__all__ = ["DDPG", "DDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(OffPolicyConfig):
    """Hyperparameters of `DDPG`."""

    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""


@final
class DDPG(DeterministicActorCritic):
    """Learns one action for each state by ascending a learned value.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = DDPGConfig
    num_critics = 1

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: DDPGConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        super().__init__(observation_spec, action_spec, config, seeds)
        self.policy.exploration = GaussianNoise(self.config.exploration_std, minimum=-1.0, maximum=1.0)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: Transitions) -> Losses:
        """Equations (4) and (5) for the critic; (6), the deterministic policy gradient, for the actor."""
        observation = self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [1, N]
        gain = self.critic(observation, self.policy.action(batch.observation)).mean()
        return Losses({"critic": squared_errors(q, self.target(batch)), "actor": -gain}, {"q_mean": q.mean()})
