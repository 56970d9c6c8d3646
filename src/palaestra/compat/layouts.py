"""Layouts of other libraries: one trajectory in the four ways of the literature, MARO's `ExperienceSet`, PARL's clones.

| | row t holds | the reward of action t is in | the end is said by |
|---|---|---|---|
| `TimeStep` rows (ALF, dm_env) | what arrived at t | row t + 1 | `step_type` and `discount` of row t + 1 |
| `Transitions` (MARO, Gymnasium) | observation, action and both outcomes | row t | `terminated`, `truncated` of row t |
| the same with `done` (Tianshou, old Gym) | the same | row t | `done` of row t: one of the two |
| `Experiences` (PARL) | observation and action at t | row t | `game_over` of row t + 1 |

Every function takes one stream in time order, numpy or torch, and copies numbers bit by bit. They convert data of other
libraries; training never calls them, since a buffer stores rows and reads transitions out of them.
"""

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch

from palaestra.core import Batch, ShapeError, StepType, TimeStep, as_array, tree_leaves

__all__ = [
    "ExperienceSet",
    "Experiences",
    "Transitions",
    "create_algorithm_func",
    "done_of",
    "experiences_from_rows",
    "game_over_of",
    "rows_from_experiences",
    "rows_from_transitions",
    "transitions_from_rows",
]


class ExperienceSet(Batch):
    """Transitions with list-like use: `len`, `.size`, `[0]`, `[0:20:5]`, `.extend`.

    `info` is a dict of arrays, or a dict for each transition; `None`, or a list of them, is nothing. Every index gives
    a set again, also a single number, so whatever comes out can be learned from or extended with.

    Raises:
        ShapeError: the fields differ in length, or are single values.

    Examples:
        >>> states = np.zeros((4, 2))
        >>> experiences = ExperienceSet(states, np.arange(4), np.ones(4), states, {"loss": np.ones(4)})
        >>> experiences.size, experiences[0:4:2].actions, experiences[-1].actions
        (4, array([0, 2]), array([3]))
    """

    states: Any
    actions: Any
    rewards: Any
    next_states: Any
    info: Any

    def __init__(
        self, states: Any, actions: Any, rewards: Any, next_states: Any, info: Any = None, **more: Any
    ) -> None:
        if info is None or (isinstance(info, list | tuple) and all(one is None for one in info)):
            info = Batch()
        super().__init__(states=states, actions=actions, rewards=rewards, next_states=next_states, info=info, **more)
        if np.ndim(self.rewards) == 0:
            raise ShapeError(f"rewards is {self.rewards!r}; an ExperienceSet needs one per transition, for example [r]")
        len(self)

    def __getitem__(self, index: Any) -> Any:
        """One field by its name; or transitions: by a number one of them, else whatever indexes an array."""
        if isinstance(index, str) or not hasattr(index, "__index__") or np.ndim(index):
            return super().__getitem__(index)
        position, size = operator.index(index), len(self)
        if not -size <= position < size:
            raise IndexError(f"transition {position} was asked for, but the set has {size}")
        position %= size
        return super().__getitem__(slice(position, position + 1))

    @property
    def size(self) -> int:
        """Number of transitions."""
        return len(self)

    def extend(self, other: Self) -> None:
        """Appends transitions in place; to an empty set, of any shape.

        Args:
            other: with the same fields, or empty.

        Raises:
            ShapeError: its fields differ.
        """
        if len(other):
            self.__dict__.update((ExperienceSet.cat([self, other]) if len(self) else other[:]).__dict__)


class Transitions(Batch):
    """N actions with what came before and after each, in time order."""

    observation: Any
    """[N, ...] on which the action was taken."""
    action: Any
    """[N, ...]."""
    reward: Any
    """[N] what the action earned."""
    terminated: Any
    """[N] whether the episode ended by itself with this action."""
    truncated: Any
    """[N] whether it was cut off after this action."""
    next_observation: Any
    """[N, ...] to which the action led; at an end the final observation, never that of the next reset."""


class Experiences(Batch):
    """PARL's record of T + 1 time steps; where the game is over, action and reward are dummies of zeros."""

    inputs: Any
    """[T+1, ...] observations."""
    states: Any
    """What a recurrent policy remembered; an empty batch where there is no memory."""
    actions: Any
    """[T+1, ...] taken on the inputs."""
    rewards: Any
    """[T+1] for taking the actions."""
    game_over: Any
    """[T+1] integer, 1 where the *current* step is the last of its episode."""
    discount: Any
    """[T+1] continuation. PARL has no such field: it is `1 - game_over` where every end is a termination."""


def done_of(step_type: Any) -> Any:
    """Gym's old `done`: whether the action of row t ended its episode.

    Args:
        step_type: [T+1] of consecutive rows.

    Returns:
        [T] booleans: done[t] says what row t + 1 is.
    """
    return step_type[1:] == StepType.LAST


def game_over_of(step_type: Any) -> Any:
    """PARL's `game_over`: whether row t itself is the end of its episode.

    Args:
        step_type: [T+1] of consecutive rows.

    Returns:
        [T+1] integers: game_over[t] = done[t - 1], and 0 at FIRST.
    """
    over = step_type == StepType.LAST
    return over.to(torch.int64) if isinstance(over, torch.Tensor) else over.astype(np.int64)


def transitions_from_rows(rows: TimeStep) -> Transitions:
    """The transitions of a stream of time steps: each action with the reward that arrived one row later.

    Args:
        rows: [T+1, ...]; of its fields `step_type`, `reward`, `discount`, `observation` and `prev_action` are read.

    Returns:
        One transition for every row with a successor in its own episode.
    """
    step_type = _numpy(rows.step_type)
    index = np.flatnonzero((step_type[:-1] != StepType.LAST) & (step_type[1:] != StepType.FIRST))
    names = ("step_type", "reward", "discount", "observation", "prev_action")
    stream = Batch({name: getattr(rows, name) for name in names})
    before, after = stream[index], stream[index + 1]
    last, zero = after.step_type == StepType.LAST, after.discount == 0
    ends = last & zero, last & ~zero
    return Transitions(before.observation, after.prev_action, after.reward, *ends, after.observation)


def rows_from_transitions(transitions: Transitions) -> TimeStep:
    """The stream of time steps that transitions in time order were cut from.

    A new episode begins after an end, and wherever an observation is not the next observation of the transition before:
    there the stream was broken, as data sets are that do not mark their time limits.

    Args:
        transitions: at least one.

    Returns:
        Rows with `step_type`, `reward`, `discount`, `observation`, `prev_action`; at FIRST reward and action are 0.

    Raises:
        ShapeError: there are no transitions.
    """
    count = len(transitions)
    if count == 0:
        raise ShapeError("no transitions were given; at least one is needed to make rows of")
    terminated = _numpy(transitions.terminated).astype(bool)
    ended = terminated | _numpy(transitions.truncated).astype(bool)
    begins = np.ones(count, bool)
    begins[1:] = ended[:-1] | ~_continues(transitions.next_observation[:-1], transitions.observation[1:])
    # before each transition that begins an episode stands a FIRST row; then one row for each transition's outcome
    arrives = np.arange(count) + np.cumsum(begins)
    first = arrives[begins] - 1
    order = np.empty(count + len(first), np.int64)
    order[arrives], order[first] = np.arange(count), count + np.flatnonzero(begins)
    outcome = Batch(prev_action=transitions.action, reward=transitions.reward)
    arrived = outcome.replace(observation=transitions.next_observation)
    reset = outcome.map(_zeros).replace(observation=transitions.observation)
    rows = Batch.cat([arrived, reset])[order]
    step_type = np.full(len(order), StepType.FIRST, np.int32)
    step_type[arrives] = np.where(ended, StepType.LAST, StepType.MID)
    discount = np.ones(len(order), np.float32)
    discount[arrives] = ~terminated
    kinds, discounts = (_like(rows.reward, array) for array in (step_type, discount))
    return TimeStep(kinds, rows.reward, discounts, rows.observation, rows.prev_action)


def experiences_from_rows(rows: TimeStep) -> Experiences:
    """PARL's experiences: the reward moves from the step it arrives with to the step whose action earned it.

    PARL has no sign for a stream that broke off without an end: cut such a stream before.

    Args:
        rows: [T+1, ...]; of its fields `step_type`, `reward`, `discount`, `observation` and `prev_action` are read.

    Returns:
        T + 1 experiences. The newest one has no action yet: dummies of zeros, like those of an episode's last step.
    """
    outcome = Batch(action=rows.prev_action, reward=rows.reward)
    following = Batch.cat([outcome[1:], outcome[:1].map(_zeros)])
    return Experiences(
        rows.observation, Batch(), following.action, following.reward, game_over_of(rows.step_type), rows.discount
    )


def rows_from_experiences(experiences: Experiences) -> TimeStep:
    """The stream of time steps behind PARL's experiences; it begins with the first step of an episode.

    Args:
        experiences: at least one.
    """
    outcome = Batch(action=experiences.actions, reward=experiences.rewards)
    arrived = Batch.cat([outcome[:1].map(_zeros), outcome[:-1]])
    over = _numpy(experiences.game_over) != 0
    step_type = np.where(over, StepType.LAST, StepType.MID).astype(np.int32)
    step_type[np.concatenate([[True], over[:-1]])] = StepType.FIRST
    kinds = _like(experiences.rewards, step_type)
    return TimeStep(kinds, arrived.reward, experiences.discount, experiences.inputs, arrived.action)


def _continues(next_observation: Any, observation: Any) -> np.ndarray:
    """[N] whether two observations are equal bit by bit."""
    equal = np.ones(len(observation), bool)
    for left, right in zip(tree_leaves(next_observation), tree_leaves(observation), strict=True):
        if _numpy(left).size:
            equal &= (_bytes(left) == _bytes(right)).all(1)
    return equal


def _bytes(leaf: Any) -> np.ndarray:
    array = np.ascontiguousarray(_numpy(leaf))
    return array.reshape(len(array), -1).view(np.uint8)


def _zeros(leaf: Any) -> Any:
    return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else np.zeros_like(leaf)


def _like(model: Any, array: np.ndarray) -> Any:
    return torch.from_numpy(array) if isinstance(model, torch.Tensor) else array


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(as_array(value))


def create_algorithm_func(
    model_class: Callable[..., Any],
    model_args: Mapping[str, Any],
    algorithm_class: Callable[..., Any],
    algorithm_args: Mapping[str, Any],
) -> Callable[..., Any]:
    """A function that makes an algorithm with a model of its own: PARL's way of cloning.

    Its algorithms share nothing. Those of this library begin with equal weights, for these follow from `seeds`;
    `make(seeds=RunSeeds(1))` gives others.

    Args:
        model_class: makes a model; for an algorithm of this library, a network from observations to features.
        model_args: its arguments by name.
        algorithm_class: an algorithm of this library, or whatever else takes `network`; it makes each of its networks
            with a new model. Or what takes `model_func`, which makes a new model whenever it is called.
        algorithm_args: its other arguments by name.

    Examples:
        >>> make = create_algorithm_func(dict, {"size": 3}, lambda model_func, rate: [model_func(), rate], {"rate": 1})
        >>> make(), make()[0] is make()[0]
        ([{'size': 3}, 1], False)
    """
    model_func = functools.partial(model_class, **model_args)
    parameters = inspect.signature(algorithm_class).parameters
    if "network" in parameters and "model_func" not in parameters:
        return functools.partial(algorithm_class, network=functools.partial(_of_spec, model_func), **algorithm_args)
    return functools.partial(algorithm_class, model_func=model_func, **algorithm_args)


def _of_spec(model_func: Callable[[], Any], observation_spec: Any) -> Any:
    """A model that its arguments alone determine, where one is asked for by what it is to see."""
    return model_func()
