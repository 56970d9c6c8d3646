"""FlashSAC: soft actor-critic with large networks that stay stable: weights, features and gradients have bounds.

Paper: Kim et al. 2026, https://arxiv.org/abs/2604.04539; numbers as in its code for simulators on a CPU. Departures:
rewards are divided by a bound on returns that any minibatch tells, instead of the deviation and the largest of returns
in the order of collection; critics, actor and temperature are differentiated at the same weights, then stepped; in
batch normalisation 10⁻³ is added below the root, not 10⁻⁵; the temperature is learned through its logarithm; in presets
the learning rate falls along a line, not half a cosine.
"""

import dataclasses
import math
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
from palaestra.policies import HeldNoise, SquashedGaussianPolicy

__all__ = ["FlashSAC", "FlashSACConfig"]

_LOG_STD_RANGE = (-10.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class FlashSACConfig(AlgorithmConfig):
    """Hyperparameters of `FlashSAC`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of actor and critics; a number or a schedule."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 10_000
    """Env steps before the first gradient step."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 512
    """Transitions in a minibatch."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction, or the entropy of the steps between."""
    tau: Fraction[Schedule] = 0.01
    """Share of the way that the target critics go towards the online ones, in [0, 1]."""
    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    policy_period: Positive[int] = 2
    """Gradient steps of the critics for each one of actor and temperature."""
    initial_temperature: Positive[float] = 0.01
    """Alpha at the start, scaled returns per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_std: Positive[float] = 0.15
    """Standard deviation of a normal distribution over raw actions whose entropy the temperature aims at."""
    longest_noise: Positive[int] = 16
    """Steps that the noise of actions is held for at most while collecting, see `HeldNoise`; 1 draws it in each."""
    num_atoms: Positive[int] = 101
    """Q, possible scaled returns, evenly spaced."""
    min_return: Finite[float] = -5.0
    """Smallest of them, see `RewardScale`."""
    max_return: Finite[float] = 5.0
    """Largest of them."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu", block="flash")
    )
    """Layers of actor and critics, which share no parameters; `hidden_sizes` is of the critics alone."""
    actor_hidden_sizes: tuple[int, ...] = (128, 128)
    """Units of each hidden layer, or block, of the actor."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = Replay


class FlashSAC(GradientAlgorithm[SquashedGaussianPolicy, FlashSACConfig]):
    """Learns a soft policy from distributions of scaled returns, exploring with noise that is held.

    Raises:
        ConfigError: the action space is something else, or there are no atoms from a low to a higher return.
    """

    config_class = FlashSACConfig
    batch_norm = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: FlashSACConfig) -> None:
        self.returns = parts.ScaledReturns(config)
        actor, critic = config.network.parts("actor", "critic")
        actor = dataclasses.replace(actor, hidden_sizes=config.actor_hidden_sizes)
        self.policy = SquashedGaussianPolicy.build(observation_spec, action_spec, actor, log_std_range=_LOG_STD_RANGE)
        size = self.policy.raw_action_spec.size
        self.critic = EnsembleNetwork(observation_spec, config.num_atoms, config.num_critics, critic, action_size=size)
        if config.longest_noise > 1:
            self.policy.exploration = HeldNoise(config.longest_noise)
        self.temperature = parts.Temperature(config.initial_temperature)
        self.reward_scale = parts.RewardScale(self.returns.largest)
        self.target_entropy = size / 2 * math.log(2 * math.pi * math.e * config.target_std**2)
        """Nats."""
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
        temperature, moments, rows = self.temperature(), {"critic": []}, len(batch.reward)
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution_of(self.policy.head(after)).at(batch.next_noise)
        cat: Any = torch.cat if isinstance(observation, Tensor) else Batch.cat
        seen = cat((observation, after))
        both = seen, torch.cat((batch.action, next_action))
        logits = self.critic(*both, moments=moments["critic"], rows=slice(rows)).log_softmax(-1)  # [K, N, Q]
        wanted = self.returns.target(self, batch, both, next_log_prob)
        terms = {"critic": -(wanted * logits).sum(-1).mean()}
        scale = self.reward_scale()
        metrics = {
            "q_mean": self.returns.mean(logits.detach()).mean() * scale,
            "alpha": temperature,
            "reward_scale": scale.clone(),
        }
        if self.is_due("actor"):
            moments["actor"] = []
            outputs = self.policy.network(seen, moments["actor"])[:rows]  # normalised by both ends, as critics are
            action, log_prob = self.policy.distribution_of(outputs).at(batch.noise)
            least_q = self.returns.mean(self.critic(observation, action).log_softmax(-1)).amin(0)
            terms["actor"] = (temperature * log_prob - least_q).mean()
            terms["temperature"] = self.temperature.loss(log_prob + self.target_entropy)
            metrics["entropy"] = -log_prob.mean()
        return Losses(terms, metrics, moments=moments)

    def after_update(self, batch: parts.SoftBatch) -> None:
        """Rewards that were learned from count in the scale from now on."""
        self.reward_scale.merge(batch.reward, self.value_of("gamma") ** self.config.n_step)
