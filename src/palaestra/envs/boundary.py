"""What may not pass from an environment to a learner, looked for in whole batches so that it costs almost nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.core import (
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecTree,
    TensorSpec,
    spec_leaves,
)
from palaestra.envs.faults import Failure
from palaestra.envs.nest import leaf_dtypes, problem

__all__ = ["Boundary", "leaf_bounds"]

_log = logging.getLogger(__name__)

_dot: Any = np.vdot
# Bounds and surplus keys are looked at in every so many steps, unless that is to be strict.
_PERIOD = 16


class Boundary:
    """Looks at the observations and rewards of some lanes.

    Args:
        observation_spec: of one bare environment.
        rewards: how many numbers the rewards of all lanes are.
        size: how many lanes.
        strict: whether an observation outside its bounds is a failure, and looked for in every step.
        first: number of the first lane's environment, for messages.

    Attributes:
        period: `out_of_place` is to be asked in every so many steps.
    """

    def __init__(self, observation_spec: SpecTree, rewards: int, size: int, *, strict: bool, first: int) -> None:
        self._spec, self._strict, self._first = observation_spec, strict, first
        self._leaves = list(spec_leaves(observation_spec).items())
        self._nested = not isinstance(observation_spec, TensorSpec)
        dtypes = leaf_dtypes(observation_spec)
        # x * 0 is NaN where x is NaN or infinite, and 0 elsewhere: one dot product finds
        # them, and cannot overflow (`vdot`, unlike `dot`, does not warn)
        self._floats = [
            (number, np.zeros(size * leaf.size, dtype))
            for number, ((_, leaf), dtype) in enumerate(zip(self._leaves, dtypes, strict=True))
            if dtype.kind == "f"
        ]
        self._single = self._floats[0][1] if len(self._leaves) == len(self._floats) == 1 else None
        self._no_reward = np.zeros(rewards, np.float32)
        bounds = [leaf_bounds(leaf) for _, leaf in self._leaves]
        self._bounds = [(leaf, *pair) for leaf, pair in enumerate(bounds) if pair is not None]
        looked_at = self._nested or bool(self._bounds)
        self.period = (1 if strict else _PERIOD) if looked_at else sys.maxsize
        self._told: set[int] = set()

    def finite(self, arrays: Sequence[np.ndarray], reward: np.ndarray) -> bool:
        """Whether no observation or reward is NaN or infinite.

        Args:
            arrays: contiguous [B, ...], one for every leaf.
            reward: [B] or [B, k].
        """
        if self._single is not None:
            return _dot(arrays[0], self._single) == 0.0 and _dot(reward, self._no_reward) == 0.0
        for leaf, zeros in self._floats:
            if _dot(arrays[leaf], zeros) != 0.0:
                return False
        return _dot(reward, self._no_reward) == 0.0

    def not_finite(self, arrays: Sequence[np.ndarray], reward: np.ndarray) -> list[Failure]:
        """The lanes that emitted NaN or infinity.

        Args:
            arrays: as for `finite`.
            reward: as for `finite`.
        """
        found: dict[int, Failure] = {}
        columns = [("observation" + (f".{path}" if path else ""), array) for (path, _), array in self._pairs(arrays)]
        for name, array in [*columns, ("reward", reward)]:
            if array.dtype.kind != "f":
                continue
            for place in np.argwhere(~np.isfinite(array)).tolist():
                lane, element = place[0], place[1:] or ""
                what = f"emitted {name}{element} = {array[tuple(place)]}"
                advice = "look at the environment, or clip what it emits"
                found.setdefault(lane, Failure(lane, "non-finite", what, advice))
        return list(found.values())

    def out_of_place(self, arrays: Sequence[np.ndarray], seen: Sequence[Any]) -> list[Failure]:
        """The lanes with keys that are not in the spec, or, where that is strict, with values outside their bounds.

        Args:
            arrays: as for `finite`.
            seen: the observations of all lanes as the environments gave them.
        """
        found: list[Failure] = []
        if self._nested:
            for lane, observation in enumerate(seen):
                wrong = problem(observation, self._spec)
                if wrong:
                    found.append(Failure(lane, "malformed", "emitted another observation", f"it has {wrong}"))
        return found + self.out_of_bounds(arrays)

    def out_of_bounds(self, arrays: Sequence[np.ndarray]) -> list[Failure]:
        """The lanes with values outside their bounds, where that is strict; elsewhere it is logged once.

        Args:
            arrays: as for `finite`.
        """
        found: list[Failure] = []
        for leaf, low, high in self._bounds:
            outside = (arrays[leaf] < low) | (arrays[leaf] > high)
            if outside.any():
                found += self._outside(leaf, arrays[leaf], outside, low, high)
        return found

    def _outside(self, leaf: int, array: np.ndarray, outside: np.ndarray, low: Any, high: Any) -> list[Failure]:
        name = "observation" + (f".{self._leaves[leaf][0]}" if self._leaves[leaf][0] else "")
        places = np.argwhere(outside).tolist()
        texts: dict[int, str] = {}
        for place in places:
            index = tuple(place[1:])
            low_, high_ = (np.broadcast_to(bound, array.shape[1:])[index] for bound in (low, high))
            texts.setdefault(place[0], f"{name}{place[1:] or ''} = {array[tuple(place)]} outside [{low_}, {high_}]")
        if self._strict:
            advice = "correct the observation space, or clip the observation"
            return [Failure(lane, "malformed", f"emitted {text}", advice) for lane, text in texts.items()]
        if leaf not in self._told:
            self._told.add(leaf)
            first = min(texts)
            _log.warning(
                "environment %d emitted %s (%d of %d values of %s in this step are outside). Networks "
                "get it as it is; correct the space, clip it, or make it an error with strict=True. Said once",
                self._first + first, texts[first], len(places), array.size, name,
            )  # fmt: skip
        return []

    def _pairs(self, arrays: Sequence[np.ndarray]) -> Any:
        return zip(self._leaves, arrays, strict=True)


def leaf_bounds(spec: TensorSpec) -> tuple[np.ndarray, np.ndarray] | None:
    """The smallest and largest value of every element; `None` where the dtype allows no others.

    Args:
        spec: of one leaf.

    Examples:
        >>> [int(bound) for bound in leaf_bounds(DiscreteSpec(num=3, start=1))]
        [1, 3]
    """
    low: Any
    high: Any
    if isinstance(spec, BoundedSpec):
        low, high = spec.minimum, spec.maximum
    elif isinstance(spec, DiscreteSpec):
        low, high = np.array(spec.start), np.array(spec.start + spec.num - 1)
    elif isinstance(spec, MultiDiscreteSpec):
        low, high = np.zeros(len(spec.nvec), np.int64), np.array(spec.nvec) - 1
    elif isinstance(spec, MultiBinarySpec):
        low, high = np.array(0), np.array(1)
    else:
        return None
    if low.dtype.kind in "iu":
        limits = np.iinfo(low.dtype)
        free = (low == limits.min).all() and (high == limits.max).all()
    else:
        free = np.isneginf(low).all() and np.isposinf(high).all()
    return None if free else (low, high)
