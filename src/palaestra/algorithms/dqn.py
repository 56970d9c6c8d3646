"""Deep Q-learning from replayed transitions.

Papers: Mnih et al. 2015, https://doi.org/10.1038/nature14236, equation (2); double Q-learning: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461, equation (4); dueling networks: Wang et al. 2016, https://arxiv.org/abs/1511.06581,
equation (9); prioritised replay: Schaul et al. 2016, https://arxiv.org/abs/1511.05952, algorithm 1; noisy networks:
Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, equation (12); n-step targets: Sutton and Barto 2018, equation
(7.1), without off-policy correction.
Departures: Adam instead of RMSProp; gradients are clipped by norm; the Huber loss stands for the clipped error; the
minibatches of an update are drawn at once.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import double_q_target, huber, q_target
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["DQN", "DQNConfig"]


@dataclass(frozen=True, kw_only=True)
class DQNConfig(AlgorithmConfig):
    """Hyperparameters of `DQN`."""

    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam; a number or a schedule."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 100_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 128
    """Transitions in a minibatch."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""
    double: bool = True
    """Whether the online network chooses the action whose target value is used."""
    huber_delta: Limit[float] = 1.0
    """Error above which the loss grows linearly. It then learns something between median and mean of the targets, which
    biases values where targets are skewed; with a large number it learns the mean."""
    target_period: Positive[int] = 250
    """Gradient steps between two copies of the online to the target network."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    prioritized: bool = False
    """Whether transitions of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: NotNegative[float] = 0.6
    """Power of the priority, at least 0; 0 draws all equally often."""
    priority_beta: Fraction[Schedule] = field(default_factory=lambda: Linear(0.4, 1.0))
    """How far importance weights correct for that, in [0, 1]; 1 is completely."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of the network; `dueling` and `noisy` are options of it."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = Replay


class DQN(GradientAlgorithm[ValueGreedyPolicy, DQNConfig]):
    """Learns action values from replayed transitions; acts greedily with probability 1 - epsilon.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.
        network: your own encoder; the only part is "q".

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class = DQNConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DQNConfig) -> None:
        (q,) = config.network.parts("q")
        self.policy = ValueGreedyPolicy.build(observation_spec, action_spec, q, normalize=config.normalize_observation)
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
        """Equation (2) of Mnih et al., with the target of van Hasselt et al. where `double` is set."""
        noise, target_noise, next_noise = parts.layer_noises(batch)
        with torch.no_grad():
            mask = self.policy.action_mask(batch.next_observation)
            next_observation = self.policy.normalize(batch.next_observation)
            next_target = self.target_network(next_observation, target_noise)
            if self.config.double:
                next_online = self.network(next_observation, next_noise)
                target = double_q_target(next_online, next_target, batch.reward, batch.bootstrap, mask)
            else:
                target = q_target(next_target, batch.reward, batch.bootstrap, mask)
        values = self.policy.q_values(batch.observation, noise=noise)
        q = values.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        error = q - target
        loss = parts.weighted_mean(huber(error, delta=self.config.huber_delta), batch)
        priority = error.detach().abs() if self.config.prioritized else None
        return Losses({"q": loss}, {"q_mean": q.mean()}, priority)
