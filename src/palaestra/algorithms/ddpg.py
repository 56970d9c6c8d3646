"""Deep deterministic policy gradient.

Paper: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, equations (4) to (6) and algorithm 1. Departures:
independent Gaussian instead of Ornstein-Uhlenbeck noise; one learning rate; neither weight decay nor batch
normalisation; actor and critic are differentiated at the same weights, then stepped together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from palaestra.algorithms.algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import OffPolicyConfig, Transitions, transitions
from palaestra.algorithms.records import Losses
from palaestra.core import DataSource, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EnsembleNetwork, Network, OptimizerOption
from palaestra.ops import td_target
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["DDPG", "DDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(OffPolicyConfig):
    """Hyperparameters of `DDPG`."""

    exploration_std: Schedule = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""


@final
class DDPG(GradientAlgorithm[DeterministicPolicy]):
    """Learns one action for each state by ascending a learned action value.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = DDPGConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: DDPGConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or DDPGConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = DeterministicPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
            size = policy.raw_action_spec.size
            self._target_actor = Network(observation_spec, size, config.network)
            self._critic, self._target_critic = (
                EnsembleNetwork(observation_spec, 1, 1, config.network, action_size=size) for _ in range(2)
            )
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        model = CoreModel(
            {
                "actor": policy.network,
                "critic": self._critic,
                "target_actor": self._target_actor,
                "target_critic": self._target_critic,
            },
            {"actor": adam, "critic": adam},
        )
        for name in ("actor", "critic"):
            model.sync(f"target_{name}", source=name)
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return transitions(batch, self.config.gamma)

    def losses(self, batch: Transitions) -> Losses:
        """Equations (4) and (5) for the critic; (6), the deterministic policy gradient, for the actor."""
        observation = self.policy.normalize(batch.observation)
        with torch.no_grad():
            next_observation = self.policy.normalize(batch.next_observation)
            next_q = self._target_critic(next_observation, self._target_actor(next_observation).tanh())
            target = td_target(next_q.reshape(-1), batch.reward, batch.discount)
        q = self._critic(observation, batch.action).reshape(-1)
        gain = self._critic(observation, self.policy.action(batch.observation)).mean()
        return Losses({"critic": (q - target).square().mean(), "actor": -gain}, {"q_mean": q.mean()})

    def after_step(self) -> None:
        """Target networks follow the online ones."""
        for name in ("actor", "critic"):
            self.model.polyak_update(f"target_{name}", source=name, tau=self.config.tau)
