"""`SquashedPolicy`: what policies for boxes have in common whose actions end in tanh."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import BoundedSpec, ConfigError, SpecTree, TensorSpec
from palaestra.policies.exploration import Exploration
from palaestra.policies.network_policy import NetworkPolicy, require_continuous
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import PolicyStep

__all__ = ["SquashedPolicy", "require_box"]


class SquashedPolicy(NetworkPolicy):
    """Raw actions lie in [-1, 1]; `env_action` maps them onto the environment's box.

    Before the first update, while the policy has learned nothing, actions in `Phase.COLLECT` are drawn uniformly.

    Args:
        network: what the actions come from.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor with two finite bounds in every dimension.
        normalizer: applied to every observation.
        exploration: noise added in `Phase.COLLECT`.

    Raises:
        ConfigError: the action space is not such a box.
    """

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        spec = require_box(type(self).__name__, action_spec)
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer, exploration=exploration)
        for name, bound in box_bounds(spec).items():
            self.register_buffer(name, bound, persistent=False)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        action = self._action(observation, deterministic)
        if explore and self.version == 0:
            action = torch.empty_like(action).uniform_(-1.0, 1.0, generator=self.generator)
        elif explore and self.exploration is not None:
            action = self.exploration(action, generator=self.generator)
        return PolicyStep(action, state)

    @abstractmethod
    def _action(self, observation: Any, deterministic: bool) -> Tensor:
        """Raw actions [B, A], without exploration."""

    @property
    def raw_action_spec(self) -> BoundedSpec:
        return raw_box(self.action_spec)

    def env_action(self, action: Tensor) -> Tensor:
        return onto_box(action, self.action_spec, vars(self)["_buffers"])  # `self._low` would cost a search


def require_box(policy: str, action_spec: SpecTree) -> BoundedSpec:
    """Refuses action spaces that are not one floating-point tensor with finite bounds.

    Args:
        policy: the policy's name, for the message.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and what to do.
    """
    spec = require_continuous(policy, action_spec)
    if not isinstance(spec, BoundedSpec) or not (np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all()):
        raise ConfigError(
            f"{policy} needs two finite bounds for every dimension of the action and was given {action_spec}; "
            "rescale or clip the actions in a wrapper that says its bounds, or use PPO"
        )
    return spec


def box_bounds(spec: BoundedSpec) -> dict[str, Tensor]:
    """What `onto_box` needs, by name: [A] each.

    Args:
        spec: a box with finite bounds.
    """
    low, high = (np.array(bound, dtype=np.float64).reshape(-1) for bound in (spec.minimum, spec.maximum))
    bounds = {"_low": low, "_high": high, "_center": low / 2 + high / 2, "_half_range": high / 2 - low / 2}
    return {name: torch.as_tensor(bound, dtype=spec.dtype) for name, bound in bounds.items()}


def raw_box(spec: TensorSpec) -> BoundedSpec:
    """[-1, 1] in every dimension of an action.

    Args:
        spec: of the environment's action.
    """
    return BoundedSpec((spec.size,), minimum=np.full(spec.size, -1.0), maximum=np.ones(spec.size))


def onto_box(action: Tensor, spec: TensorSpec, bounds: Mapping[str, Any]) -> Tensor:
    """Raw actions as the environment takes them.

    Args:
        action: [..., A] in [-1, 1].
        spec: of the environment's action.
        bounds: of `box_bounds`.

    Returns:
        [..., *action] within the bounds.
    """
    action = torch.addcmul(bounds["_center"], bounds["_half_range"], action)
    action = action.clamp_(bounds["_low"], bounds["_high"])  # rounding
    if len(spec.shape) != 1:
        action = action.reshape(*action.shape[:-1], *spec.shape)
    return action.to(spec.dtype)
