"""Driving one stack of layers: replay an episode, and say everything about a failure."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core import EnvError, PalaestraError, TimeStep, episode_seed
from palaestra.envs.episode_log import Episode, EpisodeLog, digest

if TYPE_CHECKING:
    from palaestra.envs.environment import SingleEnvironment

__all__ = ["describe", "failure", "mark", "replay"]


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


def describe(error: BaseException) -> tuple[str, str]:
    """An exception as text that any process can read: its class, and its message or traceback.

    Args:
        error: raised by an environment.
    """
    ours = isinstance(error, PalaestraError)
    return type(error).__name__, str(error) if ours else "\n\n" + "".join(traceback.format_exception(error))


def failure(log: EpisodeLog, lane: int, what: str, detail: str, *, env_id: int | None = None) -> EnvError:
    """The error that names an environment, its seed, episode, step and action.

    Args:
        log: that the lane is in.
        lane: which failed.
        what: happened, for example "raised KeyError".
        detail: traceback or message.
        env_id: the environment's number, where it is not the lane's.
    """
    number = log.episodes[lane]
    place = f"environment {lane if env_id is None else env_id} {what}"
    if number < 0:
        return EnvError(f"{place} before its first episode: {detail}")
    step, seed = log.steps(lane), episode_seed(log.lane_seeds[lane], number)
    doing = f"step {step} with action {_summary(log.last_action(lane))}" if step else "its reset"
    return EnvError(f"{place} in episode {number} (seed {seed}), at {doing}: {detail}")


def _summary(action: Any) -> str:
    with np.printoptions(threshold=20, edgeitems=5, precision=4):
        return repr(action).replace("\n", " ")
