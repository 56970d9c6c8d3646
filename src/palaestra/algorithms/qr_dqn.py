"""Distributional Q-learning by quantile regression.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1710.10044, equations (9) to (13), algorithm 1.
Departures: n-step targets, double Q-learning, dueling and noisy layers are optional; double Q-learning is off, as in
the paper. The Huber loss is divided by its delta, as in the authors' next paper (IQN); 50 quantiles instead of 200;
gradients are clipped by norm.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption, ReturnDistribution
from palaestra.ops import greedy_action, quantile_huber
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["QRDQN", "QRDQNConfig"]


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(AlgorithmConfig):
    """Hyperparameters of `QRDQN`."""

    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 128
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of the network; `dueling` and `noisy` are options of it."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 100_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    target_period: Positive[int] = 250
    """Gradient steps between two copies of the online to the target network."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    prioritized: bool = False
    """Whether data of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: NotNegative[float] = 0.6
    """Power of the priority, at least 0; 0 draws all equally often."""
    priority_beta: Fraction[Schedule] = field(default_factory=lambda: Linear(0.4, 1.0))
    """How far importance weights correct for that, in [0, 1]; 1 is completely."""
    double: bool = False
    """Whether the online network chooses the action whose target quantiles are used."""
    num_quantiles: Positive[int] = 50
    """N, returns that describe the distribution of each action, at the fractions (i + 1/2) / N."""
    huber_delta: Positive[float] = 1.0
    """Error above which the loss grows linearly: kappa of equation (9)."""

    plan_class = Replay


class QRDQN(GradientAlgorithm[ValueGreedyPolicy, QRDQNConfig]):
    """Learns quantiles of every action's return; acts greedily on their means, with probability 1 - epsilon.

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class = QRDQNConfig

    def build(self, observation_spec: SpecTree, action_spec: Any, config: QRDQNConfig) -> None:
        returns = ReturnDistribution("quantiles", config.num_quantiles)
        (q,) = config.network.parts("q")
        self.policy = ValueGreedyPolicy.build(
            observation_spec, action_spec, q, normalize=config.normalize_observation, returns=returns
        )
        self.policy.exploration = EpsilonGreedy(self.policy.raw_action_spec.num, config.epsilon)
        self.network: Any = self.policy.network
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({"q": self.network}, {"q": adam})
        self.targets = Targets(self.model, {"target_q": "q"}, period=config.target_period)
        self.target_network: Any = self.model.component["target_q"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.ValueBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"), parts.ValueBatch)

    def noise(self, batch: Any, generator: torch.Generator) -> parts.ValueBatch:
        """Noise of noisy layers, if there are any."""
        return parts.layer_noise(batch, self.policy, generator)

    def losses(self, batch: parts.ValueBatch) -> Losses:
        """Algorithm 1: the quantile Huber loss between all pairs of predicted and target quantiles."""
        network, rows = self.network, torch.arange(len(batch.action), device=batch.action.device)
        noise, target_noise, next_noise = parts.layer_noises(batch)
        with torch.no_grad():
            next_observation = self.policy.normalize(batch.next_observation)
            next_quantile = self.target_network.outputs(next_observation, target_noise)  # [N, A, Q]
            next_q = network(next_observation, next_noise) if self.config.double else next_quantile.mean(-1)
            next_action = greedy_action(next_q, self.policy.action_mask(batch.next_observation))
            target = batch.reward[:, None] + batch.bootstrap[:, None] * next_quantile[rows, next_action]  # [N, Q]
        outputs = network.outputs(self.policy.normalize(batch.observation), noise)
        quantile = outputs[rows, batch.action]  # [N, Q]
        loss = quantile_huber(quantile, target, network.support, delta=self.config.huber_delta)
        q = quantile.mean(-1)
        priority = (target.mean(-1) - q).detach().abs() if self.config.prioritized else None
        return Losses({"q": parts.weighted_mean(loss, batch)}, {"q_mean": q.mean()}, priority)
