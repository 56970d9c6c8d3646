"""CrossQ: soft actor-critic without target networks, by batch normalisation of both ends of a transition at once.

Paper: Bhatt et al. 2024, https://arxiv.org/abs/1902.05605, figure 3 (right); layers and batch renormalisation
as in its code, where inputs of every layer are normalised, of the actor too. Departures: critics, actor and temperature
are differentiated at the same weights, then stepped together; critics are as wide as the actor, 256 units instead of
2,048; the temperature is learned through its logarithm.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors, td_target
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["CrossQ", "CrossQConfig"]


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(AlgorithmConfig):
    """Hyperparameters of `CrossQ`."""

    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam, of actor and critics; a number or a schedule."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 5_000
    """Env steps before the first gradient step."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction, or the entropy of the steps between."""
    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    policy_period: Positive[int] = 3
    """Gradient steps of the critics for each one of actor and temperature."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu", batch_norm=True)
    )
    """Layers of every network; they share no parameters."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = Replay


class CrossQ(GradientAlgorithm[SquashedGaussianPolicy, CrossQConfig]):
    """Learns a soft policy from critics that say their own targets, in one call with what they are compared with.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = CrossQConfig
    batch_norm = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: CrossQConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = SquashedGaussianPolicy.build(observation_spec, action_spec, actor)
        size = self.policy.raw_action_spec.size
        self.critic = EnsembleNetwork(observation_spec, 1, config.num_critics, critic, action_size=size)
        self.temperature = parts.Temperature(config.initial_temperature)
        self.target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        adam = OptimizerOption("adam", {"lr": config.learning_rate, "betas": (0.5, 0.999)})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        networks = {"actor": self.policy.network, "critic": self.critic, "temperature": self.temperature}
        self.model = CoreModel(networks, {"actor": adam, "critic": adam, "temperature": slow})
        self.term_periods = {"actor": config.policy_period, "temperature": config.policy_period}

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> parts.SoftBatch:
        """The random part of the actions at both observations."""
        return parts.action_noise(batch, generator)

    def losses(self, batch: parts.SoftBatch) -> Losses:
        """Figure 3 (right) for the critics; SAC's losses for actor and temperature, where they are due."""
        temperature, moments = self.temperature(), {"critic": []}
        observation, after = self.policy.normalize(batch.observation), self.policy.normalize(batch.next_observation)
        q, target = self._values_and_target(batch, observation, after, moments["critic"])
        terms = {"critic": 0.5 * squared_errors(q, target)}
        metrics = {"q_mean": q.mean(), "alpha": temperature}
        if self.is_due("actor"):
            moments["actor"] = []
            outputs = self.policy.network(observation, moments["actor"])
            action, log_prob = self.policy.distribution_of(outputs).at(batch.noise)
            least_q = self.critic(observation, action).amin(0).squeeze(-1)
            terms["actor"] = (temperature * log_prob - least_q).mean()
            terms["temperature"] = self.temperature.loss(log_prob + self.target_entropy)
            metrics["entropy"] = -log_prob.mean()
        return Losses(terms, metrics, moments=moments)

    def _values_and_target(
        self, batch: parts.SoftBatch, observation: Any, after: Any, moments: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """[K, N] what actions are worth and [N] what they should be, of one call: the same moments normalise both."""
        with torch.no_grad():
            action, log_prob = self.policy.distribution_of(self.policy.head(after)).at(batch.next_noise)
        cat: Any = torch.cat if isinstance(observation, Tensor) else Batch.cat
        both = cat((observation, after))
        values = self.critic(both, torch.cat((batch.action, action)), moments=moments).squeeze(-1)  # [K, 2N]
        q, next_q = values.chunk(2, -1)
        value = next_q.detach().amin(0) - self.temperature() * log_prob
        return q, td_target(value, batch.reward, batch.bootstrap)
