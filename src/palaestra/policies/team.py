"""Policies of a whole team: one network, told whose turn it is, acts for every member on what that member sees.

A team's observation is a dict: `observation` (leaves [..., G, ...]), `alive` ([..., G], who acts now), `action_mask`
([..., G x A]) where there are masks, and `global_state`, which no member sees but central critics do.
"""

import dataclasses
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError
from palaestra.core.spec import ACTION_MASK, BoundedSpec, DiscreteSpec, MultiDiscreteSpec, SpecTree, TensorSpec
from palaestra.nn import Network, NetworkConfig, encoder_of
from palaestra.ops import Categorical, SquashedGaussian, greedy_action
from palaestra.policies.actions import Head, head_of
from palaestra.policies.exploration import Exploration
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import NetworkPolicy, PolicyStep
from palaestra.policies.squashed import DeterministicPolicy, SquashedPolicy, squashed_gaussian
from palaestra.policies.stochastic import StochasticPolicy

__all__ = [
    "TeamCategoricalPolicy",
    "TeamDeterministicPolicy",
    "TeamGreedyPolicy",
    "TeamNetwork",
    "TeamSquashedGaussianPolicy",
    "central_spec",
    "central_view",
    "team_size",
]


def team_size(observation_spec: SpecTree, action_spec: SpecTree) -> int:
    """G, members of the team that sees and does such things.

    Args:
        observation_spec: of the team, see the module.
        action_spec: of the team: [G] choices among equally many actions, or a box [G, ...].

    Raises:
        ConfigError: they are not those of a team.
    """
    needed = isinstance(observation_spec, dict) and {"observation", "alive"} <= observation_spec.keys()
    if not needed:
        raise ConfigError(
            "this algorithm learns for a team of agents and needs an observation with `observation` and `alive`, as "
            f"`multiagent.team_specs` makes it; given were {observation_spec} and {action_spec}"
        )
    count = observation_spec["alive"].size
    leading = action_spec.shape[0] if isinstance(action_spec, TensorSpec) and action_spec.shape else 0
    if leading != count or len(set(getattr(action_spec, "nvec", ()))) > 1:
        raise ConfigError(f"a team of {count} takes {count} actions of one kind, and was given {action_spec}")
    return count


def central_spec(observation_spec: SpecTree) -> dict[str, SpecTree]:
    """What central critics see of a team's observation: the global state, or all members' observations; and who acts.

    Args:
        observation_spec: of the team.
    """
    state = "global_state" if "global_state" in observation_spec else "observation"
    return {state: observation_spec[state], "alive": observation_spec["alive"]}


def central_view(observation: Any) -> Batch:
    """The part of a team's observation that `central_spec` describes.

    Args:
        observation: [..., *observation].
    """
    state = "global_state" if "global_state" in vars(observation) else "observation"
    return Batch.of({state: observation[state], "alive": observation["alive"]})


class TeamNetwork(nn.Module):
    """One network for every member of a team: what it sees and a code of who it is in, `out_size` numbers out.

    Args:
        observation_spec: of the team.
        num_agents: G.
        out_size: numbers for each member.
        config: the layers between.
        out_gain: scale of the last layer's initial weights.

    Examples:
        >>> spec = {"observation": TensorSpec((3, 4)), "alive": TensorSpec((3,))}
        >>> network = TeamNetwork(spec, 3, 2)
        >>> network(Batch(observation=torch.zeros(8, 3, 4), alive=torch.ones(8, 3))).shape
        torch.Size([8, 6])
    """

    codes: Tensor

    def __init__(
        self,
        observation_spec: SpecTree,
        num_agents: int,
        out_size: int,
        config: NetworkConfig | None = None,
        *,
        out_gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_agents = num_agents
        spec = {"seen": _member(observation_spec["observation"]), "who": TensorSpec((num_agents,))}
        config = config or NetworkConfig()
        if (own := config.encoder) is not None:
            config = dataclasses.replace(config, encoder=lambda spec: _MemberEncoder(spec["seen"], own))
        self.member = Network(spec, out_size, config, out_gain=out_gain)
        self.register_buffer("codes", torch.eye(num_agents), persistent=False)

    def forward(self, observation: Any) -> Tensor:
        """The numbers of all members, one after another.

        Args:
            observation: of the team, with any leading dimensions.

        Returns:
            [..., G x out_size].
        """
        leading = observation["alive"].shape[:-1]
        who = self.codes.expand(*leading, -1, -1)
        return self.member(Batch.of({"seen": observation["observation"], "who": who})).flatten(-2)


class _MemberEncoder(nn.Module):
    """The user's encoder of what a member sees, and the code of who it is in."""

    def __init__(self, spec: SpecTree, own: Any) -> None:
        super().__init__()
        self.encoder = encoder_of(spec, NetworkConfig(encoder=own))

    def forward(self, observation: Any) -> Tensor:
        return torch.cat((self.encoder(observation["seen"]), observation["who"]), -1)


class _TeamOfChoices(NetworkPolicy):
    """A team whose members each take one of equally many actions."""

    one_value = True

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        self.num_agents, self.num_actions = _choices(type(self).__name__, observation_spec, action_spec)
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer, exploration=exploration)

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return head_of(action_spec)

    def _by_member(self, numbers: Tensor) -> Tensor:
        """[..., G x A] -> [..., G, A]."""
        return numbers.unflatten(-1, (self.num_agents, self.num_actions))


@final
class TeamCategoricalPolicy(_TeamOfChoices, StochasticPolicy):
    """Draws an action for every member with probabilities in proportion to exp(logits) among the allowed ones.

    Args:
        network: observation of the team -> logits [..., G x A].
        observation_spec: of the team.
        action_spec: a `MultiDiscreteSpec` of G choices among A actions.
        normalizer: applied to every observation.
        exploration: changes actions in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: the specs are not those of a team with discrete actions.
    """

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A `TeamNetwork` that starts close to uniform."""
        count, actions = _choices(cls.__name__, observation_spec, action_spec)
        return TeamNetwork(observation_spec, count, actions, config, out_gain=0.01)

    @property
    def behaviour_spec(self) -> dict[str, TensorSpec]:
        return {"log_prob": TensorSpec((self.num_agents,))}

    def _explored(self, action: Any, explore: bool, mask: Any = None, observation: Any = None) -> Any:
        return super()._explored(action, explore, None if mask is None else self._by_member(mask), observation)

    def distribution_of(self, outputs: Tensor, mask: Tensor | None = None) -> Categorical:
        """Of every member: log-probabilities and entropies are [..., G]."""
        return Categorical(self._by_member(outputs), None if mask is None else self._by_member(mask))


@final
class TeamGreedyPolicy(_TeamOfChoices):
    """Takes the most valuable of the allowed actions for every member; exploration may choose another in COLLECT.

    Args:
        network: observation of the team -> action values [..., G x A].
        observation_spec: of the team.
        action_spec: a `MultiDiscreteSpec` of G choices among A actions.
        normalizer: applied to every observation.
        exploration: usually `EpsilonGreedy`.

    Raises:
        ConfigError: the specs are not those of a team with discrete actions.
    """

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        count, actions = _choices(cls.__name__, observation_spec, action_spec)
        return TeamNetwork(observation_spec, count, actions, config)

    def q_values(self, observation: Any) -> Tensor:
        """Action values, with gradients; masks are not applied.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            [..., G, A] units of return.
        """
        return self._by_member(self._outputs(observation))

    def masks(self, observation: Any) -> Tensor | None:
        """Which actions each member may take.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            [..., G, A], or `None` where all are allowed.
        """
        mask = self.action_mask(observation)
        return None if mask is None else self._by_member(mask)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        mask = self.masks(observation)
        return PolicyStep(self._explored(greedy_action(self.q_values(observation), mask), explore, mask), state)


@final
class TeamDeterministicPolicy(DeterministicPolicy):
    """The tanh of a network's output for every member, mapped onto the members' boxes.

    Args:
        network: observation of the team -> [..., G x A].
        observation_spec: of the team.
        action_spec: a floating-point box [G, ...] with finite bounds.
        normalizer: applied to every observation.
        exploration: usually `GaussianNoise`, in units of raw actions, which lie in [-1, 1].

    Raises:
        ConfigError: the specs are not those of a team with such actions.
    """

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        count = team_size(observation_spec, action_spec)
        return TeamNetwork(observation_spec, count, action_spec.size // count, config)


@final
class TeamSquashedGaussianPolicy(SquashedPolicy):
    """Draws every member's action from a normal distribution pressed into [-1, 1] by tanh, and maps it onto its box.

    Args:
        network: observation of the team -> [..., G x 2A], mean and log standard deviation of each member in turn.
        observation_spec: of the team.
        action_spec: a floating-point box [G, ...] with finite bounds.
        normalizer: of what members see.
        exploration: usually none, for the policy is random itself.

    Raises:
        ConfigError: the specs are not those of a team with such actions.
    """

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        count = team_size(observation_spec, action_spec)
        return TeamNetwork(observation_spec, count, 2 * action_spec.size // count, config)

    @property
    def most_entropy(self) -> float:
        """Nats, as of one member."""
        return super().most_entropy / self.action_spec.shape[0]

    def distribution(self, observation: Any) -> SquashedGaussian:
        """What every member's raw action is drawn from, with gradients; log-probabilities are [..., G].

        Args:
            observation: of the team, raw, with any leading dimensions.

        Returns:
            Over [..., G, A] raw actions in (-1, 1).
        """
        return self._by_member(self._outputs(observation))

    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        distribution = self.distribution(observation)
        action, log_prob = distribution.at(torch.empty_like(distribution.mean).normal_(generator=self.generator))
        return action.flatten(-2), log_prob.sum(-1)

    def _action(self, features: Any, explore: bool, deterministic: bool) -> Tensor:
        members = self._by_member(self.head(features))
        return (members.mode() if deterministic else members.sample(self.generator)).flatten(-2)

    def _by_member(self, outputs: Tensor) -> SquashedGaussian:
        return squashed_gaussian(outputs.unflatten(-1, (self.action_spec.shape[0], -1)))


def _choices(policy: str, observation_spec: SpecTree, action_spec: SpecTree) -> tuple[int, int]:
    """G and A."""
    count = team_size(observation_spec, action_spec)
    if not isinstance(action_spec, MultiDiscreteSpec):
        raise ConfigError(
            f"{policy} needs members that take one discrete action and was given {action_spec}. For boxes use MADDPG "
            "or MASAC"
        )
    return count, action_spec.nvec[0]


def _member(spec: SpecTree) -> SpecTree:
    """What one member sees, from what all see; the leading dimension G is gone."""
    if isinstance(spec, dict):
        return {key: _member(child) for key, child in spec.items() if key != ACTION_MASK}
    if isinstance(spec, tuple):
        return tuple(_member(child) for child in spec)
    if isinstance(spec, MultiDiscreteSpec):
        return DiscreteSpec(num=spec.nvec[0], dtype=spec.dtype)
    if isinstance(spec, BoundedSpec):
        return BoundedSpec(spec.shape[1:], spec.dtype, minimum=spec.minimum[0], maximum=spec.maximum[0])
    return type(spec)(spec.shape[1:], spec.dtype)
