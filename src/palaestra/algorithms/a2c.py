"""Advantage actor-critic: one gradient step on each unroll.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3, with environments in lockstep in the place of
asynchronous threads.
Departures: advantages are generalised (with `gae_lambda` 1 they are the paper's); policy and value have networks of
their own, trained together by RMSProp without shared statistics; gradients are clipped by norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.algorithms.algorithm import AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, OnPolicy, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import explained_variance, gae, masked_mean, policy_gradient, standardize
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["A2C", "A2CBatch", "A2CConfig"]


@dataclass(frozen=True, kw_only=True)
class A2CConfig(AlgorithmConfig):
    """Hyperparameters of `A2C`."""

    learning_rate: Schedule = 7e-4
    """Step size of RMSProp; a number or a schedule."""
    unroll_length: float = 5
    """Time steps collected from every environment before each update."""
    gamma: Schedule = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Schedule = 1.0
    """Trace decay of the advantage estimate, in [0, 1]; 1 is the n-step advantage of the paper."""
    value_cost: Schedule = 0.5
    """Weight of the value error."""
    entropy_cost: Schedule = 0.01
    """Weight of the entropy, beta in the paper."""
    max_grad_norm: float = 0.5
    """Longest gradient, Euclidean norm over all parameters."""
    standardize_advantage: bool = False
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network; they share no parameters."""


class A2CBatch(Batch):
    """The whole unroll; every field is [T, B, ...]."""

    observation: Any
    action: Any
    advantage: Tensor
    value: Tensor
    value_target: Tensor
    valid: Tensor


@final
class A2C(GradientAlgorithm[StochasticPolicy]):
    """Learns a stochastic policy and a state value, with one gradient step on each unroll of that policy.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = A2CConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: A2CConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or A2CConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = stochastic_policy(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            self._value_network = Network(observation_spec, 1, config.network)
        option = OptimizerOption("rmsprop", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        networks = nn.ModuleDict({"policy": policy.network, "value": self._value_network})
        model = CoreModel({"a2c": networks}, {"a2c": option})
        plan = OnPolicy(unroll_length=config.unroll_length)
        super().__init__(config, policy=policy, model=model, plan=plan, seeds=seeds)

    def value(self, observation: Any) -> Tensor:
        """State values.

        Args:
            observation: [..., obs], not yet normalised.

        Returns:
            [...] in units of return.
        """
        return self._value_network(self.policy.normalize(observation)).squeeze(-1)

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> A2CBatch:
        """Adds advantages and value targets to an unroll, in one batched pass."""
        value = self.value(batch.observation)  # [T+1, B]
        discount = self.value_of("gamma") * batch.discount
        advantage = gae(value, batch.reward, discount, batch.step_type, lambda_=self.value_of("gae_lambda"))  # [T, B]
        target = value[:-1] + advantage
        if self.config.standardize_advantage:
            advantage = standardize(advantage, batch.valid)
        return A2CBatch.of(
            {
                "observation": batch.observation[:-1],
                "action": batch.action,
                "advantage": advantage,
                "value": value[:-1],
                "value_target": target,
                "valid": batch.valid,
            }
        )

    def losses(self, batch: A2CBatch) -> Losses:
        """Algorithm S3: policy gradient, value error and entropy, each a mean over valid rows."""
        policy = self.policy.distribution(batch.observation)
        gain = masked_mean(policy_gradient(policy.log_prob(batch.action), batch.advantage), batch.valid)
        value_error = masked_mean((self.value(batch.observation) - batch.value_target).square(), batch.valid)
        entropy = masked_mean(policy.entropy(), batch.valid)
        total = gain + self.value_of("value_cost") * value_error - self.value_of("entropy_cost") * entropy
        return Losses({"a2c": total}, {"policy_gradient": gain, "value_error": value_error, "entropy": entropy})

    @torch.no_grad()
    def diagnostics(self, batch: A2CBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}
