"""Data sets, made by policies, or by chance: actions are as executed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from palaestra.buffers import ReplayBuffer, to_minari, with_actions
from palaestra.core import POLICY, ConfigError, RunSeeds, refuses
from palaestra.envs import EnvConfig, Environment, create_environment, space_from_spec
from palaestra.multiagent import AgentsConfig, MultiAgentCollector, PolicySpec, create_multi_agent_envs, is_multi_agent
from palaestra.policies import Policy, RandomPolicy
from palaestra.rollout import Collector, origin_of
from palaestra.runs.folders import claimed_folder
from palaestra.training import policy_folder

__all__ = ["DataSummary", "collect_by_chance", "collect_data", "export_minari"]


@dataclass(frozen=True)
class DataSummary:
    """What a saved data set holds."""

    path: str
    """Its folder."""
    steps: int
    """Steps that can be learned from."""
    episodes: int
    """Complete episodes."""
    return_mean: float | None
    """Mean return of these; `None` where there is none."""
    parts: dict[str, DataSummary] = field(default_factory=dict)
    """Of many agents, what each policy's folder holds; steps and episodes are sums then, returns a mean, of these."""
    left_out: int = 0
    """Steps of incomplete episodes, which were not written."""

    def __str__(self) -> str:
        of = " of an agent's episode, as its actions earned it" if self.parts else ""
        mean = "" if self.return_mean is None else f", mean return {self.return_mean:.1f}{of}"
        mean += f", {self.left_out:,} steps of others left out" if self.left_out else ""
        own = f"{self.path}: {self.steps:,} steps, {self.episodes:,} complete episodes{mean}"
        return "\n            ".join([own, *map(str, self.parts.values())])


def summary_of(path: str | Path, buffer: ReplayBuffer) -> DataSummary:
    """What a buffer holds.

    Args:
        path: of its folder.
        buffer: what lies there.
    """
    returns = [float(buffer.take("reward", episode[1:]).sum()) for episode in buffer.episodes()]
    steps = sum(int(buffer.is_start(buffer.in_time_order(lane)[:-1]).sum()) for lane in range(buffer.num_lanes))
    return DataSummary(str(path), steps, len(returns), float(np.mean(returns)) if returns else None)


def collect_data(
    policy: Policy | None,
    env: EnvConfig,
    directory: str | Path,
    *,
    steps: int,
    seed: int = 0,
    deterministic: bool = False,
) -> DataSummary:
    """Lets a policy act, as it does while it collects, and saves its steps as a data set.

    Args:
        policy: who acts; `None` acts at random.
        env: where; what is for training alone is left out, so rewards are those of the task.
        directory: must not exist yet.
        steps: env steps, at least; several environments are stepped together.
        seed: of the environments and of the policy's choices.
        deterministic: whether it takes its most probable or most valuable actions, as in evaluations.

    Raises:
        ConfigError: the folder exists, or `steps` is less than 1.
    """
    require_new(directory, steps=steps)
    _require_every_variant(env)
    plain = replace(env.for_evaluation(env.num_envs), info=env.info, untransformed=env.untransformed)
    with create_environment(plain, seed=seed) as made:
        actor = RandomPolicy(made.observation_spec, made.action_spec) if policy is None else policy
        actor.generator.manual_seed(RunSeeds(seed).integer("acting"))
        buffer = _unbounded(actor, made, env.num_envs)
        collector = Collector(made, actor, buffer)
        collector.deterministic = deterministic
        collector.collect(n_step=steps)
    return save_data({POLICY: (buffer, actor)}, directory, plain)


def collect_agents(
    policy_specs: Mapping[str, PolicySpec],
    policies: Mapping[str, Policy],
    env: EnvConfig,
    directory: str | Path,
    *,
    steps: int,
    seed: int = 0,
    deterministic: bool = False,
) -> DataSummary:
    """Lets policies act in environments, as they do while they collect, and saves a data set for each of them.

    Args:
        env: which environments; what is for training alone is left out.
        directory: must not exist yet; gets a folder for every policy.
        steps: env steps, at least; several environments are stepped together.
        seed: of the environments and of the policies' choices.
        deterministic: whether they take their most probable or most valuable actions.

    Raises:
        ConfigError: the folder exists, or `steps` is less than 1.
    """
    require_new(directory, steps=steps)
    _require_every_variant(env)
    plain = env.for_evaluation(env.num_envs)
    with create_multi_agent_envs(plain, seed=seed) as envs:
        for number, policy in enumerate(policies.values()):
            policy.generator.manual_seed(RunSeeds(seed).integer("acting", number))
        lanes = {name: envs.batch_size * spec.lanes_per_env for name, spec in policy_specs.items()}
        records = {name: _unbounded(policies[name], spec, lanes[name]) for name, spec in policy_specs.items()}
        collector = MultiAgentCollector(envs, policy_specs, policies, records=records)
        collector.deterministic = deterministic
        while collector.env_steps < steps:
            collector.unroll(-(-(steps - collector.env_steps) // envs.batch_size))
    return save_data({name: (records[name], policies[name]) for name in policy_specs}, directory, plain)


def _unbounded(policy: Policy, specs: Environment | PolicySpec, num_lanes: int) -> ReplayBuffer:
    """A buffer for all that a policy experiences."""
    kept = {"observation_spec": specs.observation_spec, "reward_spec": specs.reward_spec}
    kept = specs.row_specs if isinstance(specs, Environment) else kept
    kept = kept | {"action_spec": policy.raw_action_spec, "executed_spec": policy.action_spec}
    return ReplayBuffer(None, num_lanes, state_spec=policy.stored_state_spec or None, **kept)


def collect_by_chance(
    env: EnvConfig, agents: AgentsConfig, directory: str | Path, *, steps: int, seed: int = 0
) -> DataSummary:
    """Lets chance act for one agent or for many, and saves what it does.

    Args:
        env: where.
        agents: which policies act for which of many agents: each has a folder of its own.
        directory: must not exist yet.
        steps: env steps, at least.
        seed: of the environments and of the choices.

    Raises:
        ConfigError: the folder exists, `steps` is less than 1, or agents are named that are not there.
    """
    if not is_multi_agent(env.name):
        if agents != AgentsConfig():
            raise ConfigError(f"--agents is for environments with many agents, and {env.name} has one")
        return collect_data(None, env, directory, steps=steps, seed=seed)
    if agents.policies:
        raise ConfigError("chance acts for everybody; leave out --agents.policies, or collect with a run that has them")
    with create_multi_agent_envs(replace(env, num_envs=1)) as envs:
        policy_specs = agents.policy_specs(envs.agents, teams=(), state_spec=None)
    agents.require_apart(policy_specs)
    by_chance = {name: spec.random_policy() for name, spec in policy_specs.items()}
    return collect_agents(policy_specs, by_chance, env, directory, steps=steps, seed=seed)


def export_minari(directory: str | Path, dataset_id: str) -> DataSummary:
    """Writes the complete episodes of a data set as a Minari dataset on this machine.

    Args:
        directory: of the data set.
        dataset_id: such as `"pendulum/random-v0"`.

    Raises:
        CheckpointError: the folder holds no data set, or it is damaged.
        ConfigError: Minari is not installed, refuses the id, or would change the data.
    """
    if not re.search(r"-v\d+$", dataset_id):
        raise ConfigError(f"Minari's ids end with a version: {dataset_id}-v0, say, and not {dataset_id!r}")
    buffer = ReplayBuffer.load(directory)
    observations, actions = (space_from_spec(buffer.options[name]) for name in ("observation_spec", "action_spec"))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="minari")  # advice for those who publish: author, permalink, ...
            made = to_minari(buffer, dataset_id, observation_space=observations, action_space=actions)
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(f"Minari cannot write {dataset_id!r}: {error}") from error
    held, steps = summary_of(f"minari:{dataset_id}", buffer), int(made.total_steps)
    return replace(held, steps=steps, left_out=held.steps - steps)


def _require_every_variant(env: EnvConfig) -> None:
    """Refuses data that would be called that of all variants."""
    if env.num_envs < len(env.variants):
        raise ConfigError(
            f"env.num_envs is {env.num_envs}, and env.variants has {len(env.variants)} entries; give one for each"
        )


@refuses(ConfigError)
def require_new(directory: str | Path, *, steps: int = 1) -> Iterator[str]:
    """Refuses a folder that exists, and a data set of no steps.

    Args:
        directory: where data is to go.
        steps: how much of it.
    """
    if Path(directory).exists():
        yield f"{directory} exists already; give another name or delete it"
    if steps < 1:
        yield f"--steps is {steps}; it must be at least 1"


def agents_folder(directory: str | Path, policy: str) -> Path:
    """Where the data set of a policy of many agents lies, or is to go: in the folder of its name.

    Args:
        directory: of the data of all policies.
        policy: the name of one.

    Returns:
        The folder of all for a policy called `policy` whose data older versions have put there.
    """
    own, older = Path(directory) / policy, policy_folder(Path(directory), policy)
    return older if not own.exists() and (older / "buffer.json").is_file() else own


def save_data(kept: Mapping[str, tuple[ReplayBuffer, Policy]], directory: str | Path, env: EnvConfig) -> DataSummary:
    """Saves data sets: one in the folder itself; or, of many agents, one for each policy in its own.

    Args:
        kept: buffers and who acted, by policy.
        directory: where; beside it, with a warning, if it has come to exist meanwhile.
        env: where they acted; the folders say so.
    """
    parts: dict[str, DataSummary] = {}
    many = is_multi_agent(env.name)
    with claimed_folder(Path(directory), "data") as directory:
        for name, (buffer, policy) in kept.items():
            folder = agents_folder(directory, name) if many else policy_folder(directory, name)
            made = with_actions(buffer, policy.action_spec, policy.env_action, executed_spec=policy.action_spec)
            made.save(folder, origin=origin_of(env))
            parts[name] = summary_of(folder, made)
    if [*parts] == [POLICY] and not many:
        return parts[POLICY]
    steps, episodes = (sum(getattr(part, name) for part in parts.values()) for name in ("steps", "episodes"))
    earned = sum(part.episodes * part.return_mean for part in parts.values() if part.return_mean is not None)
    return DataSummary(str(directory), steps, episodes, earned / episodes if episodes else None, parts)
