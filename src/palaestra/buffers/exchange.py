"""`with_actions`: the same steps with their actions in other units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.replay import ReplayBuffer
from palaestra.core import Batch, ShapeError, SpecTree

__all__ = ["with_actions"]


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
    )
    if all(len(lane) == longest + 1 for lane in rows):
        made.extend(_fragment(buffer, np.stack(rows, 1), convert))
    else:
        for number, lane in enumerate(rows):
            made.extend(_fragment(buffer, lane[:, None], convert), [number])
    return made


def _fragment(buffer: ReplayBuffer, rows: np.ndarray, convert: Callable[[Any], Any]) -> Batch:
    """The rows `[T+1, B]` as `ReplayBuffer.extend` takes them."""
    executed = torch.from_numpy(buffer.is_start(rows[:-1])).to(buffer.device)

    def zeroed(leaf: Tensor) -> Tensor:
        mask = executed.reshape(*executed.shape, *(1,) * (leaf.ndim - 2))
        return torch.where(mask, leaf, torch.zeros((), dtype=leaf.dtype))

    action = convert(buffer.take("action", rows[:-1]))
    fields = {name: buffer.take(name, rows) for name in buffer.step_fields}
    fields["action"] = action.map(zeroed) if isinstance(action, Batch) else zeroed(action)
    return Batch.of({**fields, "policy_version": buffer.take("policy_version", rows[:-1])})
