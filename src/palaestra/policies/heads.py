"""Heads: how numbers from a network become a distribution over one part of an action, for every kind of spec."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

from torch import Tensor, nn

from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecTree,
    TensorSpec,
)
from palaestra.ops import Categorical, DiagonalGaussian, Joint, MultiBernoulli, MultiCategorical
from palaestra.policies.action_mask import children_of
from palaestra.policies.action_range import ActionRange

__all__ = ["Head", "head_of"]


class Head(nn.Module, ABC):
    """One part of an action: it reads `size` numbers and `num_std` standard deviations.

    Args:
        spec: of the part.
    """

    size: int
    num_std: int = 0
    raw_spec: SpecTree
    """What is sampled and stored."""

    def __init__(self, spec: SpecTree) -> None:
        super().__init__()
        self.spec = spec

    @abstractmethod
    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Any:
        """The distribution over raw actions.

        Args:
            numbers: [..., size].
            log_std: [num_std], or `None`.
            mask: which actions are allowed; `None` is all.
        """

    @abstractmethod
    def env_action(self, action: Any) -> Any:
        """What the environment executes.

        Args:
            action: raw, leaves [..., *raw_spec].
        """


@final
class _Choice(Head):
    def __init__(self, spec: DiscreteSpec) -> None:
        super().__init__(spec)
        self.size, self.raw_spec = spec.num, DiscreteSpec(num=spec.num)

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Categorical:
        return Categorical(numbers, mask)

    def env_action(self, action: Tensor) -> Tensor:
        return (action + self.spec.start).to(self.spec.dtype)


@final
class _Choices(Head):
    def __init__(self, spec: MultiDiscreteSpec) -> None:
        super().__init__(spec)
        self.size, self.raw_spec = sum(spec.nvec), MultiDiscreteSpec(nvec=spec.nvec)

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> MultiCategorical:
        return MultiCategorical(numbers, self.spec.nvec, mask)

    def env_action(self, action: Tensor) -> Tensor:
        return action.to(self.spec.dtype)


@final
class _Switches(Head):
    def __init__(self, spec: MultiBinarySpec) -> None:
        super().__init__(spec)
        self.size, self.raw_spec = spec.size, MultiBinarySpec((spec.size,))

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> MultiBernoulli:
        return MultiBernoulli(numbers)

    def env_action(self, action: Tensor) -> Tensor:
        return action.reshape(*action.shape[:-1], *self.spec.shape).to(self.spec.dtype)


@final
class _Box(Head):
    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self.size = self.num_std = spec.size
        self.raw_spec, self.range = TensorSpec((spec.size,)), ActionRange(spec)

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> DiagonalGaussian:
        assert log_std is not None  # the network was built for it
        return DiagonalGaussian(numbers, log_std)

    def env_action(self, action: Tensor) -> Tensor:
        return self.range(action)


@final
class _Parts(Head):
    def __init__(self, spec: SpecTree, children: dict[str, Head]) -> None:
        super().__init__(spec)
        self._names, self._heads = list(children), nn.ModuleList(children.values())
        self.size = sum(head.size for head in children.values())
        self.num_std = sum(head.num_std for head in children.values())
        self.raw_spec = {name: head.raw_spec for name, head in children.items()}

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Joint:
        parts: dict[str, Any] = {}
        start = std_start = 0
        for name, head in self._children():
            end, std_end = start + head.size, std_start + head.num_std
            std = log_std[std_start:std_end] if log_std is not None and head.num_std else None
            allowed = None if mask is None else mask.get(name)
            parts[name] = head.distribution(numbers[..., start:end], std, allowed)
            start, std_start = end, std_end
        return Joint(parts)

    def env_action(self, action: Any) -> Batch:
        return Batch.of({name: head.env_action(action[name]) for name, head in self._children()})

    def _children(self) -> Any:
        return zip(self._names, self._heads, strict=True)


def head_of(spec: SpecTree, path: str = "") -> Head:
    """The head for any action.

    Args:
        spec: of the action.
        path: where it lies in the whole action, for the message.

    Raises:
        ConfigError: a leaf is an integer tensor, or there is nothing to decide.
    """
    if isinstance(spec, dict | tuple) and spec:
        children = children_of(spec)
        return _Parts(spec, {name: head_of(child, f"{path}.{name}".strip(".")) for name, child in children.items()})
    if isinstance(spec, DiscreteSpec):
        return _Choice(spec)
    if isinstance(spec, MultiDiscreteSpec):
        return _Choices(spec)
    if isinstance(spec, MultiBinarySpec) and spec.size:
        return _Switches(spec)
    if (
        isinstance(spec, TensorSpec)
        and type(spec) in (TensorSpec, BoundedSpec)
        and spec.dtype.is_floating_point
        and spec.size
    ):
        return _Box(spec)
    raise ConfigError(
        f"no policy can sample the action{f' {path!r}' if path else ''} {spec}: its leaves may be Discrete, "
        "MultiDiscrete, MultiBinary and Box of floats; wrap the environment so that it takes one of them"
    )
