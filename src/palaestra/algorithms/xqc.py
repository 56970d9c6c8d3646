"""XQC: soft actor-critic whose critics are easy to optimise: batch normalisation, weights of length 1, cross-entropy.

Paper: Palenicek et al. 2025, https://arxiv.org/abs/2509.25174, section 4; target networks, the delay of the actor and
numbers as in its code. Departures: rewards are divided by a bound on returns, which any minibatch tells, instead of the
deviation of returns in the order of collection; critics, actor and temperature are differentiated at the same weights,
then stepped together; critics are as wide as the actor, 256 units instead of 512; one gradient step for each env step
instead of two; for runs of tens of thousands of steps instead of a million, larger ones: 1e-3 for Adam, in presets
falling to 1e-4, where the paper falls from 3e-4 to 3e-5, and 0.05 for targets instead of 0.005; the temperature is
learned through its logarithm.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["XQC", "XQCConfig"]


@dataclass(frozen=True, kw_only=True)
class XQCConfig(AlgorithmConfig):
    """Hyperparameters of `XQC`."""

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
    tau: Fraction[Schedule] = 0.05
    """Share of the way that the target critics go towards the online ones, in [0, 1]."""
    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    policy_period: Positive[int] = 3
    """Gradient steps of the critics for each one of actor and temperature."""
    initial_temperature: Positive[float] = 0.01
    """Alpha at the start, scaled returns per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy in nats that the temperature aims at; by default minus half the number of action dimensions."""
    num_atoms: Positive[int] = 101
    """Q, possible scaled returns, evenly spaced."""
    min_return: Finite[float] = -5.0
    """Smallest of them, see `RewardScale`."""
    max_return: Finite[float] = 5.0
    """Largest of them."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256, 256, 256), activation="relu", block="xqc")
    )
    """Layers of every network; they share no parameters."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = Replay


class XQC(GradientAlgorithm[SquashedGaussianPolicy, XQCConfig]):
    """Learns a soft policy from distributions of scaled returns.

    Raises:
        ConfigError: the action space is something else, or there are no atoms from a low to a higher return.
    """

    config_class = XQCConfig
    batch_norm = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: XQCConfig) -> None:
        self.returns = parts.ScaledReturns(config)
        actor, critic = config.network.parts("actor", "critic")
        self.policy = SquashedGaussianPolicy.build(observation_spec, action_spec, actor)
        size = self.policy.raw_action_spec.size
        self.critic = EnsembleNetwork(observation_spec, config.num_atoms, config.num_critics, critic, action_size=size)
        self.temperature = parts.Temperature(config.initial_temperature)
        self.reward_scale = parts.RewardScale(self.returns.largest)
        self.target_entropy = -size / 2 if config.target_entropy is None else config.target_entropy
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        networks = {"actor": self.policy.network, "critic": self.critic}
        others = {"temperature": self.temperature, "reward_scale": self.reward_scale}
        self.model = CoreModel({**networks, **others}, {"actor": adam, "critic": adam, "temperature": slow})
        self.term_periods = {"actor": config.policy_period, "temperature": config.policy_period}
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> parts.SoftBatch:
        """The random part of the actions at both observations."""
        return parts.action_noise(batch, generator)

    def losses(self, batch: parts.SoftBatch) -> Losses:
        """Cross-entropy of the critics; SAC's losses of means for actor and temperature, where they are due."""
        observation, after = self.policy.normalize(batch.observation), self.policy.normalize(batch.next_observation)
        temperature, moments = self.temperature(), {"critic": []}
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution_of(self.policy.head(after)).at(batch.next_noise)
        cat: Any = torch.cat if isinstance(observation, Tensor) else Batch.cat
        both = cat((observation, after)), torch.cat((batch.action, next_action))
        rows = len(batch.reward)
        logits = self.critic(*both, moments=moments["critic"], rows=slice(rows)).log_softmax(-1)  # [K, N, Q]
        wanted = self.returns.target(self, batch, both, next_log_prob)
        terms = {"critic": -(wanted * logits).sum(-1).mean(-1).sum()}
        scale = self.reward_scale()
        metrics = {
            "q_mean": self.returns.mean(logits.detach()).mean() * scale,
            "alpha": temperature,
            "reward_scale": scale.clone(),
        }
        if self.is_due("actor"):
            moments["actor"] = []
            outputs = self.policy.network(observation, moments["actor"])
            action, log_prob = self.policy.distribution_of(outputs).at(batch.noise)
            least_q = self.returns.mean(self.critic(observation, action).log_softmax(-1)).amin(0)
            terms["actor"] = (temperature * log_prob - least_q).mean()
            terms["temperature"] = self.temperature.loss(log_prob + self.target_entropy)
            metrics["entropy"] = -log_prob.mean()
        return Losses(terms, metrics, moments=moments)

    def after_update(self, batch: parts.SoftBatch) -> None:
        """Rewards that were learned from count in the scale from now on."""
        self.reward_scale.merge(batch.reward, self.value_of("gamma") ** self.config.n_step)
