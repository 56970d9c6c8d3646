"""Non-finite observations and rewards are caught where they enter, and named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, NonFiniteError, StepType, TimeStep, episode_seed
from palaestra.envs import Environment

__all__ = ["require_finite"]


def require_finite(
    env: Environment, buffer: ReplayBuffer, newest: TimeStep, rows: int, *, changed: bool = False
) -> None:
    """Looks at the rows that were just completed and at the newest time step.

    Args:
        env: where they come from.
        buffer: that has them.
        newest: the time step of every lane.
        rows: completed in every lane.
        changed: whether what the environment emitted was changed since.

    Raises:
        NonFiniteError: an observation or reward is NaN or infinite; the message names environment, field, episode, its
            seed and step.
    """
    if env.checks_finite and not changed:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        for name, value in (("observation", newest.observation), ("reward", newest.reward)):
            _check(name, value, env, buffer, newest, 0)
            if rows > 1:
                _check(name, buffer.recent(name, rows), env, buffer, newest, rows)


def _check(name: str, value: Any, env: Environment, buffer: ReplayBuffer, newest: TimeStep, rows: int) -> None:
    """Looks at values [B, ...] of the newest time step, or at [rows, B, ...] of the rows before it."""
    if isinstance(value, Batch):
        for key, part in value.items():
            _check(f"{name}.{key}", part, env, buffer, newest, rows)
        return
    if not value.is_floating_point():
        return
    if math.isfinite(np.add.reduce(value.numpy(), axis=None) if value.is_cpu else value.sum()):
        return
    for place in (~torch.isfinite(value)).nonzero().tolist():  # none where only the sum overflows
        row, lane, element = (place[0], place[1], place[2:]) if rows else (0, place[0], place[1:])
        kinds = [*buffer.recent("step_type", rows)[:, lane].tolist()] if rows else []
        when = _when(env, lane, [*kinds, int(newest.step_type[lane])], row)
        raise NonFiniteError(
            f"environment {lane} emitted {name}{element or ''} = {value[tuple(place)].item()}{when}; "
            "look at the environment, or clip what it emits"
        )


def _when(env: Environment, lane: int, kinds: list[int], row: int) -> str:
    """Episode, seed and step of one of a lane's newest rows, where the environment counts them."""
    state = env.state_dict()
    if not {"lane_seed", "episode", "steps"} <= state.keys():
        return ""
    later = kinds[row + 1 :].count(StepType.FIRST)
    number = int(state["episode"][lane]) - later
    seed = episode_seed(int(state["lane_seed"][lane]), number)
    firsts = [index for index in range(row + 1) if kinds[index] == StepType.FIRST]
    if not firsts and later:
        return f" in episode {number} (seed {seed})"
    step = row - firsts[-1] if firsts else int(state["steps"][lane]) - (len(kinds) - 1 - row)
    return f" in episode {number} (seed {seed}), step {step}"
