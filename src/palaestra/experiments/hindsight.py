"""Hindsight replay in a run: the reward function of its environment, tried out before anything starts."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from palaestra.algorithms import Algorithm
from palaestra.buffers import HindsightSampler
from palaestra.core import ConfigError, RunSeeds, StepType, TensorSpec
from palaestra.envs import EnvConfig, SingleEnvironment, load_lane, space_from_spec
from palaestra.envs.check_ends import sample
from palaestra.envs.faults import describe
from palaestra.envs.gym_environment import gym_env_of
from palaestra.experiments.config import ExperimentConfig

__all__ = ["hindsight_sampler"]

_KEYS = ("observation", "achieved_goal", "desired_goal")
_MOST_STEPS = 50
_NEEDED = (
    "hindsight needs `compute_reward(achieved_goal, desired_goal, info)` of a Gymnasium environment, on arrays of many "
    "rows, as the environments of Gymnasium-Robotics have it"
)


class _Played(NamedTuple):
    """T steps of one episode, twice: whoever computes only single rows does not give this shape."""

    achieved: np.ndarray
    """[2, T, goal]."""
    desired: np.ndarray
    """[2, T, goal]."""
    reward: np.ndarray
    """[2, T] as the environment emitted it."""
    discount: np.ndarray
    """[2, T]."""


def hindsight_sampler(config: ExperimentConfig, algorithm: Algorithm[Any]) -> Callable[..., HindsightSampler] | None:
    """What makes the sampler of every buffer that a run learns from, given the buffer's own one as `base`.

    One environment is made and plays an episode of at most 50 random steps, from which the reward function has to give
    the rewards that came through all wrappers. The environment is closed before the function is called.

    Args:
        config: of the run.
        algorithm: that learns.

    Returns:
        `None` where the run has no hindsight.

    Raises:
        ConfigError: nothing is replayed, observations have no goals, or rewards do not follow from the goals alone.
        EnvError: the environment raised something.
    """
    if not config.hindsight.share:
        return None
    problem = _unfit(config, algorithm)
    if problem:
        raise ConfigError(f"hindsight.share is {config.hindsight.share}, but {problem}; leave hindsight out")
    lane = _lane(config.env)
    try:
        gym_env = gym_env_of(lane)
        task: Any = None if gym_env is None else gym_env.unwrapped
        if not callable(getattr(task, "compute_reward", None)):
            made = type(lane if task is None else task).__name__
            raise ConfigError(f"{config.env.name} is a {made}, which has no compute_reward; {_NEEDED}")
        played = _played(lane, RunSeeds(config.run.seed).integer("environments", 0))
    finally:
        lane.close()
    reward = task.compute_reward
    _require_agreement(reward, played, config.env.name)
    return functools.partial(
        HindsightSampler,
        reward,
        strategy=config.hindsight.strategy,
        share=config.hindsight.share,
        terminated=_terminated(task, played),
    )


def _unfit(config: ExperimentConfig, algorithm: Algorithm[Any]) -> str:
    """Why nothing could be replayed with other goals; empty where it can."""
    name, data = config.algorithm_name, algorithm.plan.data
    if data != "replay":
        how = "only from its own newest steps" if data == "on-policy" else "from loaded data alone"
        return f"{name} learns {how}, and hindsight needs an algorithm that collects and replays, such as sac or dqn"
    spec = algorithm.policy.observation_spec
    given = list(spec) if isinstance(spec, Mapping) else None
    if given is None or not set(_KEYS) <= set(given):
        what = "are no dict" if given is None else f"have the keys {given}"
        return f"observations of {config.env.name} {what}, and hindsight needs the keys {', '.join(_KEYS)}"
    assert isinstance(spec, Mapping)
    goals = [spec[name] for name in _KEYS[1:]]
    layouts = [(goal.shape, goal.dtype) if isinstance(goal, TensorSpec) else None for goal in goals]
    if layouts[0] is None or len(layouts[0][0]) != 1 or layouts[0] != layouts[1]:
        return f"achieved_goal is {goals[0]} and desired_goal is {goals[1]}, and both need to be vectors of one kind"
    return ""


def _lane(env: EnvConfig) -> SingleEnvironment:
    """One environment as the run has many."""
    if env.vectorization == "native":
        raise ConfigError(f"env.vectorization=native steps all environments as one pool; {_NEEDED}")
    try:
        return load_lane(dataclasses.replace(env, chaos=""), 0)
    except ConfigError as error:  # pools and batched environments cannot be made one by one
        raise ConfigError(f"{_NEEDED}: {error}") from error


def _played(lane: SingleEnvironment, seed: int) -> _Played:
    """Random steps of one episode."""
    space, steps = space_from_spec(lane.action_spec), []
    space.seed(seed % 2**32)
    lane.seed(seed)
    step = lane.reset()
    while len(steps) < _MOST_STEPS and step.step_type != StepType.LAST:
        step = lane.step(sample(space, step.observation))
        steps.append(step)
    columns = [
        [step.observation["achieved_goal"] for step in steps],
        [step.observation["desired_goal"] for step in steps],
        [step.reward for step in steps],
        [step.discount for step in steps],
    ]
    return _Played(*(np.stack([column, column]) for column in columns))


def _require_agreement(reward: Callable[..., Any], played: _Played, name: str) -> None:
    try:
        given = np.asarray(reward(played.achieved, played.desired, {}))
    except Exception as error:
        raise ConfigError(
            f"compute_reward of {name} raised {describe(error)[0]} for goals {played.achieved.shape} and an empty "
            f"info; {_NEEDED}"
        ) from error
    if given.shape != played.reward.shape:
        raise ConfigError(
            f"compute_reward of {name} gave shape {given.shape} for goals {played.achieved.shape} and rewards "
            f"{played.reward.shape}; {_NEEDED}"
        )
    wrong = ~np.isclose(given, played.reward, rtol=1e-4, atol=1e-6)[0]
    if wrong.any():
        step = int(wrong.argmax())
        raise ConfigError(
            f"compute_reward of {name} gives {given[0, step]:g} for the goals of a step for which the run gets the "
            f"reward {played.reward[0, step]:g}: a wrapper changes rewards, or they depend on more than the goals; "
            "leave out the wrapper, or hindsight"
        )


def _terminated(task: Any, played: _Played) -> Callable[..., Any] | None:
    """The function that says where reaching a goal ends the episode; `None` where ends stay as they were.

    It has to compute many rows, and to give the ends that the environment emitted: there may be others.
    """
    function = getattr(task, "compute_terminated", None)
    try:
        over = np.asarray(function(played.achieved, played.desired, {}))  # pyright: ignore[reportOptionalCall]
    except Exception:  # none is there, or it is for single rows
        return None
    same = over.shape == played.discount.shape and np.array_equal(1 - over.astype(np.float32), played.discount)
    return function if same else None
