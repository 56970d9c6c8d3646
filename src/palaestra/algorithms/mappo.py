"""Multi-agent proximal policy optimization: every member acts on what it sees, one value sees everything.

Paper: Yu et al. 2022, https://arxiv.org/abs/2103.01955, section 3 and appendix A; the clipped surrogate is that of PPO,
Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation (7).
Departures: the team learns from one reward, the mean over its members, so all members of a moment share one advantage;
members share a network that is told who acts; feedforward networks; values are not normalised, and not clipped, and
their error is squared, where the paper has the Huber loss with a delta of 10.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Annealed, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import DataSource, OnPolicy, Schedule, SpecTree
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import clipped_surrogate, explained_variance, row_weights, weighted_sum
from palaestra.policies import TeamCategoricalPolicy, central_spec, central_view

__all__ = ["MAPPO", "MAPPOBatch", "MAPPOConfig"]


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig(AlgorithmConfig):
    """Hyperparameters of `MAPPO`."""

    unroll_length: Positive[float] = 128
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 0.95
    """Trace decay of the advantage estimate, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the members' network and of the value; they share no parameters."""
    num_epochs: Positive[int] = 4
    """Passes over each unroll."""
    mini_batch_size: Positive[int] = 256
    """Rows in a minibatch."""
    standardize_advantage: bool = True
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam; a number or a schedule such as linear(3e-4, 0)."""
    value_cost: NotNegative[Schedule] = 0.5
    """Weight of the value error."""
    entropy_cost: Finite[Schedule] = 0.01
    """Weight of the entropy."""
    max_grad_norm: Limit[float] = 0.5
    """Gradients are clipped to this Euclidean norm over all parameters."""
    clip: Annealed[Schedule] = 0.2
    """Epsilon: each member's probability ratio is clipped to [1 - epsilon, 1 + epsilon]."""

    mini_batch_length: ClassVar[int] = 1
    plan_class = OnPolicy


class MAPPOBatch(parts.AdvantageBatch):
    """One minibatch; every field is [N, ...], actions are [N, G]."""

    log_prob: Tensor
    """[N, G] nats."""


class MAPPO(GradientAlgorithm[TeamCategoricalPolicy, MAPPOConfig]):
    """Learns the policies of a team and a central value of their common reward, from unrolls.

    Args:
        observation_spec: of the team, see `multiagent.team_specs`.
        action_spec: of the team: discrete choices.
        network: your own encoder, see `Algorithm`.

    Raises:
        ConfigError: the specs are not those of a team with discrete actions.
    """

    config_class = MAPPOConfig
    team = True
    stored_fields = ("log_prob",)

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: MAPPOConfig) -> None:
        members, central = config.network.parts("policy", team="value")
        self.policy = TeamCategoricalPolicy.build(
            observation_spec, action_spec, members, normalize=config.normalize_observation
        )
        self.value_network = Network(central_spec(observation_spec), 1, central)
        networks = nn.ModuleDict({"policy": self.policy.network, "value": self.value_network})
        option = OptimizerOption("adam", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        self.model = CoreModel({"mappo": networks}, {"mappo": option})

    def value(self, observation: Any) -> Tensor:
        """What a team's state is worth.

        Args:
            observation: [..., *observation], not yet normalised.

        Returns:
            [...] units of return.
        """
        return self.value_network(central_view(self.policy.normalize(observation))).squeeze(-1)

    def preprocess(self, batch: Any, source: DataSource) -> MAPPOBatch:
        """Adds advantages and value targets, of the team's mean reward, to an unroll."""
        batch = batch.replace(reward=batch.reward.mean(-1))
        return parts.advantages(self, batch, MAPPOBatch, source=source)

    def losses(self, batch: MAPPOBatch) -> Losses:
        """PPO's loss; surrogate and entropy of a row are means over the whole team, 0 for agents that did not act."""
        weight = row_weights(batch.valid)  # [N]
        acts = batch.observation.alive * batch.valid.unsqueeze(-1)  # [N, G]
        policy = self.policy.distribution(batch.observation)
        log_ratio = torch.where(acts > 0, policy.log_prob(batch.action) - batch.log_prob, 0.0)
        advantage = batch.advantage.unsqueeze(-1).expand_as(log_ratio)
        clipped = clipped_surrogate(log_ratio, advantage, epsilon=self.value_of("clip")) * acts
        surrogate = weighted_sum(clipped.mean(-1), weight)
        value_error = weighted_sum((self.value(batch.observation) - batch.value_target).square(), weight)
        entropy = weighted_sum((policy.entropy() * acts).mean(-1), weight)
        total = surrogate + self.value_of("value_cost") * value_error - self.value_of("entropy_cost") * entropy
        kl = weighted_sum((log_ratio.expm1() - log_ratio).detach().mean(-1), weight)
        return Losses(
            {"mappo": total}, {"surrogate": surrogate, "value_error": value_error, "entropy": entropy, "kl": kl}
        )

    def diagnostics(self, batch: MAPPOBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}
