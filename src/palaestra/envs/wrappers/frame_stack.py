"""`FrameStack`: lets a policy without memory see movement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from palaestra.core import BoundedSpec, ConfigError, TensorSpec
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import ObservationMap, is_numeric

__all__ = ["FrameStack"]


@final
class FrameStack(ObservationMap):
    """Observes the newest K frames [K, ...], the newest last; zeros stand for frames before the episode.

    The spec says `stacked=K`, so a buffer stores every frame once and not K times. Layers outside that skip steps or
    change frames take that back, so put `ActionRepeat`, `RandomNoop`, `FireReset` and `EpisodicLife` inside.

    Args:
        env: the layer inside.
        num_frames: K, at least 1.
        keys: leaves to stack; by default all that hold numbers, pixels included.

    Raises:
        ConfigError: not an integer of at least 1, or there is nothing to stack.

    Examples:
        >>> from palaestra.envs import load
        >>> env = FrameStack(load("palaestra.envs.tiny:Endless"), num_frames=3)
        >>> env.reset().observation.tolist(), env.step(0).observation.tolist()
        ([[0.0], [0.0], [1.0]], [[0.0], [1.0], [1.0]])
    """

    def __init__(self, env: SingleEnvironment, num_frames: int = 4, keys: Sequence[str] | None = None) -> None:
        if type(num_frames) is not int or num_frames < 1:
            raise ConfigError(f"FrameStack(num_frames={num_frames!r}); it must be an integer of at least 1")
        self._num_frames = num_frames
        self._stacks: dict[str, np.ndarray] = {}
        super().__init__(env, keys)

    def fits(self, spec: TensorSpec) -> bool:
        """Whether the leaf holds numbers.

        Args:
            spec: of the inner leaf.
        """
        return is_numeric(spec)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """[K, ...], with bounds that let the zeros in.

        Args:
            spec: of the inner leaf.
        """
        shape, stacked = (self._num_frames, *spec.shape), self._num_frames
        if not isinstance(spec, BoundedSpec):
            return TensorSpec(shape, spec.dtype, stacked=stacked)
        low, high = np.minimum(spec.minimum, 0), np.maximum(spec.maximum, 0)
        return BoundedSpec(shape, spec.dtype, minimum=low, maximum=high, stacked=stacked)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        """The stack with the new frame.

        Args:
            value: the new frame.
            path: which leaf.
            first: whether an episode begins.
        """
        # always a new array: what was returned before is not written to
        before = np.zeros((self._num_frames, *value.shape), value.dtype) if first else self._stacks[path]
        self._stacks[path] = stack = np.concatenate([before[1:], value[None]])
        return stack
