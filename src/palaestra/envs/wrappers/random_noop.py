"""`RandomNoop`: episodes that do not all begin in the same state."""

from __future__ import annotations

from typing import final

import numpy as np

from palaestra.core import ConfigError, TimeStep, episode_seed
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper
from palaestra.envs.nest import neutral
from palaestra.envs.wrappers.base import as_first

__all__ = ["RandomNoop"]


@final
class RandomNoop(EnvironmentWrapper):
    """Executes a random number of actions that do nothing before the agent sees the episode.

    For deterministic environments (the Atari games), where a policy could otherwise learn one sequence by heart. The
    action is zeros, or what the action space allows next to them; the number of steps comes from the episode's seed.
    What these steps earn does not count.

    Args:
        env: the layer inside.
        maximum: of such actions, at least 1; the number is uniform in 1 ... maximum.

    Raises:
        ConfigError: the maximum is no integer, or below 1.

    Examples:
        >>> from palaestra.envs import load
        >>> env = RandomNoop(load("CartPole-v1"), maximum=3)
        >>> env.reset().first
        True
    """

    def __init__(self, env: SingleEnvironment, maximum: int = 30) -> None:
        super().__init__(env)
        if type(maximum) is not int or maximum < 1:
            raise ConfigError(f"RandomNoop(maximum={maximum!r}); it must be an integer of at least 1")
        self._maximum = maximum
        self._noop = neutral(env.action_spec)

    def begin_episode(self, seed: int) -> TimeStep:
        """Starts an episode and lets some time pass.

        Args:
            seed: passed on; the number of actions is drawn from it as well.
        """
        time_step = first = self.env.begin_episode(seed)
        for number in range(int(np.random.default_rng(seed).integers(1, self._maximum + 1))):
            time_step = self.env.advance(self._noop)
            if time_step.step_type == 2:
                time_step = first = self.env.begin_episode(episode_seed(seed, number))
        return as_first(time_step, first)
