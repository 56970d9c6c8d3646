"""What algorithms with recurrent policies read from their data."""

from __future__ import annotations

from typing import Any

from palaestra.core import Batch, StepType

__all__ = ["memory_fields", "memory_of"]


def memory_of(batch: Batch) -> tuple[Any, ...]:
    """The memory with which sequences begin, and where episodes begin in them: arguments of a policy's methods.

    Args:
        batch: sequences with `step_type` [T, N]; `state` [T, N, ...] is there where the policy has a memory.

    Returns:
        `(state, first)`, or `()` for a policy without memory.
    """
    return (batch["state"][0], batch["step_type"] == StepType.FIRST) if "state" in batch else ()


def memory_fields(batch: Batch) -> dict[str, Any]:
    """What a minibatch of an unroll needs for `memory_of`.

    Args:
        batch: an unroll [T+1, B].

    Returns:
        Fields [T, B, ...]; none for a policy without memory.
    """
    return {"state": batch["state"], "step_type": batch["step_type"][:-1]} if "state" in batch else {}
