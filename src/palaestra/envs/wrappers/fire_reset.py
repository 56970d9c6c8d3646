"""`FireReset`: starts games that wait for a button."""

from __future__ import annotations

from typing import Any, final

from palaestra.core import ConfigError, TimeStep, episode_seed, numpy_dtype
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.wrappers.base import as_first

__all__ = ["FireReset", "action_meanings"]


@final
class FireReset(EnvironmentWrapper):
    """Presses FIRE once at the start of every episode.

    Some Atari games stand still until then, and an agent that has not learned to press it collects nothing. What the
    step earns does not count.

    Args:
        env: the layer inside; its innermost environment names its actions by `get_action_meanings`.

    Raises:
        ConfigError: there is no action FIRE.

    Examples:
        >>> from palaestra.envs import load
        >>> FireReset(load("CartPole-v1"))
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: FireReset needs an action named FIRE; the actions are []
    """

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        meanings = action_meanings(env)
        if "FIRE" not in meanings:
            raise ConfigError(f"FireReset needs an action named FIRE; the actions are {meanings}")
        self._fire = numpy_dtype(env.action_spec.dtype).type(meanings.index("FIRE"))

    def begin_episode(self, seed: int) -> TimeStep:
        """Starts an episode and presses FIRE.

        Args:
            seed: passed on.
        """
        first = self.env.begin_episode(seed)
        time_step = self.env.advance(self._fire)
        if time_step.step_type == 2:
            time_step = self.env.begin_episode(episode_seed(seed, 0))
        return as_first(time_step, first)


def action_meanings(env: Any) -> list[str]:
    """The names that an environment gives its discrete actions; none where it gives none.

    Args:
        env: the outermost layer.
    """
    while isinstance(env, EnvironmentWrapper):
        env = env.env
    if not isinstance(env, GymEnvironment):
        return []
    meanings = getattr(env.gym_env.unwrapped, "get_action_meanings", None)
    return list(meanings()) if meanings is not None else []
