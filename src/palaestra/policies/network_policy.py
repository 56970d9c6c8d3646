"""`NetworkPolicy` and `StochasticPolicy`: what policies with one network have in common."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from palaestra.core import Batch, BoundedSpec, ConfigError, DiscreteSpec, SpecTree, TensorSpec, spec_leaves, to_device
from palaestra.nn import EncodedNetwork, NetworkConfig, RecurrentNetwork, call, submodules
from palaestra.policies.actions import Head, require_mask_spec
from palaestra.policies.exploration import Exploration
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import Policy, PolicyStep

__all__ = ["NetworkPolicy", "StochasticPolicy"]


class NetworkPolicy(Policy):
    """A policy that is one network, with or without a memory.

    Where a method takes `state` and `first`, a policy without memory needs neither. One with memory evaluates whole
    sequences: observations [T, B, ...], the state before row 0, and `first` [T, B] where episodes begin; without
    `first` it takes one row of every lane, [B, ...].

    Args:
        network: what turns a normalised observation into whatever the policy chooses from; a `RecurrentNetwork` gives
            the policy a memory.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: what the environment's action looks like.
        normalizer: applied to every observation; `None` leaves them as they are.
        exploration: changes actions in `Phase.COLLECT`; `None` leaves them as they are.
    """

    learns_log_std: ClassVar[bool] = False
    """Whether the network has a log σ of its own, that `NetworkConfig.initial_log_std` starts."""

    network: nn.Module

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        head = self.action_head(observation_spec, action_spec)
        super().__init__(observation_spec, action_spec, normalizer=normalizer, exploration=exploration)
        self._action_head = head
        self.network = network
        self.noise_size: int = getattr(network, "noise_size", 0)
        """Random numbers with which noisy layers of the network explore, for every lane."""
        self.network_config: NetworkConfig | None = None  # known where `build` made the network
        self._remembers = isinstance(network, RecurrentNetwork)
        self.splits = isinstance(network, RecurrentNetwork | EncodedNetwork)
        """Whether `features` are more than the observation: a code of it, or the output of recurrent cells."""
        self.build_options: dict[str, Any] = {}  # what else `build` was given that shapes the network, as JSON values

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head | None:
        """What raw actions look like, and what the environment executes of them; `None` where both are the same.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: what the environment's action looks like.

        Raises:
            ConfigError: the policy cannot act there; the message names the space, and the policies that fit it.
        """
        return None

    @classmethod
    @abstractmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A fresh network of the kind that this policy needs.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: what the environment's action looks like.
            config: the network's layers.

        Raises:
            ConfigError: the action space or the config does not fit.
        """

    @classmethod
    def build(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig | None = None,
        *,
        normalize: bool = False,
        exploration: Exploration | None = None,
        **options: Any,
    ) -> Self:
        """A policy with a fresh network; a policy made so can be saved as an artefact.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: what the environment's action looks like.
            config: the network's layers.
            normalize: whether observations are normalised by running statistics.
            exploration: changes actions in `Phase.COLLECT`.
            options: what else the policy's `network_for` takes, as JSON values.

        Raises:
            ConfigError: the action space or the config does not fit.
        """
        config = config or NetworkConfig()
        if config.initial_log_std and not cls.learns_log_std:
            raise ConfigError(
                f"initial_log_std={config.initial_log_std} starts a standard deviation that is learned apart, and "
                f"{cls.__name__} has none: leave it at 0, or use one with a normal policy, such as PPO on a box"
            )
        network = cls.network_for(observation_spec, action_spec, config, **options)
        normalizer = ObservationNormalizer(observation_spec) if normalize else None
        policy = cls(network, observation_spec, action_spec, normalizer=normalizer)
        policy.exploration, policy.network_config, policy.build_options = exploration, config, options
        return policy

    # -- memory

    @property
    def state_spec(self) -> Any:
        return self.network.state_spec if self._remembers else ()

    def initial_state(self, batch_size: int) -> Any:
        state = self._initial_state(batch_size)
        return state if self._elsewhere is None else to_device(state, "cpu")

    def _initial_state(self, batch_size: int) -> Any:
        """Where the network is."""
        network: Any = self.network
        return network.initial_state(batch_size) if self._remembers else ()

    # -- features: what the network's head sees, so that value functions can look at the same

    @property
    def feature_spec(self) -> SpecTree:
        """What `features` returns: the observation's spec, or that of its code or the memory's output."""
        network: Any = self.network
        return network.feature_spec if self.splits else self.observation_spec

    def features(self, observation: Any, state: Any = (), first: Tensor | None = None) -> tuple[Any, Any]:
        """The normalised observation; where it holds pictures its code, or what the memory makes of it.

        Args:
            observation: raw, leaves [..., *observation].
            state: see the class.
            first: see the class.

        Returns:
            Features as `feature_spec` says, with the leading dimensions of the observation; and the new state.

        Raises:
            ShapeError: the policy has a memory and was given none.
        """
        observation = self.normalize(observation)
        if not self.splits:
            return observation, state
        network: Any = self.network
        return network.remember(observation, state, first) if self._remembers else (network.encoder(observation), state)

    def head(self, features: Any, *noise: Tensor) -> Any:
        """What the network says about features: logits, values, whatever the policy chooses from.

        Args:
            features: from `features`.
            noise: of networks that take some.
        """
        network = submodules(self)["network"]
        network = submodules(network)["head"] if self.splits else network
        return network(features, *noise) if noise else call(network, features)

    def _outputs(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Any:
        """What the network says about raw observations."""
        return self.head(self.features(observation, state, first)[0])

    # -- acting inside a compiled graph, which draws no random numbers itself

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        """What draws the random numbers of one step of acting, those that `choose` draws in `Phase.COLLECT`.

        Args:
            observation: [B, ...] of which the noise has the size.

        Returns:
            Gives a tensor for `act_with`; `None` where this policy cannot act so.
        """
        return None

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What `choose` does in `Phase.COLLECT`, with random numbers drawn before; of policies with `acting_noise`.

        Args:
            observation: raw, [B, ...].
            noise: from `acting_noise`.

        Returns:
            Raw actions [B, ...], and the fields of `behaviour`, [B].
        """
        raise NotImplementedError(f"{type(self).__name__} has no acting_noise")

    # -- actions

    @property
    def raw_action_spec(self) -> Any:
        return self.action_spec if self._action_head is None else self._action_head.raw_spec

    def env_action(self, action: Any) -> Any:
        return action if self._action_head is None else self._action_head.env_action(action)

    def _explored(self, action: Any, explore: bool, mask: Any = None) -> Any:
        """The action after `exploration`, where there is one and it applies."""
        if not explore or self.exploration is None:
            return action
        return self.exploration(action, generator=self.generator, mask=mask)

    def sample(self, observation: Any) -> tuple[Any, Tensor]:
        """Actions and their log-probabilities, with gradients: `CoreModel.get_action` shows them.

        By default the deterministic choice, of log-probability 0; policies that draw their actions override it.

        Args:
            observation: raw, leaves [..., *observation]; a memory starts anew.

        Returns:
            Actions [..., *action], log-probabilities [...] in nats.
        """
        action = self.choose(observation, self._initial_state(len(observation)), False, True).action
        leading = action.shape[: action.ndim - len(self.raw_action_spec.shape)]
        return action, torch.zeros(leading, device=action.device)


class StochasticPolicy(NetworkPolicy):
    """A policy that draws its actions from a distribution; a subclass says from which in `distribution_of`."""

    behaviour_fields = ("log_prob",)

    @abstractmethod
    def distribution_of(self, outputs: Any, mask: Any = None) -> Any:
        """The distribution over raw actions, an object of `palaestra.ops` or one with its methods.

        Args:
            outputs: of the network.
            mask: which actions are allowed; `None` is all.
        """

    def distribution(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Any:
        """The distribution over raw actions, with gradients.

        Args:
            observation: raw, leaves [..., *observation].
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            Over [...] actions.

        Raises:
            ShapeError: the policy has a memory and was given none.
        """
        return self.distribution_of(self._outputs(observation, state, first), self.action_mask(observation))

    def sample(self, observation: Any) -> tuple[Any, Tensor]:
        distribution = self.distribution(observation, self._initial_state(len(observation)))
        action = distribution.sample(self.generator)
        return action, distribution.log_prob(action)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        features, state = self.features(observation, state)
        mask = self.action_mask(observation)
        distribution = self.distribution_of(self.head(features), mask)
        action = distribution.mode() if deterministic else distribution.sample(self.generator)
        return PolicyStep(action if self.exploration is None else self._explored(action, explore, mask), state)

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        if self.state_spec or self.exploration is not None or type(self).choose is not StochasticPolicy.choose:
            return None
        draw = getattr(self.distribution(observation), "noise", None)
        return None if draw is None else partial(draw, self.generator)

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        distribution = self.distribution(observation)
        action = distribution.sample_from(noise)
        return action, {"log_prob": distribution.log_prob(action)}

    def describe(self, observation: Any, action: Any, state: Any, first: Tensor | None) -> Batch:
        if first is None:
            return Batch.of({"log_prob": self.distribution(observation, state).log_prob(action)})
        # every row has its own memory, so that rows of any lanes and times are one batch
        rows, count = first.shape, first.ndim
        observation, action, state = (_flat(nest, count) for nest in (observation, action, state))
        log_prob = self.distribution(observation, self.begun(state, first.reshape(-1))).log_prob(action)
        return Batch.of({"log_prob": log_prob.reshape(rows)})


def _flat(nest: Any, count: int) -> Any:
    """The first axes as one."""
    return nest.flatten(0, count - 1) if isinstance(nest, Tensor) else nest.map(lambda leaf: leaf.flatten(0, count - 1))


def require_discrete(policy: str, observation_spec: SpecTree, action_spec: SpecTree) -> DiscreteSpec:
    """Refuses action spaces that are not one discrete choice, and action masks of another size.

    Args:
        policy: the policy's name, for the message.
        observation_spec: may have the key `action_mask`.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and the policies that fit it.
    """
    if isinstance(action_spec, DiscreteSpec):
        require_mask_spec(observation_spec, action_spec)
        return action_spec
    raise ConfigError(f"{policy} needs a discrete action space and was given {action_spec}. {_advice(action_spec)}")


def require_continuous(policy: str, action_spec: SpecTree) -> TensorSpec:
    """Refuses action spaces that are not one floating-point tensor.

    Args:
        policy: the policy's name, for the message.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and the policies that fit it.
    """
    if _is_continuous(action_spec):
        return action_spec
    raise ConfigError(f"{policy} needs a continuous action space and was given {action_spec}. {_advice(action_spec)}")


def _is_continuous(spec: SpecTree) -> bool:
    return _is_box(spec) and spec.dtype.is_floating_point


def _is_box(spec: SpecTree) -> bool:
    return type(spec) in (TensorSpec, BoundedSpec)


def _advice(spec: SpecTree) -> str:
    if isinstance(spec, DiscreteSpec):
        fits = "CategoricalPolicy, ValueGreedyPolicy"
    elif _is_continuous(spec):
        fits = "GaussianPolicy, and with finite bounds SquashedGaussianPolicy and DeterministicPolicy"
    elif any(_is_box(leaf) and not _is_continuous(leaf) for leaf in spec_leaves(spec).values()):
        return "No policy takes boxes of integers; wrap the environment so that they are Discrete or MultiDiscrete"
    else:
        fits = "CompositePolicy"
    return f"Policies that fit it: {fits}; `palaestra list algorithms` shows what learns in which action spaces"
