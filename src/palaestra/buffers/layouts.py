"""The layouts in which a buffer hands out what it holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from palaestra.core import Batch

__all__ = ["Unroll", "Windows"]


class Unroll(Batch):
    """Sequences in time order: T steps with an action each, and the step after them to bootstrap from.

    There are more fields where they apply: `state`, the policy's memory before a row, `[T, B, ...]` in an unroll and
    `[1, N, ...]` in sampled sequences, so that `state[0]` belongs before the first row; `index` `[N]` of a sequence's
    first row, for `write_back`; and `weight` `[N]` float32, by which a loss is multiplied where rows were drawn by
    priority.
    """

    step_type: Tensor
    """[T+1, B] int32."""
    reward: Tensor
    """[T+1, B] float32; row t is the reward of the action in row t - 1."""
    discount: Tensor
    """[T+1, B] float32 continuation."""
    observation: Any
    """[T+1, B, ...]."""
    action: Any
    """[T, B, ...], as the policy sampled it."""
    policy_info: Batch
    """[T, B, ...], what the policy's `behaviour` computed."""
    policy_version: Tensor
    """[T, B] int32, the version that acted."""
    valid: Tensor
    """[T, B] float32, 1 where the row may be learned from."""


class Windows(Batch):
    """Flat rows for n-step learning: N starts, each with the rewards that follow it.

    Rows that were drawn by priority have a field `weight`, `[N]` float32, by which a loss is multiplied.
    """

    observation: Any
    """[N, ...]."""
    action: Any
    """[N, ...]."""
    next_observation: Any
    """[N, ...] at the row to bootstrap from: n steps later, or where the episode ended."""
    reward: Tensor
    """[n+1, N] of the rows from the start on; row 0 belongs to the time before."""
    discount: Tensor
    """[n+1, N] continuation."""
    step_type: Tensor
    """[n+1, N]."""
    policy_info: Batch
    """[N, ...]."""
    index: Tensor
    """[N] int64, the start's row in the buffer, for `write_back`."""
