"""`ObservationNormalizer`: observations with mean 0 and standard deviation 1, by running statistics."""

from typing import Any

import torch
from torch import Tensor, nn

from palaestra.core import BoundedSpec, ConfigError, SpecTree, TensorSpec
from palaestra.core.spec import ACTION_MASK
from palaestra.ops import Moments, merge, moments_of, variance
from palaestra.policies.actions import children_of

__all__ = ["ObservationNormalizer"]

_EPSILON = 1e-8  # keeps the scale of a constant finite; squared units of the observation


class ObservationNormalizer(nn.Module):
    """Shifts and scales every floating-point leaf of an observation by what has been seen so far, then clips.

        y = clip((x − mean) / √(variance + 1e-8), ±c)

    Workers send `increment`s with their data; the learner `merge`s them after an update. In between the statistics are
    frozen, and `version` counts the merges. Before the first one observations pass unchanged. Integers, booleans and
    the key `action_mask` always do.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        clip: c, in standard deviations.

    Raises:
        ConfigError: no leaf is floating-point, or c is not positive.

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
        self.clip = clip
        self._leaves = 0
        self._size = 0
        self._plan = self._plan_of(observation_spec, outermost=True)
        if not self._leaves:
            raise ConfigError(
                f"the observation spec {observation_spec} has no floating-point leaf to normalise; leave "
                "algorithm.normalize_observation out (--algorithm.no-normalize-observation)"
            )
        # All leaves, flattened and one after another, share one vector [D] of statistics.
        buffers = {
            "count": torch.zeros((), dtype=torch.float64),
            "mean": torch.zeros(self._size, dtype=torch.float64),
            "m2": torch.zeros(self._size, dtype=torch.float64),
            "shift": torch.zeros(self._size),
            "scale": torch.ones(self._size),
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
        self.count.copy_(total.count)
        self.mean.copy_(total.mean)
        self.m2.copy_(total.m2)
        self.merges += 1
        if total.count > 0:
            self.shift.copy_(total.mean)
            self.scale.copy_((variance(total) + _EPSILON).rsqrt())
            self.low.fill_(-self.clip)
            self.high.fill_(self.clip)

    def _plan_of(self, spec: SpecTree, *, outermost: bool = False) -> Any:
        """Where each leaf lies in the vector of statistics: (start, end, shape), `None` for leaves left alone."""
        if isinstance(spec, dict | tuple):
            items = children_of(spec).items()
            children = {k: self._plan_of(child) for k, child in items if not (outermost and k == ACTION_MASK)}
            return {key: plan for key, plan in children.items() if plan is not None} or None
        if type(spec) not in (TensorSpec, BoundedSpec) or not spec.dtype.is_floating_point:
            return None
        start, self._size = self._size, self._size + spec.size
        self._leaves += 1
        return start, self._size, spec.shape

    def _normalized(self, value: Any, plan: Any) -> Any:
        if isinstance(plan, dict):
            return value.replace(**{key: self._normalized(value[key], child) for key, child in plan.items()})
        shift, scale = self.mean if value.dtype is torch.float64 else self.shift, self.scale
        start, end, shape = plan
        if self._leaves > 1 or len(shape) != 1:
            shift, scale = shift[start:end].view(shape), scale[start:end].view(shape)
        return (value - shift).mul_(scale).clamp_(self.low, self.high)


def _collect(value: Any, plan: Any, leaves: list[Tensor]) -> None:
    if isinstance(plan, dict):
        for key, child in plan.items():
            _collect(value[key], child, leaves)
        return
    start, end, shape = plan
    leaves.append(value.reshape(*value.shape[: value.ndim - len(shape)], end - start).to(torch.float64))
