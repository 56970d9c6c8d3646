"""`NetworkPolicy`: what policies with one network have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

from torch import Tensor, nn

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, SpecTree, TensorSpec
from palaestra.nn import ACTION_MASK, NetworkConfig
from palaestra.policies.exploration import Exploration
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import Policy

__all__ = ["NetworkPolicy", "require_continuous", "require_discrete"]


class NetworkPolicy(Policy):
    """A policy that is one network.

    Args:
        network: what turns a normalised observation into whatever the policy chooses from.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: what the environment's action looks like.
        normalizer: applied to every observation; `None` leaves them as they are.
        exploration: changes actions in `Phase.COLLECT`; `None` leaves them as they are.
    """

    network: nn.Module

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        *,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        super().__init__(observation_spec, action_spec, normalizer=normalizer, exploration=exploration)
        self.network = network
        self.network_config: NetworkConfig | None = None  # known where `build` made the network
        self.build_options: dict[str, Any] = {}  # what else `build` was given that shapes the network, as JSON values

    @classmethod
    @abstractmethod
    def build(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig | None = None,
        *,
        normalize: bool = False,
    ) -> Self:
        """A policy with a fresh network; a policy made so can be saved as an artefact.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: what the environment's action looks like.
            config: the network's layers.
            normalize: whether observations are normalised by running statistics.
        """

    def _outputs(self, observation: Any) -> Any:
        """What the network says about raw observations; looked up without `nn.Module.__getattr__`, which is slow."""
        return self._modules["network"](self.normalize(observation))  # pyright: ignore[reportOptionalCall]

    @abstractmethod
    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities, with gradients: `CoreModel.get_action` shows them.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            Actions [..., *action], log-probabilities [...] in nats.
        """


def normalizer_of(observation_spec: SpecTree, normalize: bool) -> ObservationNormalizer | None:
    """A fresh normaliser, or none.

    Args:
        observation_spec: what it normalises.
        normalize: whether there is one.
    """
    return ObservationNormalizer(observation_spec) if normalize else None


def require_discrete(policy: str, observation_spec: SpecTree, action_spec: SpecTree) -> DiscreteSpec:
    """Refuses action spaces that are not one discrete choice, and action masks of another size.

    Args:
        policy: the policy's name, for the message.
        observation_spec: may have the key `action_mask`.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and the policies and algorithms that fit it.
    """
    if not isinstance(action_spec, DiscreteSpec):
        raise ConfigError(f"{policy} needs a discrete action space and was given {action_spec}. {_advice(action_spec)}")
    if isinstance(observation_spec, dict) and ACTION_MASK in observation_spec:
        mask = observation_spec[ACTION_MASK]
        if not isinstance(mask, TensorSpec) or mask.shape != (action_spec.num,):
            raise ConfigError(
                f"the observation key {ACTION_MASK!r} has the spec {mask}; for {action_spec.num} actions it needs "
                f"the shape ({action_spec.num},)"
            )
    return action_spec


def require_continuous(policy: str, action_spec: SpecTree) -> TensorSpec:
    """Refuses action spaces that are not one floating-point tensor.

    Args:
        policy: the policy's name, for the message.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and the policies and algorithms that fit it.
    """
    if _is_continuous(action_spec):
        return action_spec
    raise ConfigError(f"{policy} needs a continuous action space and was given {action_spec}. {_advice(action_spec)}")


def _is_continuous(spec: SpecTree) -> bool:
    return type(spec) in (TensorSpec, BoundedSpec) and spec.dtype.is_floating_point


def _advice(spec: SpecTree) -> str:
    if isinstance(spec, DiscreteSpec):
        return "For discrete actions use DQN, PPO or REINFORCE"
    if _is_continuous(spec):
        return "For continuous actions use PPO or REINFORCE"
    return "No algorithm takes it yet; wrap the environment so that its action is one Discrete or one float Box"
