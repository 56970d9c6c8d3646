"""Multi-agent deep deterministic policy gradient: members act on what they see, critics see everything.

Paper: Lowe et al. 2017, https://arxiv.org/abs/1706.02275, equations (5) and (6) and algorithm 1.
Departures: members share a network that is told who acts, while each has a critic and a reward of its own; independent
Gaussian noise; critics learn from all moments, also those in which their member does not act, so that its reward after
its end counts as 0; actor and critics are differentiated at the same weights, then stepped together.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import td_target
from palaestra.policies import GaussianNoise, TeamDeterministicPolicy, central_spec, central_view, team_size

__all__ = ["MADDPG", "MADDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class MADDPGConfig(AlgorithmConfig):
    """Hyperparameters of `MADDPG`."""

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
    """Rewards summed before bootstrapping, without off-policy correction."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""

    plan_class = Replay


class MADDPG(GradientAlgorithm[TeamDeterministicPolicy, MADDPGConfig]):
    """Learns one action of every member for each state, by ascending a learned value of its own.

    Args:
        observation_spec: of the team, see `multiagent.team_specs`.
        action_spec: of the team: a box [G, ...] with finite bounds.
        network: your own encoder, see `Algorithm`.

    Raises:
        ConfigError: the specs are not those of a team with such actions.
    """

    config_class = MADDPGConfig
    team = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: MADDPGConfig) -> None:
        actor, critic = config.network.parts("actor", team="critic")
        self.num_agents = team_size(observation_spec, action_spec)
        self.policy = TeamDeterministicPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.critic = EnsembleNetwork(central_spec(observation_spec), 1, self.num_agents, critic, action_size=size)
        self.policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        self.model = CoreModel(networks, dict.fromkeys(networks, adam))
        self.targets = Targets(self.model, {"target_actor": "actor", "target_critic": "critic"}, tau=config.tau)
        self.target_actor: Any = self.model.component["target_actor"]
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        """Reduces n-step windows to transitions, the reward of every member by itself."""
        return parts.member_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equation (6) for each member's critic; (5) for each member's action, those of the others as they were."""
        state = central_view(self.policy.normalize(batch.observation))
        q = self.critic(state, batch.action).squeeze(-1)  # [G, N]
        error = (q - self._target(batch).T).square().mean()
        proposed = self.policy.action(batch.observation).unflatten(-1, (self.num_agents, -1))  # [N, G, A]
        taken = batch.action.unflatten(-1, (self.num_agents, -1))
        own = torch.eye(self.num_agents, device=taken.device).view(self.num_agents, 1, self.num_agents, 1)
        mixed = (own * proposed + (1 - own) * taken).flatten(-2)  # [G, N, G x A]
        gains = [self.critic(state, mixed[g], members=slice(g, g + 1)).squeeze(-1)[0] for g in range(self.num_agents)]
        gain = (torch.stack(gains, -1) * batch.observation.alive).mean()
        return Losses({"critic": error, "actor": -gain}, {"q_mean": q.mean()})

    @torch.no_grad()
    def _target(self, batch: parts.TransitionBatch) -> Tensor:
        """[N, G] what the target networks say that the members' actions were worth."""
        observation = self.policy.normalize(batch.next_observation)
        action = self.target_actor(observation).tanh()
        value = self.target_critic(central_view(observation), action).squeeze(-1)  # [G, N]
        return td_target(value.T, batch.reward, batch.bootstrap)
