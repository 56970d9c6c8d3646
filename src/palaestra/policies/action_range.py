"""`ActionRange`: from numbers around 0 to what a box-shaped action may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import BoundedSpec, TensorSpec, to_device

__all__ = ["ActionRange"]


class ActionRange(nn.Module):
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
        super().__init__()
        self._shape, self._dtype = spec.shape, spec.dtype
        self._rescales = isinstance(spec, BoundedSpec) and bool(
            np.isfinite(spec.minimum).any() or np.isfinite(spec.maximum).any()
        )
        self._elsewhere: dict[torch.device, dict[str, Tensor]] = {}
        if not isinstance(spec, BoundedSpec):
            return
        low, high = (np.array(bound, dtype=np.float64).reshape(-1) for bound in (spec.minimum, spec.maximum))
        both = np.isfinite(low) & np.isfinite(high)
        finite_low, finite_high = np.where(both, low, -1.0), np.where(both, high, 1.0)
        for name, bound in (
            ("low", low),
            ("high", high),
            ("center", finite_low / 2 + finite_high / 2),
            ("half_range", finite_high / 2 - finite_low / 2),
        ):
            self.register_buffer(name, torch.as_tensor(bound, dtype=spec.dtype), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The bounds stay on the CPU, where most actions are executed; for actions elsewhere there are copies."""
        self._elsewhere.clear()
        return self

    def forward(self, action: Tensor) -> Tensor:
        """What the environment executes.

        Args:
            action: [..., A] raw.

        Returns:
            [..., *shape] of the spec's dtype, inside its bounds.
        """
        if self._rescales:
            buffers: dict[str, Any] = vars(self)["_buffers"]  # `self.low` would cost a search
            if not action.is_cpu:
                if action.device not in self._elsewhere:
                    self._elsewhere[action.device] = to_device(buffers, action.device)
                buffers = self._elsewhere[action.device]
            action = torch.addcmul(buffers["center"], buffers["half_range"], action)
            action = action.clamp_(buffers["low"], buffers["high"])
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
        center, half_range = self.get_buffer("center"), self.get_buffer("half_range")
        return torch.where(half_range > 0, (action - center) / half_range.clamp(min=torch.finfo(action.dtype).tiny), 0)
