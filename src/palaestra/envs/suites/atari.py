"""Atari games with the standard preprocessing, from a C++ pool or from Python, with the same arguments.

Every fourth frame, the maximum of the newest two, gray, 84 x 84 pixels, the newest four of them stacked; up to 30
actions that do nothing, and FIRE, before the agent sees an episode (Machado et al. 2018,
https://arxiv.org/abs/1709.06009, and Mnih et al. 2015). Losing a life is not an end, and the limit of 108,000 frames
truncates. With `episodic_life=True` it is an end; the pool then begins a new game, the Python layers continue the
next life. The bare game, without preprocessing, is `ale_py:ALE/Pong-v5`.
"""

import functools
from dataclasses import dataclass, fields
from typing import Any

from palaestra.core import ConfigError
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.suites import gym
from palaestra.envs.suites.suite import Native, Single
from palaestra.envs.wrappers.actions import ActionRepeat
from palaestra.envs.wrappers.atari import EpisodicLife, FireReset, GrayscaleResize, RandomNoop, action_meanings
from palaestra.envs.wrappers.observations import FrameStack
from palaestra.envs.wrappers.rewards import ClipReward

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


def single(name: str, kwargs: dict[str, Any], limit: int | None) -> Single:
    """The same in Python: a debugger works, runs resume exactly, and Gymnasium wrappers can be put inside.

    The limit counts env steps, those before the agent's first included, and the game itself keeps it.
    """
    settings, game = _split(kwargs, limit)
    if not settings.grayscale:
        raise ConfigError("grayscale=False needs vectorization=native; colours without stacking are in ale_py:" + name)
    made = gym.single(name, {**game, "obs_type": "grayscale", "frameskip": 1}, 0)
    return made._replace(layers=(functools.partial(_layered, settings=settings),))


def unheeded(name: str, kwargs: dict[str, Any]) -> str:
    """What the layers in Python replace by something else."""
    given = kwargs.get("obs_type", "grayscale")
    if given == "grayscale":
        return ""
    return (
        f"env.kwargs has obs_type={given!r}, but {name!r} shows gray pictures of its own preprocessing; leave obs_type "
        f"out, or name the bare game, which heeds it: ale_py:{name}"
    )


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


def native(name: str, num_envs: int, kwargs: dict[str, Any], limit: int | None) -> Native:
    """A C++ pool of one game; the limit counts env steps of the agent."""
    if kwargs.get("life_loss_info"):
        raise ConfigError("life_loss_info says that an episode has ended where its game goes on; give episodic_life")
    settings, game = _split(kwargs, limit)
    return Native(gym.pool(name, num_envs, {**vars(settings), **game}), settings.stack_num)


def _split(kwargs: dict[str, Any], max_episode_steps: int | None) -> tuple[_Preprocessing, dict[str, Any]]:
    """The preprocessing, and the arguments of the game itself."""
    game = dict(kwargs)
    names = [field.name for field in fields(_Preprocessing)]
    settings = _Preprocessing(**{name: game.pop(name) for name in names if name in game})
    if max_episode_steps is not None:
        game.setdefault("max_num_frames_per_episode", max_episode_steps * settings.frameskip or gym.NO_LIMIT)
    return settings, game
