"""`ObservationNormalizer`: observations with mean 0 and standard deviation 1, by running statistics."""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import ACTION_MASK, BoundedSpec, ConfigError, SpecTree, TensorSpec, children_of
from palaestra.nn import IntegerCode, picture_shape
from palaestra.ops import Moments, merge, moments_of, variance

__all__ = ["ObservationNormalizer"]

_EPSILON = 1e-8  # keeps the scale of a constant finite; squared units of the observation


class ObservationNormalizer(nn.Module):
    """Shifts and scales every box of an observation by what has been seen so far, then clips.

        y = clip((x − mean) / √(variance + 1e-8), ±c)

    Workers send `increment`s with their data; the learner `merge`s them after an update. In between the statistics are
    frozen, and `version` counts the merges. Before the first one floats pass unchanged, and integers as a network sees
    them (`nn.IntegerCode`). Pictures, booleans, choices and the key `action_mask` always pass unchanged; so do
    integers where statistics without them are loaded, which older policies have.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        clip: c, in standard deviations.

    Raises:
        ConfigError: there is no box of numbers, or c is not positive.

    Examples:
        >>> normalizer = ObservationNormalizer(TensorSpec((1,)))
        >>> normalizer.merge(normalizer.increment(torch.tensor([[1.0], [3.0]])))
        >>> normalizer(torch.tensor([[3.0], [99.0]]))
        tensor([[ 1.],
                [10.]])
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    shift: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    merges: Tensor

    def __init__(self, observation_spec: SpecTree, clip: float = 10.0) -> None:
        super().__init__()
        if clip <= 0:
            raise ConfigError(f"ObservationNormalizer was given clip={clip}; it must be greater than 0")
        self.clip, self._spec = clip, observation_spec
        self._make()
        self.register_load_state_dict_pre_hook(_take_size)
        if not self._leaves:
            raise ConfigError(
                f"the observation spec {observation_spec} has no box of numbers to normalise; leave "
                "algorithm.normalize_observation out (--algorithm.no-normalize-observation)"
            )

    @classmethod
    def for_any(cls, observation_spec: SpecTree, clip: float = 10.0) -> tuple[Self, ...]:
        """One for the boxes of numbers that there are; nothing where there is none."""
        try:
            return (cls(observation_spec, clip),)
        except ConfigError:
            return ()

    def _make(self, *, integers: bool = True) -> None:
        """Plan and statistics: all leaves, flattened and one after another, share one vector [D]."""
        self._leaves, self._size, self._integers = 0, 0, integers
        shifts, scales = list[Tensor](), list[Tensor]()
        self._plan = self._plan_of(self._spec, shifts, scales, outermost=True)
        shift, scale = (torch.cat(parts) if parts else torch.zeros(0) for parts in (shifts, scales))
        buffers = {
            "count": torch.zeros((), dtype=torch.float64),
            "mean": shift.double(),
            "m2": torch.zeros(self._size, dtype=torch.float64),
            "shift": shift.float(),
            "scale": scale.float(),
            "low": torch.tensor(-torch.inf),
            "high": torch.tensor(torch.inf),
            "merges": torch.zeros((), dtype=torch.int64),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    @property
    def version(self) -> int:
        """Number of increments that were merged."""
        return int(self.merges)

    @property
    def moments(self) -> Moments:
        """Everything seen so far: count [], mean [D] and m2 [D]."""
        return Moments(self.count, self.mean, self.m2)

    def forward(self, observation: Any) -> Any:
        """Normalised observations.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.

        Returns:
            The same structure.
        """
        return self._normalized(observation, self._plan)

    def increment(self, observation: Any, valid: Tensor | None = None) -> Moments:
        """The moments of some observations, to be sent to where they are merged; this normaliser does not change.

        Args:
            observation: raw, leaves [..., *observation].
            valid: [...] which rows count; default all.

        Returns:
            Count [], mean [D] and m2 [D], float64.
        """
        leaves: list[Tensor] = []
        _collect(observation, self._plan, leaves)
        rows = torch.cat(leaves, -1) if len(leaves) > 1 else leaves[0]  # [..., D]
        rows = rows.reshape(-1, self._size)
        return moments_of(rows if valid is None else rows[valid.reshape(-1).bool()])

    @torch.no_grad()
    def merge(self, moments: Moments) -> None:
        """Takes observations into account from now on.

        Args:
            moments: of an `increment`; may be of no rows.
        """
        total = merge(self.moments, moments)
        for name, moment in total._asdict().items():
            getattr(self, name).copy_(moment)
        self.merges += 1
        if total.count > 0:
            self.shift.copy_(total.mean)
            self.scale.copy_((variance(total) + _EPSILON).rsqrt())
            self.low.fill_(-self.clip)
            self.high.fill_(self.clip)

    def _plan_of(self, spec: SpecTree, shifts: list[Tensor], scales: list[Tensor], *, outermost: bool = False) -> Any:
        """Where each leaf lies in the vector of statistics: (start, end, shape), `None` for leaves left alone."""
        if isinstance(spec, dict | tuple):
            items = [(k, child) for k, child in children_of(spec).items() if not (outermost and k == ACTION_MASK)]
            children = {key: self._plan_of(child, shifts, scales) for key, child in items}
            return {key: plan for key, plan in children.items() if plan is not None} or None
        code = IntegerCode.of(spec) if self._integers and picture_shape(spec) is None else None
        if code is None and not (type(spec) in (TensorSpec, BoundedSpec) and spec.dtype.is_floating_point):
            return None
        first = (0.0, 1.0) if code is None else (code.low - code.start / code.scale, code.scale)
        for parts, array in zip((shifts, scales), first, strict=True):
            parts.append(torch.tensor(np.broadcast_to(array, spec.shape), dtype=torch.float64).reshape(-1))
        start, self._size = self._size, self._size + spec.size
        self._leaves += 1
        return start, self._size, spec.shape

    def _normalized(self, value: Any, plan: Any) -> Any:
        if isinstance(plan, dict):
            return value.replace(**{key: self._normalized(value[key], child) for key, child in plan.items()})
        whole = not value.is_floating_point()
        shift, scale = self.mean if whole or value.dtype is torch.float64 else self.shift, self.scale
        start, end, shape = plan
        if self._leaves > 1 or len(shape) != 1:
            shift, scale = shift[start:end].view(shape), scale[start:end].view(shape)
        normal = (value - shift).mul_(scale).clamp(self.low, self.high)
        return normal.float() if whole else normal


def _take_size(module: ObservationNormalizer, saved: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Leaves integers alone from now on if the statistics that are about to be loaded do."""
    mean = saved.get(f"{prefix}mean")
    if mean is not None and module._integers and len(mean) < module._size:
        device = module.mean.device
        module._make(integers=False)
        module.to(device)


def _collect(value: Any, plan: Any, leaves: list[Tensor]) -> None:
    if isinstance(plan, dict):
        for key, child in plan.items():
            _collect(value[key], child, leaves)
        return
    start, end, shape = plan
    leaves.append(value.reshape(*value.shape[: value.ndim - len(shape)], end - start).to(torch.float64))
