"""C51 with everything that was known to help: Rainbow.

Paper: Hessel et al. 2018, https://arxiv.org/abs/1710.02298, section "The Integrated Agent": distributional, double,
dueling, n-step, prioritised and noisy.
Departures: noise is drawn for every row rather than once for a minibatch; there is no epsilon; priorities are
the cross-entropy instead of the divergence; gradients are clipped by norm.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.c51 import cross_entropy
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption, ReturnDistribution
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["Rainbow", "RainbowConfig"]


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(AlgorithmConfig):
    """Hyperparameters of `Rainbow`."""

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
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu", dueling=True, noisy=True)
    )
    """Layers of the network."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 3
    """Rewards summed before bootstrapping."""
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
    epsilon: Fraction[Schedule] = 0.0
    """Probability of a random action while collecting; noisy layers explore without."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    prioritized: bool = True
    """Whether transitions of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: NotNegative[float] = 0.5
    """Power of the priority, at least 0; 0 draws all equally often."""
    priority_beta: Fraction[Schedule] = field(default_factory=lambda: Linear(0.4, 1.0))
    """How far importance weights correct for that, in [0, 1]; 1 is completely."""
    double: bool = True
    """Whether the online network chooses the action whose target distribution is used."""
    num_atoms: Positive[int] = 51
    """Possible returns, evenly spaced."""
    min_return: Finite[float] = -10.0
    """Smallest of them; no return below it can be told apart."""
    max_return: Finite[float] = 10.0
    """Largest of them. The best discounted return of the task has to lie below it."""

    plan_class = Replay


class Rainbow(GradientAlgorithm[ValueGreedyPolicy, RainbowConfig]):
    """Learns the probability of every possible return from prioritised n-step transitions; explores by noisy layers.

    Raises:
        ConfigError: the action space is not discrete, or there are no atoms from a low to a higher return.
    """

    config_class = RainbowConfig

    def build(self, observation_spec: SpecTree, action_spec: Any, config: RainbowConfig) -> None:
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
        """C51's cross-entropy, each row times its importance weight; it is the row's priority."""
        return cross_entropy(self, batch)
