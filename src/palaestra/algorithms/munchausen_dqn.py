"""Deep Q-learning that is paid for being sure of itself: the scaled log-probability of the action is a reward.

Paper: Vieillard et al. 2020, "Munchausen Reinforcement Learning", https://arxiv.org/abs/2007.14430, section 2.
Departures: the policy that acts is epsilon-greedy, as in the experiments of the paper, not the soft one; Adam has its
usual settings, and gradients are clipped by norm.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import ConfigError, DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import huber, td_target
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["MunchausenDQN", "MunchausenDQNConfig"]


@dataclass(frozen=True, kw_only=True)
class MunchausenDQNConfig(AlgorithmConfig):
    """Hyperparameters of `MunchausenDQN`."""

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
    munchausen_scale: Fraction[Schedule] = 0.9
    """α of the paper: how much of the scaled log-probability is a reward, in [0, 1]."""
    temperature: Positive[Schedule] = 0.03
    """τ of the paper, units of return: of the soft policy whose log-probabilities these are."""
    log_clip: Positive[float] = 1.0
    """−l₀ of the paper: scaled log-probabilities count at least as its negative, units of return."""
    huber_delta: Limit[float] = 1.0
    """Error above which the loss grows linearly."""
    target_period: Positive[int] = 250
    """Gradient steps between two copies of the online to the target network."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of the network; `dueling` is an option of it."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = Replay


class MunchausenDQN(GradientAlgorithm[ValueGreedyPolicy, MunchausenDQNConfig]):
    """Learns soft action values from replayed transitions, with the log-probability of actions as a reward.

    Args:
        action_spec: of the environment: discrete.
        network: your own encoder; the only part is "q".

    Raises:
        ConfigError: the action space is not discrete, or the network is noisy.
    """

    config_class = MunchausenDQNConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: MunchausenDQNConfig) -> None:
        (q,) = config.network.parts("q")
        if config.network.noisy:
            raise ConfigError("Munchausen DQN does not explore with noisy layers; leave network.noisy off")
        self.policy = ValueGreedyPolicy.build(observation_spec, action_spec, q, normalize=config.normalize_observation)
        self.policy.exploration = EpsilonGreedy(self.policy.raw_action_spec.num, config.epsilon)
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({"q": self.policy.network}, {"q": adam})
        self.targets = Targets(self.model, {"target_q": "q"}, period=config.target_period)
        self._target_network: Any = self.model.component["target_q"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """The regression target of section 2, with the scaled log-probability clipped to [l₀, 0]."""
        action = batch.action.unsqueeze(-1)
        with torch.no_grad():
            _, scaled = self._soft(batch.observation)  # [N, A]
            bonus = scaled.gather(-1, action).squeeze(-1).clamp(-self.config.log_clip, 0.0)
            next_q, next_scaled = self._soft(batch.next_observation)
            probs = (next_scaled / self.value_of("temperature")).exp()
            next_value = torch.where(probs > 0, probs * (next_q - next_scaled), 0.0).sum(-1)
            reward = batch.reward + self.value_of("munchausen_scale") * bonus
            target = td_target(next_value, reward, batch.bootstrap)
        q = self.policy.q_values(batch.observation).gather(-1, action).squeeze(-1)
        loss = huber(q - target, delta=self.config.huber_delta).mean()
        return Losses({"q": loss}, {"q_mean": q.mean(), "munchausen": bonus.mean()})

    def _soft(self, observation: Any) -> tuple[Tensor, Tensor]:
        """[..., A] values of the target network, and τ log π of the soft policy over the allowed actions."""
        q = self._target_network(self.policy.normalize(observation))
        temperature, mask = self.value_of("temperature"), self.policy.action_mask(observation)
        logits = q / temperature
        if mask is not None:
            allowed = mask.bool() | ~mask.bool().any(-1, keepdim=True)
            logits = torch.where(allowed, logits, torch.finfo(logits.dtype).min)
        return q, temperature * logits.log_softmax(-1)
