"""Specs from Gymnasium spaces and back."""

import functools
import logging
import multiprocessing
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.core import SpecError, TensorSpec, numpy_dtype, torch_dtype
from palaestra.core.spec import (
    ACTION_MASK,
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecTree,
    dtype_limits,
)

__all__ = ["space_from_spec", "spec_from_space"]

_log = logging.getLogger(__name__)
LARGEST_BOUND = 1e6
"""A bound of floats beyond it means "none": nobody means the largest number of a dtype."""

_ADVICE = {
    "Text": "encode the text as numbers in a gymnasium.ObservationWrapper",
    "Graph": "encode the graph as arrays of fixed shape (padded nodes, edges and a mask) in a wrapper",
    "Sequence": "pad it to a fixed length, with a mask, in a gymnasium.ObservationWrapper",
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
    advice = _ADVICE.get(kind, "convert it to Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple in a wrapper")
    raise SpecError(f"the space {_where(name)}{space} is a {kind}, which has no arrays of fixed shape: {advice}")


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
    _log.warning(
        "the %s has the bound %s, which is taken for none; give the bounds that actions should have", name, bound
    )


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
    if space.nvec.ndim != 1 or np.any(space.start != 0):
        raise SpecError(
            f"the space {_where(name)}{space} has {space.nvec.ndim} dimensions and starts at {space.start}; "
            "a MultiDiscrete needs one dimension and starts of 0: flatten and shift it in a wrapper"
        )
    return MultiDiscreteSpec(dtype=torch_dtype(space.dtype), nvec=tuple(int(n) for n in space.nvec))


def sample_allowed(space: spaces.Space[Any], observation: Any) -> Any:
    """A random action that the observation's `action_mask` allows, if it has one.

    Args:
        space: of actions.
        observation: that the action follows.
    """
    mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None
    return space.sample() if mask is None else space.sample(_gym_mask(space, mask))


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
