"""Specs from Gymnasium spaces and back."""

import functools
import logging
import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.core import BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, SpecError, TensorSpec
from palaestra.core.errors import is_news
from palaestra.core.spec import ACTION_MASK, SpecTree, dtype_limits, numpy_dtype, torch_dtype

__all__ = ["space_from_spec", "spec_from_space"]

_log = logging.getLogger(__name__)
LARGEST_BOUND = np.float64(1e6)  # a float16, compared with a Python float of that size, overflows
"""A bound of floats beyond it means "none": nobody means the largest number of a dtype."""
MOST_CHOICES = 4_096
"""Values of a box of integers, over all its elements, that are chosen among; more are no choice."""
PLAIN_CHOICES = "--env.gym-wrappers palaestra.envs:plain_choices (with vectorization=serial or process)"
"""What makes one row of choices of other spaces."""

OLD_GYM = (
    "That is old Gym, Gymnasium's predecessor; ten lines convert such an environment: 'Environments of old Gym' in "
    "docs/concepts/environments.md"
)
IMAGE_ONLY = "minigrid.wrappers:ImgObsWrapper"
"""The wrapper that leaves the picture of MiniGrid's observations, and drops the text of the mission."""

_ADVICE = {
    "MissionSpace": f"--env.gym-wrappers {IMAGE_ONLY} drops the text, and minigrid.wrappers:FlatObsWrapper encodes it",
    "Text": "encode the text as numbers in a gymnasium.{wrapper}",
    "Graph": "encode the graph as arrays of fixed shape (padded nodes, edges and a mask) in a wrapper",
    "Sequence": "pad it to a fixed length, with a mask, in a gymnasium.{wrapper}",
    "OneOf": "use a Dict space with one entry per alternative and a Discrete entry that selects",
}


def spec_from_space(space: spaces.Space[Any], name: str = "") -> SpecTree:
    """The spec of a space, with the space's own dtype. Bounds of floats beyond a million are none; of integers, never.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
        name: where in a nested space it lies; for the error message.

    Returns:
        A spec, or a dict or tuple of them.

    Raises:
        SpecError: the space has no arrays of fixed shape; the message says what to do.

    Examples:
        >>> spec_from_space(spaces.Discrete(3, start=1))
        DiscreteSpec(shape=(), dtype=torch.int64, num=3, start=1)
    """
    if name == "action_space" and _is_empty(space):
        raise SpecError(f"the space {_where(name)}{space} has no parts: an action needs something to decide")
    match space:
        case spaces.Box():
            return _box(space, name)
        case spaces.Discrete():
            return DiscreteSpec(dtype=torch_dtype(space.dtype), num=int(space.n), start=int(space.start))
        case spaces.MultiDiscrete():
            return _multi_discrete(space, name)
        case spaces.MultiBinary():
            return MultiBinarySpec(space.shape, torch_dtype(space.dtype))
        case spaces.Dict():
            return {key: spec_from_space(child, _join(name, key)) for key, child in space.spaces.items()}
        case spaces.Tuple():
            return tuple(spec_from_space(child, _join(name, i)) for i, child in enumerate(space.spaces))
    kind = type(space).__name__
    if type(space).__module__.startswith("gym."):
        raise SpecError(f"the space {_where(name)}{space} is of the package gym. {OLD_GYM}")
    advice = _ADVICE.get(kind, "convert it to Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple in a wrapper")
    wrapper = "ActionWrapper" if name.startswith("action_space") else "ObservationWrapper"
    raise SpecError(
        f"the space {_where(name)}{space} is a {kind}, which has no arrays of fixed shape: "
        f"{advice.format(wrapper=wrapper)}"
    )


def _is_empty(space: spaces.Space[Any]) -> bool:
    parts = getattr(space, "spaces", None)
    return parts is not None and all(map(_is_empty, parts.values() if isinstance(parts, Mapping) else parts))


def _box(space: spaces.Box, name: str) -> BoundedSpec:
    low, high = space.low, space.high
    if space.dtype is not None and space.dtype.kind == "f":
        none = giant_bounds(space)
        if none and name.startswith("action_space") and multiprocessing.parent_process() is None:
            _say_none(name, none)
        low, high = np.where(low < -LARGEST_BOUND, -np.inf, low), np.where(high > LARGEST_BOUND, np.inf, high)
    return BoundedSpec(space.shape, torch_dtype(space.dtype), minimum=low, maximum=high)


def giant_bounds(space: spaces.Space[Any]) -> str:
    """The first finite bound of floats that is taken for none; empty if there is no such bound.

    Args:
        space: any.

    Examples:
        >>> giant_bounds(spaces.Box(-1e30, 1.0, (2,), np.float64))
        '-1e+30'
    """
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind != "f":
        return ""
    bounds = np.concatenate([space.low.reshape(-1), space.high.reshape(-1)])
    giant = bounds[(np.abs(bounds) > LARGEST_BOUND) & np.isfinite(bounds)]
    return f"{giant[0]:.3g}" if giant.size else ""


@functools.cache
def _say_none(name: str, bound: str) -> None:
    text = f"the {name} has the bound {bound}, which is taken for none; give the bounds that actions should have"
    if is_news(text):
        _log.warning("%s", text)


def reward_spec_of(space: spaces.Space[Any] | None) -> TensorSpec:
    """The spec of rewards.

    Args:
        space: of vector rewards; `None` where a reward is one number.
    """
    return TensorSpec(tuple(space.shape or ()) if space is not None else ())


def space_from_spec(spec: SpecTree) -> spaces.Space[Any]:
    """The space of a spec; `spec_from_space` is the inverse.

    Args:
        spec: a spec tree. A `TensorSpec` without bounds gives a Box as wide as its dtype.

    Examples:
        >>> space_from_spec(DiscreteSpec(num=3, start=1))
        Discrete(3, start=1)
    """
    match spec:
        case dict():
            return spaces.Dict({key: space_from_spec(child) for key, child in spec.items()})
        case tuple():
            return spaces.Tuple([space_from_spec(child) for child in spec])
        case DiscreteSpec():
            return spaces.Discrete(spec.num, start=spec.start, dtype=numpy_dtype(spec.dtype).type)
        case MultiDiscreteSpec():
            return spaces.MultiDiscrete(np.asarray(spec.nvec), dtype=numpy_dtype(spec.dtype).type)
        case MultiBinarySpec():
            return spaces.MultiBinary(spec.shape if len(spec.shape) != 1 else spec.shape[0])
        case BoundedSpec():
            dtype: Any = numpy_dtype(spec.dtype)
            return spaces.Box(spec.minimum, spec.maximum, spec.shape, dtype)
    dtype = numpy_dtype(spec.dtype)
    kind: Any = np.uint8 if dtype.kind == "b" else dtype
    return spaces.Box(*dtype_limits(dtype), spec.shape, kind)


def _multi_discrete(space: spaces.MultiDiscrete, name: str) -> MultiDiscreteSpec:
    if _choices_of(space) is not None:
        if len(space.shape) != 1:
            wrong = f"of shape {space.shape}; here it needs one dimension"
        else:
            wrong = f"with a choice that starts at {space.start[space.start != 0][0]}; here all start at 0"
        raise SpecError(f"the space {f'{name!r} ' if name else ''}is a MultiDiscrete {wrong}: give {PLAIN_CHOICES}")
    return MultiDiscreteSpec(dtype=torch_dtype(space.dtype), nvec=tuple(int(n) for n in space.nvec))


def plain(space: Any, *, actions: bool) -> tuple[Any, Callable[[Any], Any] | None]:
    """A space whose choices lie in one row and begin at 0, and what translates between the two.

    A `MultiDiscrete` of several dimensions, or that starts elsewhere, is flattened and shifted. So is a box of integers
    as an action, if it has at most 4,096 values in all.

    Args:
        space: of an environment.
        actions: whether actions are translated, from the plain space to the other; else observations, back.

    Returns:
        The space itself and `None` where it is plain already.

    Examples:
        >>> space, translate = plain(spaces.Box(-1, 1, (2,), np.int64), actions=True)
        >>> space, translate(np.array([0, 2]))
        (MultiDiscrete([3 3]), array([-1,  1]))
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keyed = isinstance(space, spaces.Dict)
        found = {key: plain(child, actions=actions) for key, child in (space.items() if keyed else enumerate(space))}
        if all(translate is None for _, translate in found.values()):
            return space, None

        def nested(value: Any) -> Any:
            new = {key: value[key] if change is None else change(value[key]) for key, (_, change) in found.items()}
            return new if keyed else tuple(new.values())

        kind: Any = type(space)  # a list of pairs keeps its order in a Dict
        return kind([(key, child) if keyed else child for key, (child, _) in found.items()]), nested
    choices = _choices_of(space, boxes=actions)
    if choices is None:
        return space, None
    first, counts = choices
    one = counts.size == 1 and isinstance(space, spaces.Box)
    flat = spaces.Discrete(counts.item()) if one else spaces.MultiDiscrete(counts.reshape(-1))
    first = first.astype(np.uint64 if first.dtype == np.uint64 else np.int64)
    if actions:
        return flat, lambda value: np.asarray(np.reshape(value, counts.shape).astype(first.dtype) + first, space.dtype)
    return flat, lambda value: (np.asarray(value, first.dtype) - first).reshape(-1).astype(np.int64)


def _choices_of(space: Any, *, boxes: bool = False) -> tuple[np.ndarray, np.ndarray] | None:
    """The first value and the number of values of each choice; `None` where they lie in one row from 0 on, or none."""
    if isinstance(space, spaces.MultiDiscrete) and (space.nvec.ndim != 1 or np.any(space.start != 0)):
        return space.start, space.nvec
    if boxes and isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "iu":
        low, high = (bound.astype(object) for bound in (space.low, space.high))  # which cannot overflow
        counts = np.asarray(high - low + 1)
        if counts.size and counts.sum() <= MOST_CHOICES:
            return space.low, counts.astype(np.int64)
    return None


def sample_allowed(space: spaces.Space[Any], observation: Any, info: Any = None, key: str = ACTION_MASK) -> Any:
    """A random action that the `action_mask` of the observation allows, or else that of `info`, if there is one.

    Args:
        space: of actions.
        observation: that the action follows.
        info: that came with it.
        key: of the mask in `info`.
    """
    mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None
    if mask is None and isinstance(info, Mapping) and isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        reported, count = flat_mask(info.get(key, ())), np.sum(getattr(space, "nvec", getattr(space, "n", 0)))
        mask = reported if reported.shape == (count,) else None  # what does not fit is refused where it is read
    return space.sample() if mask is None else space.sample(_gym_mask(space, mask))


def flat_mask(mask: Any) -> np.ndarray:
    """A mask of choices as one row of int8.

    Args:
        mask: a row, or one for each choice, as Gymnasium's spaces take them.
    """
    if isinstance(mask, tuple | list) and len(mask) and np.ndim(mask[0]):
        mask = np.concatenate(mask)
    return np.array(mask).astype(np.int8)


def _gym_mask(space: spaces.Space[Any], mask: Any) -> Any:
    """A mask as Gymnasium takes it; parts without one are free."""
    if mask is None:
        return None
    if isinstance(space, spaces.Dict):
        return {key: _gym_mask(child, mask.get(key)) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        parts = mask if isinstance(mask, Mapping) else dict(zip(map(str, range(len(mask))), mask, strict=True))
        return tuple(_gym_mask(child, parts.get(str(place))) for place, child in enumerate(space))
    flat = np.asarray(mask, np.int8)
    return tuple(np.split(flat, np.cumsum(space.nvec)[:-1])) if isinstance(space, spaces.MultiDiscrete) else flat


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _where(name: str) -> str:
    return f"{name!r} = " if name else ""
