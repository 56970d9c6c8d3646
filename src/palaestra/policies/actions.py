"""Actions as sampled and as executed: masks, ranges, and heads of action spaces with several parts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, ConfigError, MultiBinarySpec, MultiDiscreteSpec, SpecTree, refuses
from palaestra.core.spec import ACTION_MASK, BoundedSpec, DiscreteSpec, TensorSpec, children_of, spec_leaves
from palaestra.core.tree import to_device, tree_paths
from palaestra.nn import require_few_categories
from palaestra.ops import Categorical, DiagonalGaussian, Joint, MultiBernoulli, MultiCategorical, check_action_mask

__all__ = ["ActionRange", "check_masks", "first_forbidden", "raw_actions"]


def require_mask_spec(observation_spec: SpecTree, action_spec: SpecTree) -> None:
    """Refuses an observation whose `action_mask` does not fit the actions.

    Args:
        observation_spec: may have the key `action_mask`.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the mask's spec and what it has to be.
    """
    if isinstance(observation_spec, dict) and ACTION_MASK in observation_spec:
        _require(observation_spec[ACTION_MASK], action_spec, ACTION_MASK)


def check_masks(mask: Any, action_spec: SpecTree, last: Any = None) -> None:
    """Refuses a mask that leaves some choice without any action.

    Args:
        mask: [..., A], or a `Batch` of masks.
        action_spec: what the environment's action looks like.
        last: [...] rows whose action is never executed, so nothing need be allowed there.

    Raises:
        SpecError: a row allows nothing; the message names the first one.
    """
    if not isinstance(mask, Tensor):
        for name, child in children_of(action_spec).items():
            if name in mask:
                check_masks(mask[name], child, last)
        return
    allowed = mask.bool()
    if isinstance(last, Tensor):
        allowed = allowed | last.to(allowed.device).unsqueeze(-1)
    choices = allowed.split(list(action_spec.nvec), -1) if isinstance(action_spec, MultiDiscreteSpec) else (allowed,)
    for choice in choices:
        check_action_mask(choice)


def first_forbidden(
    action: Any, mask: Any, action_spec: SpecTree, judged: Tensor | None = None
) -> tuple[tuple[int, ...], str] | None:
    """The first action with a choice that its mask does not allow.

    Args:
        action: [..., *action] as executed, inside its space.
        mask: [..., A], or a `Batch` of masks.
        action_spec: of such actions.
        judged: [...] which rows are looked at; default all.

    Returns:
        Its place, and what it is; `None` where all are allowed.

    Examples:
        >>> first_forbidden(torch.tensor([2, 3]), torch.tensor([[1, 0], [1, 0]]), DiscreteSpec(num=2, start=2))
        ((1,), '3')
    """
    wrong = _forbidden(action, mask, action_spec)
    if judged is not None:
        wrong &= judged.to(wrong.device)
    if not wrong.any():
        return None
    place = tuple(map(int, wrong.nonzero()[0]))
    parts = {path: leaf[place].tolist() for path, leaf in tree_paths(action).items()}
    return place, ", ".join(f"{path} {value}".strip() for path, value in parts.items())


def _forbidden(action: Any, mask: Any, action_spec: SpecTree) -> Tensor:
    """[...] which actions hold such a choice."""
    if not isinstance(mask, Tensor):
        parts = children_of(action_spec).items()
        wrong = [_forbidden(action[name], mask[name], part) for name, part in parts if name in mask]
        return torch.stack(wrong).any(0)
    if isinstance(action_spec, MultiDiscreteSpec):
        choices = zip(action.unbind(-1), mask.split(list(action_spec.nvec), -1), strict=True)
        return torch.stack([_not_in(choice, allowed) for choice, allowed in choices]).any(0)
    return _not_in(action - action_spec.start, mask)


def _not_in(choice: Tensor, allowed: Tensor) -> Tensor:
    return ~allowed.bool().gather(-1, choice.long().unsqueeze(-1)).squeeze(-1)


@refuses(ConfigError)
def _require(mask: SpecTree, action: SpecTree, path: str) -> Iterator[str]:
    if isinstance(action, dict | tuple):
        children = children_of(action)
        masks = children_of(mask) if isinstance(mask, dict | tuple) else {}
        if not masks or set(masks) - set(children):
            yield (
                f"the observation key {path!r} has the spec {mask}; for an action with the parts {list(children)} it "
                "needs masks by those names"
            )
        for name, child in masks.items():
            _require(child, children[name], f"{path}.{name}")
        return
    if not isinstance(action, DiscreteSpec | MultiDiscreteSpec):
        yield f"the observation key {path!r} masks {action}; only discrete choices can be masked"
    if not isinstance(mask, TensorSpec) or mask.shape != (action.encoded_size,):
        yield (
            f"the observation key {path!r} has the spec {mask}; for {action.encoded_size} actions it needs "
            f"the shape ({action.encoded_size},)"
        )


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
        self._rescales = False
        self._bounds: dict[torch.device, dict[str, Tensor]] = {}  # actions elsewhere than on the CPU have copies
        if not isinstance(spec, BoundedSpec):
            return
        low, high = (np.array(bound, dtype=np.float64).reshape(-1) for bound in (spec.minimum, spec.maximum))
        self._rescales = bool((np.isfinite(low) | np.isfinite(high)).any())
        both = np.isfinite(low) & np.isfinite(high)
        finite_low, finite_high = np.where(both, low, -1.0), np.where(both, high, 1.0)
        center, half_range = finite_low / 2 + finite_high / 2, finite_high / 2 - finite_low / 2
        raw = {"raw_low": np.where(both, -1.0, low), "raw_high": np.where(both, 1.0, high)}
        bounds = {"low": low, "high": high, "center": center, "half_range": half_range, **raw}
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

    def clipped(self, action: Tensor) -> Tensor:
        """The nearest raw action that is inside the bounds.

        Args:
            action: [..., A] raw.
        """
        if not self._rescales:
            return action
        bounds = self._on(action.device)
        return action.clamp(bounds["raw_low"], bounds["raw_high"]).to(action.dtype)

    @property
    def raw_spec(self) -> BoundedSpec:
        """Raw actions inside the bounds."""
        bounds = self._on(torch.device("cpu"))
        low, high = (bounds[name].numpy() for name in ("raw_low", "raw_high"))
        return BoundedSpec(low.shape, bounds["raw_low"].dtype, low, high)

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


def uniform_choice(mask: Tensor, generator: torch.Generator) -> Tensor:
    """One of the allowed choices, each as likely.

    Args:
        mask: [..., A].
        generator: source of the choice.

    Returns:
        [...] int64; the first of equal clocks is any of them.
    """
    clocks = torch.empty(mask.shape, device=mask.device).exponential_(generator=generator)
    return torch.where(mask.bool(), clocks, torch.inf).argmin(-1)


def raw_actions(action: Any, action_spec: SpecTree, raw_action_spec: SpecTree) -> Any:
    """Actions of the environment in the units that a policy samples in: `Policy.env_action` leads back.

    Choices are counted from 0; boxes are flat, with 0 for the middle of a bounded dimension and ±1 for its ends.

    Args:
        action: [..., *action] as executed.
        action_spec: what the environment's action looks like.
        raw_action_spec: of the policy.

    Raises:
        ConfigError: the policy keeps more with an action than what was executed.

    Examples:
        >>> import numpy as np, torch
        >>> box = BoundedSpec((1,), minimum=np.array([-2.0]), maximum=np.array([2.0]))
        >>> raw_actions(torch.tensor([[1.0], [2.0]]), box, TensorSpec((1,)))
        tensor([[0.5000],
                [1.0000]])
    """
    if isinstance(action_spec, dict | tuple):
        children, raw = children_of(action_spec), children_of(raw_action_spec)
        return Batch.of({name: raw_actions(action[name], spec, raw[name]) for name, spec in children.items()})
    if not isinstance(raw_action_spec, TensorSpec):
        raise ConfigError(
            f"this policy stores more with an action, {', '.join(children_of(raw_action_spec))}, than data of another "
            "one has; let it collect its own"
        )
    if action_spec == raw_action_spec:
        return action
    if isinstance(action_spec, DiscreteSpec):
        return (action - action_spec.start).to(raw_action_spec.dtype)
    if type(action_spec) in (TensorSpec, BoundedSpec):
        return ActionRange(action_spec).inverse(action).to(raw_action_spec.dtype)
    leading = action.shape[: action.ndim - len(action_spec.shape)]
    return action.reshape(*leading, *raw_action_spec.shape).to(raw_action_spec.dtype)


def bounded(raw_action_spec: SpecTree, action_spec: SpecTree) -> SpecTree:
    """The raw actions that lead to each action of the environment once: boxes within their bounds.

    Args:
        raw_action_spec: of the policy.
        action_spec: of what the environment executes.
    """
    if isinstance(action_spec, dict | tuple) and isinstance(raw_action_spec, dict | tuple):
        raw = children_of(raw_action_spec)
        return {name: bounded(raw[name], spec) for name, spec in children_of(action_spec).items()}
    if type(raw_action_spec) is TensorSpec and isinstance(action_spec, BoundedSpec):
        raw = ActionRange(action_spec).raw_spec
        return BoundedSpec(raw.shape, raw_action_spec.dtype, minimum=raw.minimum, maximum=raw.maximum)
    return raw_action_spec


class Head(ABC):
    """An action, or one part of it: it reads `size` numbers and `num_std` standard deviations."""

    size: int
    num_std: int = 0
    raw_spec: SpecTree
    """What is sampled and stored."""
    executes_raw: bool = False
    """Whether the environment executes raw actions as they are."""

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
class ChoiceHead(Head):
    """One of a few actions, counted from 0.

    Args:
        spec: of the environment.
    """

    def __init__(self, spec: DiscreteSpec) -> None:
        self.size, self.raw_spec = spec.num, DiscreteSpec(num=spec.num)
        self._start, self._dtype = spec.start, spec.dtype
        self.executes_raw = not spec.start and spec.dtype is torch.int64

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Categorical:
        return Categorical(numbers, mask)

    def env_action(self, action: Tensor) -> Tensor:
        action = action + self._start if self._start else action
        return action if action.dtype is self._dtype else action.to(self._dtype)


@final
class _Choices(Head):
    def __init__(self, spec: MultiDiscreteSpec) -> None:
        self.spec = spec
        self.size, self.raw_spec = sum(spec.nvec), MultiDiscreteSpec(nvec=spec.nvec)

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> MultiCategorical:
        return MultiCategorical(numbers, self.spec.nvec, mask)

    def env_action(self, action: Tensor) -> Tensor:
        return action.to(self.spec.dtype)


@final
class _Switches(Head):
    def __init__(self, spec: MultiBinarySpec) -> None:
        self.spec = spec
        self.size, self.raw_spec = spec.size, MultiBinarySpec((spec.size,))

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> MultiBernoulli:
        return MultiBernoulli(numbers)

    def env_action(self, action: Tensor) -> Tensor:
        return action.reshape(*action.shape[:-1], *self.spec.shape).to(self.spec.dtype)


@final
class BoxHead(Head):
    """A tensor of floats; raw actions are flat, 0 is the middle of a bounded dimension and ±1 its ends.

    Args:
        spec: of the environment.
        squashed: whether raw actions lie in [-1, 1].
    """

    def __init__(self, spec: TensorSpec, *, squashed: bool = False) -> None:
        self.size = self.num_std = spec.size
        ends = np.full(spec.size, -1.0), np.ones(spec.size)
        raw_spec = BoundedSpec((spec.size,), minimum=ends[0], maximum=ends[1]) if squashed else TensorSpec((spec.size,))
        self.raw_spec, self._range = raw_spec, ActionRange(spec)

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> DiagonalGaussian:
        assert log_std is not None  # the network was built for it
        return DiagonalGaussian(numbers, log_std)

    def env_action(self, action: Tensor) -> Tensor:
        return self._range(action)

    def clipped(self, action: Tensor) -> Tensor:
        """See `ActionRange.clipped`.

        Args:
            action: [..., A] raw.
        """
        return self._range.clipped(action)


@final
class _Parts(Head):
    def __init__(self, children: dict[str, Head]) -> None:
        self._children = children
        self.size = sum(head.size for head in children.values())
        self.num_std = sum(head.num_std for head in children.values())
        self.raw_spec = {name: head.raw_spec for name, head in children.items()}

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Joint:
        parts: dict[str, Any] = {}
        start = std_start = 0
        for name, head in self._children.items():
            end, std_end = start + head.size, std_start + head.num_std
            std = log_std[..., std_start:std_end] if log_std is not None and head.num_std else None
            allowed = None if mask is None else mask.get(name)
            parts[name] = head.distribution(numbers[..., start:end], std, allowed)
            start, std_start = end, std_end
        return Joint(parts)

    def env_action(self, action: Any) -> Batch:
        return Batch.of({name: head.env_action(action[name]) for name, head in self._children.items()})


def head_of(spec: SpecTree, path: str = "") -> Head:
    """The head for any action.

    Args:
        spec: of the action.
        path: where it lies in the whole action, for the message.

    Raises:
        ConfigError: a leaf is an integer tensor or has too many categories, or there is nothing to decide.
    """
    _require_decisions(spec, path)
    if isinstance(spec, TensorSpec):
        require_few_categories(spec, "action")
    if isinstance(spec, dict | tuple):
        children = children_of(spec)
        return _Parts({name: head_of(child, f"{path}.{name}".strip(".")) for name, child in children.items()})
    if isinstance(spec, DiscreteSpec):
        return ChoiceHead(spec)
    if isinstance(spec, MultiDiscreteSpec):
        return _Choices(spec)
    if isinstance(spec, MultiBinarySpec):
        return _Switches(spec)
    if isinstance(spec, TensorSpec) and _is_continuous(spec):
        return BoxHead(spec)
    if not isinstance(spec, TensorSpec):
        raise ConfigError(
            f"{spec!r} was given where a spec is needed, such as env.action_spec of create_environment(...); to "
            "train by names, call palaestra.train('ppo', 'CartPole-v1')"
        )
    raise ConfigError(
        f"no policy can sample the action{f' {path!r}' if path else ''} {spec}: its leaves may be Discrete, "
        "MultiDiscrete, MultiBinary and Box of floats; wrap the environment so that it takes one of them"
    )


def require_discrete(policy: str, action_spec: SpecTree) -> DiscreteSpec:
    """Refuses action spaces that are not one discrete choice.

    Args:
        policy: the policy's name, for the message.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and the policies that fit it.
    """
    _require_decisions(action_spec)
    if isinstance(action_spec, DiscreteSpec):
        require_few_categories(action_spec, "action")
        return action_spec
    raise ConfigError(f"{policy} needs a discrete action space and was given {action_spec}. {_advice(action_spec)}")


def require_continuous(policy: str, action_spec: SpecTree) -> TensorSpec:
    """Refuses action spaces that are not one floating-point tensor.

    Args:
        policy: the policy's name, for the message.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and the policies that fit it.
    """
    _require_decisions(action_spec)
    if _is_continuous(action_spec):
        return action_spec
    raise ConfigError(f"{policy} needs a continuous action space and was given {action_spec}. {_advice(action_spec)}")


def _require_decisions(spec: SpecTree, path: str = "") -> None:
    """Refuses an action with a part in which there is nothing to decide."""
    if isinstance(spec, dict | tuple) and spec:
        for name, child in children_of(spec).items():
            _require_decisions(child, f"{path}.{name}".strip("."))
    elif spec in ({}, ()) or (isinstance(spec, TensorSpec) and not spec.size):
        raise ConfigError(
            f"the action{f' {path!r}' if path else ''} {spec} is empty, so that there is nothing to decide; leave it "
            "out of the action space, and let a gymnasium.ActionWrapper put it back where the environment needs it"
        )


def _is_continuous(spec: SpecTree) -> bool:
    return _is_box(spec) and spec.dtype.is_floating_point


def _is_box(spec: SpecTree) -> bool:
    return type(spec) in (TensorSpec, BoundedSpec)


def _advice(spec: SpecTree) -> str:
    if isinstance(spec, DiscreteSpec):
        fits = "CategoricalPolicy, ValueGreedyPolicy"
    elif _is_continuous(spec):
        fits = "GaussianPolicy, and with finite bounds SquashedGaussianPolicy and DeterministicPolicy"
    elif any(_is_box(leaf) and not _is_continuous(leaf) for leaf in spec_leaves(spec).values()):
        return "No policy takes boxes of integers; --env.gym-wrappers palaestra.envs:plain_choices makes some choices"
    else:
        fits = "CompositePolicy"
    return f"Policies that fit it: {fits}; `palaestra list algorithms` shows what learns in which action spaces"
