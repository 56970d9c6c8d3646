"""`GaussianPolicy`: samples a vector of real numbers."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from palaestra.core import SpecTree, TensorSpec
from palaestra.nn import GaussianNetwork, NetworkConfig, with_shared_features
from palaestra.ops import DiagonalGaussian
from palaestra.policies.action_range import ActionRange
from palaestra.policies.exploration import Exploration
from palaestra.policies.network_policy import StochasticPolicy, require_continuous
from palaestra.policies.normalizer import ObservationNormalizer

__all__ = ["GaussianPolicy"]


@final
class GaussianPolicy(StochasticPolicy):
    """Draws an action from a normal distribution with independent dimensions.

    Raw actions, which `act` returns and losses see, are unbounded: 0 is the middle of a bounded dimension and ±1 its
    ends. `env_action` rescales and clips them. Dimensions without two finite bounds are not rescaled.

    Args:
        network: observation [..., *observation] -> (mean [..., A], log σ [..., A] or [A]), or a
            `RecurrentNetwork` with such a head.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor with A elements, bounded or not.
        normalizer: applied to every observation.
        exploration: noise added in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: the action space is not continuous; the message says what fits it.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import BoundedSpec
        >>> policy = GaussianPolicy.build(TensorSpec((4,)), BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2)))
        >>> policy([0.0, 0.0, 0.0, 0.0])  # the mean starts near 0: the middle
        array([0.5, 0.5], dtype=float32)
    """

    learns_log_std = True

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        spec = require_continuous("GaussianPolicy", action_spec)
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer, exploration=exploration)
        self._range = ActionRange(spec)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A `GaussianNetwork` whose mean starts close to 0."""
        action_size = require_continuous(cls.__name__, action_spec).size
        return with_shared_features(
            observation_spec, config, lambda spec, config: GaussianNetwork(spec, action_size, config)
        )

    def distribution_of(self, outputs: tuple[Tensor, Tensor], mask: Any = None) -> DiagonalGaussian:
        mean, log_std = outputs
        return DiagonalGaussian(mean, log_std)

    @property
    def raw_action_spec(self) -> TensorSpec:
        return TensorSpec((self.action_spec.size,))

    def env_action(self, action: Tensor) -> Tensor:
        return self._range(action)
