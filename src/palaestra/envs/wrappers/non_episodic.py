"""`NonEpisodic`: a task that goes on."""

from __future__ import annotations

from typing import Any, final

from palaestra.core import TimeStep
from palaestra.envs.environment_wrapper import EnvironmentWrapper

__all__ = ["NonEpisodic"]


@final
class NonEpisodic(EnvironmentWrapper):
    """Hides terminations: where the task says that it is over, the agent goes on acting.

    For continuing tasks whose environment reports success or failure as an end. A truncation stays a LAST step, so a
    time limit can still cut the stream into pieces; the discount is 1 everywhere. The environment has to stand being
    stepped after its end.

    Args:
        env: the layer inside.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NonEpisodic(load("palaestra.envs.tiny:Bandit"))  # terminates after every step
        >>> _ = env.reset()
        >>> [int(env.step(0).step_type) for _ in range(3)]
        [1, 1, 1]
    """

    def advance(self, action: Any) -> TimeStep:
        """Makes a MID step of a terminated LAST one.

        Args:
            action: passed on.
        """
        time_step = self.env.advance(action)
        over = time_step.step_type == 2 and time_step.discount == 0
        return time_step._replace(step_type=1, discount=1.0) if over else time_step
