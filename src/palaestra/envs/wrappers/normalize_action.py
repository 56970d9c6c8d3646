"""`NormalizeAction`: every action component in [-1, 1]."""

from __future__ import annotations

from typing import Any, TypeGuard, final

import numpy as np

from palaestra.core import BoundedSpec, ConfigError, SpecTree, TensorSpec, TimeStep, numpy_dtype, spec_leaves
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper
from palaestra.envs.nest import flatten, unflatten

__all__ = ["NormalizeAction"]


@final
class NormalizeAction(EnvironmentWrapper):
    """Maps [-1, 1] linearly onto the bounds of each continuous action.

    What lies outside of [-1, 1] is refused by a batched environment, and clipped to a bound by a single one. For
    environments whose components have different units, where one exploration noise would fit none of them. Discrete
    components of nested actions stay as they are.

    Args:
        env: the layer inside.

    Raises:
        ConfigError: no action component has two finite bounds.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeAction(load("Pendulum-v1"))  # torque in [-2, 2]
        >>> env.action_spec.minimum, env.action_spec.maximum
        (array([-1.], dtype=float32), array([1.], dtype=float32))
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._inner = env.action_spec
        leaves = spec_leaves(self._inner)
        if not any(_bounded(spec) for spec in leaves.values()):
            raise ConfigError(f"NormalizeAction finds no action component with two finite bounds: {leaves}")
        self._leaves = [spec if _bounded(spec) else None for spec in leaves.values()]
        specs = [_normal(spec) if _bounded(spec) else spec for spec in leaves.values()]
        self._spec = unflatten(iter(specs), self._inner)

    @property
    def action_spec(self) -> SpecTree:
        """In [-1, 1] where it is bounded."""
        return self._spec

    def advance(self, action: Any) -> TimeStep:
        """Executes the action in the environment's own units.

        Args:
            action: in [-1, 1].
        """
        pairs = zip(self._leaves, flatten(action, self._inner), strict=True)
        leaves = [leaf if spec is None else _denormalized(np.asarray(leaf), spec) for spec, leaf in pairs]
        return self.env.advance(unflatten(iter(leaves), self._inner))


def _bounded(spec: TensorSpec) -> TypeGuard[BoundedSpec]:
    return isinstance(spec, BoundedSpec) and spec.dtype.is_floating_point and spec.bounded


def _normal(spec: TensorSpec) -> BoundedSpec:
    return BoundedSpec(spec.shape, spec.dtype, minimum=np.array(-1.0), maximum=np.array(1.0))


def _denormalized(value: np.ndarray, spec: BoundedSpec) -> np.ndarray:
    low, high = spec.minimum, spec.maximum
    # rounding may leave the bounds by one unit in the last place
    return np.clip(low + (value + 1) * 0.5 * (high - low), low, high).astype(numpy_dtype(spec.dtype))
