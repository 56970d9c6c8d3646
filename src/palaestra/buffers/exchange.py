"""Exchange: Minari datasets as buffers and back, and the same steps with their actions in other units."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.lane_storage import STEP_FIELDS
from palaestra.buffers.replay import ReplayBuffer
from palaestra.core import Batch, ShapeError, SpecTree, StepType, TensorSpec, import_extra, numpy_dtype, tree_map

__all__ = ["from_minari", "to_minari", "with_actions"]


def with_actions(buffer: ReplayBuffer, action_spec: SpecTree, convert: Callable[[Any], Any]) -> ReplayBuffer:
    """A buffer of just the right size with the same steps and their actions converted.

    What belongs to the policy that acted, its memory and what it added to rows, is left out. Rows whose action led
    nowhere (the last of an episode, and where a stream broke off) get zeros.

    Args:
        buffer: that is read.
        action_spec: of one converted action.
        convert: from actions `[T, B, ...]` as they are stored to actions `[T, B, ...]` of the spec.

    Raises:
        ShapeError: the buffer is empty.
    """
    lanes = [lane for lane in range(buffer.num_lanes) if len(buffer.in_time_order(lane)) > 1]
    if not lanes:
        raise ShapeError("the buffer holds no rows, so there is nothing to take over")
    rows = [buffer.in_time_order(lane) for lane in lanes]
    longest = max(map(len, rows)) - 1
    made = ReplayBuffer(
        longest * len(lanes),
        len(lanes),
        observation_spec=buffer.options["observation_spec"],
        action_spec=action_spec,
        reward_spec=buffer.options.get("reward_spec"),
        stack_num=buffer.options.get("stack_num", 1),
        sample_avail=buffer.options.get("sample_avail", False),
    )
    if all(len(lane) == longest + 1 for lane in rows):
        made.extend(_fragment(buffer, np.stack(rows, 1), convert))
    else:
        for number, lane in enumerate(rows):
            made.extend(_fragment(buffer, lane[:, None], convert), [number])
    made.reader.fixed = True
    return made


def _fragment(buffer: ReplayBuffer, rows: np.ndarray, convert: Callable[[Any], Any]) -> Batch:
    """The rows `[T+1, B]` as `ReplayBuffer.extend` takes them."""
    executed = torch.from_numpy(buffer.is_start(rows[:-1])).to(buffer.device)

    def zeroed(leaf: Tensor) -> Tensor:
        mask = executed.reshape(*executed.shape, *(1,) * (leaf.ndim - 2))
        return torch.where(mask, leaf, torch.zeros((), dtype=leaf.dtype))

    action = convert(buffer.take("action", rows[:-1]))
    fields = {name: buffer.take(name, rows) for name in STEP_FIELDS}
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
        observation_spec: of the environment; data is cast to its dtypes.
        action_spec: of the environment, not of the policy.

    Raises:
        MissingExtraError: Minari is not installed.
        ShapeError: the dataset has no rows, or observations or actions do not fit the specs.
    """
    if isinstance(dataset, str):
        dataset = import_extra("minari", "offline", "reading a Minari dataset").load_dataset(dataset)
    capacity = int(dataset.total_steps) + int(dataset.total_episodes)
    if dataset.total_steps == 0:
        raise ShapeError(f"the dataset {dataset.id} has no rows")
    buffer = ReplayBuffer(capacity, 1, observation_spec=observation_spec, action_spec=action_spec)
    for episode in dataset.iterate_episodes():
        buffer.extend(_rows(episode, observation_spec, action_spec))
    buffer.reader.fixed = True
    return buffer


def to_minari(buffer: ReplayBuffer, dataset_id: str, *, observation_space: Any, action_space: Any, **about: Any) -> Any:
    """Writes the complete episodes of a buffer as a Minari dataset on this machine.

    Actions are written as the buffer holds them, and Minari's are those that the environment executed. A buffer that a
    collector filled holds what the policy sampled: where that is not the same, convert it by `with_actions` first, as
    `palaestra data export` does.

    Args:
        buffer: with actions in the environment's units. What it holds of running episodes, and of those whose
            beginning was overwritten, is left out.
        dataset_id: such as `"cartpole/expert-v0"`; it must not exist yet.
        observation_space: Gymnasium space of the environment.
        action_space: Gymnasium space of the environment.
        about: what else `minari.create_dataset_from_buffers` takes, such as `author` or `algorithm_name`.

    Returns:
        The `minari.MinariDataset`.

    Raises:
        MissingExtraError: Minari is not installed.
        ShapeError: no episode is complete.
    """
    minari = import_extra("minari", "offline", "writing a Minari dataset")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    episodes: list[Any] = []
    for number, rows in enumerate(buffer.episodes()):
        held = buffer[rows].to_numpy()
        over = np.zeros(len(rows) - 1, bool)
        over[-1] = True
        terminated = held.discount[-1] == 0
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations=_nest(held.observation),
                actions=_nest(held.action[:-1]),
                rewards=held.reward[1:].tolist(),
                terminations=(over & terminated).tolist(),
                truncations=(over & ~terminated).tolist(),
            )
        )
    if not episodes:
        raise ShapeError(f"no episode lies in the buffer from its first to its last step; {buffer.held()}")
    return minari.create_dataset_from_buffers(
        dataset_id=dataset_id,
        buffer=episodes,
        observation_space=observation_space,
        action_space=action_space,
        **about,
    )


def _rows(episode: Any, observation_spec: SpecTree, action_spec: SpecTree) -> Batch:
    """An episode as a fragment of one lane, `[T+1, 1, ...]`."""
    steps = len(episode.rewards)
    step_type = np.full(steps + 1, StepType.MID, np.int32)
    discount = np.ones(steps + 1, np.float32)
    terminated = bool(episode.terminations[-1])
    if terminated or bool(episode.truncations[-1]):
        step_type[-1] = StepType.LAST
    step_type[0], discount[-1] = StepType.FIRST, not terminated
    reward = np.concatenate([[0], episode.rewards]).astype(np.float32)
    return Batch.of(
        {
            "step_type": torch.from_numpy(step_type)[:, None],
            "reward": torch.from_numpy(reward)[:, None],
            "discount": torch.from_numpy(discount)[:, None],
            "observation": cast_rows("observations of the dataset", episode.observations, observation_spec, steps + 1),
            "action": cast_rows("actions of the dataset", episode.actions, action_spec, steps),
        }
    )


def cast_rows(name: str, value: Any, spec: SpecTree, rows: int) -> Any:
    """Data `[rows, ...]` as `[rows, 1, ...]` of a spec's structure and dtypes.

    Args:
        name: of the data, for messages.
        value: arrays, tensors or lists in the structure of the spec.
        spec: without leading dimensions.
        rows: how many there must be.

    Raises:
        ShapeError: parts are missing, or a shape is another one.
    """
    if not isinstance(spec, TensorSpec):
        items = spec.items() if isinstance(spec, dict) else enumerate(spec)
        try:
            return Batch.of({str(key): cast_rows(f"{name}.{key}", value[key], child, rows) for key, child in items})
        except (KeyError, IndexError, TypeError):
            raise ShapeError(f"{name} do not have the parts of {spec}") from None
    array = np.asarray(value)
    if array.shape != (rows, *spec.shape):
        raise ShapeError(f"{name} have the shape {array.shape}, but {(rows, *spec.shape)} is needed")
    return torch.from_numpy(array.astype(numpy_dtype(spec.dtype)))[:, None]


def _nest(value: Any) -> Any:
    """Batches as the dicts and tuples that Gymnasium's spaces have."""
    if not isinstance(value, Batch):
        return value
    nest = {key: _nest(part) for key, part in value.items()}
    return tuple(nest.values()) if list(nest) == [str(number) for number in range(len(nest))] else nest
