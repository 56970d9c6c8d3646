"""Action values of the very policy that acts, learned from each unroll: SARSA.

Source: Rummery and Niranjan 1994; Sutton and Barto 2018, equations (10.1) and (12.18) with action values: semi-gradient
SARSA with lambda-returns. The next action is the one that was actually taken.
Departures: where no next action was taken, at a truncation and at the end of the unroll, its value is the expectation
under the epsilon-greedy policy (expected SARSA, Sutton and Barto 2018, equation 6.9). There is neither a replay buffer
nor a target network. Lambda-returns are computed forwards, without traces; the Huber loss; Adam.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, ConfigError, DataSource, Linear, OnPolicy, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import huber, lambda_returns, masked_mean, valid_starts
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["Sarsa", "SarsaBatch", "SarsaConfig"]


@dataclass(frozen=True, kw_only=True)
class SarsaConfig(AlgorithmConfig):
    """Hyperparameters of `Sarsa`."""

    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam; a number or a schedule."""
    unroll_length: Positive[float] = 16
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    trace_decay: Fraction[Schedule] = 0.9
    """Lambda of the returns, in [0, 1]: 0 is one-step SARSA, 1 is Monte Carlo."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.5))
    """Probability of a random action while collecting; the values learned are those of this policy."""
    huber_delta: Limit[float] = 1.0
    """Error above which the loss grows linearly."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(128, 128), activation="relu"))
    """Q-network; `dueling` is an option of it."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = OnPolicy


class SarsaBatch(Batch):
    """The whole unroll; every field is [T, B, ...]."""

    observation: Any
    action: Tensor
    target: Tensor
    valid: Tensor


class Sarsa(GradientAlgorithm[ValueGreedyPolicy, SarsaConfig]):
    """Learns the action values of its own epsilon-greedy policy from each unroll, then discards it.

    Raises:
        ConfigError: the action space is not discrete, or the network is noisy.
    """

    config_class = SarsaConfig
    usual_lanes = 8

    def build(self, observation_spec: SpecTree, action_spec: Any, config: SarsaConfig) -> None:
        (q,) = config.network.parts("q")
        if config.network.noisy:
            raise ConfigError("SARSA values the epsilon-greedy policy, without noisy layers; leave network.noisy off")
        self.policy = ValueGreedyPolicy.build(observation_spec, action_spec, q, normalize=config.normalize_observation)
        self.policy.exploration = EpsilonGreedy(action_spec.num, config.epsilon)
        option = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({"q": self.policy.network}, {"q": option})

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> SarsaBatch:
        """Adds lambda-returns that bootstrap from the action that was taken next."""
        q = self.policy.q_values(batch.observation)  # [T+1, B, A]
        expected = self._expected(q, self.policy.action_mask(batch.observation))  # [T+1, B]
        taken = q[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        acted = valid_starts(batch.step_type)  # no action follows on the last row of an episode
        value = torch.cat((torch.where(acted, taken, expected[:-1]), expected[-1:]))
        decay = {"gamma": self.value_of("gamma"), "lambda_": self.value_of("trace_decay")}
        target = lambda_returns(value, batch.reward, batch.discount, batch.step_type, **decay)
        return SarsaBatch.of(
            {"observation": batch.observation[:-1], "action": batch.action, "target": target, "valid": batch.valid}
        )

    def losses(self, batch: SarsaBatch) -> Losses:
        """Equation (10.1) of Sutton and Barto, with the Huber loss instead of the square."""
        q = self.policy.q_values(batch.observation).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        error = masked_mean(huber(q - batch.target, delta=self.config.huber_delta), batch.valid)
        return Losses({"q": error}, {"q_mean": masked_mean(q, batch.valid)})

    def _expected(self, q: Tensor, mask: Tensor | None) -> Tensor:
        """Values under the epsilon-greedy policy that acts now."""
        epsilon = self.policy.exploration.strength if self.policy.exploration is not None else 0.0
        allowed = torch.ones_like(q) if mask is None else mask.to(q.dtype)
        allowed = torch.where(allowed.any(-1, keepdim=True), allowed, 1.0)  # at an end, where none may be marked
        uniform = (q * allowed).sum(-1) / allowed.sum(-1)
        best = torch.where(allowed.bool(), q, -torch.inf).amax(-1)
        return epsilon * uniform + (1 - epsilon) * best
