"""Distributional Q-learning with a fixed set of possible returns.

Paper: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, equation (7) and algorithm 1.
Departures: n-step targets, double Q-learning, dueling and noisy layers are optional; double Q-learning is off, as in
the paper. Gradients are clipped by norm. Priorities are the cross-entropy, where Hessel et al. 2018 take the
divergence, which lacks the entropy of the target.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption, ReturnDistribution, in_full_precision
from palaestra.ops import categorical_projection, greedy_action
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["C51", "C51Config"]


@dataclass(frozen=True, kw_only=True)
class C51Config(AlgorithmConfig):
    """Hyperparameters of `C51`."""

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
    """Whether the online network chooses the action whose target distribution is used."""
    num_atoms: Positive[int] = 51
    """Possible returns, evenly spaced."""
    min_return: Finite[float] = -10.0
    """Smallest of them; no return below it can be told apart."""
    max_return: Finite[float] = 10.0
    """Largest of them. The best discounted return of the task has to lie below it."""

    plan_class = Replay


class C51(GradientAlgorithm[ValueGreedyPolicy, C51Config]):
    """Learns the probability of every possible return; acts greedily on the means, with probability 1 - epsilon.

    Raises:
        ConfigError: the action space is not discrete, or there are no atoms from a low to a higher return.
    """

    config_class = C51Config

    def build(self, observation_spec: SpecTree, action_spec: Any, config: C51Config) -> None:
        returns = ReturnDistribution("atoms", config.num_atoms, config.min_return, config.max_return)
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
        """Algorithm 1: cross-entropy to the projected distribution of the target; it is the row's priority."""
        return cross_entropy(self, batch)


def cross_entropy(algorithm: Any, batch: parts.ValueBatch) -> Losses:
    """Algorithm 1: how far the predicted distributions of returns are from the projected targets, nats.

    Args:
        algorithm: has the policy, `network` and `target_network`; its configuration says `double` and `prioritized`.
        batch: the minibatch.
    """
    policy, network, target = algorithm.policy, algorithm.network, algorithm.target_network
    rows = torch.arange(len(batch.action), device=batch.action.device)
    noise, target_noise, next_noise = parts.layer_noises(batch)
    with torch.no_grad():
        next_observation = policy.normalize(batch.next_observation)
        next_logits = target.outputs(next_observation, target_noise)  # [N, A, Q]
        next_q = network(next_observation, next_noise) if algorithm.config.double else target.values(next_logits)
        next_action = greedy_action(next_q, policy.action_mask(batch.next_observation))
        next_probs = next_logits[rows, next_action].softmax(-1)
        wanted = categorical_projection(next_probs, network.support, batch.reward, batch.bootstrap)  # [N, Q]
    logits = network.outputs(policy.normalize(batch.observation), noise)[rows, batch.action]
    error = -(wanted * logits.log_softmax(-1)).sum(-1)
    q = in_full_precision(torch.matmul, logits.detach().softmax(-1), network.support)
    priority = error.detach().abs() if algorithm.config.prioritized else None
    return Losses({"q": parts.weighted_mean(error, batch)}, {"q_mean": q.mean()}, priority)
