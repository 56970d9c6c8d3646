"""Driving one stack of layers: puts an environment back into the middle of an episode."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from palaestra.core import EnvError, TimeStep
from palaestra.envs.episode_log import Episode, digest

if TYPE_CHECKING:
    from palaestra.envs.environment import SingleEnvironment

__all__ = ["mark", "remade", "replay"]

_log = logging.getLogger(__name__)


def mark(env: SingleEnvironment, observation: Any) -> str:
    """What proves that an episode was replayed, and what replaying it takes: one word.

    Args:
        env: the outermost layer.
        observation: its latest.

    Returns:
        A digest of the observation; after a colon, what the layers carried into the episode from earlier ones.
    """
    found, memory = digest(observation, env.observation_spec), env.memory()
    return f"{found}:{json.dumps(memory, separators=(',', ':'))}".replace(" ", "\\u0020") if memory else found


def remade(env: SingleEnvironment, make: Callable[[], SingleEnvironment]) -> SingleEnvironment:
    """Makes an environment that failed again, with what its layers carried into the episode in which it failed.

    Args:
        env: the outermost layer; it is closed.
        make: makes the same layers.
    """
    memory: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        memory = env.memory()
    with contextlib.suppress(Exception):
        env.close()
    again = make()
    if memory:
        try:
            again.recall(memory)
        except Exception as error:
            _log.warning(
                "what the wrappers of environment %d carried from earlier episodes (%s) is lost: %s: %s",
                again.env_id, ", ".join(memory), type(error).__name__, error,
            )  # fmt: skip
            with contextlib.suppress(Exception):
                again.close()
            return make()
    return again


def replay(env: SingleEnvironment, episode: Episode) -> TimeStep | None:
    """Puts an environment where an episode had come to.

    Args:
        env: the outermost layer.
        episode: with its actions and its `mark`.

    Returns:
        The latest time step; `None` if no episode was running.

    Raises:
        EnvError: the digest differs.
    """
    if not episode.digest:
        return None
    expected, _, memory = episode.digest.partition(":")
    if memory:
        env.recall(json.loads(memory))
    time_step = env.begin_episode(episode.seed)
    for action in episode.actions:
        time_step = env.advance(action)
    found = digest(time_step.observation, env.observation_spec)
    if found != expected:
        raise EnvError(
            f"the episode does not replay: after {len(episode.actions)} actions its observation hashes to {found}, "
            f"in the saved run to {expected}. The environment draws from something other than the seed of its "
            "reset (a global generator, the clock), keeps state "
            "across episodes, or its code or settings have changed since"
        )
    return time_step
