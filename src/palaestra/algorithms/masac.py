"""Multi-agent soft actor-critic: members act at random on what they see, twin critics of each see everything.

Papers: central critics: Lowe et al. 2017, https://arxiv.org/abs/1706.02275, equations (5) and (6); soft policies and
twin critics: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equations (5), (6), (9) and (18).
Departures: those of `MADDPG` and `SAC`; members share one temperature, and the entropy of a member counts in its own
values alone.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Finite, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors, td_target
from palaestra.policies import TeamSquashedGaussianPolicy, central_spec, central_view, team_size

__all__ = ["MASAC", "MASACConfig"]


@dataclass(frozen=True, kw_only=True)
class MASACConfig(AlgorithmConfig):
    """Hyperparameters of `MASAC`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of actors and critics; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps of actors, critics and temperature in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update; where given, `gradient_steps` does not count."""
    mini_batch_size: Positive[int] = 256
    """Transitions of the team in a minibatch."""
    normalize_observation: bool = False
    """Whether members and critics see observations normalised by running statistics of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of actors and critics; they share no parameters."""
    gamma: Fraction[Schedule] = 0.99
    """What a reward of the team counts one env step later, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards of a member summed before its critics are asked, without off-policy correction."""
    unroll_length: Positive[float] = 1
    """Time steps of the team, from every environment, between two updates."""
    capacity: Positive[int] = 1_000_000
    """Rows of the team that the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before anything is learned."""
    tau: Fraction[Schedule] = 0.005
    """Share of the way that target critics go towards the online ones, in [0, 1]."""
    num_critics: Positive[int] = 2
    """K, critics of each member."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy of a member, in nats, that the temperature aims at; by default minus the number of its action's parts."""

    plan_class = Replay


class MASAC(GradientAlgorithm[TeamSquashedGaussianPolicy, MASACConfig]):
    """Learns stochastic policies of a team's members, each for its own return plus entropy, held near a target.

    Args:
        observation_spec: of the team, see `multiagent.team_specs`.
        action_spec: of the team: a box [G, ...] with finite bounds.
        config: see `MASACConfig`.
        network: your own encoder, see `Algorithm`.

    Raises:
        ConfigError: the specs are not those of a team with such actions.
    """

    config_class = MASACConfig
    team = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: MASACConfig) -> None:
        actor, critic = config.network.parts("actor", team="critic")
        self.num_agents = team_size(observation_spec, action_spec)
        self.policy = TeamSquashedGaussianPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size, count = self.policy.raw_action_spec.size, self.num_agents * config.num_critics
        self.critic = EnsembleNetwork(central_spec(observation_spec), 1, count, critic, action_size=size)
        self.temperature = parts.Temperature(config.initial_temperature)
        self.target_entropy = -size / self.num_agents if config.target_entropy is None else config.target_entropy
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        options = {"actor": adam, "critic": adam, "temperature": slow}
        self.model = CoreModel({**networks, "temperature": self.temperature}, options)
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        """Reduces n-step windows to transitions, the reward of every member by itself."""
        return parts.member_transitions(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> parts.SoftBatch:
        """The random part of the actions at both observations."""
        return parts.action_noise(batch, generator)

    def losses(self, batch: parts.SoftBatch) -> Losses:
        """Equations (5) and (9) of SAC, for each member with what the others did; (18) for all together."""
        count, acts, temperature = self.num_agents, batch.observation.alive, self.temperature()
        state = central_view(self.policy.normalize(batch.observation))
        q = self._members(self.critic(state, batch.action))  # [K, N, G]
        action, log_prob = self.policy.distribution(batch.observation).at(batch.noise.unflatten(-1, (count, -1)))
        taken = batch.action.unflatten(-1, (count, -1))  # [N, G, A]
        own = torch.eye(count, device=taken.device).view(count, 1, count, 1)
        mixed = (own * action + (1 - own) * taken).flatten(-2)  # [G, N, G x A]
        ensemble = self.config.num_critics
        least = [
            self.critic(state, mixed[g], members=slice(g * ensemble, (g + 1) * ensemble)).amin(0) for g in range(count)
        ]
        cost = (temperature * log_prob - torch.cat(least, -1)) * acts  # [N, G]
        terms = {
            "critic": 0.5 * squared_errors(q, self._target(batch)),
            "actor": cost.mean(),
            "temperature": self.temperature.loss((log_prob + self.target_entropy) * acts),
        }
        entropy = -(log_prob * acts).sum() / acts.sum().clamp(min=1)  # of those that act
        return Losses(terms, {"q_mean": q.mean(), "entropy": entropy, "alpha": temperature})

    def _members(self, q: Tensor) -> Tensor:
        """[G x K, N, 1] -> [K, N, G]."""
        return q.squeeze(-1).unflatten(0, (self.num_agents, -1)).permute(1, 2, 0)

    @torch.no_grad()
    def _target(self, batch: parts.SoftBatch) -> Tensor:
        """[N, G] what the target critics say that the members' actions were worth, each with its own entropy."""
        after = batch.next_observation
        noise = batch.next_noise.unflatten(-1, (self.num_agents, -1))
        action, log_prob = self.policy.distribution(after).at(noise)
        q = self._members(self.target_critic(central_view(self.policy.normalize(after)), action.flatten(-2))).amin(0)
        return td_target(q - self.temperature() * log_prob * after.alive, batch.reward, batch.bootstrap)
