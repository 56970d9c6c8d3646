"""`CompositePolicy`: samples an action with several parts."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from palaestra.core import SpecTree
from palaestra.nn import CompositeNetwork, NetworkConfig, with_shared_features
from palaestra.policies.heads import head_of
from palaestra.policies.network_policy import StochasticPolicy
from palaestra.policies.normalizer import ObservationNormalizer

__all__ = ["CompositePolicy"]


@final
class CompositePolicy(StochasticPolicy):
    """Draws every part of an action from a distribution of its own, all of them told by one network.

    | spec | distribution | numbers of the network |
    |---|---|---|
    | discrete | categorical | one for each action |
    | multi-discrete | independent categoricals | one for each action of each choice |
    | multi-binary | independent switches | one for each |
    | box of floats | normal, as `GaussianPolicy` does it | a mean for each element, and a log σ |
    | dict, tuple | independent parts | those of the parts, in order |

    Log-probabilities and entropies are sums over the parts. Raw actions are nests of `Batch`, discrete parts counted
    from 0 and boxes unscaled; `env_action` gives what the environment executes.

    Args:
        network: observation [..., *observation] -> (numbers [..., D], log σ [S] or `None`), or a `RecurrentNetwork`
            with such a head.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed: a
            mask for a single part (the choices of a multi-discrete one after another), or a nest of masks for some or
            all of the discrete parts.
        action_spec: of any kind in the table.
        normalizer: applied to every observation.

    Raises:
        ConfigError: a leaf of the action space is of no kind in the table, or the mask does not fit.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> spec = {"gear": DiscreteSpec(num=3), "wheel": TensorSpec((2,))}
        >>> sorted(CompositePolicy.build(TensorSpec((4,)), spec)([0.0, 0.0, 0.0, 0.0]))
        ['gear', 'wheel']
    """

    learns_log_std = True

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer)
        self._action = head_of(action_spec)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network that starts close to uniform, and boxes close to their middle."""
        action = head_of(action_spec)
        return with_shared_features(
            observation_spec, config, lambda spec, config: CompositeNetwork(spec, action.size, action.num_std, config)
        )

    def distribution_of(self, outputs: tuple[Tensor, Tensor | None], mask: Any = None) -> Any:
        numbers, log_std = outputs
        return self._action.distribution(numbers, log_std, mask)

    @property
    def raw_action_spec(self) -> SpecTree:
        return self._action.raw_spec

    def env_action(self, action: Any) -> Any:
        return self._action.env_action(action)
