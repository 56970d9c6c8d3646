"""`ValueGreedyPolicy`: takes the most valuable action."""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import SpecTree
from palaestra.core.settings import overrides
from palaestra.nn import NetworkConfig, QNetwork, ReturnDistribution, with_memory
from palaestra.ops import greedy_action
from palaestra.policies.actions import ChoiceHead, Head, require_discrete
from palaestra.policies.exploration import EpsilonGreedy
from palaestra.policies.policy import NetworkPolicy, PolicyStep

__all__ = ["ValueGreedyPolicy"]


@final
class ValueGreedyPolicy(NetworkPolicy):
    """Takes the most valuable of the allowed actions; in `Phase.COLLECT` its exploration may choose another.

    A network with noisy layers has noise in `Phase.COLLECT`, drawn from the policy's generator, and none elsewhere.

    Args:
        network: observation [..., *observation] -> action values [..., A], or a `RecurrentNetwork` with such a head; if
            it has `noise_size`, also given noise.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec` of A actions.
        normalizer: applied to every observation.
        exploration: usually `EpsilonGreedy`.

    Raises:
        ConfigError: the action space is not discrete; the message says what fits it.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> policy = ValueGreedyPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2))
        >>> policy([[0.0, 0.0, 0.0, 0.0]]).shape
        (1,)
    """

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return ChoiceHead(require_discrete(cls.__name__, action_spec))

    @classmethod
    def network_for(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig,
        returns: Sequence[Any] | None = None,
    ) -> nn.Module:
        """A fresh `QNetwork`, or a network of distributions of returns.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: a `DiscreteSpec`.
            config: the network's layers.
            returns: the fields of a `ReturnDistribution` that the network describes; `None` for values alone.

        Raises:
            ConfigError: the action space or the config does not fit.
        """
        num_actions = require_discrete(cls.__name__, action_spec).num
        kind = QNetwork if returns is None else ReturnDistribution(*returns).network
        return with_memory(observation_spec, config, lambda spec, config: kind(spec, num_actions, config))

    def q_values(self, observation: Any, noise: Tensor | None = None) -> Tensor:
        """Action values, with gradients; masks are not applied.

        Args:
            observation: raw, leaves [..., *observation].
            noise: [..., noise_size] standard normal, for noisy layers; `None` takes their mean weights.

        Returns:
            [..., A] units of return.
        """
        features, _ = self.features(observation)
        return self.head(features) if noise is None else self.head(features, noise)

    def greedy(self, observation: Any) -> Tensor:
        """The most valuable of the allowed actions.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            [...] int64 in 0 ... A - 1; the first of several.
        """
        return greedy_action(self.q_values(observation), self.action_mask(observation))

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        features, state = self.features(observation, state)
        noisy = explore and self.noise_size and not deterministic  # not with eval_epsilon
        value = self.head(features, self._noise(observation)) if noisy else self.head(features)
        mask = self.action_mask(observation) if self.is_masked else None
        return PolicyStep(self._explored(greedy_action(value, mask), explore, mask), state)

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        explore = self.exploration
        if self.state_spec or self.noise_size or self.action_mask(observation) is not None:
            return None
        if overrides(type(self), ["choose"], ["act_with"]) or not isinstance(explore, EpsilonGreedy):
            return None
        return lambda: explore.noise(torch.empty(len(observation), device=self.device), self.generator)

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(self.exploration, EpsilonGreedy)
        return self.exploration.changed(self.greedy(observation), noise), {}

    def _noise(self, observation: Any) -> Tensor:
        """[B, noise_size] every lane has noise of its own."""
        return torch.randn(len(observation), self.noise_size, generator=self.generator, device=self.generator.device)
