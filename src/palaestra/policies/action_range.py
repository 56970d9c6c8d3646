"""`ActionRange`: from numbers around 0 to what a box-shaped action may be."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from palaestra.core import BoundedSpec, TensorSpec, to_device

__all__ = ["ActionRange"]


class ActionRange:
    """Rescales raw actions to the bounds of a spec and clips them: 0 is the middle of a dimension, ±1 its ends.

    Dimensions without two finite bounds are not rescaled.

    Args:
        spec: a floating-point tensor with A elements, bounded or not.

    Examples:
        >>> spec = BoundedSpec((2,), minimum=np.array([0.0, -np.inf]), maximum=np.array([4.0, np.inf]))
        >>> ActionRange(spec)(torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
        tensor([[2., 0.],
                [4., 3.]])
    """

    def __init__(self, spec: TensorSpec) -> None:
        self._shape, self._dtype = spec.shape, spec.dtype
        self._rescales = isinstance(spec, BoundedSpec) and bool(
            np.isfinite(spec.minimum).any() or np.isfinite(spec.maximum).any()
        )
        self._bounds: dict[torch.device, dict[str, Tensor]] = {}  # actions elsewhere than on the CPU have copies
        if not isinstance(spec, BoundedSpec):
            return
        low, high = (np.array(bound, dtype=np.float64).reshape(-1) for bound in (spec.minimum, spec.maximum))
        both = np.isfinite(low) & np.isfinite(high)
        finite_low, finite_high = np.where(both, low, -1.0), np.where(both, high, 1.0)
        center, half_range = finite_low / 2 + finite_high / 2, finite_high / 2 - finite_low / 2
        bounds = {"low": low, "high": high, "center": center, "half_range": half_range}
        cpu = torch.device("cpu")
        self._bounds[cpu] = {name: torch.as_tensor(bound, dtype=spec.dtype) for name, bound in bounds.items()}

    def _on(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._bounds:
            self._bounds[device] = to_device(self._bounds[torch.device("cpu")], device)
        return self._bounds[device]

    def __call__(self, action: Tensor) -> Tensor:
        """What the environment executes.

        Args:
            action: [..., A] raw.

        Returns:
            [..., *shape] of the spec's dtype, inside its bounds.
        """
        if self._rescales:
            bounds = self._on(action.device)
            action = torch.addcmul(bounds["center"], bounds["half_range"], action)
            action = action.clamp_(bounds["low"], bounds["high"])
        if len(self._shape) != 1:
            action = action.reshape(*action.shape[:-1], *self._shape)
        return action.to(self._dtype)

    def inverse(self, action: Tensor) -> Tensor:
        """The raw action that an executed one comes from; of one that was clipped, the nearest.

        Args:
            action: [..., *shape] as the environment executed it.

        Returns:
            [..., A].
        """
        action = action.reshape(*action.shape[: action.ndim - len(self._shape)], math.prod(self._shape))
        if not self._rescales:
            return action
        bounds = self._on(action.device)
        center, half_range = bounds["center"], bounds["half_range"]
        return torch.where(half_range > 0, (action - center) / half_range.clamp(min=torch.finfo(action.dtype).tiny), 0)
