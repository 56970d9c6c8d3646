"""Which policy acts for which agents, and what these see of it: alone, or as a team."""

import fnmatch
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from palaestra.core import ConfigError, TensorSpec, did_you_mean, numpy_dtype, refuses, spec_leaves
from palaestra.core.settings import AtLeastOne, Fraction, NotNegative, require_ranges
from palaestra.core.spec import ACTION_MASK, BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, SpecTree
from palaestra.envs.contract.nest import flatten, unflatten
from palaestra.multiagent.env import AgentSpec
from palaestra.policies import Policy, RandomPolicy

__all__ = ["AgentsConfig", "PolicySpec", "SelfPlayConfig", "assign_policies", "team_specs"]


@dataclass(frozen=True)
class PolicySpec:
    """A policy, and the agents for which it acts."""

    policy: str
    """Its name."""
    agents: tuple[str, ...]
    """Their names, in the order of the environment."""
    member: AgentSpec
    """Specs of each of them."""
    observation_spec: SpecTree
    """Of the policy: a member's, or that of the whole team."""
    action_spec: SpecTree
    """Of the policy."""
    team: bool
    """Whether they are a team that learns together, with one lane per environment; else every agent has a lane."""
    state_spec: SpecTree | None = None
    """Of the global state that a team sees; `None` where it sees none."""
    judged: bool = True
    """Whether the return of an episode counts what its agents earn."""

    @property
    def reward_spec(self) -> TensorSpec:
        """One number, or [G] of a team."""
        return TensorSpec((len(self.agents),)) if self.team else TensorSpec(())

    @property
    def lanes_per_env(self) -> int:
        """1 of a team, else one for each agent."""
        return 1 if self.team else len(self.agents)

    def random_policy(self) -> RandomPolicy:
        """One that acts at random for them."""
        return RandomPolicy(self.observation_spec, self.action_spec)

    def member_actions(self, leaves: list[np.ndarray], row: int) -> list[Any]:
        """The actions of every member from those of the policy, as the agents' action spec says.

        Args:
            leaves: of the policy's actions as the environment executes them, [N, ...].
            row: which of the N.

        Returns:
            One for each agent of a team; of others, the one action of the lane.
        """
        if not self.team:
            return [unflatten((leaf[row][()] for leaf in leaves), self.member.action)]
        (leaf,) = leaves
        start = getattr(self.member.action, "start", 0)
        dtype = numpy_dtype(self.member.action.dtype)
        return [(leaf[row, slot] + start).astype(dtype)[()] for slot in range(len(self.agents))]


def assign_policies(
    agents: Mapping[str, AgentSpec],
    mapping: Mapping[str, str],
    *,
    teams: Collection[str] = (),
    state_spec: SpecTree | None = None,
) -> dict[str, PolicySpec]:
    """The specs of all policies, by policy name.

    Args:
        agents: of the environment.
        mapping: from agents, or patterns of names such as `buyer_*`, to policies; the first that fits counts.
        teams: policies whose agents are a team.
        state_spec: of the environment's global state.

    Raises:
        ConfigError: an agent has no policy, a pattern fits no agent, agents of one policy differ, or a name cannot be
            one of a file.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> policy_specs = assign_policies(Meeting(num_agents=3).agents, {"agent_0": "leader", "agent_*": "followers"})
        >>> {name: policy_spec.agents for name, policy_spec in policy_specs.items()}
        {'leader': ('agent_0',), 'followers': ('agent_1', 'agent_2')}
    """
    policy_of: dict[str, str] = {}
    for pattern, policy in mapping.items():
        found = [pattern] if pattern in agents else [name for name in agents if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise ConfigError(
                f"the mapping names {pattern!r}{did_you_mean(pattern, agents)}; the agents are {', '.join(agents)}"
            )
        if not _can_name(policy):
            raise ConfigError(f"{pattern!r} is mapped to the policy {policy!r}; give it another name, of letters only")
        for name in found:
            policy_of.setdefault(name, policy)
        if policy not in policy_of.values() and pattern in agents:
            raise ConfigError(
                f"the mapping names {pattern!r} after a pattern that fits it, so that the policy {policy!r} would have "
                f"no agent: the first that fits counts; put {pattern!r} before"
            )
    if missing := [name for name in agents if name not in policy_of]:
        raise ConfigError(f"the mapping gives no policy to {', '.join(missing)}; add them, or the pattern '*'")
    policy_specs: dict[str, PolicySpec] = {}
    for policy in dict.fromkeys(policy_of[name] for name in agents):
        members = tuple(name for name in agents if policy_of[name] == policy)
        first = agents[members[0]]
        if policy in agents and members != (policy,):
            raise ConfigError(
                f"the policy {policy!r} acts for {', '.join(members)}, and an agent is called like it; their returns "
                "would have one name: give it another"
            )
        if other := next((name for name in members if agents[name] != first), None):
            raise ConfigError(
                f"{members[0]} and {other} share the policy {policy!r}, but see or do different things: "
                f"{first} and {agents[other]}; give them policies of their own"
            )
        if policy in teams:
            observation, action = team_specs(first, len(members), state_spec)
            policy_specs[policy] = PolicySpec(policy, members, first, observation, action, True, state_spec)
        else:
            policy_specs[policy] = PolicySpec(policy, members, first, first.observation, first.action, False)
    return policy_specs


def _can_name(policy: str) -> bool:
    """Whether a policy can have this name, which is one of a file and of a part of a module."""
    return policy.isidentifier() and not hasattr(torch.nn.ModuleDict(), policy)


def _policy_names(agents: Collection[str]) -> dict[str, str]:
    """A name for the policy of each agent, none twice: the agent's own where it can be one.

    Else it has `_` where the agent's has other characters, begins with `agent_` if it must, as for the agent 0, and
    ends with a number where another has that name.
    """
    plain = {agent: re.sub(r"\W", "_", agent) for agent in agents}
    names = {agent: agent for agent, name in plain.items() if agent == name and _can_name(name)}
    for agent, name in plain.items():
        if agent not in names:
            fit = name if _can_name(name) else "agent_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            numbered = (f"{fit}_{number}" for number in itertools.count(2))
            taken = {*names.values(), *agents}
            names[agent] = next(one for one in itertools.chain([fit], numbered) if one not in taken)
    return {agent: names[agent] for agent in agents}


def team_specs(member: AgentSpec, count: int, state_spec: SpecTree | None = None) -> tuple[SpecTree, SpecTree]:
    """What a policy of a whole team sees and does.

    Args:
        member: what each agent sees and does: one discrete choice, or a box.
        count: G, agents of the team.
        state_spec: of the global state.

    Returns:
        Of observations, a dict with `observation` (leaves [G, ...]; one choice counts from 0, several are one-hot
        codes), `alive` ([G], who acts now, or was cut off as the team's episode ended), `action_mask` where members
        have one, and `global_state` where there is one; and of actions, [G] choices, which
        count from 0 as well, or a box [G, ...].

    Raises:
        ConfigError: a member's action is something else.
    """
    observation, mask = member.observation, None
    if isinstance(observation, dict) and ACTION_MASK in observation:
        mask = observation[ACTION_MASK]
        observation = {key: child for key, child in observation.items() if key != ACTION_MASK}
    alive = MultiBinarySpec((count,), torch.float32)  # which no normaliser shifts
    spec: dict[str, SpecTree] = {"observation": _stacked(observation, count), "alive": alive}
    if mask is not None:
        spec[ACTION_MASK] = MultiBinarySpec((count * mask.size,))
    if state_spec is not None:
        spec["global_state"] = state_spec
    action = member.action
    if isinstance(action, DiscreteSpec):
        return spec, MultiDiscreteSpec(dtype=action.dtype, nvec=(action.num,) * count)
    if isinstance(action, BoundedSpec) and action.dtype.is_floating_point:
        return spec, _stacked(action, count)
    raise ConfigError(f"agents of a team take one discrete action, or a box of numbers; these take {action}")


def team_leaves(member: AgentSpec, observations: list[Any], spec: SpecTree) -> list[np.ndarray]:
    """The leaves of a team's observation besides `alive` and `global_state`, without masks.

    Args:
        member: what each agent sees.
        observations: of every agent.
        spec: `observation` of the team.
    """
    own = member.observation
    if isinstance(own, dict):
        own = {name: child for name, child in own.items() if name != ACTION_MASK}
    rows = zip(*(flatten(seen, own) for seen in observations), strict=True)  # of each leaf, what every agent sees
    specs = zip(rows, spec_leaves(own).values(), spec_leaves(spec).values(), strict=True)
    return [np.stack([_coded(seen, one) for seen in row]).astype(numpy_dtype(all_.dtype)) for row, one, all_ in specs]


def _coded(seen: Any, spec: TensorSpec) -> np.ndarray:
    """A leaf of what one agent sees, as `_stacked` has it."""
    if isinstance(spec, MultiDiscreteSpec):
        return np.concatenate([np.eye(num)[choice] for num, choice in zip(spec.nvec, seen, strict=True)])
    return np.asarray(seen) - (spec.start if isinstance(spec, DiscreteSpec) else 0)


def _stacked(spec: SpecTree, count: int) -> SpecTree:
    if isinstance(spec, dict):
        return {key: _stacked(child, count) for key, child in spec.items()}
    if isinstance(spec, tuple):
        return tuple(_stacked(child, count) for child in spec)
    shape = (count, *spec.shape)
    if isinstance(spec, BoundedSpec):
        low, high = (np.broadcast_to(bound, shape).copy() for bound in (spec.minimum, spec.maximum))
        return BoundedSpec(shape, spec.dtype, minimum=low, maximum=high)
    if isinstance(spec, MultiBinarySpec):
        return MultiBinarySpec(shape, spec.dtype)
    if isinstance(spec, MultiDiscreteSpec):
        return MultiBinarySpec((count, spec.encoded_size))
    if isinstance(spec, DiscreteSpec):
        return MultiDiscreteSpec(dtype=spec.dtype, nvec=(spec.num,) * count)
    return TensorSpec(shape, spec.dtype)


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    """Self-play against earlier selves, of one policy that acts for all agents."""

    pool_size: NotNegative[int] = 0
    """Snapshots of the policy that are kept as opponents, the newest ones; 0 is none: the policy plays all agents."""
    snapshot_period: AtLeastOne[int] = 20
    """Updates from one snapshot to the next."""
    newest_probability: Fraction[float] = 0.5
    """Probability that the newest policy plays all agents of an episode, and learns from each; else it plays one of
    them, which is drawn, and a snapshot drawn for each plays the others."""

    def __post_init__(self) -> None:
        require_ranges(self, "self_play.")

    def require(self, policy_specs: Mapping[str, PolicySpec]) -> None:
        """Refuses policies that cannot play themselves.

        Raises:
            ConfigError: there is more than one policy, or a team, or one agent.
        """
        if not self.pool_size:
            return
        first = next(iter(policy_specs.values()))
        if len(policy_specs) > 1 or first.team or len(first.agents) < 2:
            kinds = ", ".join(f"{name} for {len(spec.agents)} agents" for name, spec in policy_specs.items())
            raise ConfigError(
                f"self_play.pool_size is {self.pool_size}, which needs one policy that acts for each of several agents "
                f"alone, and there are: {kinds}{', a team' if first.team else ''}. Use agents.sharing=shared and an "
                "algorithm for single agents, or leave self_play out"
            )


@dataclass(frozen=True, kw_only=True)
class AgentsConfig:
    """Which agent acts by which policy, where an environment has many agents."""

    mapping: dict[str, Any] = field(default_factory=dict)
    """From names of agents, or patterns such as `buyer_*`, to names of policies; the first that fits counts. Without,
    `sharing` decides."""
    sharing: Literal["shared", "separate"] = "shared"
    """One policy for all agents that see and do the same things, or a policy for each."""
    policies: dict[str, Any] = field(default_factory=dict)
    """What policies are that do not learn by the run's algorithm: its name, or `{algorithm: dqn, epsilon: 0.1}`; or
    `random`; or a rule, `my_package:function`, from a batch of observations to one of actions."""
    global_state: bool = True
    """Whether central critics see the environment's global state, where it has one; else what all members see."""
    judged: tuple[str, ...] = ()
    """Policies whose agents' returns add up to the return of an episode, which is shown, chooses the best policy, stops
    and tunes. By default all that learn, and not rules or `random`."""
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    """Against earlier selves."""

    @property
    def counted(self) -> dict[str, Any]:
        """What says whose returns an episode's is the sum of, by setting; nothing where all agents count."""
        kinds = {
            name: str(given.get("algorithm") if isinstance(given, Mapping) else given)
            for name, given in self.policies.items()
        }
        rules = {name: kind for name, kind in kinds.items() if kind == "random" or ":" in kind}
        names = {str(policy) for policy in self.mapping.values()}
        judged = {*self.judged} or names - rules.keys()
        if judged == names and not rules:
            return {}
        return {"judged": sorted(judged), "mapping": self.mapping or self.sharing, "policies": rules}

    def mapping_for(self, agents: Mapping[str, AgentSpec]) -> dict[str, str]:
        """From agents or patterns to policies.

        Args:
            agents: of the environment.
        """
        if self.mapping:
            return {pattern: str(policy) for pattern, policy in self.mapping.items()}
        if self.sharing == "separate":
            return _policy_names(agents)
        kinds: list[AgentSpec] = []
        for spec in agents.values():
            if spec not in kinds:
                kinds.append(spec)
        if len(kinds) == 1:
            return {"*": "shared"}
        return {name: f"shared_{kinds.index(spec)}" for name, spec in agents.items()}

    def policy_specs(
        self, agents: Mapping[str, AgentSpec], *, teams: Collection[str] | None, state_spec: SpecTree | None
    ) -> dict[str, PolicySpec]:
        """The specs of all policies.

        Args:
            agents: of the environment.
            teams: policies that learn for a team; `None` is all.
            state_spec: of the environment's global state.

        Raises:
            ConfigError: see `assign_policies`.
        """
        mapping = self.mapping_for(agents)
        teams = set(mapping.values()) if teams is None else teams
        return assign_policies(agents, mapping, teams=teams, state_spec=state_spec if self.global_state else None)

    @staticmethod
    def require_apart(policies: Iterable[str]) -> None:
        """Refuses policies whose folders are one on file systems that ignore case.

        Args:
            policies: names of those that are to be saved.

        Raises:
            ConfigError: two names differ in case alone.
        """
        known: dict[str, str] = {}
        for name in policies:
            if (other := known.setdefault(name.casefold(), name)) != name:
                raise ConfigError(
                    f"the policies {other!r} and {name!r} differ in case alone, and some file systems keep both in one "
                    "folder; give one another name (agents.mapping)"
                )


@refuses(ConfigError)
def require_policies(policy_specs: Mapping[str, PolicySpec], policies: Mapping[str, Policy]) -> Iterator[str]:
    """Refuses policies that do not fit their specs.

    Raises:
        ConfigError: names the policy and what does not fit.
    """
    if set(policy_specs) != set(policies):
        yield f"the agents are mapped to {sorted(policy_specs)}, but there are policies {sorted(policies)}"
    for name, spec in policy_specs.items():
        policy = policies[name]
        for what, given, needed in (
            ("sees", policy.observation_spec, policy.seen_of(spec.observation_spec)),
            ("does", policy.action_spec, spec.action_spec),
        ):
            if given != needed:
                yield (
                    f"the policy {name!r} {what} {given}, but its agents, {', '.join(spec.agents)}, {needed}; make it "
                    "with its policy spec"
                )
