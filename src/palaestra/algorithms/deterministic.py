"""What deterministic actor-critics have in common: DDPG, TD3 and TD3+BC."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor

from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.parts import Transitions
from palaestra.core import Batch, RunSeeds, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EnsembleNetwork, Network, OptimizerOption
from palaestra.ops import td_target
from palaestra.policies import DeterministicPolicy

__all__ = ["DeterministicActorCritic", "SmoothedBatch"]


class SmoothedBatch(Transitions):
    """Transitions, and the noise on their target actions."""

    noise: Tensor
    """[N, A] clipped, raw units."""


class DeterministicActorCritic(GradientAlgorithm[DeterministicPolicy]):
    """A deterministic policy and an ensemble of critics, with targets of both that follow.

    A subclass states `losses`, and its data. Components are `actor`, `critic`, `target_actor` and `target_critic`.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class: ClassVar[Any]
    num_critics: ClassVar[int] = 2
    """K, critics of the ensemble."""

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: Any = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or self.config_class(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = DeterministicPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            size = policy.raw_action_spec.size
            self.target_actor = Network(observation_spec, size, config.network)
            self.critic, self.target_critic = (
                EnsembleNetwork(observation_spec, 1, self.num_critics, config.network, action_size=size)
                for _ in range(2)
            )
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        model = CoreModel(
            {
                "actor": policy.network,
                "critic": self.critic,
                "target_actor": self.target_actor,
                "target_critic": self.target_critic,
            },
            {"actor": adam, "critic": adam},
        )
        for name in ("actor", "critic"):
            model.sync(f"target_{name}", source=name)
        self.term_periods = {"actor": getattr(config, "policy_period", 1)}
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    @final
    def with_target_noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Adds the smoothing noise of target actions; for the hook `noise` of a subclass.

        Args:
            batch: after `preprocess`.
            generator: source of the noise.
        """
        noise = torch.empty(batch.action.shape).normal_(std=self.config.target_noise_std, generator=generator)
        limit = self.config.target_noise_clip
        return SmoothedBatch.of({**dict(batch.items()), "noise": noise.clamp_(-limit, limit)})

    @final
    @torch.no_grad()
    def target(self, batch: Transitions, noise: Tensor | None = None) -> Tensor:
        """What the target networks say the actions were worth: the least of the critics' values of the next action.

        Args:
            batch: transitions.
            noise: [N, A] added to the next action.

        Returns:
            [N] units of return.
        """
        observation = self.policy.normalize(batch.next_observation)
        action = self.target_actor(observation).tanh()
        if noise is not None:
            action = (action + noise).clamp_(-1.0, 1.0)
        next_q = self.target_critic(observation, action).squeeze(-1)  # [K, N]
        return td_target(next_q.amin(0), batch.reward, batch.discount)

    @final
    def after_step(self) -> None:
        """Target networks follow, as often as the actor moves."""
        if self.num_gradient_steps % self.term_periods["actor"] == 0:
            for name in ("actor", "critic"):
                self.model.polyak_update(f"target_{name}", source=name, tau=float(self.value_of("tau")))
