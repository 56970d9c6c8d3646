"""Q-learning from many environments at once, without a replay buffer and without target networks.

Paper: Gallici et al. 2025, https://arxiv.org/abs/2407.04811, algorithm 1 with the lambda-returns of its section 4.2.
What keeps the values from running away is the normalisation of every hidden layer, `network.layer_norm`.
Departures: Adam with bias correction instead of RAdam, so that gradient steps can be compiled.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, ConfigError, DataSource, Linear, OnPolicy, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import greedy_action, lambda_returns, masked_mean
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["PQN", "PQNBatch", "PQNConfig"]


@dataclass(frozen=True, kw_only=True)
class PQNConfig(AlgorithmConfig):
    """Hyperparameters of `PQN`."""

    learning_rate: NotNegative[Schedule] = 5e-4
    """Step size of Adam; a number or a schedule."""
    unroll_length: Positive[float] = 32
    """Time steps collected from every environment before each update."""
    num_epochs: Positive[int] = 4
    """Passes over each unroll."""
    mini_batch_size: Positive[int] = 128
    """Rows in a minibatch."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    trace_decay: Fraction[Schedule] = 0.65
    """Lambda of the returns, in [0, 1]: 0 is one-step Q-learning, 1 is Monte Carlo."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(128, 128), activation="relu", layer_norm=True)
    )
    """Q-network; `dueling` is an option of it."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    mini_batch_length: ClassVar[int] = 1
    plan_class = OnPolicy


class PQNBatch(Batch):
    """One minibatch; every field is [N, ...]."""

    observation: Any
    action: Tensor
    target: Tensor
    """Units of return."""
    valid: Tensor


class PQN(GradientAlgorithm[ValueGreedyPolicy, PQNConfig]):
    """Learns action values of the greedy policy from each unroll of an exploring one, then discards it.

    Raises:
        ConfigError: the action space is not discrete, or the network is noisy.
    """

    config_class = PQNConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: PQNConfig) -> None:
        if config.network.noisy:
            raise ConfigError("PQN explores by epsilon-greedy actions, without noisy layers; leave network.noisy off")
        (q,) = config.network.parts("q")
        self.policy = ValueGreedyPolicy.build(observation_spec, action_spec, q, normalize=config.normalize_observation)
        self.policy.exploration = EpsilonGreedy(self.policy.raw_action_spec.num, config.epsilon)
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({"q": self.policy.network}, {"q": adam})

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> PQNBatch:
        """Adds lambda-returns of the best actions: Peng's Q(lambda), which cuts no trace where another was taken."""
        q = self.policy.q_values(batch.observation)  # [T+1, B, A]
        chosen = greedy_action(q, self.policy.action_mask(batch.observation))
        best = q.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        decay = {"gamma": self.value_of("gamma"), "lambda_": self.value_of("trace_decay")}
        target = lambda_returns(best, batch.reward, batch.discount, batch.step_type, **decay)
        return PQNBatch.of(
            {"observation": batch.observation[:-1], "action": batch.action, "target": target, "valid": batch.valid}
        )

    def losses(self, batch: PQNBatch) -> Losses:
        """The mean squared error of algorithm 1, halved; targets are those of the values before the update."""
        q = self.policy.q_values(batch.observation).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        error = 0.5 * masked_mean((q - batch.target).square(), batch.valid)
        return Losses({"q": error}, {"q_mean": masked_mean(q, batch.valid)})
