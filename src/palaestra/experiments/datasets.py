"""Data sets for offline training: made from runs, from policies, or from chance. Actions are as executed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.buffers import ReplayBuffer, to_minari, with_actions
from palaestra.core import POLICY, CheckpointError, ConfigError, Replay, RunSeeds
from palaestra.envs import EnvConfig, create_environment
from palaestra.envs.spaces import space_from_spec
from palaestra.experiments.agents import Agents
from palaestra.experiments.build import make_learner
from palaestra.experiments.config import on_cpu
from palaestra.experiments.run_directory import find_run
from palaestra.experiments.updating import algorithms_of
from palaestra.multiagent import MultiAgentCollector, Role, create_worlds, recording_buffer
from palaestra.policies import Policy, RandomPolicy
from palaestra.robots import Robot
from palaestra.rollout import Collector
from palaestra.training import CheckpointStore, part_name

__all__ = ["DataSummary", "collect_agents", "collect_data", "export_data", "export_minari", "summary_of"]


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


def export_data(name: str | Path, directory: str | Path, *, root: str | Path = "runs") -> DataSummary:
    """Saves the replay buffer of a run's newest checkpoint as a data set; of many agents, one for each policy.

    Args:
        name: path or name of the run, or `last`.
        directory: must not exist yet.
        root: where runs are.

    Raises:
        CheckpointError: there is no such run, or its newest checkpoint is damaged or missing.
        ConfigError: the run keeps no replay buffer, or the folder exists.
    """
    _require_new(directory)
    run = find_run(name, root)
    config = on_cpu(run.config)
    learner = make_learner(config)
    algorithms = algorithms_of(learner)
    kept = [policy for policy, algorithm in algorithms.items() if isinstance(algorithm.plan, Replay)]
    if isinstance(learner, Robot):
        raise ConfigError(
            f"{config.algorithm_name} is a robot, whose tasks have data of kinds of their own: none to export"
        )
    if not kept:
        raise ConfigError(
            f"{config.algorithm_name} keeps no replay buffer that could be exported; let its policy act with "
            f"`palaestra data collect {name} {directory} --steps 10000`"
        )
    store = CheckpointStore(run.path / "checkpoints")
    if not store.steps():
        raise CheckpointError(f"{run.path} has no checkpoint yet, so there is no buffer to export")
    _, state = store.load(store.steps()[-1])
    if isinstance(learner, Agents):
        with create_worlds(config.env, seed=config.run.seed) as worlds:
            buffers = learner.collector(worlds).buffers
    else:
        with create_environment(config.env, seed=config.run.seed) as env:
            buffers = {POLICY: Collector.of(env, learner).buffer}
    for policy in kept:
        buffers[policy].load_state_tensors(state[part_name("buffer", policy)])
    return _save({policy: (buffers[policy], algorithms[policy].policy) for policy in kept}, directory)


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
    _require_new(directory)
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
    return _save({POLICY: (buffer, actor)}, directory)


def collect_agents(
    roles: Mapping[str, Role],
    policies: Mapping[str, Policy],
    env: EnvConfig,
    directory: str | Path,
    *,
    steps: int,
    seed: int = 0,
) -> DataSummary:
    """Lets policies act in worlds, as they do while they collect, and saves a data set for each of them.

    Args:
        roles: by policy name.
        policies: by name.
        env: which worlds; what is for training alone is left out.
        directory: must not exist yet; gets a folder for every policy.
        steps: env steps, at least; several worlds are stepped together.
        seed: of the worlds and of the policies' choices.

    Raises:
        ConfigError: the folder exists, or `steps` is less than 1.
    """
    _require_new(directory)
    _require_steps(steps)
    with create_worlds(env.for_evaluation(env.num_envs), seed=seed) as worlds:
        for number, policy in enumerate(policies.values()):
            policy.generator.manual_seed(RunSeeds(seed).integer("acting", number))
        records = {name: recording_buffer(policies[name], role, worlds.batch_size) for name, role in roles.items()}
        collector = MultiAgentCollector(worlds, roles, policies, records=records)
        while collector.env_steps < steps:
            collector.unroll(-(-(steps - collector.env_steps) // worlds.batch_size))
    return _save({name: (records[name], policies[name]) for name in roles}, directory)


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


def _require_new(directory: str | Path) -> None:
    """Refused before anything is collected."""
    if Path(directory).exists():
        raise ConfigError(f"{directory} exists already; give another name or delete it")


def _require_steps(steps: int) -> None:
    if steps < 1:
        raise ConfigError(f"--steps is {steps}; it must be at least 1")


def _save(recorded: Mapping[str, tuple[ReplayBuffer, Policy]], directory: str | Path) -> DataSummary:
    """In the folder itself; or, of many agents, in one for each policy."""
    parts: dict[str, DataSummary] = {}
    for name, (buffer, policy) in recorded.items():
        folder = Path(directory) / ("" if name == POLICY else name)
        made = with_actions(buffer, policy.action_spec, policy.env_action)
        made.save(folder)
        parts[name] = summary_of(folder, made)
    return parts[POLICY] if [*parts] == [POLICY] else _together(directory, parts)
