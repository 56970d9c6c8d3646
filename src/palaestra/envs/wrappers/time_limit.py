"""`TimeLimit`: cuts an episode off, and does not call that an end of the task."""

from __future__ import annotations

from typing import Any, final

from palaestra.core import ConfigError, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper

__all__ = ["TimeLimit"]


@final
class TimeLimit(EnvironmentWrapper):
    """Makes the env step number `duration` of an episode its LAST, with the discount unchanged.

    A truncated state keeps its value; one that terminates on that very step keeps its discount of 0. An environment
    that counts by itself and reports `terminated` at step N is corrected by `TimeLimit(env, N - 1)`.

    Args:
        env: the layer inside.
        duration: env steps in an episode, an integer of at least 1.

    Raises:
        ConfigError: the duration is no such integer.

    Examples:
        >>> from palaestra.envs import load
        >>> env = TimeLimit(load("palaestra.envs.tiny:Endless"), 2)
        >>> time_steps = [env.reset(), env.step(0), env.step(0)]
        >>> [(int(time_step.step_type), time_step.discount) for time_step in time_steps]
        [(0, 1.0), (1, 1.0), (2, 1.0)]
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment, duration: int) -> None:
        super().__init__(env)
        if type(duration) is not int or duration < 1:
            raise ConfigError(f"TimeLimit(duration={duration}); an episode needs a whole number of steps, at least 1")
        self.duration = duration
        self._steps = 0
        self._advance = env.advance

    @property
    def cut_off(self) -> bool:
        """Whether the limit was reached, or the inner layer cuts off."""
        return self._steps >= self.duration or self.env.cut_off

    def begin_episode(self, seed: int) -> TimeStep:
        """Starts counting from 0.

        Args:
            seed: passed on.
        """
        self._steps = 0
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        """Counts the step.

        Args:
            action: passed on.
        """
        time_step = self._advance(action)
        self._steps += 1
        if self._steps < self.duration:
            return time_step
        raw = time_step.untransformed
        raw = raw._replace(step_type=2) if isinstance(raw, TimeStep) else raw
        return time_step._replace(step_type=2, untransformed=raw)
