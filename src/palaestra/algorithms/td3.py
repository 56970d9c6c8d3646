"""Twin delayed deep deterministic policy gradient.

Paper: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, algorithm 1, equations (10) and (14). Departures: the
actor that is due is differentiated at the same weights as the critics, then stepped together with them; noise is in
units of raw actions, which lie in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import OffPolicyConfig, Transitions, transitions
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EnsembleNetwork, Network, OptimizerOption
from palaestra.ops import td_target
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["TD3", "TD3Batch", "TD3Config"]


@dataclass(frozen=True, kw_only=True)
class TD3Config(OffPolicyConfig):
    """Hyperparameters of `TD3`."""

    exploration_std: Schedule = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""
    target_noise_std: float = 0.2
    """Standard deviation of the noise on target actions, in raw units."""
    target_noise_clip: float = 0.5
    """Largest noise on target actions, in raw units."""
    policy_period: int = 2
    """Gradient steps of the critics from one of the actor, and of all target networks, to the next."""


class TD3Batch(Transitions):
    """Transitions, and the noise on their target actions."""

    noise: Tensor
    """[N, A] clipped, raw units."""


@final
class TD3(GradientAlgorithm[DeterministicPolicy]):
    """Learns one action for each state by ascending the lesser of two learned action values.

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
        config, seeds = config or TD3Config(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = DeterministicPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
            size = policy.raw_action_spec.size
            self._target_actor = Network(observation_spec, size, config.network)
            self._critic, self._target_critic = (
                EnsembleNetwork(observation_spec, 1, 2, config.network, action_size=size) for _ in range(2)
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
        self.term_periods = {"actor": config.policy_period}
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return transitions(batch, self.config.gamma)

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Equation (14): the smoothing noise of target actions."""
        noise = torch.empty_like(batch.action).normal_(std=self.config.target_noise_std, generator=generator)
        limit = self.config.target_noise_clip
        return TD3Batch.of({**dict(batch.items()), "noise": noise.clamp_(-limit, limit)})

    def losses(self, batch: TD3Batch) -> Losses:
        """Equation (10) for the critics; the deterministic policy gradient for the actor, where it is due."""
        observation = self.policy.normalize(batch.observation)
        with torch.no_grad():
            next_observation = self.policy.normalize(batch.next_observation)
            next_action = (self._target_actor(next_observation).tanh() + batch.noise).clamp(-1.0, 1.0)
            next_q = self._target_critic(next_observation, next_action).squeeze(-1)  # [K, N]
            target = td_target(next_q.amin(0), batch.reward, batch.discount)
        q = self._critic(observation, batch.action).squeeze(-1)
        terms = {"critic": (q - target).square().mean(1).sum()}
        if self.is_due("actor"):
            action = self.policy.action(batch.observation)
            terms["actor"] = -self._critic(observation, action, members=slice(1)).mean()
        return Losses(terms, {"q_mean": q.mean()})

    def after_step(self) -> None:
        """Target networks follow, as often as the actor moves."""
        if self.num_gradient_steps % self.config.policy_period == 0:
            for name in ("actor", "critic"):
                self.model.polyak_update(f"target_{name}", source=name, tau=self.config.tau)
