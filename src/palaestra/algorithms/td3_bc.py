"""TD3 with behaviour cloning, for a fixed data set.

Paper: Fujimoto and Gu 2021, https://arxiv.org/abs/2106.06860, equations (3) to (5). Departures: those of `TD3`; the
scale of the action values in (5) is their mean at the policy's actions, over all the data of an update and before its
first gradient step; the squared distance is a mean over action dimensions.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Offline, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, Network, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["TD3BC", "TD3BCBatch", "TD3BCConfig"]


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(AlgorithmConfig):
    """Hyperparameters of `TD3BC`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = True
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    value_weight: NotNegative[Schedule] = 2.5
    """Alpha of equation (5): how much values count beside imitation; 0 is behaviour cloning."""
    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""
    target_noise_std: NotNegative[float] = 0.2
    """Standard deviation of the noise on target actions, in raw units."""
    target_noise_clip: NotNegative[float] = 0.5
    """Largest noise on target actions, in raw units."""
    policy_period: Positive[int] = 2
    """Gradient steps of the critics for each one of the actor and of the target networks."""

    plan_class = Offline


class TD3BCBatch(parts.TransitionBatch):
    """Transitions, the noise on their target actions, and the scale of values."""

    noise: Tensor
    """[N, A] clipped, raw units."""
    q_scale: Tensor
    """[N] mean size of the action values; the same number in every row."""


class TD3BC(GradientAlgorithm[DeterministicPolicy, TD3BCConfig]):
    """Learns actions of high value close to those of the data.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = TD3BCConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: TD3BCConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = DeterministicPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.target_actor = Network(observation_spec, size, copy.deepcopy(actor))
        self.critic = EnsembleNetwork(observation_spec, 1, 2, critic, action_size=size)
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        self.model = CoreModel(networks | {"target_actor": self.target_actor}, dict.fromkeys(networks, adam))
        self.policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
        self.term_periods = {"actor": config.policy_period}
        follows = {"target_actor": "actor", "target_critic": "critic"}
        self.targets = Targets(self.model, follows, tau=config.tau, period=config.policy_period)
        self.target_critic: Any = self.model.component["target_critic"]

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        """Reduces n-step windows to transitions, and measures the size of action values: the divisor in (5)."""
        found = parts.n_step_transitions(batch, self.value_of("gamma"))
        observation = self.policy.normalize(found.observation)
        q = self.critic(observation, self.policy.action(found.observation), members=slice(1))
        return Batch.of({**dict(found.items()), "q_scale": q.abs().mean().expand(len(found.index))})

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The smoothing noise of target actions."""
        return parts.smoothing_noise(batch, self.config, generator, TD3BCBatch)

    def losses(self, batch: TD3BCBatch) -> Losses:
        """Equation (10) of TD3 for the critics; (3) with the weight of (5) for the actor, where it is due."""
        observation = self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [2, N]
        terms = {"critic": squared_errors(q, parts.deterministic_target(self, batch))}
        metrics = {"q_mean": q.mean()}
        if self.is_due("actor"):
            action = self.policy.action(batch.observation)
            value = self.critic(observation, action, members=slice(1)).reshape(-1)
            distance = (action - batch.action).square().mean(-1)
            weight = self.value_of("value_weight") / (batch.q_scale + 1e-6)
            terms["actor"] = (distance - weight * value).mean()
            metrics["distance"] = distance.mean()
        return Losses(terms, metrics)
