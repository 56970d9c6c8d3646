"""Implicit Q-learning, for a fixed data set.

Paper: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169, equations (5) to (7) and algorithm 1. Departures: value,
critics and actor are differentiated at the same weights, then stepped together; the actor's learning rate is constant
unless it is given a schedule; the policy's mean and log standard deviation have no bounds, unlike those of the authors'
code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from palaestra.algorithms.algorithm import InsideFraction, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import OfflineConfig
from palaestra.algorithms.parts import Transitions, n_step_transitions
from palaestra.algorithms.records import Losses
from palaestra.core import DataSource, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EnsembleNetwork, Network, OptimizerOption
from palaestra.ops import expectile_loss, squared_errors, td_target
from palaestra.policies import GaussianPolicy

__all__ = ["IQL", "IQLConfig"]


@dataclass(frozen=True, kw_only=True)
class IQLConfig(OfflineConfig):
    """Hyperparameters of `IQL`."""

    expectile: InsideFraction[float] = 0.7
    """Tau of equation (5), in (0, 1): 0.5 values the data's own actions, towards 1 its best ones."""
    inverse_temperature: Schedule = 3.0
    """Beta of equation (7): how much better actions are preferred; 0 is behaviour cloning."""
    max_weight: Positive[float] = 100.0
    """Largest weight of an action in equation (7)."""


@final
class IQL(GradientAlgorithm[GaussianPolicy]):
    """Learns values without ever asking for an action that the data does not have, then imitates its better actions.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not continuous.
    """

    config_class = IQLConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: IQLConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or IQLConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = GaussianPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            size = policy.raw_action_spec.size
            self._critic, self._target_critic = (
                EnsembleNetwork(observation_spec, 1, 2, config.network, action_size=size) for _ in range(2)
            )
            self._value = Network(observation_spec, 1, config.network)
        components = {"actor": policy.network, "critic": self._critic, "value": self._value}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        model = CoreModel({**components, "target_critic": self._target_critic}, dict.fromkeys(components, adam))
        model.sync("target_critic", source="critic")
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: Transitions) -> Losses:
        """Equation (5) for the value, (6) for the critics, (7) for the actor."""
        observation = self.policy.normalize(batch.observation)
        with torch.no_grad():
            next_value = self._value(self.policy.normalize(batch.next_observation)).squeeze(-1)
            target = td_target(next_value, batch.reward, batch.discount)
            least_q = self._target_critic(observation, batch.action).amin(0).squeeze(-1)
        advantage = least_q - self._value(observation).squeeze(-1)
        q = self._critic(observation, batch.action).squeeze(-1)  # [2, N]
        weight = (self.value_of("inverse_temperature") * advantage.detach()).exp().clamp(max=self.config.max_weight)
        log_prob = self.policy.distribution(batch.observation).log_prob(batch.action)
        terms = {
            "value": expectile_loss(advantage, expectile=self.config.expectile).mean(),
            "critic": squared_errors(q, target),
            "actor": -(weight * log_prob).mean(),
        }
        return Losses(terms, {"q_mean": q.mean(), "weight_mean": weight.mean()})

    def after_step(self) -> None:
        """Target critics follow the online ones."""
        self.model.polyak_update("target_critic", source="critic", tau=float(self.value_of("tau")))
