"""`raw_actions`: executed actions as a policy samples them; the inverse of `Policy.env_action`."""

from __future__ import annotations

from typing import Any

from palaestra.core import Batch, BoundedSpec, DiscreteSpec, SpecTree, TensorSpec
from palaestra.policies.action_mask import children_of
from palaestra.policies.action_range import ActionRange

__all__ = ["raw_actions"]


def raw_actions(action: Any, action_spec: SpecTree, raw_action_spec: SpecTree) -> Any:
    """Actions of the environment in the units that a policy samples in: `Policy.env_action` leads back.

    Choices are counted from 0; boxes are flat, with 0 for the middle of a bounded dimension and ±1 for its ends.

    Args:
        action: [..., *action] as executed.
        action_spec: what the environment's action looks like.
        raw_action_spec: of the policy.

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
    assert isinstance(raw_action_spec, TensorSpec)
    if action_spec == raw_action_spec:
        return action
    if isinstance(action_spec, DiscreteSpec):
        return (action - action_spec.start).to(raw_action_spec.dtype)
    if type(action_spec) in (TensorSpec, BoundedSpec):
        return ActionRange(action_spec).inverse(action).to(raw_action_spec.dtype)
    leading = action.shape[: action.ndim - len(action_spec.shape)]
    return action.reshape(*leading, *raw_action_spec.shape).to(raw_action_spec.dtype)
