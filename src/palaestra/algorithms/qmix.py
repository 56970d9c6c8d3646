"""QMIX: members' action values, mixed into the value of what the team does together; VDN adds them.

Papers: Rashid et al. 2018, https://arxiv.org/abs/1803.11485, equations (4) to (6) and figure 2; VDN: Sunehag et al.
2017, https://arxiv.org/abs/1706.05296, equation (2).
Departures: members have no memory and learn from replayed transitions, not episodes; the team's reward is the mean over
its members; Adam instead of RMSProp; double Q-learning, as in the authors' code. A member that does not act enters the
mixture with the value 0.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import greedy_action, td_target
from palaestra.policies import EpsilonGreedy, TeamGreedyPolicy, central_spec, central_view

__all__ = ["QMIX", "Mixer", "QMIXConfig"]


@dataclass(frozen=True, kw_only=True)
class QMIXConfig(AlgorithmConfig):
    """Hyperparameters of `QMIX`."""

    learning_rate: NotNegative[Schedule] = 5e-4
    """Step size of Adam; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 128
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(64, 64), activation="relu"))
    """Layers of the members' network, and of those that make the mixing weights of the state."""
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
    target_period: Positive[int] = 200
    """Gradient steps between two copies of the online to the target networks."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting, for each member."""
    double: bool = True
    """Whether the online network chooses the actions whose target values are used."""
    mixing: Literal["monotonic", "sum"] = "monotonic"
    """How members' values become the team's: by a network that rises with each, or as their sum, which is VDN."""
    mixing_size: Positive[int] = 32
    """Units of the mixing network."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""

    plan_class = Replay


class Mixer(nn.Module):
    """Mixes members' values into the team's, rising with each of them: its weights are made of the state, and >= 0.

        Q = w₂(s)·elu(W₁(s) q + b₁(s)) + b₂(s),   W₁, w₂ ≥ 0

    Args:
        state_spec: of what the weights are made of.
        num_agents: G.
        size: units between.
        config: layers of the networks that make the weights.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> mixer = Mixer(TensorSpec((3,)), 2, 4, NetworkConfig())
        >>> low, high = mixer(torch.tensor([[0.0, 0.0], [0.0, 5.0]]), torch.zeros(2, 3))
        >>> bool(high >= low)
        True
    """

    def __init__(self, state_spec: SpecTree, num_agents: int, size: int, config: NetworkConfig) -> None:
        super().__init__()
        self._shape = (num_agents, size)
        bias = dataclasses.replace(config, hidden_sizes=())
        self.first_weight = Network(state_spec, num_agents * size, config)
        self.first_bias = Network(state_spec, size, bias)
        self.second_weight = Network(state_spec, size, config)
        self.second_bias = Network(state_spec, 1, config)

    def forward(self, q: Tensor, state: Any) -> Tensor:
        """The team's value.

        Args:
            q: [N, G] of the members' actions.
            state: [N, *state].

        Returns:
            [N] units of return.
        """
        weight = self.first_weight(state).abs().unflatten(-1, self._shape)  # [N, G, M]
        hidden = nn.functional.elu((q.unsqueeze(-1) * weight).sum(-2) + self.first_bias(state))
        return (hidden * self.second_weight(state).abs()).sum(-1) + self.second_bias(state).squeeze(-1)


class _Sum(nn.Module):
    """VDN: the team's value is the sum of its members'."""

    def forward(self, q: Tensor, state: Any) -> Tensor:
        """The team's value.

        Args:
            q: [N, G] of the members' actions.
            state: not looked at.

        Returns:
            [N] units of return.
        """
        return q.sum(-1)


class QMIX(GradientAlgorithm[TeamGreedyPolicy, QMIXConfig]):
    """Learns action values of a team's members through the value of what they do together.

    Args:
        observation_spec: of the team, see `multiagent.team_specs`.
        action_spec: of the team: discrete choices.
        network: your own encoder, see `Algorithm`.

    Raises:
        ConfigError: the specs are not those of a team with discrete actions.
    """

    config_class = QMIXConfig
    team = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: QMIXConfig) -> None:
        adds = config.mixing == "sum"
        members, *mixer = config.network.parts("members", team=None if adds else "mixer")
        self.policy = TeamGreedyPolicy.build(
            observation_spec, action_spec, members, normalize=config.normalize_observation
        )
        state_spec, count = central_spec(observation_spec), self.policy.num_agents
        self.mixer = _Sum() if adds else Mixer(state_spec, count, config.mixing_size, *mixer)
        self.policy.exploration = EpsilonGreedy(self.policy.num_actions, config.epsilon)
        networks = nn.ModuleDict({"members": self.policy.network, "mixer": self.mixer})
        option = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({"qmix": networks}, {"qmix": option})
        self.targets = Targets(self.model, {"target_qmix": "qmix"}, period=config.target_period)
        self.target: Any = self.model.component["target_qmix"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        """Reduces n-step windows of the team's mean reward to transitions."""
        return parts.n_step_transitions(batch.replace(reward=batch.reward.mean(-1)), self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equation (6): the error of the mixed value against the target networks' mixture of the best actions."""
        policy, observation = self.policy, batch.observation
        q = policy.q_values(observation).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1) * observation.alive
        total = self.mixer(q, central_view(policy.normalize(observation)))
        error = total - self._target(batch)
        return Losses({"qmix": error.square().mean()}, {"q_mean": total.mean()})

    @torch.no_grad()
    def _target(self, batch: parts.TransitionBatch) -> Tensor:
        policy, after = self.policy, batch.next_observation
        seen = policy.normalize(after)
        values = self.target["members"](seen).unflatten(-1, (policy.num_agents, policy.num_actions))
        best = greedy_action(policy.q_values(after) if self.config.double else values, policy.masks(after))
        q = values.gather(-1, best.unsqueeze(-1)).squeeze(-1) * after.alive
        return td_target(self.target["mixer"](q, central_view(seen)), batch.reward, batch.bootstrap)
