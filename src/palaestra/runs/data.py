"""Data sets, read for runs that learn from them."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.algorithms import AdversarialReward, Algorithm
from palaestra.buffers import MixtureSource, ReplayBuffer, from_d4rl, from_minari, sampler_of, with_actions
from palaestra.config.config import ExperimentConfig
from palaestra.core import Batch, TensorSpec, spec_layout, spec_leaves, tree_leaves, tree_paths
from palaestra.core.errors import ConfigError, MissingExtraError, ShapeError, is_news, refuses
from palaestra.envs import EnvConfig
from palaestra.policies import Policy, first_forbidden, raw_actions
from palaestra.rollout import origin_of

LIBRARIES = {"minari:": from_minari, "d4rl:": from_d4rl}
"""What reads data that is no folder of ours, by how its name begins."""
_ROWS_AT_ONCE = 10_000
_MIXED = "They are mixed: leave out env.train_wrappers and env.train_kwargs, or give data that a run exported"
_ASKED = "A return of the data's is asked for, and the environment's rewards are told: give data with these"
_log = logging.getLogger(__name__)


def load_for(
    algorithm: Any,
    config: ExperimentConfig,
    data: str | None,
    name: str,
    reward_shape: tuple[int, ...] = (),
    *,
    new: bool = False,
) -> ReplayBuffer | None:
    """Loaded data for an algorithm, with actions as its policy samples them and the sampler that its plan asks for.

    Args:
        algorithm: that learns from it.
        data: as `DataConfig.data`.
        name: of the algorithm, for messages.
        reward_shape: of one reward.
        new: whether the run is.

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
    mixes = plan.data == "replay" and not isinstance(learned, AdversarialReward)
    told = _ASKED if algorithm.policy.reads_reward else _MIXED if mixes else ""
    buffer = read_for(algorithm.policy, data, config.env, reward_shape, rewards=told, new=new)
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
    words |= {"inputs": env.inputs, "info": env.info}
    one = {"max-episode-steps": env.max_episode_steps, "kwargs": text(env.kwargs) if env.kwargs else None}
    one |= {"num-envs": len(env.variants) if len(env.variants) > 1 else None}
    words |= {name: [value] for name, value in one.items() if value is not None}
    typed = "".join(f" --env.{name} {shlex.join(map(str, words[name]))}" for name in words if words[name])
    return typed + " --env.untransformed" * env.untransformed


def _compare(origin: Mapping[str, str], env: EnvConfig, data: str, rewards: str) -> None:
    """Refuses data of another environment, and says how else they differ; what is not known is not compared."""
    own = origin_of(env)
    differ = [key for key in own if origin.get(key, own[key]) != own[key] and (rewards or key != "rewards")]
    said = "; ".join(f"the data {data} has the {key} {origin[key]!r}, this run {own[key]!r}" for key in differ)
    if "environment" in differ and "task" in origin:
        raise ConfigError(f"{said}; if both names mean one, ReplayBuffer.load(FOLDER).save(OTHER) leaves it out")
    if "rewards" in differ:
        said += f". {rewards}"
    if differ and is_news(said):
        _log.warning("%s", said)


def _transitions(buffer: ReplayBuffer) -> Batch:
    """All that a buffer holds: `observation`, `action` and `next_observation`, leaves [N, ...]."""
    lanes = [buffer.in_time_order(lane)[:-1] for lane in range(buffer.num_lanes)]
    at = np.concatenate([rows[buffer.is_start(rows)] for rows in lanes])
    fields = {name: buffer.take(name, at) for name in ("observation", "action")}
    return Batch.of(fields | {"next_observation": buffer.take("observation", buffer.following(at, 1))})


def read_for(
    policy: Policy,
    data: str | ReplayBuffer,
    env: EnvConfig | None,
    reward_shape: tuple[int, ...] = (),
    *,
    rewards: str = "",
    learns: bool = True,
    new: bool = True,
) -> ReplayBuffer:
    """Data of the environment that a policy is for, with actions as it samples them.

    Args:
        policy: whose units actions get.
        data: as `DataConfig.data`, or a buffer with what lies there.
        env: of the policy, with whose task that of the data is compared; None where nobody knows it.
        reward_shape: of one reward.
        rewards: what to say of rewards of another kind than the environment's; nothing if it does not matter.
        learns: whether it is for learning, and not for a policy that may see less than was observed.
        new: whether to refuse actions that may be raw or not; else they are, where they look like the policy's. And
            whether to refuse actions to learn from that their masks forbid.

    Raises:
        ConfigError: there is none, it is of another environment, or a value cannot be learned from.
        CheckpointError: it is damaged.
    """
    buffer = _read(data, policy) if isinstance(data, str) else data
    called = f"offline.data {data!r}" if isinstance(data, str) else "the data"
    misfit = _misfit(buffer, policy, reward_shape, learns) or _other_actions(buffer, policy)
    unclear = "" if misfit else _unclear(buffer, policy)
    if unclear and not new:
        _log.warning("%s: %s; here they are taken for raw", called, unclear)
        unclear = ""
    misfit = misfit or unclear or _unlearnable(buffer, policy)
    if misfit := misfit or (_forbidden(buffer, policy) if new and learns else ""):
        raise ConfigError(f"{called} does not fit {env.name if env else 'the policy'}: {misfit}")
    if env is not None:
        _compare(buffer.origin, env, data if isinstance(data, str) else "given", rewards)
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
        beside = ", ".join(sorted(one.parent.name for one in path.parent.glob("*/buffer.json")))
        there = (
            f"; {path.parent} has {beside}. Policies of many agents need the --agents of their data" if beside else ""
        )
        raise ConfigError(f"offline.data is {data!r}, but there is no such folder (looked in {Path.cwd()}){there}")
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
    return ""


def _are_raw(buffer: ReplayBuffer, policy: Policy) -> bool:
    """Whether actions are as the policy samples them; where nobody has said, whether they look so."""
    kept, told = spec_leaves(buffer.options["action_spec"]), buffer.options.get("executed_spec")
    executed = spec_leaves(policy.action_spec if told is None else told)
    return kept == spec_leaves(policy.raw_action_spec) and kept != executed


def _other_actions(buffer: ReplayBuffer, policy: Policy) -> str:
    """In what actions are not the environment's, or the policy's raw ones; nothing where they are."""
    kept, own = spec_leaves(buffer.options["action_spec"]), spec_leaves(policy.action_spec)
    told = buffer.options.get("executed_spec")
    executed = own if told is None else spec_leaves(told)
    fits = _are_raw(buffer, policy) or kept == executed
    if fits and executed.keys() == own.keys() and all(_suits(leaf, own[path]) for path, leaf in executed.items()):
        return ""
    sampled = f", raw ones of {_texts(executed)}" if told is not None and kept != executed else ""
    return (
        f"its actions are {_texts(kept)}{sampled}, but the environment's are {_texts(own)}; `palaestra data export` "
        "brings what another policy sampled into the environment's units, `palaestra.buffers.with_actions` anything"
    )


def _suits(leaf: TensorSpec, own: TensorSpec) -> bool:
    """Whether executed actions are those of an environment: of its bounds, or of none and so of any that they keep."""
    if not (leaf.dtype.is_floating_point and own.dtype.is_floating_point):
        return leaf == own
    return replace(leaf, dtype=own.dtype) == own or (leaf.bounds is None and leaf.shape == own.shape)


def _unclear(buffer: ReplayBuffer, policy: Policy) -> str:
    """What to say of actions that look raw where the folder does not say it; nothing where both are the same."""
    limits = [leaf.bounds for leaf in spec_leaves(policy.action_spec).values()]
    same = all(bounds is not None and (bounds[0] == -1).all() and (bounds[1] == 1).all() for bounds in limits)
    if buffer.options.get("executed_spec") is not None or same or not _are_raw(buffer, policy):
        return ""
    kept, needed = (_texts(spec_leaves(spec)) for spec in (policy.raw_action_spec, policy.action_spec))
    return (
        f"it does not say whether its actions, {kept}, are raw, as this policy samples them, or what an environment "
        f"executed; here that is {needed}. Write it with actions as executed: `palaestra.buffers.with_actions("
        "ReplayBuffer.load(FOLDER), env.action_spec, convert).save(OTHER)`, where `convert` is `policy.env_action` if "
        "they are raw, and `lambda action: action` if not"
    )


def _unlearnable(buffer: ReplayBuffer, policy: Policy) -> str:
    """The first NaN or infinity, or action outside its space; nothing where all can be learned from."""
    spaces = spec_leaves(policy.raw_action_spec if _are_raw(buffer, policy) else policy.action_spec)
    for lane in range(buffer.num_lanes):
        rows = buffer.in_time_order(lane)
        whole = (("observation", rows), ("reward", rows), ("discount", rows), ("action", _acted(buffer, rows)))
        for name, of in whole:
            for part in _pieces(of):
                for path, leaf in tree_paths(buffer.take(name, part)).items():
                    space = spaces[path] if name == "action" else None
                    if len(places := _wrong(leaf, space).nonzero()):
                        row, value = np.flatnonzero(rows == part[places[0, 0]])[0], leaf[tuple(places[0])].item()
                        called, needed = f"{name}.{path}".rstrip("."), "finite numbers" if space is None else space
                        return f"in lane {lane}, row {row:,}, {called} is {value}, not of {needed}"
    return ""


def _forbidden(buffer: ReplayBuffer, policy: Policy) -> str:
    """The first action that its mask forbids; nothing where there is none. All are in their space."""
    raw = _are_raw(buffer, policy)
    for lane in range(buffer.num_lanes if policy.is_masked else 0):
        rows = buffer.in_time_order(lane)
        for part in _pieces(_acted(buffer, rows)):
            action, mask = buffer.take("action", part), policy.action_mask(buffer.take("observation", part))
            executed = policy.env_action(action) if raw else action
            if found := first_forbidden(executed, mask, policy.action_spec):
                (place,), done = found
                row = np.flatnonzero(rows == part[place])[0]
                return (
                    f"in lane {lane}, row {row:,}, action is {done}, which the observation's action_mask forbids, so "
                    "that no policy takes it; give data of allowed actions, or with the masks by which they were chosen"
                )
    return ""


def _acted(buffer: ReplayBuffer, rows: np.ndarray) -> np.ndarray:
    """Those of a lane's rows that have an action."""
    return rows[:-1][buffer.is_start(rows[:-1])]


def _pieces(rows: np.ndarray) -> list[np.ndarray]:
    return np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE))


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
    specs = buffer.options["action_spec"], policy.action_spec, policy.raw_action_spec
    kept, own, sampled = map(spec_leaves, specs)
    if _are_raw(buffer, policy) or kept == own == sampled:
        return buffer

    def raw(action: Any) -> Any:
        return raw_actions(action, policy.action_spec, policy.raw_action_spec)

    for lane in range(buffer.num_lanes):
        executed = buffer.take("action", _acted(buffer, buffer.in_time_order(lane)))
        both = zip(tree_leaves(policy.env_action(raw(executed))), tree_leaves(executed), strict=True)
        if not all(torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5) for one, other in both):
            raise ConfigError(
                f"offline.data holds actions that this policy cannot take: {type(policy).__name__}.env_action changes "
                "actions in a way of its own"
            )
    return with_actions(buffer, policy.raw_action_spec, raw, executed_spec=policy.action_spec)
