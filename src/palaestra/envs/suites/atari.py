"""Atari games with the standard preprocessing, from a C++ pool or from Python, with the same arguments.

Every fourth frame, the maximum of the newest two, gray, 84 x 84 pixels, the newest four of them stacked; up to 30
actions that do nothing, and FIRE, before the agent sees an episode (Machado et al. 2018,
https://arxiv.org/abs/1709.06009, and Mnih et al. 2015). Losing a life is not an end, and the limit of 108,000 frames
truncates. With `episodic_life=True` it is an end; the pool then begins a new game, the Python layers continue the
next life. The bare game, without preprocessing, is `ale_py:ALE/Pong-v5`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from gymnasium.vector import VectorEnv

from palaestra.core import ConfigError
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.suites import gym
from palaestra.envs.wrappers.actions import ActionRepeat
from palaestra.envs.wrappers.atari import EpisodicLife, FireReset, GrayscaleResize, RandomNoop, action_meanings
from palaestra.envs.wrappers.observations import FrameStack
from palaestra.envs.wrappers.rewards import ClipReward

__all__ = ["PREFIX", "pool", "preprocessing"]

PREFIX = "ALE/"
"""Names that this suite is for."""


@dataclass(frozen=True)
class _Preprocessing:
    """The arguments of ale-py's own `AtariVectorEnv`; rewards come out as they are unless asked otherwise."""

    img_height: int = 84
    img_width: int = 84
    stack_num: int = 4
    frameskip: int = 4
    grayscale: bool = True
    maxpool: bool = True
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = False
    reward_clipping: bool = False


def preprocessing(
    name: str, kwargs: dict[str, Any], max_episode_steps: int | None
) -> tuple[dict[str, Any], Callable[[SingleEnvironment], SingleEnvironment]]:
    """The same in Python: a debugger works, runs resume exactly, and Gymnasium wrappers can be put inside.

    Args:
        name: such as `"ALE/Pong-v5"`.
        kwargs: of `AtariVectorEnv` or of the bare game.
        max_episode_steps: the time limit in env steps, those before the agent's first included; `None` for 108,000
            frames, 0 for none.

    Returns:
        The arguments of the bare game, and the layers around it as one.

    Raises:
        ConfigError: colours are asked for.
    """
    settings, game = _split(kwargs, max_episode_steps)
    if not settings.grayscale:
        raise ConfigError("grayscale=False needs vectorization=native; colours without stacking are in ale_py:" + name)
    return {**game, "obs_type": "grayscale", "frameskip": 1}, functools.partial(_layered, settings=settings)


def _layered(env: SingleEnvironment, settings: _Preprocessing) -> SingleEnvironment:
    fire = settings.use_fire_reset and "FIRE" in action_meanings(env)
    if settings.noop_max:
        env = RandomNoop(env, settings.noop_max)
    if settings.episodic_life:
        env = EpisodicLife(env)
    env = ActionRepeat(env, settings.frameskip, pool=2 if settings.maxpool and settings.frameskip > 1 else 1)
    env = GrayscaleResize(env, settings.img_height, settings.img_width)
    if fire:
        env = FireReset(env)
    env = FrameStack(env, settings.stack_num)
    return ClipReward(env) if settings.reward_clipping else env


def pool(
    name: str, num_envs: int, kwargs: dict[str, Any], max_episode_steps: int | None = None
) -> tuple[VectorEnv[Any, Any, Any], int]:
    """A C++ pool of one game.

    Args:
        name: such as `"ALE/Pong-v5"`.
        num_envs: how many.
        kwargs: of `AtariVectorEnv`.
        max_episode_steps: the time limit in env steps of the agent; `None` and 0 as for `preprocessing`.

    Returns:
        The pool, and how many frames the first axis of its observations stacks.

    Raises:
        ConfigError: no such game, or its constructor refuses the arguments.
        MissingExtraError: ale-py is not installed.
    """
    settings, game = _split(kwargs, max_episode_steps)
    return gym.pool(name, num_envs, {**vars(settings), **game}), settings.stack_num


def _split(kwargs: dict[str, Any], max_episode_steps: int | None) -> tuple[_Preprocessing, dict[str, Any]]:
    """The preprocessing, and the arguments of the game itself."""
    game = dict(kwargs)
    names = [field.name for field in fields(_Preprocessing)]
    settings = _Preprocessing(**{name: game.pop(name) for name in names if name in game})
    if max_episode_steps is not None:
        game.setdefault("max_num_frames_per_episode", max_episode_steps * settings.frameskip or gym.NO_LIMIT)
    return settings, game
