"""Data that was there before a run: a folder, or a Minari dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import MixtureSource, ReplayBuffer, from_minari, sampler_of, with_actions
from palaestra.core import (
    Batch,
    ConfigError,
    MissingExtraError,
    ShapeError,
    spec_leaves,
)
from palaestra.experiments.config import ExperimentConfig
from palaestra.policies import Policy, raw_actions

__all__ = ["load_for", "mixed"]

MINARI = "minari:"


def load_for(
    algorithm: Algorithm[Any],
    config: ExperimentConfig,
    data: str | None,
    name: str,
    reward_shape: tuple[int, ...] = (),
) -> ReplayBuffer | None:
    """Loaded data for an algorithm, with actions as its policy samples them and the sampler that its plan asks for.

    Args:
        algorithm: that learns from it.
        config: of the run.
        data: as `DataConfig.data`.
        name: of the algorithm, for messages.
        reward_shape: of one reward.

    Returns:
        `None` where there is no data and none is needed.

    Raises:
        ConfigError: the algorithm needs data or cannot use any, or it is of another environment.
        CheckpointError: it is damaged.
    """
    plan = algorithm.plan
    if data is None:
        if plan.data == "offline":
            raise ConfigError(
                f"{name} learns from data and collects none; name some by offline.data: a folder, or minari:DATASET. "
                f"Such a folder comes from `palaestra data collect random {config.env.name} FOLDER --steps 10000`, or "
                "from `palaestra data export RUN FOLDER`"
            )
        return None
    _require_use(config, algorithm, name)
    buffer = _read(data, algorithm.policy)
    misfit = _misfit(buffer, algorithm.policy, reward_shape)
    if misfit:
        raise ConfigError(f"offline.data {data!r} does not fit {config.env.name}: {misfit}")
    buffer = _as_sampled(buffer, algorithm.policy)
    try:
        buffer.starts(plan.window)
    except (ShapeError, ConfigError) as error:
        raise ConfigError(f"offline.data {data!r} is too short for {name}: {error}") from error
    if plan.data == "replay":
        buffer.sampler = sampler_of(plan)
    return buffer


def mixed(config: ExperimentConfig, buffer: ReplayBuffer, data: ReplayBuffer) -> MixtureSource:
    """What a hybrid run learns from.

    Args:
        config: of the run, with the share that comes from the data.
        buffer: what the run collects.
        data: from `load_for`.
    """
    fraction = config.offline.share
    return MixtureSource([(buffer, 1 - fraction), (data, fraction)])


def _require_use(config: ExperimentConfig, algorithm: Algorithm[Any], name: str) -> None:
    """Refuses data where the algorithm's plan has no use for it."""
    plan = algorithm.plan
    if plan.data == "on-policy":
        raise ConfigError(
            f"{name} learns only from its own newest steps and cannot use offline.data; leave it out, or choose an "
            "algorithm that `palaestra list algorithms` shows with replay or offline data"
        )
    if plan.data == "offline" and config.offline.fraction is not None:
        raise ConfigError(
            f"{name} learns from offline.data alone, so that there is no offline.fraction of it; leave it out"
        )
    if algorithm.stored_fields or (algorithm.policy.state_spec and plan.data == "replay"):
        what = ", ".join(algorithm.stored_fields) or "the memory of its policy"
        raise ConfigError(f"{name} stores {what} with every step, which loaded data does not have; leave the data out")
    if plan.data == "replay":
        own = int(np.rint((1 - config.offline.share) * plan.mini_batch_size))
        if not 0 < own < plan.mini_batch_size:
            raise ConfigError(
                f"offline.fraction is {config.offline.share}, so that of a minibatch of {plan.mini_batch_size} rows "
                f"{plan.mini_batch_size - own} would be loaded ones; give at least one row to each side"
            )


def _read(data: str, policy: Policy) -> ReplayBuffer:
    if data.startswith(MINARI):
        return _read_minari(data, policy)
    path = Path(data)
    if not path.is_dir():
        raise ConfigError(f"offline.data is {data!r}, but there is no such folder (looked in {Path.cwd()})")
    if not (path / "buffer.json").is_file():
        raise ConfigError(
            f"offline.data is {data!r}, but this folder holds no saved buffer: it has no buffer.json; `palaestra data` "
            "and `ReplayBuffer.save` write such folders"
        )
    return ReplayBuffer.load(path)


def _read_minari(data: str, policy: Policy) -> ReplayBuffer:
    name = data.removeprefix(MINARI)
    try:
        return from_minari(name, observation_spec=policy.observation_spec, action_spec=policy.action_spec)
    except MissingExtraError:
        raise
    except ShapeError as error:
        raise ConfigError(f"offline.data {data!r} does not fit the environment: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"offline.data is {data!r}, which Minari cannot load ({error}); `minari list local` shows what there is, "
            f"`minari download {name}` fetches it"
        ) from error


def _misfit(buffer: ReplayBuffer, policy: Policy, reward_shape: tuple[int, ...]) -> str:
    """What data of a buffer cannot be given to a policy for; nothing where it can."""
    given = _layout(buffer.options["observation_spec"])
    needed = _layout(policy.observation_spec)
    if given != needed:
        return f"its observations are {given}, but {needed} is needed"
    reward = buffer.options.get("reward_spec")
    if reward is not None and reward.shape != reward_shape:
        return f"its rewards have the shape {reward.shape}, but {reward_shape or 'numbers'} are needed"
    actions = spec_leaves(buffer.options["action_spec"])
    if actions not in (spec_leaves(policy.action_spec), spec_leaves(policy.raw_action_spec)):
        return (
            f"its actions are {_texts(actions)}, but the environment's are {_texts(spec_leaves(policy.action_spec))}; "
            "actions that another policy sampled are brought into the environment's units by `palaestra data export`"
        )
    return ""


def _layout(spec: Any) -> dict[str, tuple[Any, ...]]:
    """Shape and type of every leaf; bounds of observations do not matter."""
    return {path: (leaf.shape, str(leaf.dtype).removeprefix("torch.")) for path, leaf in spec_leaves(spec).items()}


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
        if not _close(policy.env_action(raw(executed)), executed):
            raise ConfigError(
                "offline.data holds actions that this policy cannot take: they lie outside the bounds of the action "
                f"space, or {type(policy).__name__}.env_action changes actions in a way of its own"
            )
    return with_actions(buffer, policy.raw_action_spec, raw)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, Batch):
        return all(_close(part, other[name]) for name, part in one.items())
    return torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5)
