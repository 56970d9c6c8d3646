"""Runs with many agents: the parts of a run that one agent's algorithm alone cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from palaestra.algorithms import ALGORITHMS, Algorithm
from palaestra.core import POLICY, CheckpointError, ConfigError, Offline, PalaestraError, RunSeeds, import_object
from palaestra.experiments.config import ExperimentConfig, algorithm_class, config_from_mapping
from palaestra.multiagent import MultiAgentCollector, Role, Worlds, create_worlds, evaluate_agents, is_world
from palaestra.policies import Policy, RandomPolicy, RulePolicy, load_policy
from palaestra.robots import Robot
from palaestra.rollout import Evaluation
from palaestra.training import SimplePolicyManager, part_name

__all__ = ["Agents", "Learner", "agents_of_run", "evaluate_team", "make_agents", "many_agents"]

Make = Callable[[str, Any, Role, RunSeeds], Algorithm[Any]]


@dataclass(frozen=True)
class Agents:
    """Everybody who acts in a run with many agents."""

    roles: Mapping[str, Role]
    """By policy name."""
    actors: Mapping[str, Algorithm[Any] | Policy]
    """What learns, and rules that do not."""

    @property
    def algorithms(self) -> dict[str, Algorithm[Any]]:
        """What learns, by policy name."""
        return {name: one for name, one in self.actors.items() if isinstance(one, Algorithm)}

    @property
    def policies(self) -> dict[str, Policy]:
        """What acts, by policy name."""
        return {name: one.policy if isinstance(one, Algorithm) else one for name, one in self.actors.items()}

    @property
    def offline(self) -> bool:
        """Whether everything that learns does so from loaded data alone."""
        return all(isinstance(one.plan, Offline) for one in self.algorithms.values())

    @property
    def manager(self) -> SimplePolicyManager:
        """What the trainer learns with."""
        return SimplePolicyManager(self.algorithms)

    def collector(self, worlds: Worlds, *, fragments: bool = False) -> MultiAgentCollector:
        """What the trainer collects with.

        Args:
            worlds: where to act.
            fragments: whether it is a worker that collects for somebody else.
        """
        return MultiAgentCollector(worlds, self.roles, self.actors, fragments=fragments)


Learner: TypeAlias = Algorithm[Any] | Robot | Agents
"""What learns in a run."""


def many_agents(config: ExperimentConfig) -> bool:
    """Whether a run has many agents.

    Args:
        config: of the run.

    Raises:
        ConfigError: it has not, and says who acts by which policy all the same.
    """
    if is_world(config.env.name):
        return True
    if config.agents.mapping or config.agents.policies:
        raise ConfigError(
            f"agents.mapping and agents.policies are for environments with many agents, and {config.env.name} has one"
        )
    return False


def make_agents(config: ExperimentConfig, make: Make) -> Agents:
    """All policies of a run with many agents.

    Args:
        config: of the run.
        make: makes an algorithm of a name, its settings, a role and seeds.

    Raises:
        ConfigError: the mapping does not fit the agents, or an algorithm does not fit its role.
    """
    with create_worlds(dataclasses.replace(config.env, num_envs=1)) as worlds:
        agents, state_spec = worlds.agents, worlds.state_spec
    names = list(dict.fromkeys(config.agents.mapping_for(agents).values()))
    if unknown := sorted(set(config.agents.policies) - set(names)):
        raise ConfigError(f"agents.policies names {', '.join(unknown)}, but the policies are {', '.join(names)}")
    chosen = {name: _chosen(config, name) for name in names}
    joint = [name for name, (kind, _) in chosen.items() if isinstance(kind, str) and algorithm_class(kind).team]
    roles = config.agents.roles(agents, joint=joint, state_spec=state_spec)
    actors: dict[str, Algorithm[Any] | Policy] = {}
    seeds = RunSeeds(config.run.seed)
    for number, name in enumerate(names):
        kind, settings = chosen[name]
        own = RunSeeds(seeds.integer("initialisation", number)) if number else seeds
        if isinstance(kind, str):
            actors[name] = _made(make, name, kind, settings, roles[name], own)
        else:
            rule: Policy = kind(roles[name].observation_spec, roles[name].action_spec)
            rule.seed(own.integer("acting"))
            actors[name] = rule
    found = Agents(roles, actors)
    if not found.algorithms:
        raise ConfigError(f"none of the policies {', '.join(names)} learns; leave one out of agents.policies")
    return found


def _made(make: Make, name: str, kind: str, settings: Any, role: Role, seeds: RunSeeds) -> Algorithm[Any]:
    try:
        return make(kind, settings, role, seeds)
    except ConfigError as error:
        fits = ", ".join(_suitable(role)) or "none"
        raise ConfigError(
            f"{kind} does not fit the policy {name!r} of {', '.join(role.agents)}: {error}. Algorithms that fit: {fits}"
        ) from error


def _suitable(role: Role) -> list[str]:
    found = []
    for name, kind in sorted(ALGORITHMS.items()):
        made: Any = kind
        try:
            if kind.team == role.joint:
                made(role.observation_spec, role.action_spec, kind.config_class(), RunSeeds(0))
                found.append(name)
        except PalaestraError:
            continue
    return found


def _chosen(config: ExperimentConfig, name: str) -> tuple[Any, Any]:
    """An algorithm's name and settings; or what makes a rule from specs, and nothing."""
    given = config.agents.policies.get(name)
    if given is None:
        return config.algorithm_name, config.algorithm
    settings = dict(given) if isinstance(given, Mapping) else {"algorithm": given}
    kind = str(settings.pop("algorithm", config.algorithm_name))
    rule = RandomPolicy if kind == "random" else _rule(kind)
    if rule is not None:
        if settings:
            raise ConfigError(
                f"agents.policies.{name} is the rule {kind}, which has no settings: {', '.join(settings)}"
            )
        return rule, None
    base = config.algorithm if kind == config.algorithm_name else None
    try:
        return kind, config_from_mapping(algorithm_class(kind).config_class, settings, base=base)
    except ConfigError as error:
        raise ConfigError(f"agents.policies.{name}: {error}") from error


def _rule(name: str) -> Callable[[Any, Any], Policy] | None:
    """What makes the policy of a user's function; `None` where the name is an algorithm's."""
    found = import_object(name) if ":" in name else None
    if found is None or (isinstance(found, type) and issubclass(found, Algorithm)):
        return None
    return lambda observation_spec, action_spec: RulePolicy(found, observation_spec, action_spec)


def evaluate_team(
    config: ExperimentConfig, acting: Mapping[str, Policy], rules: Agents, *, episodes: int, seed: int, **options: Any
) -> Evaluation:
    """Evaluates policies in new worlds, whose seeds are never those of training.

    Args:
        config: of the run.
        acting: policies by name; rules that are missing come from `rules`.
        rules: of the run.
        episodes: how many.
        seed: of the evaluation.
        options: of `evaluate_agents`.
    """
    count = min(config.run.eval_num_envs, episodes)
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(count)]
    with create_worlds(config.env.for_evaluation(count), lane_seeds=lanes) as worlds:
        policies = {**rules.policies, **acting}
        return evaluate_agents(policies, worlds, rules.roles, episodes=episodes, seeds=lanes, **options)


def agents_of_run(path: Path, agents: Agents, state: Mapping[str, Any] | None) -> dict[str, Policy]:
    """The policies that a run has kept, and its rules.

    Args:
        path: of the run.
        agents: made by its configuration.
        state: of a checkpoint; `None` for the policies of the best evaluation.

    Raises:
        CheckpointError: a policy is missing.
    """
    policies = agents.policies
    for name, algorithm in agents.algorithms.items():
        if state is None:
            policies[name] = load_policy(path / "policy" / ("" if name == POLICY else name))
        elif (saved := state.get(part_name("algorithm", name))) is not None:
            algorithm.load_state_tensors(saved)
        else:
            raise CheckpointError(f"the checkpoint in {path} has no policy {name!r}")
    return policies
