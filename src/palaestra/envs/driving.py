"""Driving one stack of layers: puts an environment back into the middle of an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palaestra.core import EnvError, TimeStep
from palaestra.envs.episode_log import Episode, digest

if TYPE_CHECKING:
    from palaestra.envs.environment import SingleEnvironment

__all__ = ["replay"]


def replay(env: SingleEnvironment, episode: Episode) -> TimeStep | None:
    """Puts an environment where an episode had come to.

    Args:
        env: the outermost layer.
        episode: with its actions and the digest of its latest observation.

    Returns:
        The latest time step; `None` if no episode was running.

    Raises:
        EnvError: the digest differs.
    """
    if not episode.digest:
        return None
    time_step = env.begin_episode(episode.seed)
    for action in episode.actions:
        time_step = env.advance(action)
    found = digest(time_step.observation, env.observation_spec)
    if found != episode.digest:
        raise EnvError(
            f"the episode does not replay: after {len(episode.actions)} actions its observation hashes to {found}, "
            f"in the saved run to {episode.digest}. The environment draws from something other than the seed of its "
            "reset (a global generator, the clock), keeps state "
            "across episodes, or its code or settings have changed since"
        )
    return time_step
