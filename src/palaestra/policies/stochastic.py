"""Policies that draw actions from distributions: one choice, a box, or any nest of them."""

from typing import Any, final

from torch import Tensor, nn

from palaestra.core import BoundedSpec, DiscreteSpec, SpecTree, TensorSpec
from palaestra.nn import CompositeNetwork, GaussianNetwork, Network, NetworkConfig, with_shared_features
from palaestra.ops import Categorical, DiagonalGaussian
from palaestra.policies.actions import BoxHead, ChoiceHead, Head, head_of
from palaestra.policies.network_policy import StochasticPolicy, require_continuous, require_discrete

__all__ = ["CategoricalPolicy", "CompositePolicy", "GaussianPolicy", "stochastic_policy"]


@final
class CategoricalPolicy(StochasticPolicy):
    """Draws an action with probabilities in proportion to exp(logits) among the allowed ones.

    Args:
        network: observation [..., *observation] -> logits [..., A], or a `RecurrentNetwork` with such a head.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec` of A actions.
        normalizer: applied to every observation.
        exploration: changes actions in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: the action space is not discrete; the message says what fits it.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> policy = CategoricalPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2))
        >>> policy([[0.0, 0.0, 0.0, 0.0]]).shape
        (1,)
    """

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return ChoiceHead(require_discrete(cls.__name__, observation_spec, action_spec))

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network that starts close to uniform."""
        num_actions = require_discrete(cls.__name__, observation_spec, action_spec).num
        return with_shared_features(
            observation_spec, config, lambda spec, config: Network(spec, num_actions, config, out_gain=0.01)
        )

    def distribution_of(self, outputs: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(outputs, mask)


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

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return BoxHead(require_continuous(cls.__name__, action_spec))

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
        exploration: changes actions in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: a leaf of the action space is of no kind in the table, or the mask does not fit.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> spec = {"gear": DiscreteSpec(num=3), "wheel": TensorSpec((2,))}
        >>> sorted(CompositePolicy.build(TensorSpec((4,)), spec)([0.0, 0.0, 0.0, 0.0]))
        ['gear', 'wheel']
    """

    learns_log_std = True

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return head_of(action_spec)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network that starts close to uniform, and boxes close to their middle."""
        action = head_of(action_spec)
        return with_shared_features(
            observation_spec, config, lambda spec, config: CompositeNetwork(spec, action.size, action.num_std, config)
        )

    def distribution_of(self, outputs: tuple[Tensor, Tensor | None], mask: Any = None) -> Any:
        numbers, log_std = outputs
        assert self._action_head is not None
        return self._action_head.distribution(numbers, log_std, mask)


def stochastic_policy(
    observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, *, normalize: bool = False
) -> StochasticPolicy:
    """A categorical policy for one discrete choice, a Gaussian one for a box, a composite one for everything else.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment.
        config: of its network.
        normalize: whether observations are normalised by running statistics.

    Raises:
        ConfigError: a leaf of the action space is neither discrete nor a tensor of floats.
    """
    kind = {DiscreteSpec: CategoricalPolicy, TensorSpec: GaussianPolicy, BoundedSpec: GaussianPolicy}
    policy = kind.get(type(action_spec), CompositePolicy)
    return policy.build(observation_spec, action_spec, config, normalize=normalize)
