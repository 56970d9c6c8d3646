"""Evaluation of runs: their best policy, their last, or that of any checkpoint; and of chance, to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments.agents import Agents, agents_of_run, evaluate_team, many_agents
from palaestra.experiments.build import evaluation_environment, make_algorithm, make_learner
from palaestra.experiments.config import ExperimentConfig, algorithm_class, on_cpu
from palaestra.experiments.curves import mean_interval
from palaestra.experiments.robots import evaluate_robot_run, robot_policies
from palaestra.experiments.run_directory import RunDirectory, find_run, find_runs
from palaestra.policies import Policy, RandomPolicy, load_policy
from palaestra.robots import Robot
from palaestra.rollout import Evaluation, evaluate
from palaestra.training import CheckpointStore, part_name

__all__ = [
    "RunsEvaluation",
    "evaluate_run",
    "evaluate_runs",
    "policies_of_run",
    "policy_of_run",
    "random_baseline",
    "robot_of_run",
]


@dataclass(frozen=True)
class RunsEvaluation:
    """Evaluations of several runs, and what can be said about runs like them."""

    runs: dict[str, Evaluation]
    """Of each run, by its path."""
    return_mean: float
    """Mean over runs of their mean returns."""
    return_ci95: tuple[float, float]
    """95% interval of that mean over runs, by bootstrap; over episodes where there is one run."""
    baseline: Evaluation | None = None
    """Of a policy that acts at random, where it was asked for."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def evaluate_run(
    name: str | Path,
    *,
    root: str | Path = "runs",
    episodes: int = 20,
    seed: int | None = None,
    deterministic: bool = True,
    which: str | int = "best",
) -> Evaluation:
    """Evaluates the policy of a run.

    Args:
        name: path or name of the run, or `last`.
        root: where runs are.
        episodes: how many.
        seed: of the environments; by default the run's own evaluation seeds.
        deterministic: whether to take the most probable or most valuable action.
        which: `best` of its evaluations, `last`, or the env steps of a checkpoint.

    Raises:
        CheckpointError: there is no such run, or it has no such policy.
        ConfigError: `episodes` is less than 1.
    """
    if not isinstance(episodes, int) or episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be a whole number of at least 1")
    directory = find_run(name, root)
    config = directory.config
    seed = config.run.seed if seed is None else seed
    if issubclass(algorithm_class(config.algorithm_name), Robot):
        robot, policies = robot_of_run(directory, which)
        return evaluate_robot_run(config, robot, policies, episodes=episodes, seed=seed)
    if many_agents(config):
        agents, policies = policies_of_run(directory, which)
        return evaluate_team(config, policies, agents, episodes=episodes, seed=seed, deterministic=deterministic)
    return _evaluate(policy_of_run(directory, which), config, episodes, seed, deterministic)


def evaluate_runs(
    names: Sequence[str | Path], *, root: str | Path = "runs", baseline: bool = False, **options: Any
) -> RunsEvaluation:
    """Evaluates several runs, or all of a group.

    Args:
        names: paths or names of runs and groups.
        root: where runs are.
        baseline: whether to evaluate random actions in the first run's environment as well.
        options: `episodes`, `seed`, `deterministic`, `which`: see `evaluate_run`.

    Raises:
        CheckpointError: there is no such run, or it has no such policy.
    """
    directories = find_runs(names, root)
    found = {str(directory.path): evaluate_run(directory.path, **options) for directory in directories}
    means = [evaluation.return_mean for evaluation in found.values()]
    interval = mean_interval(means) if len(means) > 1 else next(iter(found.values())).return_ci95
    chance = None
    if baseline:
        config = directories[0].config
        chance = random_baseline(config, episodes=options.get("episodes", 20), seed=options.get("seed"))
    return RunsEvaluation(found, math.fsum(means) / len(means), interval, chance)


def random_baseline(config: ExperimentConfig, *, episodes: int = 20, seed: int | None = None) -> Evaluation:
    """Evaluates a policy that acts at random in the environment of a run.

    Args:
        config: of the run.
        episodes: how many.
        seed: of the environments; by default the run's own evaluation seeds.
    """
    seed = config.run.seed if seed is None else seed
    agents = make_learner(on_cpu(config)) if many_agents(config) else None
    if isinstance(agents, Agents):
        chance = {name: RandomPolicy(role.observation_spec, role.action_spec) for name, role in agents.roles.items()}
        return evaluate_team(config, chance, agents, episodes=episodes, seed=seed, deterministic=False)
    return _evaluate(None, config, episodes, seed, False)


def policies_of_run(directory: RunDirectory, which: str | int = "best") -> tuple[Agents, dict[str, Policy]]:
    """The policies by name of a run with many agents, rules included.

    Args:
        directory: of the run.
        which: as for `policy_of_run`.

    Returns:
        Everybody who acts, and the policies.

    Raises:
        CheckpointError: there are none such.
        ConfigError: `which` is none of these.
    """
    agents = make_learner(on_cpu(directory.config))
    assert isinstance(agents, Agents)
    if which == "best":
        _require_evaluated(directory)
    state = None if which == "best" else _checkpoint(directory, which)
    return agents, agents_of_run(directory.path, agents, state)


def policy_of_run(directory: RunDirectory, which: str | int = "best") -> Policy:
    """A policy that a run has kept.

    Args:
        directory: of the run.
        which: `best` of its evaluations, `last`, or the env steps of a checkpoint.

    Raises:
        CheckpointError: it has none such; the message names the checkpoints there are.
        ConfigError: `which` is none of these, or the run has many agents or a robot.
    """
    if issubclass(algorithm_class(directory.config.algorithm_name), Robot):
        raise ConfigError(f"{directory.path} has a robot, with policies by task; use `robot_of_run`")
    if many_agents(directory.config):
        raise ConfigError(f"{directory.path} has many agents, with policies of their own; use `policies_of_run`")
    if which == "best":
        _require_evaluated(directory)
        return load_policy(directory.path / "policy")
    algorithm = make_algorithm(on_cpu(directory.config))
    algorithm.load_state_tensors(_checkpoint(directory, which)["algorithm"])
    return algorithm.policy


def robot_of_run(directory: RunDirectory, which: str | int = "best") -> tuple[Robot, dict[str, Policy]]:
    """The robot of a run, and policies that the run has kept.

    Args:
        directory: of the run.
        which: see `policy_of_run`.

    Raises:
        CheckpointError: it has none such.
    """
    robot = make_algorithm(on_cpu(directory.config))
    if which == "best":
        _require_evaluated(directory)
        return robot, robot_policies(robot, directory.path / "policy")
    state = _checkpoint(directory, which)
    robot.load_state({name: state[part_name("algorithm", name)] for name in robot.tasks})
    return robot, {name: algorithm.policy for name, algorithm in robot.algorithms.items()}


def _require_evaluated(directory: RunDirectory) -> None:
    kept = [*directory.path.glob("evals/*.json"), *directory.path.glob("policy/**/policy.json")]
    if not kept:
        raise CheckpointError(
            f"{directory.path} has not been evaluated yet, so it has no best policy; "
            "`--which last` takes that of its newest checkpoint"
        )


def _checkpoint(directory: RunDirectory, which: str | int) -> dict[str, Any]:
    """The state in a checkpoint."""
    store = CheckpointStore(directory.path / "checkpoints")
    steps = {int(path.name.removeprefix("step_")): path for path in store.steps()}
    if which != "last" and not str(which).isdigit():
        raise ConfigError(f"--which is {which!r}; give best, last, or the env steps of a checkpoint")
    if not steps or (which != "last" and int(which) not in steps):
        known = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"{directory.path} has no checkpoint {which}; there are: {known}")
    return store.load(steps[max(steps) if which == "last" else int(which)])[1]


def _evaluate(
    policy: Policy | None, config: ExperimentConfig, episodes: int, seed: int, deterministic: bool
) -> Evaluation:
    env, lanes = evaluation_environment(config, seed, min(config.run.eval_num_envs, episodes))
    with env:
        actor = policy or RandomPolicy(env.observation_spec, env.action_spec)
        return evaluate(actor, env, episodes=episodes, deterministic=deterministic, seeds=lanes)
