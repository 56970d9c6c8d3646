"""Randomized ensembled double Q-learning: many critics, many gradient steps per env step.

Paper: Chen et al. 2021, https://arxiv.org/abs/2101.05982, algorithm 1. Departures: those of `SAC`; the actor's step is
made together with the last one of the critics; the target entropy is SAC's, where the authors' code has that of MBPO.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, ConfigError, DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["REDQ", "REDQBatch", "REDQConfig"]


@dataclass(frozen=True, kw_only=True)
class REDQConfig(AlgorithmConfig):
    """Hyperparameters of `REDQ`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 20
    """Gradient steps in one update: the paper's update-to-data ratio G."""
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
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    num_critics: Positive[int] = 10
    """K, critics of the ensemble; the paper's N."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""
    subset_size: Positive[int] = 2
    """M, critics drawn for each gradient step, whose minimum is the target."""
    policy_period: Positive[int] = 20
    """Gradient steps of the critics for each one of actor and temperature."""

    plan_class = Replay


class REDQBatch(parts.SoftBatch):
    """Transitions, the noise that actions are made of, and the critics that are asked for targets."""

    subset: Tensor
    """[N, M] int64 in 0 ... K - 1; the same in all rows of a minibatch."""


class REDQ(GradientAlgorithm[SquashedGaussianPolicy, REDQConfig]):
    """Learns a soft policy from the mean of many critics, each of which learns from the minimum of a random few.

    Raises:
        ConfigError: the action space is something else, or the subset is larger than the ensemble.
    """

    config_class = REDQConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: REDQConfig) -> None:
        if not 1 <= config.subset_size <= config.num_critics:
            raise ConfigError(
                f"algorithm.subset_size is {config.subset_size} of {config.num_critics} critics; it must be at least 1 "
                "and at most their number"
            )
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
        self.term_periods = {"actor": config.policy_period, "temperature": config.policy_period}
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The random part of the actions at both observations, and a subset of critics for each minibatch."""
        config = self.config
        order = torch.rand(config.gradient_steps, config.num_critics, generator=generator)
        subset = order.argsort(-1)[:, : config.subset_size]  # [U, M]
        noisy = parts.action_noise(batch, generator, REDQBatch)
        return noisy.replace(subset=subset.repeat_interleave(config.mini_batch_size, 0))

    def losses(self, batch: REDQBatch) -> Losses:
        """Algorithm 1: line 9 is the target, line 10 the critics' loss, line 12 the actor's."""
        observation, temperature = self.policy.normalize(batch.observation), self.temperature()
        target = parts.soft_target(self, batch, batch.subset[0])
        q = self.critic(observation, batch.action).squeeze(-1)  # [K, N]
        terms = {"critic": 0.5 * squared_errors(q, target)}
        metrics = {"q_mean": q.mean(), "q_std": q.std(0, correction=0).mean(), "alpha": temperature}
        if self.is_due("actor"):
            action, log_prob = self.policy.distribution(batch.observation).at(batch.noise)
            mean_q = self.critic(observation, action).mean(0).squeeze(-1)
            terms["actor"] = (temperature * log_prob - mean_q).mean()
            terms["temperature"] = self.temperature.loss(log_prob + self.target_entropy)
            metrics["entropy"] = -log_prob.mean()
        return Losses(terms, metrics)
