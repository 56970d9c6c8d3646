"""Data sets for offline training: what policies do, or chance. Actions are as executed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.buffers import ReplayBuffer, to_minari, with_actions
from palaestra.core import POLICY, ConfigError, RunSeeds
from palaestra.envs import EnvConfig, create_environment
from palaestra.envs.spaces import space_from_spec
from palaestra.multiagent import (
    AgentsConfig,
    MultiAgentCollector,
    PolicySpec,
    create_multi_agent_envs,
    is_multi_agent,
    recording_buffer,
)
from palaestra.policies import Policy, RandomPolicy
from palaestra.rollout import Collector

__all__ = ["DataSummary", "collect_agents", "collect_by_chance", "collect_data", "export_minari", "summary_of"]


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

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        mean = "" if self.return_mean is None else f", mean return {self.return_mean:.1f}"
        own = f"{self.path}: {self.steps:,} steps, {self.episodes:,} complete episodes{mean}"
        return "\n            ".join([own, *map(str, self.parts.values())])


def summary_of(path: str | Path, buffer: ReplayBuffer) -> DataSummary:
    """What a buffer holds.

    Args:
        path: of its folder.
        buffer: what lies there.
    """
    rows = [buffer.in_time_order(lane)[:-1] for lane in range(buffer.num_lanes)]
    returns = [float(buffer.take("reward", episode[1:]).sum()) for episode in buffer.episodes()]
    steps = sum(int(buffer.is_start(lane).sum()) for lane in rows)
    return DataSummary(str(path), steps, len(returns), float(np.mean(returns)) if returns else None)


def _together(directory: str | Path, parts: dict[str, DataSummary]) -> DataSummary:
    steps, episodes = (sum(getattr(part, name) for part in parts.values()) for name in ("steps", "episodes"))
    earned = sum(part.episodes * part.return_mean for part in parts.values() if part.return_mean is not None)
    return DataSummary(str(directory), steps, episodes, earned / episodes if episodes else None, parts)


def collect_data(
    policy: Policy | None, env: EnvConfig, directory: str | Path, *, steps: int, seed: int = 0
) -> DataSummary:
    """Lets a policy act, as it does while it collects, and saves its steps as a data set.

    Args:
        policy: who acts; `None` acts at random.
        env: where; what is for training alone is left out, so rewards are those of the task.
        directory: must not exist yet.
        steps: env steps, at least; several environments are stepped together.
        seed: of the environments and of the policy's choices.

    Raises:
        ConfigError: the folder exists, or `steps` is less than 1.
    """
    require_new(directory)
    _require_steps(steps)
    with create_environment(env.for_evaluation(env.num_envs), seed=seed) as made:
        actor = RandomPolicy(made.observation_spec, made.action_spec) if policy is None else policy
        actor.generator.manual_seed(RunSeeds(seed).integer("acting"))
        buffer = ReplayBuffer(
            None,
            env.num_envs,
            observation_spec=made.observation_spec,
            action_spec=actor.raw_action_spec,
            reward_spec=made.reward_spec,
            state_spec=actor.state_spec or None,
        )
        Collector(made, actor, buffer).collect(n_step=steps)
    return save_data({POLICY: (buffer, actor)}, directory)


def collect_agents(
    policy_specs: Mapping[str, PolicySpec],
    policies: Mapping[str, Policy],
    env: EnvConfig,
    directory: str | Path,
    *,
    steps: int,
    seed: int = 0,
) -> DataSummary:
    """Lets policies act in environments, as they do while they collect, and saves a data set for each of them.

    Args:
        policy_specs: by policy name.
        policies: by name.
        env: which environments; what is for training alone is left out.
        directory: must not exist yet; gets a folder for every policy.
        steps: env steps, at least; several environments are stepped together.
        seed: of the environments and of the policies' choices.

    Raises:
        ConfigError: the folder exists, or `steps` is less than 1.
    """
    require_new(directory)
    _require_steps(steps)
    with create_multi_agent_envs(env.for_evaluation(env.num_envs), seed=seed) as envs:
        for number, policy in enumerate(policies.values()):
            policy.generator.manual_seed(RunSeeds(seed).integer("acting", number))
        records = {name: recording_buffer(policies[name], spec, envs.batch_size) for name, spec in policy_specs.items()}
        collector = MultiAgentCollector(envs, policy_specs, policies, records=records)
        while collector.env_steps < steps:
            collector.unroll(-(-(steps - collector.env_steps) // envs.batch_size))
    return save_data({name: (records[name], policies[name]) for name in policy_specs}, directory)


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
    by_chance = {name: RandomPolicy(spec.observation_spec, spec.action_spec) for name, spec in policy_specs.items()}
    return collect_agents(policy_specs, by_chance, env, directory, steps=steps, seed=seed)


def export_minari(directory: str | Path, dataset_id: str) -> DataSummary:
    """Writes the complete episodes of a data set as a Minari dataset on this machine.

    Args:
        directory: of the data set.
        dataset_id: such as `"pendulum/random-v0"`.

    Raises:
        CheckpointError: the folder holds no data set, or it is damaged.
        ConfigError: Minari is not installed, or refuses the id.
    """
    buffer = ReplayBuffer.load(directory)
    observations, actions = (space_from_spec(buffer.options[name]) for name in ("observation_spec", "action_spec"))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="minari")  # advice for those who publish: author, permalink, ...
            to_minari(buffer, dataset_id, observation_space=observations, action_space=actions)
    except (ValueError, OSError) as error:
        raise ConfigError(f"Minari cannot write {dataset_id!r}: {error}") from error
    return summary_of(f"minari:{dataset_id}", buffer)


def require_new(directory: str | Path) -> None:
    """Refuses a folder that exists.

    Args:
        directory: where data is to go.
    """
    if Path(directory).exists():
        raise ConfigError(f"{directory} exists already; give another name or delete it")


def _require_steps(steps: int) -> None:
    if steps < 1:
        raise ConfigError(f"--steps is {steps}; it must be at least 1")


def save_data(recorded: Mapping[str, tuple[ReplayBuffer, Policy]], directory: str | Path) -> DataSummary:
    """Saves data sets: one in the folder itself; or, of many agents, one for each policy in its own.

    Args:
        recorded: buffers and who acted, by policy.
        directory: the folder.
    """
    parts: dict[str, DataSummary] = {}
    for name, (buffer, policy) in recorded.items():
        folder = Path(directory) / ("" if name == POLICY else name)
        made = with_actions(buffer, policy.action_spec, policy.env_action)
        made.save(folder)
        parts[name] = summary_of(folder, made)
    return parts[POLICY] if [*parts] == [POLICY] else _together(directory, parts)
