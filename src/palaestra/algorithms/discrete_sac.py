"""Soft actor-critic for discrete actions.

Paper: Christodoulou 2019, https://arxiv.org/abs/1910.07207, equations (10) to (13) and algorithm 1. Departures: those
of `SAC`; the target entropy is a share of the entropy of the uniform distribution over allowed actions.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors, td_target
from palaestra.policies import CategoricalPolicy

__all__ = ["DiscreteSAC", "DiscreteSACConfig"]


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(AlgorithmConfig):
    """Hyperparameters of `DiscreteSAC`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction, or the entropy of the steps between."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy_share: Fraction[Schedule] = 0.5
    """Entropy that the temperature aims at, as a share of the largest possible; in [0, 1]."""

    plan_class = Replay


class DiscreteSAC(GradientAlgorithm[CategoricalPolicy, DiscreteSACConfig]):
    """Learns a stochastic policy among discrete actions; expectations over actions are exact, so no noise is needed.

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class = DiscreteSACConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DiscreteSACConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = CategoricalPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        self._critic = EnsembleNetwork(observation_spec, self.policy.raw_action_spec.num, config.num_critics, critic)
        self._temperature = parts.Temperature(config.initial_temperature)
        networks = {"actor": self.policy.network, "critic": self._critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        options = {"actor": adam, "critic": adam, "temperature": slow}
        self.model = CoreModel({**networks, "temperature": self._temperature}, options)
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self._target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equation (10) in the critics' target, (12) for the actor, (11) for the temperature."""
        observation, temperature = self.policy.normalize(batch.observation), self._temperature()
        with torch.no_grad():
            following = self.policy.distribution(batch.next_observation)
            next_q = self._target_critic(self.policy.normalize(batch.next_observation)).amin(0)  # [N, A]
            soft_value = (following.probs * next_q).sum(-1) + temperature * following.entropy()
            target = td_target(soft_value, batch.reward, batch.bootstrap)
        all_q = self._critic(observation)  # [K, N, A]
        index = batch.action.long()[None, :, None].expand(len(all_q), -1, 1)
        q = all_q.gather(-1, index).squeeze(-1)  # [K, N]
        policy = self.policy.distribution(batch.observation)
        entropy = policy.entropy()
        gain = (policy.probs * all_q.detach().amin(0)).sum(-1) + temperature * entropy
        excess = self.value_of("target_entropy_share") * self._largest_entropy(batch.observation, all_q) - entropy
        terms = {
            "critic": 0.5 * squared_errors(q, target),
            "actor": -gain.mean(),
            "temperature": self._temperature.loss(excess),
        }
        return Losses(terms, {"q_mean": q.mean(), "entropy": entropy.mean(), "alpha": temperature})

    def _largest_entropy(self, observation: Any, q: Tensor) -> Tensor:
        """[N] or [] the entropy of a uniform choice, nats."""
        mask = self.policy.action_mask(observation)
        count = q.new_full((), q.shape[-1]) if mask is None else mask.bool().sum(-1).clamp(min=1).float()
        return count.log()
