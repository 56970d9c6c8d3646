"""Data sets: read for runs that learn from them; made by policies, or by chance (actions are as executed then)."""

from __future__ import annotations

import json
import logging
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.algorithms import AdversarialReward, Algorithm
from palaestra.buffers import MixtureSource, ReplayBuffer, from_d4rl, from_minari, sampler_of, to_minari, with_actions
from palaestra.config.config import ExperimentConfig
from palaestra.core import POLICY, Batch, RunSeeds, TensorSpec, spec_layout, spec_leaves, tree_leaves, tree_paths
from palaestra.core.errors import ConfigError, MissingExtraError, ShapeError, is_news, refuses
from palaestra.envs import EnvConfig, Environment, create_environment, space_from_spec
from palaestra.multiagent import AgentsConfig, MultiAgentCollector, PolicySpec, create_multi_agent_envs, is_multi_agent
from palaestra.policies import Policy, RandomPolicy, raw_actions
from palaestra.rollout import Collector, origin_of
from palaestra.training import policy_folder

__all__ = ["DataSummary", "collect_by_chance", "collect_data", "export_minari"]

LIBRARIES = {"minari:": from_minari, "d4rl:": from_d4rl}
"""What reads data that is no folder of ours, by how its name begins."""
_ROWS_AT_ONCE = 10_000
_log = logging.getLogger(__name__)


def load_for(
    algorithm: Any, config: ExperimentConfig, data: str | None, name: str, reward_shape: tuple[int, ...] = ()
) -> ReplayBuffer | None:
    """Loaded data for an algorithm, with actions as its policy samples them and the sampler that its plan asks for.

    Args:
        algorithm: that learns from it.
        data: as `DataConfig.data`.
        name: of the algorithm, for messages.
        reward_shape: of one reward.

    Returns:
        `None` where there is no data and none is needed.

    Raises:
        ConfigError: the algorithm needs data or cannot use any, or it is of another environment.
        CheckpointError: it is damaged.
    """
    plan, learned = algorithm.plan, getattr(algorithm, "bonus", None)
    if data is None:
        if plan.data == "offline" or isinstance(learned, AdversarialReward):
            raise ConfigError(
                f"{name} learns from data that it does not collect; name some by offline.data: a folder, "
                f"minari:DATASET or d4rl:FILE. `palaestra data collect random {config.env.name} FOLDER --steps 10000"
                f"{_typed(config.env)}` makes such a folder, as does `palaestra data export RUN FOLDER`"
            )
        return None
    if isinstance(learned, AdversarialReward):
        if config.offline.fraction is not None or config.offline.updates:
            raise ConfigError("imitation only looks at the data; leave out offline.fraction and offline.updates")
    else:
        _require_use(config, algorithm, name)
    buffer = read_for(algorithm.policy, data, config.env.name, reward_shape)
    mixes = plan.data == "replay" and not isinstance(learned, AdversarialReward)
    _compare(buffer.origin, config.env, data, mixes=mixes)
    if isinstance(learned, AdversarialReward):
        return learned.imitate(_transitions(buffer), buffer)
    try:
        buffer.starts(plan.window)
    except (ShapeError, ConfigError) as error:
        raise ConfigError(f"offline.data {data!r} is too short for {name}: {error}") from error
    if plan.data == "replay":
        buffer.sampler = sampler_of(plan)
    return buffer


def _typed(env: EnvConfig) -> str:
    """What is typed behind an environment's name for data of the same task."""
    text = json.JSONEncoder(default=str).encode
    words = {"gym-wrappers": env.gym_wrappers, "wrappers": env.wrappers, "variants": [*map(text, env.variants)]}
    one = {"max-episode-steps": env.max_episode_steps, "kwargs": text(env.kwargs) if env.kwargs else None}
    words |= {name: [value] for name, value in one.items() if value is not None}
    return "".join(f" --env.{name} {shlex.join(map(str, words[name]))}" for name in words if words[name])


def _compare(origin: Mapping[str, str], env: EnvConfig, data: str, *, mixes: bool) -> None:
    """Refuses data of another environment, and says how else they differ; what is not known is not compared."""
    own = origin_of(env)
    differ = [key for key in own if origin.get(key, own[key]) != own[key] and (mixes or key != "rewards")]
    said = "; ".join(f"the data {data} has the {key} {origin[key]!r}, this run {own[key]!r}" for key in differ)
    if "environment" in differ and "task" in origin:
        raise ConfigError(f"{said}; if both names mean one, ReplayBuffer.load(FOLDER).save(OTHER) leaves it out")
    if "rewards" in differ:
        said += ". They are mixed: leave out env.train_wrappers and env.train_kwargs, or give data that a run exported"
    if differ and is_news(said):
        _log.warning("%s", said)


def _transitions(buffer: ReplayBuffer) -> Batch:
    """All that a buffer holds: `observation`, `action` and `next_observation`, leaves [N, ...]."""
    lanes = [buffer.in_time_order(lane)[:-1] for lane in range(buffer.num_lanes)]
    at = np.concatenate([rows[buffer.is_start(rows)] for rows in lanes])
    fields = {name: buffer.take(name, at) for name in ("observation", "action")}
    return Batch.of(fields | {"next_observation": buffer.take("observation", buffer.following(at, 1))})


def read_for(
    policy: Policy, data: str, name: str, reward_shape: tuple[int, ...] = (), *, learns: bool = True
) -> ReplayBuffer:
    """Data of the environment that a policy is for, with actions as it samples them.

    Args:
        policy: whose units actions get.
        data: as `DataConfig.data`.
        name: of the environment, for messages.
        reward_shape: of one reward.
        learns: whether it is for learning, and not for a policy that may see less than was observed.

    Raises:
        ConfigError: there is none, it is of another environment, or a value cannot be learned from.
        CheckpointError: it is damaged.
    """
    buffer = _read(data, policy)
    if misfit := _misfit(buffer, policy, reward_shape, learns) or _unlearnable(buffer):
        raise ConfigError(f"offline.data {data!r} does not fit {name}: {misfit}")
    return _as_sampled(buffer, policy)


def mixed(config: ExperimentConfig, buffer: Any, data: ReplayBuffer) -> MixtureSource:
    """What a hybrid run learns from.

    Args:
        config: of the run, with the share that comes from the data.
        buffer: what the run collects.
        data: from `load_for`.
    """
    return MixtureSource([(buffer, 1 - config.offline.share), (data, config.offline.share)])


@refuses(ConfigError)
def _require_use(config: ExperimentConfig, algorithm: Algorithm[Any, Any], name: str) -> Iterator[str]:
    """Refuses data where the algorithm's plan has no use for it."""
    plan = algorithm.plan
    if plan.data == "on-policy":
        yield (
            f"{name} learns only from its own newest steps and cannot use offline.data; leave it out, or choose an "
            "algorithm that `palaestra list algorithms` shows with replay or offline data"
        )
    if plan.data == "offline" and (config.offline.fraction is not None or config.offline.updates):
        yield (
            f"offline.fraction is {config.offline.fraction} and offline.updates {config.offline.updates}, but {name} "
            "learns from offline.data alone; leave out both, or give a fraction to go on with steps of one agent"
        )
    if algorithm.stored_fields or (algorithm.policy.stored_state_spec and plan.data == "replay"):
        what = ", ".join(algorithm.stored_fields) or "the memory of its policy"
        yield f"{name} stores {what} with every step, which loaded data does not have; leave the data out"
    if plan.data == "replay":
        if plan.num_epochs is not None:
            yield (
                f"algorithm.num_epochs is {plan.num_epochs}, which goes through the run's own buffer, and loaded data "
                "is mixed into what is drawn; leave out one of the two"
            )
        own = int(np.rint((1 - config.offline.share) * plan.mini_batch_size))
        if not 0 < own < plan.mini_batch_size:
            yield (
                f"offline.fraction is {config.offline.share}, so that of a minibatch of {plan.mini_batch_size} rows "
                f"{plan.mini_batch_size - own} would be loaded ones; give at least one row to each side"
            )


def _read(data: str, policy: Policy) -> ReplayBuffer:
    if data.startswith((*LIBRARIES,)):
        return _read_foreign(data, policy)
    path = Path(data)
    if not path.is_dir():
        raise ConfigError(f"offline.data is {data!r}, but there is no such folder (looked in {Path.cwd()})")
    if not (path / "buffer.json").is_file():
        raise ConfigError(
            f"offline.data is {data!r}, but this folder holds no saved buffer: it has no buffer.json; `palaestra data` "
            "and `ReplayBuffer.save` write such folders"
        )
    return ReplayBuffer.load(path)


def _read_foreign(data: str, policy: Policy) -> ReplayBuffer:
    prefix = data.partition(":")[0] + ":"
    name = data.removeprefix(prefix)
    try:
        return LIBRARIES[prefix](name, observation_spec=policy.whole_spec, action_spec=policy.action_spec)
    except MissingExtraError:
        raise
    except ShapeError as error:
        raise ConfigError(f"offline.data {data!r} does not fit the environment: {error}") from error
    except (OSError, ValueError) as error:
        hint = "give the path of an HDF5 file"
        if prefix == "minari:":
            hint = f"`minari list local` shows what there is, `minari download {name}` fetches it"
        raise ConfigError(f"offline.data is {data!r}, which cannot be loaded ({error}); {hint}") from error


def _misfit(buffer: ReplayBuffer, policy: Policy, reward_shape: tuple[int, ...], learns: bool) -> str:
    """What data of a buffer cannot be given to a policy for; nothing where it can."""
    kept = buffer.options["observation_spec"]
    given, needed = spec_layout(kept if learns else policy.seen_of(kept)), spec_layout(policy.whole_spec)
    if given != needed:
        return f"its observations are {given}, but {needed} is needed"
    reward = buffer.options.get("reward_spec")
    given_shape = () if reward is None else reward.shape
    if given_shape != reward_shape:
        return f"its rewards have the shape {given_shape}, but {reward_shape or 'numbers'} are needed"
    actions = spec_leaves(buffer.options["action_spec"])
    if actions not in (spec_leaves(policy.action_spec), spec_leaves(policy.raw_action_spec)):
        return (
            f"its actions are {_texts(actions)}, but the environment's are {_texts(spec_leaves(policy.action_spec))}; "
            "actions that another policy sampled are brought into the environment's units by `palaestra data export`"
        )
    return ""


def _unlearnable(buffer: ReplayBuffer) -> str:
    """The first NaN or infinity, or action outside its space; nothing where all can be learned from."""
    spaces = spec_leaves(buffer.options["action_spec"])
    for lane in range(buffer.num_lanes):
        rows = buffer.in_time_order(lane)
        acted = rows[:-1][buffer.is_start(rows[:-1])]
        for name, of in (("observation", rows), ("reward", rows), ("discount", rows), ("action", acted)):
            for part in np.split(of, range(_ROWS_AT_ONCE, len(of), _ROWS_AT_ONCE)):
                for path, leaf in tree_paths(buffer.take(name, part)).items():
                    space = spaces[path] if name == "action" else None
                    if len(places := _wrong(leaf, space).nonzero()):
                        row, value = np.flatnonzero(rows == part[places[0, 0]])[0], leaf[tuple(places[0])].item()
                        called, needed = f"{name}.{path}".rstrip("."), "finite numbers" if space is None else space
                        return f"in lane {lane}, row {row:,}, {called} is {value}, not of {needed}"
    return ""


def _wrong(values: torch.Tensor, space: TensorSpec | None) -> torch.Tensor:
    """Which are NaN, infinite or, but for rounding, outside the bounds."""
    wrong = ~values.isfinite()
    if space is not None and space.bounds is not None:
        low, high = (torch.from_numpy(np.array(bound, np.float64)) for bound in space.bounds)
        slack = 1e-5 if space.dtype.is_floating_point else 0.0
        wrong |= (values < low - slack * (1 + low.abs())) | (values > high + slack * (1 + high.abs()))
    return wrong


def _texts(leaves: Any) -> str:
    return ", ".join(f"{path or 'one'}: {leaf}" for path, leaf in leaves.items())


def _as_sampled(buffer: ReplayBuffer, policy: Policy) -> ReplayBuffer:
    """The buffer with actions in the units that the policy samples in, checked by the way back."""
    if spec_leaves(buffer.options["action_spec"]) == spec_leaves(policy.raw_action_spec):
        return buffer

    def raw(action: Any) -> Any:
        return raw_actions(action, policy.action_spec, policy.raw_action_spec)

    for lane in range(buffer.num_lanes):
        rows = buffer.in_time_order(lane)[:-1]
        executed = buffer.take("action", rows[buffer.is_start(rows)])
        both = zip(tree_leaves(policy.env_action(raw(executed))), tree_leaves(executed), strict=True)
        if not all(torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5) for one, other in both):
            raise ConfigError(
                f"offline.data holds actions that this policy cannot take: {type(policy).__name__}.env_action changes "
                "actions in a way of its own"
            )
    return with_actions(buffer, policy.raw_action_spec, raw)


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
    returns = [float(buffer.take("reward", episode[1:]).sum()) for episode in buffer.episodes()]
    steps = sum(int(buffer.is_start(buffer.in_time_order(lane)[:-1]).sum()) for lane in range(buffer.num_lanes))
    return DataSummary(str(path), steps, len(returns), float(np.mean(returns)) if returns else None)


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
    require_new(directory, steps=steps)
    plain = replace(env.for_evaluation(env.num_envs), info=env.info, untransformed=env.untransformed)
    with create_environment(plain, seed=seed) as made:
        actor = RandomPolicy(made.observation_spec, made.action_spec) if policy is None else policy
        actor.generator.manual_seed(RunSeeds(seed).integer("acting"))
        buffer = _unbounded(actor, made, env.num_envs)
        Collector(made, actor, buffer).collect(n_step=steps)
    return save_data({POLICY: (buffer, actor)}, directory, plain)


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
        env: which environments; what is for training alone is left out.
        directory: must not exist yet; gets a folder for every policy.
        steps: env steps, at least; several environments are stepped together.
        seed: of the environments and of the policies' choices.

    Raises:
        ConfigError: the folder exists, or `steps` is less than 1.
    """
    require_new(directory, steps=steps)
    plain = env.for_evaluation(env.num_envs)
    with create_multi_agent_envs(plain, seed=seed) as envs:
        for number, policy in enumerate(policies.values()):
            policy.generator.manual_seed(RunSeeds(seed).integer("acting", number))
        lanes = {name: envs.batch_size * spec.lanes_per_env for name, spec in policy_specs.items()}
        records = {name: _unbounded(policies[name], spec, lanes[name]) for name, spec in policy_specs.items()}
        collector = MultiAgentCollector(envs, policy_specs, policies, records=records)
        while collector.env_steps < steps:
            collector.unroll(-(-(steps - collector.env_steps) // envs.batch_size))
    return save_data({name: (records[name], policies[name]) for name in policy_specs}, directory, plain)


def _unbounded(policy: Policy, specs: Environment | PolicySpec, num_lanes: int) -> ReplayBuffer:
    """A buffer for all that a policy experiences."""
    kept = {"observation_spec": specs.observation_spec, "reward_spec": specs.reward_spec}
    kept = specs.row_specs if isinstance(specs, Environment) else kept
    state = policy.stored_state_spec or None
    return ReplayBuffer(None, num_lanes, action_spec=policy.raw_action_spec, state_spec=state, **kept)


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
        ConfigError: Minari is not installed, refuses the id, or would change the data.
    """
    if not re.search(r"-v\d+$", dataset_id):
        raise ConfigError(f"Minari's ids end with a version: {dataset_id}-v0, say, and not {dataset_id!r}")
    buffer = ReplayBuffer.load(directory)
    observations, actions = (space_from_spec(buffer.options[name]) for name in ("observation_spec", "action_spec"))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="minari")  # advice for those who publish: author, permalink, ...
            to_minari(buffer, dataset_id, observation_space=observations, action_space=actions)
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(f"Minari cannot write {dataset_id!r}: {error}") from error
    return summary_of(f"minari:{dataset_id}", buffer)


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


def save_data(kept: Mapping[str, tuple[ReplayBuffer, Policy]], directory: str | Path, env: EnvConfig) -> DataSummary:
    """Saves data sets: one in the folder itself; or, of many agents, one for each policy in its own.

    Args:
        kept: buffers and who acted, by policy.
        env: where they acted; the folders say so.
    """
    parts: dict[str, DataSummary] = {}
    for name, (buffer, policy) in kept.items():
        folder = policy_folder(Path(directory), name)
        made = with_actions(buffer, policy.action_spec, policy.env_action)
        made.save(folder, origin=origin_of(env))
        parts[name] = summary_of(folder, made)
    if [*parts] == [POLICY]:
        return parts[POLICY]
    steps, episodes = (sum(getattr(part, name) for part in parts.values()) for name in ("steps", "episodes"))
    earned = sum(part.episodes * part.return_mean for part in parts.values() if part.return_mean is not None)
    return DataSummary(str(directory), steps, episodes, earned / episodes if episodes else None, parts)
