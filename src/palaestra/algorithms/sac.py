"""Soft actor-critic with twin critics and an automatic temperature.

Paper: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equations (5), (6), (9) and (18), appendix C; clipped
double Q-learning as in algorithm 1. Departures: critics, actor and temperature are differentiated at the same weights,
then stepped together; the temperature is learned through its logarithm, which also multiplies the entropy error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.algorithms.algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import OffPolicyConfig, Transitions, transitions
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EnsembleNetwork, OptimizerOption
from palaestra.ops import td_target
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["SAC", "SACBatch", "SACConfig", "Temperature"]


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Hyperparameters of `SAC`."""

    num_critics: int = 2
    """K, the critics whose minimum is believed."""
    initial_temperature: float = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: Schedule = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: float | None = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""


class SACBatch(Transitions):
    """Transitions, and the noise that actions are made of."""

    noise: Tensor
    """[N, A] standard normal, for the action at `observation`."""
    next_noise: Tensor
    """[N, A] standard normal, for the action at `next_observation`."""


class Temperature(nn.Module):
    """The weight of the entropy, kept positive by its logarithm.

    Args:
        initial: at the start, greater than 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(initial)).log())

    def forward(self) -> Tensor:
        """0-dim, without gradient."""
        return self.log.detach().exp()


@final
class SAC(GradientAlgorithm[SquashedGaussianPolicy]):
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

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: SACConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or SACConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = SquashedGaussianPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            size = policy.raw_action_spec.size
            self._critic, self._target = (
                EnsembleNetwork(observation_spec, 1, config.num_critics, config.network, action_size=size)
                for _ in range(2)
            )
            self._temperature = Temperature(config.initial_temperature)
        self._target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        model = CoreModel(
            {
                "actor": policy.network,
                "critic": self._critic,
                "target_critic": self._target,
                "temperature": self._temperature,
            },
            {
                "actor": adam,
                "critic": adam,
                "temperature": OptimizerOption("adam", {"lr": config.temperature_learning_rate}),
            },
        )
        model.sync("target_critic", source="critic")
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return transitions(batch, self.config.gamma)

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations."""
        noise, next_noise = torch.empty(2, *batch.action.shape, device=batch.action.device).normal_(generator=generator)
        return SACBatch.of({**dict(batch.items()), "noise": noise, "next_noise": next_noise})

    def losses(self, batch: SACBatch) -> Losses:
        """Equation (5) for the critics, (9) for the actor, (18) for the temperature."""
        observation = self.policy.normalize(batch.observation)
        temperature = self._temperature()
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_observation).at(batch.next_noise)
            next_q = self._target(self.policy.normalize(batch.next_observation), next_action).squeeze(-1)  # [K, N]
            soft_value = next_q.amin(0) - temperature * next_log_prob
            target = td_target(soft_value, batch.reward, batch.discount)
        q = self._critic(observation, batch.action).squeeze(-1)  # [K, N]
        action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
        least_q = self._critic(observation, action).amin(0).squeeze(-1)
        error = (log_prob + self._target_entropy).detach().mean()
        terms = {
            "critic": 0.5 * (q - target).square().mean(1).sum(),
            "actor": (temperature * log_prob - least_q).mean(),
            "temperature": -self._temperature.log * error,
        }
        return Losses(terms, {"q_mean": q.mean(), "entropy": -log_prob.mean(), "alpha": temperature})

    def after_step(self) -> None:
        """Target critics follow the online ones."""
        self.model.polyak_update("target_critic", source="critic", tau=self.config.tau)
