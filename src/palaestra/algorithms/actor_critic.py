"""What actor-critics that learn from unrolls have in common: A2C, PPO, IMPALA, PPG and TRPO."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.memory import memory_fields, memory_of
from palaestra.core import Batch, OnPolicy, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import gae, standardize
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = [
    "ActorCritic",
    "ActorCriticConfig",
    "AdvantageBatch",
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


class AdvantageBatch(Batch):
    """Rows of an unroll; every field is [T, B, ...], [T, N, ...] or [N, ...]."""

    observation: Any
    action: Any
    advantage: Tensor
    value: Tensor
    """Before the update."""
    value_target: Tensor
    valid: Tensor


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
            policy = stochastic_policy(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            seen, layers = observation_spec, dataclasses.replace(config.network, recurrent=None)
            if self.shares_features and policy.splits:
                seen, layers = policy.feature_spec, config.network.on_features()
            self.value_network = Network(seen, 1, layers)
            model = self.build_model(policy, config)
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    @abstractmethod
    def build_model(self, policy: StochasticPolicy, config: Any) -> CoreModel:
        """The networks of the policy and of `value_network`, with their optimizers.

        Args:
            policy: whose network is trained.
            config: hyperparameters.
        """

    @final
    def value(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Tensor:
        """State values.

        Args:
            observation: [..., obs], not yet normalised.
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            [...] in units of return.
        """
        shares = self.shares_features
        seen = self.policy.features(observation, state, first)[0] if shares else self.policy.normalize(observation)
        return self.value_network(seen).squeeze(-1)

    @final
    @torch.no_grad()
    def with_advantages(self, batch: Any) -> dict[str, Any]:
        """Advantages and value targets of an unroll, in one batched pass; needs `standardize_advantage` in the config.

        Args:
            batch: an unroll [T+1, B].

        Returns:
            Fields [T, B, ...] of `AdvantageBatch`, the stored fields, and what `memory_of` needs.
        """
        value = self.value(batch.observation, *memory_of(batch))  # [T+1, B]
        discount = self.value_of("gamma") * batch.discount
        advantage = gae(value, batch.reward, discount, batch.step_type, lambda_=self.value_of("gae_lambda"))  # [T, B]
        target = value[:-1] + advantage
        if self.config.standardize_advantage:
            advantage = standardize(advantage, batch.valid)
        return {
            "observation": batch.observation[:-1],
            "action": batch.action,
            "advantage": advantage,
            "value": value[:-1],
            "value_target": target,
            "valid": batch.valid,
            **{name: batch.policy_info[name] for name in self.stored_fields},
            **memory_fields(batch),
        }


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
        networks = nn.ModuleDict({"policy": policy.network, "value": self.value_network})
        option = OptimizerOption(self.optimizer, {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        return CoreModel({self.component: networks}, {self.component: option})
