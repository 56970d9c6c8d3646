"""`ValueGreedyPolicy`: takes the most valuable action."""

from __future__ import annotations

from typing import Any, Self, final

import torch
from torch import Tensor, nn

from palaestra.core import DiscreteSpec, SpecTree
from palaestra.nn import NetworkConfig, QNetwork, with_memory
from palaestra.policies.exploration import Exploration
from palaestra.policies.network_policy import NetworkPolicy, normalizer_of, require_discrete
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import PolicyStep

__all__ = ["ValueGreedyPolicy"]


@final
class ValueGreedyPolicy(NetworkPolicy):
    """Takes the most valuable of the allowed actions; in `Phase.COLLECT` its exploration may choose another.

    Args:
        network: observation [..., *observation] -> action values [..., A], or a `RecurrentNetwork` with such a head.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec` of A actions.
        normalizer: applied to every observation.
        exploration: usually `EpsilonGreedy`.

    Raises:
        ConfigError: the action space is not discrete; the message says what fits it.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> policy = ValueGreedyPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2))
        >>> policy([[0.0, 0.0, 0.0, 0.0]]).shape
        (1,)
    """

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        self._start = require_discrete("ValueGreedyPolicy", observation_spec, action_spec).start
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer, exploration=exploration)

    @classmethod
    def build(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig | None = None,
        *,
        normalize: bool = False,
        exploration: Exploration | None = None,
    ) -> Self:
        """A policy with a fresh `QNetwork`.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: a `DiscreteSpec`.
            config: the network's layers.
            normalize: whether observations are normalised by running statistics.
            exploration: usually `EpsilonGreedy`.

        Raises:
            ConfigError: the action space or the config does not fit.
        """
        num_actions = require_discrete(cls.__name__, observation_spec, action_spec).num
        config = config or NetworkConfig()
        network = with_memory(observation_spec, config, lambda spec, config: QNetwork(spec, num_actions, config))
        normalizer = normalizer_of(observation_spec, normalize)
        policy = cls(network, observation_spec, action_spec, normalizer, exploration)
        policy.network_config = config
        return policy

    def q_values(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Tensor:
        """Action values, with gradients; masks are not applied.

        Args:
            observation: raw, leaves [..., *observation].
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            [..., A] units of return.
        """
        return self._outputs(observation, state, first)

    def greedy(self, observation: Any) -> Tensor:
        """The most valuable of the allowed actions.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            [...] int64 in 0 ... A - 1; the first of several.
        """
        return self._best(self.q_values(observation), observation)

    def _best(self, value: Tensor, observation: Any) -> Tensor:
        mask = self.action_mask(observation)
        if mask is not None:
            value = torch.where(mask.bool(), value, torch.finfo(value.dtype).min)
        return value.argmax(-1)

    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        """The greedy actions; their log-probabilities are 0.

        Args:
            observation: raw, leaves [..., *observation].
        """
        action = self.greedy(observation)
        return action, torch.zeros(action.shape, device=action.device)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        features, state = self.features(observation, state)
        action = self._best(self.head(features), observation)
        if explore and self.exploration is not None:
            mask = self.action_mask(observation)
            action = self.exploration(action, generator=self.generator, mask=mask)
        return PolicyStep(action, state)

    @property
    def raw_action_spec(self) -> DiscreteSpec:
        return DiscreteSpec(num=self.action_spec.num, dtype=self.action_spec.dtype)

    def env_action(self, action: Tensor) -> Tensor:
        return action + self._start if self._start else action
