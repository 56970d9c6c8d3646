"""`CategoricalPolicy`: samples one of a few actions."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from palaestra.core import DiscreteSpec, SpecTree
from palaestra.nn import Network, NetworkConfig, with_shared_features
from palaestra.ops import Categorical
from palaestra.policies.network_policy import StochasticPolicy, require_discrete
from palaestra.policies.normalizer import ObservationNormalizer

__all__ = ["CategoricalPolicy"]


@final
class CategoricalPolicy(StochasticPolicy):
    """Draws an action with probabilities in proportion to exp(logits) among the allowed ones.

    Args:
        network: observation [..., *observation] -> logits [..., A], or a `RecurrentNetwork` with such a head.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec` of A actions.
        normalizer: applied to every observation.

    Raises:
        ConfigError: the action space is not discrete; the message says what fits it.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> policy = CategoricalPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2))
        >>> policy([[0.0, 0.0, 0.0, 0.0]]).shape
        (1,)
    """

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        self._start = require_discrete("CategoricalPolicy", observation_spec, action_spec).start
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network that starts close to uniform."""
        num_actions = require_discrete(cls.__name__, observation_spec, action_spec).num
        return with_shared_features(
            observation_spec, config, lambda spec, config: Network(spec, num_actions, config, out_gain=0.01)
        )

    def distribution_of(self, outputs: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(outputs, mask)

    @property
    def raw_action_spec(self) -> DiscreteSpec:
        return DiscreteSpec(num=self.action_spec.num)

    def env_action(self, action: Tensor) -> Tensor:
        return (action + self._start if self._start else action).to(self.action_spec.dtype)
