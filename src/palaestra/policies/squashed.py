"""`SquashedPolicy`: what policies for boxes have in common whose actions end in tanh."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from torch import Tensor, nn

from palaestra.core import BoundedSpec, ConfigError, SpecTree, TensorSpec
from palaestra.policies.action_range import ActionRange
from palaestra.policies.exploration import Exploration
from palaestra.policies.network_policy import NetworkPolicy, require_continuous
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import PolicyStep

__all__ = ["SquashedPolicy", "require_box"]


class SquashedPolicy(NetworkPolicy):
    """Raw actions lie in [-1, 1]; `env_action` maps them onto the environment's box.

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
        self._range = ActionRange(spec)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        action = self._action(observation, deterministic)
        if explore and self.exploration is not None:
            action = self.exploration(action, generator=self.generator)
        return PolicyStep(action, state)

    @abstractmethod
    def _action(self, observation: Any, deterministic: bool) -> Tensor:
        """Raw actions [B, A], without exploration."""

    @property
    def raw_action_spec(self) -> BoundedSpec:
        return raw_box(self.action_spec)

    def env_action(self, action: Tensor) -> Tensor:
        return self._range(action)


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


def raw_box(spec: TensorSpec) -> BoundedSpec:
    """[-1, 1] in every dimension of an action.

    Args:
        spec: of the environment's action.
    """
    return BoundedSpec((spec.size,), minimum=np.full(spec.size, -1.0), maximum=np.ones(spec.size))
