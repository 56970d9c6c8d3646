"""What soft actor-critics have in common: SAC, REDQ, quantile SAC and CQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from palaestra.algorithms.algorithm import AlgorithmConfig, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.parts import Temperature, Transitions, action_noise, n_step_transitions
from palaestra.core import Batch, DataSource, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EnsembleNetwork, OptimizerOption
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["SoftActorCritic", "SoftConfig"]


@dataclass(frozen=True, kw_only=True)
class SoftConfig(AlgorithmConfig):
    """Hyperparameters of every soft actor-critic."""

    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: float | None = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""


class SoftActorCritic(GradientAlgorithm[SquashedGaussianPolicy]):
    """A squashed Gaussian policy, an ensemble of critics with targets that follow, and a temperature.

    A subclass states `losses`, and `noise` with the help of `with_action_noise`. Components are `actor`, `critic`,
    `target_critic` and `temperature`.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box with finite bounds.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class: ClassVar[Any]

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: Any = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or self.config_class(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = SquashedGaussianPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            size = policy.raw_action_spec.size
            self.critic, self.target_critic = (
                EnsembleNetwork(
                    observation_spec, self.critic_size(config), config.num_critics, config.network, action_size=size
                )
                for _ in range(2)
            )
            self.temperature = Temperature(config.initial_temperature)
        self.target_entropy = -float(size) if config.target_entropy is None else float(config.target_entropy)
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        model = CoreModel(
            {
                "actor": policy.network,
                "critic": self.critic,
                "target_critic": self.target_critic,
                "temperature": self.temperature,
            },
            {
                "actor": adam,
                "critic": adam,
                "temperature": OptimizerOption("adam", {"lr": config.temperature_learning_rate}),
            },
        )
        model.sync("target_critic", source="critic")
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    @staticmethod
    def critic_size(config: Any) -> int:
        """Numbers that each critic says about an action; by default one, its value.

        Args:
            config: hyperparameters.
        """
        return 1

    @final
    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return n_step_transitions(batch, self.value_of("gamma"))

    @final
    def with_action_noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Adds the random part of the actions at both observations; for the hook `noise` of a subclass.

        Args:
            batch: after `preprocess`.
            generator: source of the noise.
        """
        return action_noise(batch, generator)

    @final
    def after_step(self) -> None:
        """Target critics follow the online ones."""
        self.model.polyak_update("target_critic", source="critic", tau=float(self.value_of("tau")))
