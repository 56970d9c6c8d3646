"""`FlattenObservation`: a nest of observations as one vector."""

from __future__ import annotations

from typing import final

import numpy as np

from palaestra.core import (
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecTree,
    TensorSpec,
    TimeStep,
    spec_leaves,
)
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.nest import flatten
from palaestra.envs.wrappers.base import TimeStepMap

__all__ = ["FlattenObservation"]

_MASK = "action_mask"


@final
class FlattenObservation(TimeStepMap):
    """One float32 vector: numbers and bits as they are, categories as one-hot codes, leaf after leaf.

    The library's own networks take nested observations; this is for code that does not. A dict's `action_mask` is left
    beside the vector, which is then called `observation`.

    Args:
        env: the layer inside.

    Raises:
        ConfigError: there is nothing to flatten.

    Examples:
        >>> from palaestra.envs import load
        >>> env = FlattenObservation(load("FrozenLake-v1"))
        >>> env.observation_spec.shape, int(env.reset().observation.argmax())
        ((16,), 0)
    """

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        spec = env.observation_spec
        self._masked = isinstance(spec, dict) and _MASK in spec
        self._inner = {key: child for key, child in spec.items() if key != _MASK} if self._masked else spec
        leaves = list(spec_leaves(self._inner).values())
        if not leaves:
            raise ConfigError(f"FlattenObservation finds nothing to flatten in {spec}")
        self._specs = leaves
        low, high = (np.concatenate(bounds) for bounds in zip(*[_bounds(leaf) for leaf in leaves], strict=True))
        vector = BoundedSpec((len(low),), minimum=low, maximum=high)
        self._spec: SpecTree = {"observation": vector, _MASK: spec[_MASK]} if self._masked else vector

    @property
    def observation_spec(self) -> SpecTree:
        """One vector."""
        return self._spec

    def change(self, time_step: TimeStep) -> TimeStep:
        """Flattens the observation.

        Args:
            time_step: of the inner layer.
        """
        leaves = zip(self._specs, flatten(time_step.observation, self._inner), strict=True)
        vector = np.concatenate([_code(np.asarray(leaf), spec) for spec, leaf in leaves])
        mask = {"observation": vector, _MASK: time_step.observation[_MASK]} if self._masked else vector
        return time_step._replace(observation=mask)


def _code(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if isinstance(spec, DiscreteSpec):
        return (np.arange(spec.start, spec.start + spec.num) == value).astype(np.float32)
    if isinstance(spec, MultiDiscreteSpec):
        return np.concatenate([np.arange(num) == choice for num, choice in zip(spec.nvec, value, strict=True)]).astype(
            np.float32
        )
    return value.reshape(-1).astype(np.float32)


def _bounds(spec: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(spec, BoundedSpec):
        return spec.minimum.reshape(-1).astype(np.float32), spec.maximum.reshape(-1).astype(np.float32)
    bits = isinstance(spec, DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec)
    low, high = (0.0, 1.0) if bits else (-np.inf, np.inf)
    return np.full(spec.encoded_size, low, np.float32), np.full(spec.encoded_size, high, np.float32)
