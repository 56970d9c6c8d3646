"""Behaviour cloning: the most likely policy behind the actions of a data set.

Paper: Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88; the loss is the negative log-likelihood of maximum
likelihood estimation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import TransitionConfig
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, Offline, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, OptimizerOption
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["BehaviourCloning", "BehaviourCloningBatch", "BehaviourCloningConfig"]


@dataclass(frozen=True, kw_only=True)
class BehaviourCloningConfig(TransitionConfig):
    """Hyperparameters of `BehaviourCloning`."""

    entropy_cost: Schedule = 0.0
    """Weight of the policy's entropy, which keeps it from being surer than the data."""


class BehaviourCloningBatch(Batch):
    """One minibatch; every field is [N, ...]."""

    observation: Any
    action: Any


@final
class BehaviourCloning(GradientAlgorithm[StochasticPolicy]):
    """Learns to act as the data does; rewards are not looked at.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: a leaf of the action space is neither discrete nor a tensor of floats, or the network has a memory.
    """

    config_class = BehaviourCloningConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: BehaviourCloningConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or BehaviourCloningConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = stochastic_policy(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
        model = CoreModel({"policy": policy.network}, {"policy": OptimizerOption("adam", {"lr": config.learning_rate})})
        plan = Offline(gradient_steps=config.gradient_steps, mini_batch_size=config.mini_batch_size)
        super().__init__(config, policy=policy, model=model, plan=plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> BehaviourCloningBatch:
        """Observations and actions; what followed does not matter."""
        return BehaviourCloningBatch.of({"observation": batch.observation, "action": batch.action})

    def losses(self, batch: BehaviourCloningBatch) -> Losses:
        """The negative log-likelihood of the actions, nats."""
        policy = self.policy.distribution(batch.observation)
        log_prob, entropy = policy.log_prob(batch.action).mean(), policy.entropy().mean()
        return Losses({"policy": -log_prob - self.value_of("entropy_cost") * entropy}, {"entropy": entropy})
