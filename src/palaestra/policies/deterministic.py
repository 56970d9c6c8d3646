"""`DeterministicPolicy`: one action for every observation."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import SpecTree
from palaestra.nn import Network, NetworkConfig
from palaestra.policies.squashed import SquashedPolicy, require_box

__all__ = ["DeterministicPolicy"]


@final
class DeterministicPolicy(SquashedPolicy):
    """The tanh of a network's output, mapped onto the action space; `exploration` adds noise while collecting.

    Args:
        network: observation [..., *observation] -> [..., A].
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor of A elements with two finite bounds each.
        normalizer: applied to every observation.
        exploration: usually `GaussianNoise`, in units of raw actions, which lie in [-1, 1].

    Raises:
        ConfigError: the action space is not such a box.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import BoundedSpec, TensorSpec
        >>> box = BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2))
        >>> policy = DeterministicPolicy.build(TensorSpec((4,)), box)
        >>> policy([0.0, 0.0, 0.0, 0.0])
        array([0.5, 0.5], dtype=float32)
    """

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        return Network(observation_spec, require_box(cls.__name__, action_spec).size, config)

    def action(self, observation: Any) -> Tensor:
        """The raw action, with gradients.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            [..., A] in [-1, 1].
        """
        return self._outputs(observation).tanh()

    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        """The actions; their log-probabilities are 0.

        Args:
            observation: raw, leaves [..., *observation].
        """
        action = self.action(observation)
        return action, torch.zeros(action.shape[:-1], device=action.device)

    def _action(self, observation: Any, deterministic: bool) -> Tensor:
        return self.action(observation)
