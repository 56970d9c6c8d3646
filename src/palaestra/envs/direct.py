"""Stacks that add so little to a Gymnasium environment that a loop over many can do it for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.wrappers.time_limit import TimeLimit

__all__ = ["NEVER", "DirectCalls", "direct_calls"]

NEVER = sys.maxsize >> 1
"""A number of steps that no episode reaches."""


class DirectCalls(NamedTuple):
    """The Gymnasium environment of a stack that adds nothing but a time limit."""

    step: Callable[[Any], Any]
    """Of the Gymnasium environment."""
    reset: Callable[..., Any]
    """The same."""
    duration: int
    """The time limit in env steps, or `NEVER`."""


def direct_calls(env: SingleEnvironment) -> DirectCalls | None:
    """What to call instead of a stack; `None` if its layers do more.

    Args:
        env: the outermost layer.
    """
    duration = NEVER
    if type(env) is TimeLimit:
        duration, env = env.duration, env.env
    if type(env) is not GymEnvironment or not env.plain:
        return None
    return DirectCalls(env.gym_env.step, env.gym_env.reset, duration)
