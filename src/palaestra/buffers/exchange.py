"""Exchange: Minari datasets as buffers and back, and the same steps with their actions in other units."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.drawn import FLAG, cast_rows, warn_of_resets
from palaestra.buffers.lane_storage import STEP_FIELDS
from palaestra.buffers.replay import ReplayBuffer
from palaestra.core import Batch, ConfigError, ShapeError, SpecTree, StepType, TensorSpec, import_extra, spec_leaves
from palaestra.core.tree import as_array, tree_leaves, tree_map, tree_paths, tree_select

__all__ = ["from_arrays", "from_d4rl", "from_minari", "to_minari", "with_actions"]

_log = logging.getLogger(__name__)

_KEPT = ("observation_spec", "reward_spec", "env_info_spec", "untransformed_spec", "stack_num", "sample_avail")
_TRANSITION = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
_MOST_PACKED = 1032
"""Bytes that gzip makes of one, at most."""
_D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def with_actions(
    buffer: ReplayBuffer, action_spec: SpecTree, convert: Callable[[Any], Any], *, executed_spec: SpecTree = None
) -> ReplayBuffer:
    """A buffer of just the right size with the same steps and their actions converted.

    What belongs to the policy that acted, its memory and what it added to rows, is left out. Rows whose action led
    nowhere (the last of an episode, and where a stream broke off) get zeros.

    Args:
        buffer: that is read.
        action_spec: of one converted action.
        convert: from actions `[T, B, ...]` as they are stored to actions `[T, B, ...]` of the spec.
        executed_spec: of one action of the environment, by which a saved folder says what its actions are.

    Raises:
        ShapeError: the buffer is empty.
    """
    lanes = [lane for lane in range(buffer.num_lanes) if len(buffer.in_time_order(lane)) > 1]
    if not lanes:
        raise ShapeError("the buffer holds no rows, so there is nothing to take over")
    stack_num, counts = buffer.options.get("stack_num", 1), buffer.positions.counts[lanes]
    rows = [buffer.in_time_order(lane, frames=stack_num - 1) for lane in lanes]
    kept: dict[str, Any] = {name: value for name, value in buffer.options.items() if name in _KEPT}
    kept |= {"action_spec": action_spec, "executed_spec": executed_spec}
    made = ReplayBuffer(int(counts.max()) * len(lanes), len(lanes), **kept)
    if len({*map(len, rows)}) == 1:
        made.extend(_fragment(buffer, np.stack(rows, 1), convert))
    else:
        for number, lane in enumerate(rows):
            made.extend(_fragment(buffer, lane[:, None], convert), [number])
    made.writer.keep(counts)
    made.reader.fixed, made.origin = True, buffer.origin
    return made


def _fragment(buffer: ReplayBuffer, rows: np.ndarray, convert: Callable[[Any], Any]) -> Batch:
    """The rows `[T+1, B]` as `ReplayBuffer.extend` takes them."""
    executed = torch.from_numpy(buffer.is_start(rows[:-1])).to(buffer.device)

    def zeroed(leaf: Tensor) -> Tensor:
        mask = executed.reshape(*executed.shape, *(1,) * (leaf.ndim - 2))
        return torch.where(mask, leaf, torch.zeros((), dtype=leaf.dtype))

    action = convert(buffer.take("action", rows[:-1]))
    kept = [name for name in ("env_info", "untransformed") if buffer.options.get(f"{name}_spec") is not None]
    fields = {name: buffer.take(name, rows) for name in (*STEP_FIELDS, *kept)}
    if buffer.options.get("stack_num", 1) > 1:  # which are read as stacks: the newest is what was stored
        fields["observation"] = tree_map(lambda leaf: leaf[:, :, -1], fields["observation"])
    fields["action"] = action.map(zeroed) if isinstance(action, Batch) else zeroed(action)
    return Batch.of({**fields, "policy_version": buffer.take("policy_version", rows[:-1])})


def from_minari(dataset: Any, *, observation_spec: SpecTree, action_spec: SpecTree) -> ReplayBuffer:
    """A buffer of one lane with all episodes of a dataset, each from FIRST to LAST.

    Actions are taken over as they are: those that the environment executed. A policy samples in units of its own, its
    `raw_action_spec`; `with_actions` converts, and `--offline.data minari:...` does so by itself.

    An episode that neither terminated nor was truncated is a stream that broke off: nothing is bootstrapped behind it.

    Args:
        dataset: its id, such as `"D4RL/door/human-v2"`, or a `minari.MinariDataset`. It must lie on this machine;
            `minari download` fetches it.
        observation_spec: of the environment; data is cast to its dtypes, see `cast_rows`.
        action_spec: of the environment, not of the policy.

    Raises:
        MissingExtraError: Minari is not installed.
        ShapeError: the dataset has no rows, or observations or actions do not fit the specs: their parts, shapes,
            bounds or choices of actions, or values that the dtype of a spec cannot hold. Observations outside their
            bounds are only logged.
    """
    if isinstance(dataset, str):
        dataset = import_extra("minari", "offline", "reading a Minari dataset").load_dataset(dataset)
    _require_limits(getattr(dataset, "action_space", None), action_spec)
    capacity, outside = int(dataset.total_steps) + int(dataset.total_episodes), ""
    if dataset.total_steps == 0:
        raise ShapeError(f"the dataset {dataset.id} has no rows")
    buffer = _of_executed(capacity, observation_spec, action_spec)
    for episode in dataset.iterate_episodes():
        steps = len(episode.rewards)
        reward = cast_rows("rewards of the dataset", episode.rewards, TensorSpec(()), steps)[:, 0].numpy()
        observation = cast_rows("observations of the dataset", episode.observations, observation_spec, steps + 1)
        outside = outside or _outside(observation, observation_spec)
        action = cast_rows("actions of the dataset", episode.actions, action_spec, steps)
        ends = bool(episode.terminations[-1]), bool(episode.truncations[-1])
        buffer.extend(_fields(reward, *ends, observation, action))
    if outside:
        _log.warning("observations of the dataset %s have %s; is it of this environment?", dataset.id, outside)
    buffer.reader.fixed, recorded = True, getattr(dataset, "env_spec", None)
    buffer.origin = {"rewards": "of the task"} | ({} if recorded is None else {"environment": recorded.id})
    return buffer


def _require_limits(space: Any, spec: SpecTree) -> None:
    """Refuses actions with other bounds or choices than a spec's; parts and shapes are compared with the data."""
    for path, leaf in spec_leaves(spec).items():
        needed, part = leaf.bounds, space
        for key in filter(None, path.split(".")):
            part: Any = _parts(part).get(key)
        given: Any = getattr(part, "low", None), getattr(part, "high", None)
        if hasattr(part, "start"):
            given = part.start, part.start + getattr(part, "nvec", getattr(part, "n", 0)) - 1
        known = given[0] is not None and np.shape(given[0]) in ((), leaf.shape)
        if known and needed is not None and not all(map(np.allclose, given, needed)):
            raise ShapeError(f"the dataset's actions {path} are of {part}, and those of the environment of {leaf}")


def _outside(observation: Any, spec: SpecTree) -> str:
    """The first value beyond the bounds of a spec, but for rounding; nothing where there is none."""
    for path, leaf in spec_leaves(spec).items():
        values = tree_paths(observation)[path].numpy()
        low, high = (np.asarray(bound, np.float64) for bound in leaf.bounds or (-np.inf, np.inf))
        beyond = (values < low - 1e-4 * (1 + abs(low))) | (values > high + 1e-4 * (1 + abs(high)))
        if beyond.any():
            return f"{path} the value {values[beyond][0]}, not of {leaf}".strip()
    return ""


def from_arrays(
    data: Mapping[str, Any], *, observation_spec: SpecTree, action_spec: SpecTree, gaps_end: bool = False
) -> ReplayBuffer:
    """A buffer with transitions in time order, as most data sets and plain loops have them.

    An episode ends where a flag says so. Where an observation is not the next one of the transition before, some
    transitions are missing: what lies before counts as cut off there. As these are parts of episodes, with returns that
    nobody knows, both sides begin with MID instead of FIRST; how many such gaps there are is logged. So is it how many
    episodes are followed by their own last observation, if most are: rows of a vector environment that resets itself.

    Args:
        data: N of each, as arrays or lists: `obs` that actions were taken on, `action` as the environment executes it,
            `reward` that followed, `next_obs`, and whether the task ended (`terminated`) or the episode was cut off, by
            a time limit say (`truncated`).
        observation_spec: of one observation.
        action_spec: of one action as the environment executes it: `env.action_spec`, so that runs compare the bounds.
        gaps_end: whether gaps are the time limits of whole episodes, for data that flag none.

    Raises:
        ShapeError: something is missing, is NaN or infinite, or does not fit the specs or the number of transitions.

    Examples:
        >>> from palaestra.core import DiscreteSpec, Replay, TensorSpec
        >>> data = {"obs": [[0.0], [1.0]], "action": [1, 0], "reward": [1.0, 1.0], "next_obs": [[1.0], [2.0]]}
        >>> data |= {"terminated": [False, True], "truncated": [False, False]}
        >>> buffer = from_arrays(data, observation_spec=TensorSpec((1,)), action_spec=DiscreteSpec(num=2))
        >>> buffer.draw(Replay(unroll_length=1, mini_batch_size=8), torch.Generator()).next_observation.shape
        torch.Size([8, 1])
    """
    if missing := [name for name in _TRANSITION if name not in data]:
        raise ShapeError(f"the data lack {', '.join(missing)}; needed are {', '.join(_TRANSITION)}, N of each")
    given = {**data, **{name: np.ravel(as_array(data[name])) for name in ("reward", "terminated", "truncated")}}
    if not (count := len(given["reward"])):
        raise ShapeError("there are no rewards; at least one transition is needed")
    specs = zip(_TRANSITION, (observation_spec, action_spec, TensorSpec(()), observation_spec, FLAG, FLAG), strict=True)
    seen, action, *others, after, ended, cut_off = (cast_rows(name, given[name], spec, count) for name, spec in specs)
    reward, terminated, truncated = (one[:, 0].numpy() for one in (*others, ended, cut_off))  # [N, 1] to [N]
    flagged, apart, moved = terminated | truncated, np.zeros(count, bool), np.zeros(count, bool)
    for before, led in zip(tree_leaves(seen), tree_leaves(after), strict=True):
        apart[:-1] |= (before[1:] != led[:-1]).flatten(1).any(1).numpy()
        moved |= (before != led).flatten(1).any(1).numpy()
    again = flagged[:-1] & ~apart[:-1] & moved[1:]
    warn_of_resets(int(again.sum()) if 2 * again.sum() > flagged[:-1].sum() else 0)
    if (gaps := apart & ~flagged & (not gaps_end)).any():
        _log.warning("%s times transitions are missing, where no flag ends an episode: no whole ones there", gaps.sum())
    ends = np.flatnonzero(np.append((flagged | apart)[:-1], True))
    buffer = _of_executed(count + len(ends), observation_spec, action_spec)
    for begin, last in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        at, cut = slice(begin, last + 1), bool(truncated[last] or last < count - 1)
        rows = tree_map(lambda one, led, at=at: torch.cat([one[at], led[at][-1:]]), seen, after)
        fields = _fields(reward[at], bool(terminated[last]), cut, rows, tree_select(action, at))
        unknown = gaps[[last, begin - 1]].any() and not buffer.positions.spare  # stacks know beginnings by themselves
        fields.step_type[0] = StepType.MID if unknown else StepType.FIRST
        buffer.extend(fields)
    buffer.reader.fixed = True
    return buffer


def from_d4rl(path: str | Path, *, observation_spec: SpecTree, action_spec: SpecTree) -> ReplayBuffer:
    """A buffer with the transitions of an HDF5 file of D4RL (Fu et al. 2020, https://arxiv.org/abs/2004.07219).

    The file has `observations`, `actions`, `rewards` and `terminals`, N of each in time order, and `timeouts`, which
    say where an episode was cut off. The observation that an episode ended with is not in it, unless it has
    `next_observations`, too: without, cut-off transitions are left out, and those before them are cut off there; where
    the task ended, the observation before stands for it. That counts for nothing in values, but GAIL and AIRL look at
    it. With them and no `timeouts`, an episode is cut off where an observation is not the next one of the transition
    before. An episode that the file has no end of stays open: its return is not known.

    Args:
        observation_spec: of one observation.
        action_spec: of one action as the environment executes it.

    Raises:
        MissingExtraError: h5py is not installed.
        OSError: there is no such file, or it is no HDF5.
        ShapeError: something is missing, is no array of numbers in the file itself, or does not fit the specs, the
            number of transitions or the size of the file.
    """
    h5py = import_extra("h5py", "offline", "reading a file of D4RL")
    if not Path(path).is_file():  # a pipe would be waited for
        raise FileNotFoundError(f"there is no file {path} (looked in {Path.cwd()})")
    with h5py.File(path, "r") as file:
        links = {key: link for key in _D4RL if (link := file.get(key, getlink=True)) is not None}
        # other links may lead to another file, and are not followed
        found = {key: file[key] if isinstance(link, h5py.HardLink) else link for key, link in links.items()}
        _require_read(found, Path(path))
        data = {key: np.asarray(rows) for key, rows in found.items()}
    seen, over = data["observations"], data["terminals"].astype(bool)
    cut = data["timeouts"].astype(bool) if "timeouts" in data else np.zeros_like(over)
    after, kept = data.get("next_observations"), np.ones_like(over)
    if after is None:
        after, kept = np.concatenate([seen[1:], seen[-1:]]), over | ~cut
        cut = np.append(~kept[1:], False)
        kept[-1] &= over[-1]  # what it led to is not there: the newest episode stays open
        after[over] = seen[over]  # nor here, where it counts for nothing
    columns = (seen, data["actions"], data["rewards"], after, over, cut)
    named = zip(_TRANSITION, (column[kept] for column in columns), strict=True)
    specs = {"observation_spec": observation_spec, "action_spec": action_spec}
    buffer = from_arrays(dict(named), **specs, gaps_end="timeouts" not in data)
    buffer.origin = {"rewards": "of the task"}
    return buffer


def _require_read(found: Mapping[str, Any], path: Path) -> None:
    """Refuses, before any of it is read, what a file of D4RL says of its arrays and does not fit."""
    for key, rows in found.items():
        kind = getattr(getattr(rows, "dtype", None), "kind", "") if getattr(rows, "shape", None) is not None else ""
        if kind not in tuple("biuf") or rows.external or rows.is_virtual:
            raise ShapeError(f"{path} has {key} that are no array of numbers in the file itself: {rows}; copy them in")
    counts = {rows.shape[:1] for rows in found.values()}
    if {*_D4RL[:4]} - {*found} or len(found) == 4 or len(counts) > 1 or counts & {(), (0,)}:
        raise ShapeError(
            f"{path} has {', '.join(f'{key} {rows.shape}' for key, rows in found.items()) or 'nothing'}; needed are "
            f"{', '.join(_D4RL[:4])}, and timeouts or next_observations, as many of each, and one at least"
        )
    size, most = sum(rows.nbytes for rows in found.values()), _MOST_PACKED * path.stat().st_size
    if size > most:
        raise ShapeError(f"{path} says that it holds {size:,} bytes; packed, a file of its size has at most {most:,}")


def to_minari(buffer: ReplayBuffer, dataset_id: str, *, observation_space: Any, action_space: Any, **about: Any) -> Any:
    """Writes the complete episodes of a buffer as a Minari dataset on this machine.

    Actions are written as the buffer holds them, and Minari's are those that the environment executed. A buffer that a
    collector filled holds what the policy sampled: where that is not the same, it is refused; convert it by
    `with_actions` first, as `palaestra data export` does.

    Args:
        buffer: with actions in the environment's units. What it holds of running episodes, and of those whose
            beginning was overwritten, is left out.
        dataset_id: such as `"cartpole/expert-v0"`; it must not exist yet.
        observation_space: Gymnasium space of the environment; what is a tuple in it is written as one.
        action_space: Gymnasium space of the environment; ditto.
        about: what else `minari.create_dataset_from_buffers` takes, such as `author` or `algorithm_name`.

    Returns:
        The `minari.MinariDataset`.

    Raises:
        MissingExtraError: Minari is not installed.
        ConfigError: actions are raw, or there are uint8 arrays that Minari takes for pictures, and stores as JPEG;
            nothing is written then.
        ShapeError: no episode is complete, or a space has other parts than the data.
    """
    minari = import_extra("minari", "offline", "writing a Minari dataset")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    kept, told = spec_leaves(buffer.options["action_spec"]), buffer.options.get("executed_spec")
    executed = kept if told is None else spec_leaves(told)
    if any(replace(kept[path], dtype=leaf.dtype) != leaf for path, leaf in executed.items()):
        raise ConfigError(
            "the buffer's actions are raw, as a policy sampled them, and Minari's are those that the environment "
            "executed; convert them by with_actions, or write the folder by `palaestra data export` or `data collect`"
        )
    episodes: list[Any] = []
    for number, rows in enumerate(buffer.episodes()):
        held = buffer[rows].to_numpy()
        over = np.arange(len(rows) - 1) == len(rows) - 2
        terminated = held.discount[-1] == 0
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations=_nest("observation", held.observation, observation_space),
                actions=_nest("action", held.action[:-1], action_space),
                rewards=held.reward[1:].tolist(),
                terminations=(over & terminated).tolist(),
                truncations=(over & ~terminated).tolist(),
            )
        )
    if not episodes:
        raise ShapeError(f"no episode lies in the buffer from its first to its last step; {buffer.held()}")
    about |= {"observation_space": observation_space, "action_space": action_space}
    return minari.create_dataset_from_buffers(dataset_id=dataset_id, buffer=episodes, **about)


def _of_executed(capacity: int, observation_spec: SpecTree, action_spec: SpecTree) -> ReplayBuffer:
    """An empty buffer of one lane whose actions are as the environment executes them."""
    specs: Any = {"observation_spec": observation_spec, "action_spec": action_spec, "executed_spec": action_spec}
    return ReplayBuffer(capacity, 1, **specs)


def _fields(rewards: Any, terminated: bool, truncated: bool, observation: Any, action: Any) -> Batch:
    """A fragment that begins an episode, of T rewards and `[T+1, 1, ...]` observations; flags are of its last step."""
    steps = len(rewards)
    step_type = np.full(steps + 1, StepType.MID, np.int32)
    discount = np.ones(steps + 1, np.float32)
    step_type[-1] = StepType.LAST if terminated or truncated else StepType.MID
    step_type[0], discount[-1] = StepType.FIRST, not terminated
    reward = np.concatenate([[0], rewards]).astype(np.float32)
    return Batch.of(
        {
            "step_type": torch.from_numpy(step_type)[:, None],
            "reward": torch.from_numpy(reward)[:, None],
            "discount": torch.from_numpy(discount)[:, None],
            "observation": observation,
            "action": action,
        }
    )


def _parts(space: Any) -> Mapping[str, Any]:
    """Parts of a Gymnasium space by name; those of a tuple by number."""
    children = getattr(space, "spaces", {})
    return {str(i): child for i, child in enumerate(children)} if isinstance(children, tuple) else children


def _nest(name: str, value: Any, space: Any) -> Any:
    """Data `[T, ...]` of an episode as the dicts and tuples of a Gymnasium space, as far as Minari keeps them exact."""
    from minari.dataset.minari_storage import is_image_space

    children, parts = getattr(space, "spaces", {}), _parts(space)
    given = list(value.keys()) if isinstance(value, Batch) else []
    if set(given) != set(parts):
        raise ShapeError(f"{name} has the parts {given}, but its space has {list(parts)}; give the environment's space")
    if parts:
        nest = {key: _nest(f"{name}.{key}", value[key], child) for key, child in parts.items()}
        return tuple(nest.values()) if isinstance(children, tuple) else nest
    # what Minari writes as pictures, and what it reads as such
    written = value.ndim in (2, 3) or (value.ndim == 4 and value.shape[-1] in (1, 3))
    if value.dtype == np.uint8 and (written or is_image_space(space)):
        raise ConfigError(
            f"Minari stores uint8 arrays such as {name} with the shape {value.shape[1:]} as JPEG, which changes them; "
            "keep the folder as it is, or export floats"
        )
    return value
