"""Conservative Q-learning, for a fixed data set: SAC whose critics distrust actions that the data does not have.

Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779, equation (4), CQL(H), with the importance-weighted estimate
of its appendix F. Departures: those of `SAC`; the weight of the conservative term is fixed. Unlike the authors' code:
targets have the entropy of the next action, there is one learning rate, the actor does not begin by cloning, and
networks have two layers, not three.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Finite, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Offline, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["CQL", "CQLBatch", "CQLConfig"]


@dataclass(frozen=True, kw_only=True)
class CQLConfig(AlgorithmConfig):
    """Hyperparameters of `CQL`."""

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
    """Rewards summed before bootstrapping, without off-policy correction, or the entropy of the steps between."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""
    conservative_cost: NotNegative[Schedule] = 5.0
    """Alpha of equation (4): weight of the gap between values in general and values of the data's actions."""
    num_actions: Positive[int] = 10
    """S, actions drawn from the uniform distribution, and from the policy at each of both observations."""

    plan_class = Offline


class CQLBatch(parts.SoftBatch):
    """Transitions, the noise that actions are made of, and the actions that stand for all."""

    uniform: Tensor
    """[N, S, A] in [-1, 1], uniform actions."""
    sample_noise: Tensor
    """[N, 2S, A] standard normal, for actions of the policy at `observation` and at `next_observation`."""


class CQL(GradientAlgorithm[SquashedGaussianPolicy, CQLConfig]):
    """Learns lower bounds of the values of actions outside the data, and a soft policy on them.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = CQLConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: CQLConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = SquashedGaussianPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.critic = EnsembleNetwork(observation_spec, 1, config.num_critics, critic, action_size=size)
        self.temperature = parts.Temperature(config.initial_temperature)
        self.target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        options = {"actor": adam, "critic": adam, "temperature": slow}
        self.model = CoreModel({**networks, "temperature": self.temperature}, options)
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations, and of those that stand for all actions."""
        rows, size = batch.action.shape
        shape = (rows, self.config.num_actions, size)
        uniform = torch.empty(shape).uniform_(-1.0, 1.0, generator=generator)
        normal = torch.empty(rows, 2 * shape[1], size).normal_(generator=generator)
        return parts.action_noise(batch, generator, CQLBatch).replace(uniform=uniform, sample_noise=normal)

    def losses(self, batch: CQLBatch) -> Losses:
        """Equation (4) for the critics; actor and temperature as in SAC."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        q = self.critic(observation, batch.action).squeeze(-1)  # [K, N]
        gap = (self._soft_maximum(batch, observation) - q).mean(1).sum()
        action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
        least_q = self.critic(observation, action).amin(0).squeeze(-1)
        terms = {
            "critic": 0.5 * squared_errors(q, parts.soft_target(self, batch))
            + self.value_of("conservative_cost") * gap,
            "actor": (temperature * log_prob - least_q).mean(),
            "temperature": self.temperature.loss(log_prob + self.target_entropy),
        }
        metrics = {"q_mean": q.mean(), "gap": gap, "entropy": -log_prob.mean(), "alpha": temperature}
        return Losses(terms, metrics)

    def _soft_maximum(self, batch: CQLBatch, observation: Any) -> Tensor:
        """[K, N] log of the integral of exp(Q) over actions, from 3S samples weighted by their densities."""
        count = self.config.num_actions
        with torch.no_grad():
            here = self.policy.distribution(_repeated(batch.observation, count)).at(batch.sample_noise[:, :count])
            there = self.policy.distribution(_repeated(batch.next_observation, count)).at(batch.sample_noise[:, count:])
            density = torch.full_like(here[1], -math.log(2.0) * batch.action.shape[-1])
            actions = torch.cat((batch.uniform, here[0], there[0]), 1)  # [N, 3S, A]
            log_density = torch.cat((density, here[1], there[1]), 1)  # [N, 3S]
        q = self.critic(_repeated(observation, 3 * count), actions).squeeze(-1)  # [K, N, 3S]
        return (q - log_density).logsumexp(-1) - math.log(3 * count)


def _repeated(observation: Any, count: int) -> Any:
    """[N, ...] -> [N, count, ...]."""

    def repeat(leaf: Tensor) -> Tensor:
        return leaf.unsqueeze(1).expand(-1, count, *leaf.shape[1:])

    return observation.map(repeat) if isinstance(observation, Batch) else repeat(observation)
