"""`GaussianPolicy`: samples a vector of real numbers."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import Batch, BoundedSpec, SpecTree, TensorSpec
from palaestra.nn import GaussianNetwork, NetworkConfig
from palaestra.ops import DiagonalGaussian
from palaestra.policies.exploration import Exploration
from palaestra.policies.network_policy import NetworkPolicy, normalizer_of, require_continuous
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import PolicyStep

__all__ = ["GaussianPolicy"]


@final
class GaussianPolicy(NetworkPolicy):
    """Draws an action from a normal distribution with independent dimensions.

    Raw actions, which `act` returns and losses see, are unbounded: 0 is the middle of a bounded dimension and ±1 its
    ends. `env_action` rescales and clips them. Dimensions without two finite bounds are not rescaled.

    Args:
        network: observation [..., *observation] -> (mean [..., A], log σ [..., A] or [A]).
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor with A elements, bounded or not.
        normalizer: applied to every observation.
        exploration: noise added in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: the action space is not continuous; the message says what fits it.

    Examples:
        >>> policy = GaussianPolicy.build(TensorSpec((4,)), BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2)))
        >>> policy([0.0, 0.0, 0.0, 0.0])  # the mean starts near 0: the middle
        array([0.5, 0.5], dtype=float32)
    """

    behaviour_fields = ("log_prob",)

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
        self._rescales = isinstance(spec, BoundedSpec) and bool(
            np.isfinite(spec.minimum).any() or np.isfinite(spec.maximum).any()
        )
        if isinstance(spec, BoundedSpec):
            low, high = (np.array(bound, dtype=np.float64).reshape(-1) for bound in (spec.minimum, spec.maximum))
            both = np.isfinite(low) & np.isfinite(high)
            finite_low, finite_high = np.where(both, low, -1.0), np.where(both, high, 1.0)
            for name, bound in (
                ("low", low),
                ("high", high),
                ("center", finite_low / 2 + finite_high / 2),
                ("half_range", finite_high / 2 - finite_low / 2),
            ):
                self.register_buffer(f"_{name}", torch.as_tensor(bound, dtype=spec.dtype), persistent=False)

    @classmethod
    def build(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig | None = None,
        *,
        normalize: bool = False,
        initial_log_std: float = 0.0,
    ) -> Self:
        """A policy with a fresh `GaussianNetwork` whose mean starts close to 0.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: a floating-point tensor.
            config: the network's layers.
            normalize: whether observations are normalised by running statistics.
            initial_log_std: log σ at the start, in raw units.

        Raises:
            ConfigError: the action space or the config does not fit.
        """
        action_size = require_continuous(cls.__name__, action_spec).size
        config = config or NetworkConfig()
        network = GaussianNetwork(observation_spec, action_size, config, initial_log_std=initial_log_std)
        policy = cls(network, observation_spec, action_spec, normalizer_of(observation_spec, normalize))
        policy.network_config = config
        return policy

    def distribution(self, observation: Any) -> DiagonalGaussian:
        """The distribution over raw actions, with gradients.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            Over [..., A] raw actions.
        """
        mean, log_std = self._outputs(observation)
        return DiagonalGaussian(mean, log_std)

    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        distribution = self.distribution(observation)
        action = distribution.sample(self.generator)
        return action, distribution.log_prob(action)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        distribution = self.distribution(observation)
        action = distribution.mode() if deterministic else distribution.sample(self.generator)
        if explore and self.exploration is not None:
            action = self.exploration(action, generator=self.generator)
        return PolicyStep(action, state)

    def behaviour(self, observation: Any, action: Any) -> Batch:
        return Batch.of({"log_prob": self.distribution(observation).log_prob(action)})

    @property
    def raw_action_spec(self) -> TensorSpec:
        return TensorSpec((self.action_spec.size,))

    def env_action(self, action: Tensor) -> Tensor:
        if self._rescales:
            buffers: dict[str, Any] = vars(self)["_buffers"]  # `self._low` would cost a search
            action = torch.addcmul(buffers["_center"], buffers["_half_range"], action)
            action = action.clamp_(buffers["_low"], buffers["_high"])
        if len(self.action_spec.shape) != 1:
            action = action.reshape(*action.shape[:-1], *self.action_spec.shape)
        return action.to(self.action_spec.dtype)
