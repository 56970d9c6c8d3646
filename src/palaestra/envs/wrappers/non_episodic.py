"""`NonEpisodic`: a task that goes on."""

from __future__ import annotations

from typing import Any, final

from palaestra.core import TimeStep
from palaestra.envs.environment_wrapper import EnvironmentWrapper

__all__ = ["NonEpisodic"]


@final
class NonEpisodic(EnvironmentWrapper):
    """Hides terminations: where the task says that it is over, the agent goes on acting.

    For continuing tasks whose environment reports success or failure as an end. A truncation stays a LAST step, also
    where it comes together with a termination, so a time limit can still cut the stream into pieces; the discount is 1
    everywhere. The environment has to stand being stepped after its end.

    Args:
        env: the layer inside.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NonEpisodic(load("palaestra.envs.tiny:Bandit"))  # terminates after every step
        >>> _ = env.reset()
        >>> [int(env.step(0).step_type) for _ in range(3)]
        [1, 1, 1]
    """

    keeps_frames = True

    def advance(self, action: Any) -> TimeStep:
        """Makes a MID step of a terminated LAST one, or a truncated one at a time limit.

        Args:
            action: passed on.
        """
        time_step = self.env.advance(action)
        if time_step.step_type != 2 or time_step.discount != 0:
            return time_step
        return time_step._replace(step_type=2 if self.env.cut_off else 1, discount=1.0)
