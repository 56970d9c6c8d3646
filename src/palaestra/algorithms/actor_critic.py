"""What actor-critics that learn from unrolls have in common: A2C, PPO, IMPALA, PPG and TRPO."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

import torch
from torch import nn

from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.parts import StateValue, advantages, state_of
from palaestra.core import OnPolicy, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = [
    "ActorCritic",
    "ActorCriticConfig",
    "JointActorCritic",
    "JointConfig",
    "MinibatchConfig",
]


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgorithmConfig):
    """Hyperparameters of every actor-critic that learns from unrolls."""

    unroll_length: Positive[float] = 128
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 0.95
    """Trace decay of the advantage estimate, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network. They share a memory where there is one; trained together, the code of pictures too."""

    @property
    def plan(self) -> OnPolicy:
        """The data these settings ask for: by default one gradient step on each unroll."""
        return OnPolicy(unroll_length=self.unroll_length)


@dataclass(frozen=True, kw_only=True)
class JointConfig(ActorCriticConfig):
    """Hyperparameters of every actor-critic that trains policy and value by one loss."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam; a number or a schedule such as linear(3e-4, 0)."""
    value_cost: Schedule = 0.5
    """Weight of the value error."""
    entropy_cost: Schedule = 0.01
    """Weight of the entropy."""
    max_grad_norm: Positive[float] = 0.5
    """Longest gradient, Euclidean norm over all parameters."""


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(ActorCriticConfig):
    """Hyperparameters of every actor-critic that goes through an unroll's rows in minibatches."""

    num_epochs: Positive[int] = 1
    """How often each unroll is gone through."""
    mini_batch_size: Positive[int] = 256
    """Rows in a minibatch."""
    standardize_advantage: bool = True
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""

    @property
    def plan(self) -> OnPolicy:
        """The data these settings ask for."""
        return OnPolicy(
            unroll_length=self.unroll_length,
            num_epochs=self.num_epochs,
            mini_batch_size=self.mini_batch_size,
            mini_batch_length=1,
        )


class ActorCritic(Algorithm[StochasticPolicy]):
    """A stochastic policy, and a network that values states.

    A subclass states `build_model`, and how it learns.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class: ClassVar[Any]
    shares_features: ClassVar[bool] = False
    """Whether the value network sees the policy's features (of pictures, or of a memory) and helps to train them."""

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: Any = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or self.config_class(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            layers, _ = config.network.parts("policy", "value")
            policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
            self.value = StateValue(policy, observation_spec, config.network, shares=self.shares_features)
            model = self.build_model(policy, config)
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    @abstractmethod
    def build_model(self, policy: StochasticPolicy, config: Any) -> CoreModel:
        """The networks of the policy and of `value`, with their optimizers.

        Args:
            policy: whose network is trained.
            config: hyperparameters.
        """

    @final
    @torch.no_grad()
    def with_advantages(self, batch: Any) -> dict[str, Any]:
        """Advantages and value targets of an unroll, in one batched pass; needs `standardize_advantage` in the config.

        Args:
            batch: an unroll [T+1, B].

        Returns:
            Fields [T, B, ...] of `AdvantageBatch`, the stored fields, and what `state_of` needs.
        """
        value = self.value(batch.observation, *state_of(batch))  # [T+1, B]
        gamma, lambda_ = self.value_of("gamma"), self.value_of("gae_lambda")
        fields = advantages(batch, value, gamma=gamma, lambda_=lambda_, standardized=self.config.standardize_advantage)
        return {**fields, **{name: batch.policy_info[name] for name in self.stored_fields}}


class JointActorCritic(ActorCritic, GradientAlgorithm[StochasticPolicy]):
    """An actor-critic whose policy and value are trained by one optimizer, on one loss term.

    A subclass states `losses`, with the term `component`, and its data.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space holds something else.
    """

    component: ClassVar[str]
    """Name of both networks in the model, and of the loss term."""
    optimizer: ClassVar[Literal["adam", "rmsprop"]] = "adam"
    """What they are trained by."""
    shares_features = True

    @final
    def build_model(self, policy: StochasticPolicy, config: Any) -> CoreModel:
        networks = nn.ModuleDict({"policy": policy.network, "value": self.value.network})
        option = OptimizerOption(self.optimizer, {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        return CoreModel({self.component: networks}, {self.component: option})
