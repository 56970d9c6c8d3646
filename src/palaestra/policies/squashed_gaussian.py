"""`SquashedGaussianPolicy`: samples a vector inside a box."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import SpecTree
from palaestra.nn import Network, NetworkConfig
from palaestra.ops import SquashedGaussian
from palaestra.policies.squashed import SquashedPolicy, require_box

__all__ = ["SquashedGaussianPolicy"]

_LOG_STD_RANGE = (-20.0, 2.0)


@final
class SquashedGaussianPolicy(SquashedPolicy):
    """Draws an action from a normal distribution pressed into [-1, 1] by tanh, and maps it onto the action space.

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix C. Mean and log standard deviation are two halves
    of one network's output; the latter is clipped to [-20, 2] as in the paper's code.

    Args:
        network: observation [..., *observation] -> [..., 2A].
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor of A elements with two finite bounds each.
        normalizer: applied to every observation.
        exploration: noise added in `Phase.COLLECT`; usually none, for the policy is random itself.

    Raises:
        ConfigError: the action space is not such a box.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import BoundedSpec, TensorSpec
        >>> box = BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2))
        >>> policy = SquashedGaussianPolicy.build(TensorSpec((4,)), box)
        >>> policy([0.0, 0.0, 0.0, 0.0])
        array([0.5, 0.5], dtype=float32)
    """

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        return Network(observation_spec, 2 * require_box(cls.__name__, action_spec).size, config)

    def distribution(self, observation: Any) -> SquashedGaussian:
        """The distribution over raw actions, with gradients.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            Over [..., A] raw actions in (-1, 1).
        """
        mean, log_std = self._outputs(observation).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*_LOG_STD_RANGE))

    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        distribution = self.distribution(observation)
        return distribution.at(torch.empty_like(distribution.mean).normal_(generator=self.generator))

    def _action(self, observation: Any, deterministic: bool) -> Tensor:
        if deterministic:
            return self._outputs(observation).chunk(2, -1)[0].tanh()
        return self.distribution(observation).sample(self.generator)
