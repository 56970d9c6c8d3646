"""Which actions are allowed: what an `action_mask` has to look like, and the check that it leaves a choice.

| action | mask |
|---|---|
| `DiscreteSpec` of A actions | [A] |
| `MultiDiscreteSpec` of choices among n₁, ..., n_K | [n₁ + ... + n_K], the choices one after another |
| dict or tuple | a dict or tuple with masks for some or all of its discrete parts |
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from palaestra.core import ConfigError, DiscreteSpec, MultiDiscreteSpec, SpecTree, TensorSpec
from palaestra.nn import ACTION_MASK
from palaestra.ops import check_action_mask

__all__ = ["check_masks", "children_of", "require_mask_spec"]


def children_of(spec: SpecTree) -> dict[str, SpecTree]:
    """The children of a dict or tuple by the names that they have in a `Batch`.

    Args:
        spec: of a dict or tuple.
    """
    return {str(key): child for key, child in (spec.items() if isinstance(spec, dict) else enumerate(spec))}


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


def _require(mask: SpecTree, action: SpecTree, path: str) -> None:
    if isinstance(action, dict | tuple):
        children = children_of(action)
        masks = children_of(mask) if isinstance(mask, dict | tuple) else {}
        if not masks or set(masks) - set(children):
            raise ConfigError(
                f"the observation key {path!r} has the spec {mask}; for an action with the parts {list(children)} it "
                "needs masks by those names"
            )
        for name, child in masks.items():
            _require(child, children[name], f"{path}.{name}")
        return
    if not isinstance(action, DiscreteSpec | MultiDiscreteSpec):
        raise ConfigError(f"the observation key {path!r} masks {action}; only discrete choices can be masked")
    if not isinstance(mask, TensorSpec) or mask.shape != (action.encoded_size,):
        raise ConfigError(
            f"the observation key {path!r} has the spec {mask}; for {action.encoded_size} actions it needs "
            f"the shape ({action.encoded_size},)"
        )
