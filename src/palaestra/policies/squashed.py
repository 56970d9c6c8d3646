"""Policies whose actions end within bounds: squashed Gaussian and deterministic."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import Batch, BoundedSpec, ConfigError, SpecTree, TensorSpec, tree_leaves
from palaestra.core.settings import overrides
from palaestra.nn import EnsembleNetwork, Network, NetworkConfig, with_memory
from palaestra.ops import SquashedGaussian
from palaestra.policies.actions import BoxHead, Head, require_continuous
from palaestra.policies.exploration import GaussianNoise, HeldNoise
from palaestra.policies.policy import NetworkPolicy, PolicyStep

__all__ = ["DeterministicPolicy", "OneStepPolicy", "SquashedGaussianPolicy"]

_CHOICE = ("choose", "_action", "action")
"""Methods that make actions one step after another, of which a subclass may have its own."""


class SquashedPolicy(NetworkPolicy):
    """Raw actions lie in [-1, 1]; `env_action` maps them onto the environment's box.

    Args:
        network: what the actions come from.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor with two finite bounds in every dimension.
        normalizer: applied to every observation.
        exploration: noise added in `Phase.COLLECT`.

    Raises:
        ConfigError: the action space is not such a box.
    """

    _numbers: ClassVar[int] = 1
    """That the network gives for each of an action."""

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        size = cls._numbers * require_box(cls.__name__, action_spec).size
        return with_memory(observation_spec, config, lambda spec, config: Network(spec, size, config))

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return BoxHead(require_box(cls.__name__, action_spec), squashed=True)

    @property
    def most_entropy(self) -> float:
        """Nats that raw actions have if they are uniform in [-1, 1]; no distribution there has more."""
        return float(np.log(2)) * self.raw_action_spec.size

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        features, state = self.features(observation, state)
        return PolicyStep(self._explored(self._action(features, explore, deterministic), explore), state)

    @abstractmethod
    def _action(self, features: Any, explore: bool, deterministic: bool) -> Tensor:
        """Raw actions [B, A], before what exploration adds."""


def require_box(policy: str, action_spec: SpecTree) -> BoundedSpec:
    """Refuses action spaces that are not one floating-point tensor with finite bounds.

    Args:
        policy: the policy's name, for the message.
        action_spec: what the environment's action looks like.

    Raises:
        ConfigError: names the space, and what to do.
    """
    spec = require_continuous(policy, action_spec)
    if not isinstance(spec, BoundedSpec) or not (np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all()):
        raise ConfigError(
            f"{policy} needs two finite bounds for every dimension of the action and was given {action_spec}; "
            "rescale or clip the actions in a wrapper that says its bounds, or use GaussianPolicy, which needs none"
        )
    return spec


_LOG_STD_RANGE = (-20.0, 2.0)


def squashed_gaussian(outputs: Tensor, within: Sequence[float] | None = None) -> SquashedGaussian:
    """The distribution that a network's outputs describe.

    Args:
        outputs: [..., 2A], means and log standard deviations; the latter are clipped to [-20, 2].
        within: bounds that log standard deviations are pressed into by tanh instead, 0 being the middle.
    """
    mean, log_std = outputs.chunk(2, -1)
    if within is None:
        return SquashedGaussian(mean, log_std.clamp(*_LOG_STD_RANGE))
    low, high = within
    return SquashedGaussian(mean, low + (high - low) / 2 * (1 + log_std.tanh()))


@final
class SquashedGaussianPolicy(SquashedPolicy):
    """Draws an action from a normal distribution pressed into [-1, 1] by tanh, and maps it onto the action space.

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix C. Mean and log standard deviation are two halves
    of one network's output; the latter is clipped to [-20, 2] as in the paper's code, or with the option
    `log_std_range` of `build`, two numbers, pressed into that range by tanh.

    Args:
        network: observation [..., *observation] -> [..., 2A].
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor of A elements with two finite bounds each.
        normalizer: applied to every observation.
        exploration: usually none, for the policy is random itself; `HeldNoise` holds its noise for a while, and others
            add their own in `Phase.COLLECT`.

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

    _numbers = 2

    @classmethod
    def network_for(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig,
        log_std_range: Sequence[float] | None = None,
    ) -> nn.Module:
        return super().network_for(observation_spec, action_spec, config)

    def distribution_of(self, outputs: Tensor) -> SquashedGaussian:
        """The distribution over raw actions that the network's outputs describe.

        Args:
            outputs: [..., 2A] of the network.
        """
        return squashed_gaussian(outputs, self.build_options.get("log_std_range"))

    def distribution(self, observation: Any, state: Any = (), first: Tensor | None = None) -> SquashedGaussian:
        """The distribution over raw actions, with gradients.

        Args:
            observation: raw, leaves [..., *observation].
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            Over [..., A] raw actions in (-1, 1).
        """
        return self.distribution_of(self._outputs(observation, state, first))

    def sample(self, observation: Any) -> tuple[Tensor, Tensor]:
        distribution = self.distribution(observation, self._initial_state(len(observation)) if self.splits else ())
        return distribution.at(torch.empty_like(distribution.mean).normal_(generator=self.generator))

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        fits = self.exploration is None or isinstance(self.exploration, HeldNoise)
        if overrides(type(self), _CHOICE, ["act_with"]) or self.state_spec or not fits:
            return None
        mean = self.distribution(observation).mean
        return lambda: self._noise(mean)

    def _noise(self, like: Tensor) -> Tensor:
        """Of one step of collecting."""
        out, held = torch.empty_like(like), self.exploration
        return held.noise(out, self.generator) if isinstance(held, HeldNoise) else out.normal_(generator=self.generator)

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.distribution(observation).at(noise)[0], {}

    def _action(self, features: Any, explore: bool, deterministic: bool) -> Tensor:
        outputs = self.head(features)
        if deterministic:
            return outputs.chunk(2, -1)[0].tanh()
        distribution = self.distribution_of(outputs)
        if explore and isinstance(self.exploration, HeldNoise):
            return distribution.at(self._noise(distribution.mean))[0]
        return distribution.sample(self.generator)


class DeterministicPolicy(SquashedPolicy):
    """The tanh of a network's output, mapped onto the action space; `exploration` adds noise while collecting.

    Args:
        network: observation [..., *observation] -> [..., A].
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor of A elements with two finite bounds each.
        normalizer: applied to every observation.
        exploration: usually `GaussianNoise`, in units of raw actions, which lie in [-1, 1].

    Raises:
        ConfigError: the action space is not such a box.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import BoundedSpec, TensorSpec
        >>> box = BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2))
        >>> policy = DeterministicPolicy.build(TensorSpec((4,)), box)
        >>> policy([0.0, 0.0, 0.0, 0.0])
        array([0.5, 0.5], dtype=float32)
    """

    def action(self, observation: Any) -> Tensor:
        """The raw action, with gradients.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            [..., A] in [-1, 1].
        """
        return self._outputs(observation).tanh()

    def _action(self, features: Any, explore: bool, deterministic: bool) -> Tensor:
        return self.head(features).tanh()

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        explore = self.exploration
        if overrides(type(self), _CHOICE, ["act_with"]) or self.state_spec or not isinstance(explore, GaussianNoise):
            return None
        like = self.action(observation).detach()
        return lambda: explore.noise(torch.empty_like(like), self.generator)

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(self.exploration, GaussianNoise)
        return self.exploration.changed(self.action(observation), noise), {}


@final
class OneStepPolicy(SquashedPolicy):
    """Makes an action of an observation and of noise in one step, so that actions may have any distribution.

    Where it has to be deterministic, the noise is 0. Park et al. 2025, https://arxiv.org/abs/2502.02538, section 4.
    With the option `chunk` of `build`, h, it chooses h actions at once and does them one after the other, whatever it
    sees meanwhile; its memory holds those that are left (Li et al. 2025, https://arxiv.org/abs/2507.07969).

    Args:
        network: observation [N, *observation] and noise [N, h A] -> [1, N, h A].
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor of A elements with two finite bounds each.
        normalizer: applied to every observation.
        exploration: usually none, for the policy is random itself.

    Raises:
        ConfigError: the action space is not such a box.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import BoundedSpec, TensorSpec
        >>> box = BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2))
        >>> OneStepPolicy.build(TensorSpec((4,)), box)([0.0, 0.0, 0.0, 0.0]).shape
        (2,)
    """

    @classmethod
    def network_for(
        cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, chunk: int = 1
    ) -> nn.Module:
        size = chunk * require_box(cls.__name__, action_spec).size
        return EnsembleNetwork(observation_spec, size, 1, config, action_size=size)

    @property
    def chunk(self) -> int:
        """h, actions that are chosen at once."""
        return self.build_options.get("chunk", 1)

    @property
    def state_spec(self) -> Any:
        if self.chunk == 1:
            return ()
        return {"waiting": TensorSpec((self.chunk * self.raw_action_spec.size,)), "left": TensorSpec(())}

    @property
    def stored_state_spec(self) -> Any:
        return ()  # values are of whole chunks, wherever they begin

    def _initial_state(self, batch_size: int) -> Any:
        if self.chunk == 1:
            return ()
        return Batch.of({name: spec.zeros(batch_size).to(self.device) for name, spec in self.state_spec.items()})

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        if self.chunk == 1:
            return super().choose(observation, state, explore, deterministic)
        features, _ = self.features(observation)
        size, begins = self.raw_action_spec.size, state["left"] == 0
        chosen = torch.where(begins.unsqueeze(-1), self._action(features, explore, deterministic), state["waiting"])
        left = torch.where(begins, float(self.chunk), state["left"]) - 1
        memory = Batch.of({"waiting": chosen.roll(-size, -1), "left": left})
        return PolicyStep(self._explored(chosen[..., :size], explore), memory)

    def made_of(self, features: Any, noise: Tensor) -> Tensor:
        """Raw actions, with gradients.

        Args:
            features: normalised observations, leaves [N, *observation].
            noise: [N, h A] standard normal numbers.

        Returns:
            [N, h A], beyond [-1, 1] too: what is executed is clipped.
        """
        return self.head(features, noise)[0]

    def _action(self, features: Any, explore: bool, deterministic: bool) -> Tensor:
        leaf = next(iter(tree_leaves(features)))
        noise = leaf.new_zeros((leaf.shape[0], self.chunk * self.raw_action_spec.size), dtype=torch.float32)
        noise = noise if deterministic else noise.normal_(generator=self.generator)
        return self.made_of(features, noise).clamp(-1.0, 1.0)
