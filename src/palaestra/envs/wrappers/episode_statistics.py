"""`EpisodeStatistics`: return and length of an episode, as the layer below sees them."""

from __future__ import annotations

from typing import Any, final

from palaestra.core import TensorSpec, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper

__all__ = ["EpisodeStatistics"]


@final
class EpisodeStatistics(EnvironmentWrapper):
    """Adds `episode/return` and `episode/length` to the `info` of every LAST step.

    Put it inside of layers that change rewards: the library's own metrics see what comes out at the outside, and these
    are the raw numbers. They become the metrics `info/episode/return` and `info/episode/length`.

    Args:
        env: the layer inside.

    Examples:
        >>> from palaestra.envs import load
        >>> env = EpisodeStatistics(load("palaestra.envs.tiny:Endless", max_episode_steps=3))
        >>> time_steps = [env.reset(), env.step(0), env.step(0), env.step(0)]
        >>> time_steps[-1].env_info
        {'episode': {'return': 3.0, 'length': 3}}
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._return: Any = 0.0
        self._length = 0

    @property
    def env_info_spec(self) -> Any:
        """With the two entries."""
        scalar = TensorSpec(())
        return {**self.env.env_info_spec, "episode": {"return": self.env.reward_spec, "length": scalar}}

    def begin_episode(self, seed: int) -> TimeStep:
        """Starts from 0.

        Args:
            seed: passed on.
        """
        self._return, self._length = 0.0, 0
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        """Counts the step.

        Args:
            action: passed on.
        """
        time_step = self.env.advance(action)
        self._return = self._return + time_step.reward
        self._length += 1
        if time_step.step_type != 2:
            return time_step
        statistics = {"return": self._return, "length": self._length}
        return time_step._replace(env_info={**(time_step.env_info or {}), "episode": statistics})
