"""Policies that learn nothing: a user's rule, and uniform chance."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, ShapeError, SpecError, TimeStep, children_of
from palaestra.core.spec import BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, SpecTree, TensorSpec
from palaestra.policies.actions import bounded, uniform_choice
from palaestra.policies.policy import Policy, PolicyStep

__all__ = ["RandomPolicy", "RulePolicy"]


@final
class RulePolicy(Policy):
    """Acts by a function; the same whatever the phase.

    Args:
        function: takes observations, leaves [B, ...] tensors (nests are `Batch`), and returns the environment's actions
            [B, ...] as a tensor, an array or a list.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: what the environment's action looks like.

    Raises:
        ShapeError: when it acts: the function gave no such actions.
        SpecError: or they are no choices that there are.

    Examples:
        >>> lean = RulePolicy(lambda observation: observation[:, 2] > 0, TensorSpec((4,)), DiscreteSpec(num=2))
        >>> int(lean([0.0, 0.0, 0.1, 0.0]))
        1
    """

    def __init__(self, function: Callable[[Any], Any], observation_spec: SpecTree, action_spec: SpecTree) -> None:
        super().__init__(observation_spec, action_spec)
        self.function = function

    @property
    def source(self) -> str:
        """The function's text without its comments, which tells rules apart; its name where there is no text."""
        try:
            return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(self.function))))
        except (OSError, TypeError, SyntaxError):
            return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        return PolicyStep(_as_action(self.function(observation), self.action_spec, len(observation)), state)


@final
class RandomPolicy(Policy):
    """Draws every action uniformly from the action space, or from what the observation's `action_mask` allows.

    Dimensions without bounds are drawn from a standard normal distribution, those with one bound from an exponential
    one, as Gymnasium does. It has no better choice, so `deterministic` changes nothing.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: what the environment's action looks like.

    Examples:
        >>> RandomPolicy(TensorSpec((4,)), DiscreteSpec(num=2))(np.zeros((3, 4))).shape
        (3,)
    """

    @classmethod
    def of_raw_actions(cls, policy: Policy) -> Self:
        """Draws what a policy samples, such that what the environment executes is uniform.

        Args:
            policy: whose raw actions these are.
        """
        return cls(policy.observation_spec, bounded(policy.raw_action_spec, policy.action_spec))

    def instead(self, policy: Policy, time_step: TimeStep, step: PolicyStep) -> PolicyStep:
        """What a policy has chosen, with an action of this one instead of its own.

        Args:
            policy: from whose generator is drawn.
            time_step: what it saw.
            step: what it has chosen.
        """
        self.draw_from(policy.generator)
        return policy.acted(step, self.act(time_step).action)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        mask = self.action_mask(observation)
        return PolicyStep(_uniform(self.action_spec, len(observation), self.generator, mask), state)


def _as_action(value: Any, spec: SpecTree, count: int) -> Any:
    if isinstance(spec, dict | tuple):
        keys: Any = spec if isinstance(spec, dict) else range(len(spec))
        try:
            parts = {key: value[key] for key in keys}
        except (KeyError, IndexError, TypeError):
            raise ShapeError(
                f"the function of a RulePolicy gave {value!r}; the parts {list(keys)} are needed"
            ) from None
        return Batch.of({str(key): _as_action(part, spec[key], count) for key, part in parts.items()})
    try:
        action = value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except (TypeError, ValueError):
        raise ShapeError(f"the function of a RulePolicy gave {value!r}, which are no numbers for {spec}") from None
    if action.shape != (count, *spec.shape):
        needed = (count, *spec.shape)
        raise ShapeError(f"the function of a RulePolicy gave {tuple(action.shape)} actions; {needed} are needed")
    chosen = action.to(spec.dtype)
    start, most = _choices(spec)
    if most is not None and bool(((chosen != action) | (chosen < start) | (chosen >= start + most)).any()):
        raise SpecError(
            f"the function of a RulePolicy gave {action.flatten()[:8].tolist()}, and {spec} has the whole numbers from "
            f"{start} to {(start + most - 1).tolist()}; give those, such as argmax or (x > 0).long()"
        )
    return chosen


def _choices(spec: TensorSpec) -> tuple[int, Any]:
    """The first choice, and how many there are; `None` of numbers that are no choices."""
    if isinstance(spec, DiscreteSpec):
        return spec.start, torch.tensor(spec.num)
    if isinstance(spec, MultiDiscreteSpec):
        return 0, torch.tensor(spec.nvec)
    return 0, torch.tensor(2) if isinstance(spec, MultiBinarySpec) else None


def _uniform(spec: SpecTree, count: int, generator: torch.Generator, mask: Any = None) -> Any:
    if isinstance(spec, dict | tuple):
        masks = {} if mask is None else mask
        return Batch.of({k: _uniform(s, count, generator, masks.get(k)) for k, s in children_of(spec).items()})
    if mask is not None and isinstance(spec, DiscreteSpec):
        return uniform_choice(mask, generator).to(spec.dtype) + spec.start
    if mask is not None and isinstance(spec, MultiDiscreteSpec):
        choices = [uniform_choice(choice, generator) for choice in mask.split(list(spec.nvec), -1)]
        return torch.stack(choices, -1).to(spec.dtype)
    unit = torch.rand(count, *spec.shape, dtype=torch.float64, generator=generator, device=generator.device)
    if isinstance(spec, DiscreteSpec):
        return (unit * spec.num).to(spec.dtype) + spec.start
    if isinstance(spec, MultiDiscreteSpec):
        return (unit * torch.tensor(spec.nvec, device=unit.device)).to(spec.dtype)
    if isinstance(spec, MultiBinarySpec):
        return (unit < 0.5).to(spec.dtype)
    return _uniform_box(spec, unit, generator).to(spec.dtype)


def _uniform_box(spec: TensorSpec, unit: Tensor, generator: torch.Generator) -> Tensor:
    normal = torch.empty_like(unit).normal_(generator=generator)
    if not isinstance(spec, BoundedSpec):
        return normal
    low = torch.as_tensor(np.array(spec.minimum, dtype=np.float64), device=unit.device)
    high = torch.as_tensor(np.array(spec.maximum, dtype=np.float64), device=unit.device)
    if not spec.dtype.is_floating_point:
        return torch.floor(low + unit * (high - low + 1)).minimum(high)
    distance = -torch.log1p(-unit)  # exponential
    between = low * (1 - unit) + high * unit
    one_sided = torch.where(low.isfinite(), low + distance, torch.where(high.isfinite(), high - distance, normal))
    return torch.where(low.isfinite() & high.isfinite(), between, one_sided)
