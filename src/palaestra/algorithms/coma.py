"""Counterfactual multi-agent policy gradients: members are judged by what else they might have done.

Paper: Foerster et al. 2018, https://arxiv.org/abs/1705.08926, equations (4) and (5), and algorithm 1.
Departures: the team's reward is the mean over its members; an entropy bonus instead of a floor under all
probabilities; Adam instead of RMSProp; members share a network that is told who acts, and have no memory; returns
bootstrap from joint actions that the policy draws where none was taken: at the end of an unroll, and where an episode
was cut off. The critic learns from all moments; a member that does not act has no action there. It sees the
global state, or all observations where there is none, and not the actions before. Actors are differentiated at the
weights of the critic before its last step on an unroll.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.algorithms.config import AlgorithmConfig, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, OnPolicy, Schedule, SpecTree, TensorSpec
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import lambda_returns, policy_gradient, row_weights, weighted_sum
from palaestra.policies import TeamCategoricalPolicy, central_spec, central_view

__all__ = ["COMA", "COMABatch", "COMAConfig", "CounterfactualCritic"]


@dataclass(frozen=True, kw_only=True)
class COMAConfig(AlgorithmConfig):
    """Hyperparameters of `COMA`."""

    unroll_length: Positive[float] = 8
    """Time steps of the team, from every environment, between two updates."""
    num_epochs: Positive[int] = 4
    """Passes of the critic over each unroll; the actors make one step, with the last of them."""
    gamma: Fraction[Schedule] = 0.99
    """What a reward of the team counts one env step later, in [0, 1]."""
    trace_decay: Fraction[Schedule] = 0.8
    """Lambda of the critic's returns, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    normalize_observation: bool = False
    """Whether members and critic see observations normalised by running statistics of what was collected."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of actors and critic; they share no parameters."""
    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam, of actors and critic; a number or a schedule."""
    target_period: Positive[int] = 50
    """Gradient steps between two copies of the critic to the target critic."""
    entropy_cost: Finite[Schedule] = 0.01
    """Weight of the entropy."""
    max_grad_norm: Limit[float] = 10.0
    """Longest gradient of actors and of critic, Euclidean norm."""

    plan_class = OnPolicy


class COMABatch(Batch):
    """The whole unroll; every field is [T, B, ...]."""

    observation: Any
    action: Tensor
    """[T, B, G]."""
    target: Tensor
    """[T, B, G] what the critic should say of each member's action, units of return."""
    valid: Tensor


class CounterfactualCritic(nn.Module):
    """What every action of every member is worth, given what the others do: one network, told whose actions it judges.

    Args:
        observation_spec: of the team.
        num_agents: G.
        num_actions: A.
        config: layers of the critic.

    Examples:
        >>> spec = {"observation": TensorSpec((3, 4)), "alive": TensorSpec((3,))}
        >>> seen = Batch(observation=torch.zeros(8, 3, 4), alive=torch.ones(8, 3))
        >>> CounterfactualCritic(spec, 3, 2, NetworkConfig())(seen, torch.zeros(8, 3, dtype=torch.int64)).shape
        torch.Size([8, 3, 2])
    """

    codes: Tensor

    def __init__(self, observation_spec: SpecTree, num_agents: int, num_actions: int, config: NetworkConfig) -> None:
        super().__init__()
        self.num_actions = num_actions
        others, who = TensorSpec((num_agents * num_actions,)), TensorSpec((num_agents,))
        spec = {"state": central_spec(observation_spec), "others": others, "who": who}
        self.network = Network(spec, num_actions, config)
        self.register_buffer("codes", torch.eye(num_agents), persistent=False)

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        """Values of all actions.

        Args:
            observation: of the team, normalised, with any leading dimensions.
            action: [..., G] what the members do; each is judged without its own.

        Returns:
            [..., G, A] units of return.
        """
        view, codes = central_view(observation), self.codes
        leading, count = action.shape[:-1], len(codes)
        state = view.map(lambda leaf: leaf.unsqueeze(len(leading)).expand(*leading, count, *leaf.shape[len(leading) :]))
        taken = nn.functional.one_hot(action.long(), self.num_actions) * view["alive"].unsqueeze(-1)  # [..., G, A]
        others = taken.unsqueeze(-3) * (1 - codes).unsqueeze(-1)  # [..., G, G, A]
        who = codes.expand(*leading, -1, -1)
        return self.network(Batch.of({"state": state, "others": others.flatten(-2), "who": who}))


class COMA(GradientAlgorithm[TeamCategoricalPolicy, COMAConfig]):
    """Learns the policies of a team, each from how much better its action was than its others would have been.

    Args:
        observation_spec: of the team, see `multiagent.team_specs`.
        action_spec: of the team: discrete choices.
        config: see `COMAConfig`.
        network: your own encoder, see `Algorithm`.

    Raises:
        ConfigError: the specs are not those of a team with discrete actions.
    """

    config_class = COMAConfig
    team = True
    periods_begin_anew = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: COMAConfig) -> None:
        actor, critic = config.network.parts("actor", team="critic")
        self.policy = TeamCategoricalPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        sizes = self.policy.num_agents, self.policy.num_actions
        self.critic, self.target_critic = (
            CounterfactualCritic(observation_spec, *sizes, layers) for layers in (critic, copy.deepcopy(critic))
        )
        self.target_critic.load_state_dict(self.critic.state_dict())
        networks = {"actor": self.policy.network, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({**networks, "target_critic": self.target_critic}, dict.fromkeys(networks, adam))
        self.term_periods = {"actor": config.num_epochs}
        self.targets = Targets(self.model, {"target_critic": "critic"}, period=config.target_period)

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> COMABatch:
        """Adds lambda-returns of the target critic's values, of the team's mean reward."""
        policy = self.policy.distribution(batch.observation)  # [T+1, B, G, A]
        seed = self._noise_generator.initial_seed() + self.policy_version  # the same draws, however often it is asked
        generator = torch.Generator().manual_seed(seed)
        clocks = torch.empty(policy.logits.shape).exponential_(generator=generator).log_()
        drawn = policy.sample_from(clocks.to(policy.logits.device))
        taken = torch.where(batch.valid.bool().unsqueeze(-1), batch.action.long(), drawn[:-1])  # lanes may be shorter
        action = torch.cat((taken, drawn[-1:]))
        q = self.target_critic(self.policy.normalize(batch.observation), action)
        value = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)  # [T+1, B, G]
        common = (batch.reward.mean(-1), batch.discount, batch.step_type)
        steps = [field.unsqueeze(-1).expand_as(value) for field in common]
        decay = {"gamma": self.value_of("gamma"), "lambda_": self.value_of("trace_decay")}
        target = lambda_returns(value, *steps, **decay)
        return COMABatch.of(
            {"observation": batch.observation[:-1], "action": batch.action, "target": target, "valid": batch.valid}
        )

    def losses(self, batch: COMABatch) -> Losses:
        """Equation (4) for what an action is better than the policy's others, (5) for the actors; means over the team.

        The critic's error is that of algorithm 1. Actors of members that do not act learn nothing.
        """
        weight = row_weights(batch.valid)  # [T, B]
        acts = batch.observation.alive * batch.valid.unsqueeze(-1)  # [T, B, G]
        q = self.critic(self.policy.normalize(batch.observation), batch.action)
        chosen = q.gather(-1, batch.action.long().unsqueeze(-1)).squeeze(-1)
        terms = {"critic": weighted_sum((chosen - batch.target).square().mean(-1), weight)}
        metrics = {"q_mean": weighted_sum(chosen.mean(-1), weight)}
        if self.is_due("actor"):
            policy = self.policy.distribution(batch.observation)
            advantage = chosen - (policy.probs * q).sum(-1)
            policy_loss = policy_gradient(torch.where(acts > 0, policy.log_prob(batch.action), 0.0), advantage) * acts
            policy_loss = weighted_sum(policy_loss.mean(-1), weight)
            entropy = weighted_sum((policy.entropy() * acts).mean(-1), weight)
            terms["actor"] = policy_loss - self.value_of("entropy_cost") * entropy
            metrics |= {"policy_gradient": policy_loss, "entropy": entropy}
        return Losses(terms, metrics)
