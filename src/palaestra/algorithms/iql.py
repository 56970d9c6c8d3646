"""Implicit Q-learning, for a fixed data set.

Paper: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169, equations (5) to (7) and algorithm 1. Departures: value,
critics and actor are differentiated at the same weights, then stepped together; the actor's learning rate is constant
unless it is given a schedule, where the paper's falls along a cosine; the policy's mean and log standard deviation have
no bounds, unlike those of the authors' code.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, InsideFraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Offline, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, Network, NetworkConfig, OptimizerOption
from palaestra.ops import expectile_loss, squared_errors, td_target
from palaestra.policies import GaussianPolicy

__all__ = ["IQL", "IQLConfig"]


@dataclass(frozen=True, kw_only=True)
class IQLConfig(AlgorithmConfig):
    """Hyperparameters of `IQL`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    expectile: InsideFraction[float] = 0.7
    """Tau of equation (5), in (0, 1): 0.5 values the data's own actions, towards 1 its best ones."""
    inverse_temperature: NotNegative[Schedule] = 3.0
    """Beta of equation (7): how much better actions are preferred; 0 is behaviour cloning."""
    max_weight: Limit[float] = 100.0
    """Largest weight of an action in equation (7)."""

    plan_class = Offline


class IQL(GradientAlgorithm[GaussianPolicy, IQLConfig]):
    """Learns values without ever asking for an action that the data does not have, then imitates its better actions.

    Raises:
        ConfigError: the action space is not continuous.
    """

    config_class = IQLConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: IQLConfig) -> None:
        actor, critic, value = config.network.parts("actor", "critic", "value")
        self.policy = GaussianPolicy.build(observation_spec, action_spec, actor, normalize=config.normalize_observation)
        size = self.policy.raw_action_spec.size
        self._critic, self._target_critic = (
            EnsembleNetwork(observation_spec, 1, 2, layers, action_size=size)
            for layers in (critic, copy.deepcopy(critic))
        )
        self._value = Network(observation_spec, 1, value)
        components = {"actor": self.policy.network, "critic": self._critic, "value": self._value}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        self.model = CoreModel({**components, "target_critic": self._target_critic}, dict.fromkeys(components, adam))
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equation (5) for the value, (6) for the critics, (7) for the actor."""
        observation = self.policy.normalize(batch.observation)
        with torch.no_grad():
            next_value = self._value(self.policy.normalize(batch.next_observation)).squeeze(-1)
            target = td_target(next_value, batch.reward, batch.bootstrap)
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
