"""ReBRAC: TD3 for a fixed data set, with both the actor and the critics held to the data's actions.

Paper: Tarasov et al. 2023, https://arxiv.org/abs/2305.09836, equations (2) and (3), and section 3: networks of three
layers, normalised in the critics, and large minibatches. Departures: those of `TD3`; the scale of the action values is
their mean size over all the data of an update, before its first gradient step; where a time limit cut the episode, no
next action is in the data and the critics are not held to any; critics' layers are normalised before their activation,
where the authors' are behind it.
"""

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Offline, Plan, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, Network, NetworkConfig, OptimizerOption
from palaestra.ops import row_weights, td_target, weighted_sum
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["ReBRAC", "ReBRACBatch", "ReBRACConfig"]


@dataclass(frozen=True, kw_only=True)
class ReBRACConfig(AlgorithmConfig):
    """Hyperparameters of `ReBRAC`."""

    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_size: Positive[int] = 1024
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256, 256), activation="relu", layer_norm=True)
    )
    """Layers of every network; they share no parameters, and `layer_norm` is of the critics alone."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    actor_penalty: NotNegative[Schedule] = 0.1
    """Beta 1: how much the actor's squared distance to the data's actions counts beside values of mean size 1."""
    critic_penalty: NotNegative[Schedule] = 0.01
    """Beta 2: what a squared distance of 1 to the data's next action takes from its value, in units of return."""
    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""
    target_noise_std: NotNegative[float] = 0.2
    """Standard deviation of the noise on target actions, in raw units."""
    target_noise_clip: NotNegative[float] = 0.5
    """Largest noise on target actions, in raw units."""
    policy_period: Positive[int] = 2
    """Gradient steps of the critics for each one of the actor and of the target networks."""

    plan_class = Offline

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: transitions with the action that came next, as sequences of two rows."""
        return self.plan_with(mini_batch_length=2)


class ReBRACBatch(Batch):
    """One minibatch; every field is [1, N, ...], sequences of one transition."""

    observation: Any
    action: Tensor
    """Raw units, as all actions here."""
    next_observation: Any
    next_action: Tensor
    """What the data did at `next_observation`."""
    has_next: Tensor
    """1.0 where it did anything, 0.0 where the episode had ended."""
    reward: Tensor
    bootstrap: Tensor
    """What the next value counts: gamma, 0 where the episode terminated."""
    valid: Tensor
    q_scale: Tensor
    """Mean size of the action values; the same number in every row."""
    noise: Tensor
    """Clipped."""


class ReBRAC(GradientAlgorithm[DeterministicPolicy, ReBRACConfig]):
    """Learns actions of high value, with two separate penalties on leaving the data's actions.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = ReBRACConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: ReBRACConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        actor = dataclasses.replace(actor, layer_norm=False)
        self.policy = DeterministicPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.target_actor = Network(observation_spec, size, copy.deepcopy(actor))
        self.critic = EnsembleNetwork(observation_spec, 1, 2, critic, action_size=size)
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        self.model = CoreModel(networks | {"target_actor": self.target_actor}, dict.fromkeys(networks, adam))
        self.policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
        self.term_periods = {"actor": config.policy_period}
        follows = {"target_actor": "actor", "target_critic": "critic"}
        self.targets = Targets(self.model, follows, tau=config.tau, period=config.policy_period)
        self.target_critic: Any = self.model.component["target_critic"]

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        """The transition at the start of each sequence, and the size of action values: the divisor in (3)."""
        first = batch.observation[:1]
        seen = self.policy.normalize(first)
        q = self.critic(seen, self.policy.action(first)).amin(0)
        fields = {
            "observation": first,
            "action": batch.action[:1],
            "next_observation": batch.observation[1:2],
            "next_action": batch.action[1:],
            "has_next": batch.valid[1:],
            "reward": batch.reward[1:2],
            "bootstrap": self.value_of("gamma") * batch.discount[1:2],
            "valid": batch.valid[:1],
        }
        return Batch.of({**fields, "q_scale": q.abs().mean().expand(fields["reward"].shape)})

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The smoothing noise of target actions."""
        return parts.smoothing_noise(batch, self.config, generator, ReBRACBatch)

    def losses(self, batch: ReBRACBatch) -> Losses:
        """Equation (2) for the critics; (3) for the actor, where it is due."""
        weight, observation = row_weights(batch.valid), self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [2, 1, N]
        terms = {"critic": weighted_sum((q - self._target(batch)).square().sum(0), weight)}
        metrics = {"q_mean": weighted_sum(q.mean(0), weight)}
        if self.is_due("actor"):
            action = self.policy.action(batch.observation)
            value = self.critic(observation, action).squeeze(-1).amin(0)
            distance = (action - batch.action).square().sum(-1)
            loss = self.value_of("actor_penalty") * distance - value / (batch.q_scale + 1e-6)
            terms["actor"] = weighted_sum(loss, weight)
            metrics["distance"] = weighted_sum(distance, weight)
        return Losses(terms, metrics)

    @torch.no_grad()
    def _target(self, batch: ReBRACBatch) -> Tensor:
        """[1, N] reward and discounted value of the next action, less what its distance to the data's costs."""
        after = self.policy.normalize(batch.next_observation)
        action = (self.target_actor(after).tanh() + batch.noise).clamp(-1.0, 1.0)
        distance = (action - batch.next_action).square().sum(-1) * batch.has_next
        value = self.target_critic(after, action).squeeze(-1).amin(0) - self.value_of("critic_penalty") * distance
        return td_target(value, batch.reward, batch.bootstrap)
