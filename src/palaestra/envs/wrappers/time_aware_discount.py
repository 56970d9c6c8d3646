"""`TimeAwareDiscount`: every end is an end."""

from __future__ import annotations

from typing import Any, final

from palaestra.core import TimeStep
from palaestra.envs.environment_wrapper import EnvironmentWrapper

__all__ = ["TimeAwareDiscount"]


@final
class TimeAwareDiscount(EnvironmentWrapper):
    """Sets the discount of every LAST step to 0, also at a time limit.

    Right where the time left is part of the observation (`gymnasium.wrappers:TimeAwareObservation`) and what counts is
    the return until the limit: the policy sees the end coming, so nothing lies beyond it. Elsewhere a time limit must
    keep its discount, or the same state would be worth two different things. On the command line:
    `--env.gym-wrappers TimeAwareObservation --env.wrappers TimeAwareDiscount`.

    Args:
        env: the layer inside.

    Examples:
        >>> from palaestra.envs import load
        >>> env = TimeAwareDiscount(load("palaestra.envs.tiny:Endless", max_episode_steps=1))
        >>> env.reset().discount, env.step(0).discount
        (1.0, 0.0)
    """

    keeps_frames = True

    def advance(self, action: Any) -> TimeStep:
        """Changes the discount of an end.

        Args:
            action: passed on.
        """
        time_step = self.env.advance(action)
        return time_step._replace(discount=0.0) if time_step.step_type == 2 else time_step
