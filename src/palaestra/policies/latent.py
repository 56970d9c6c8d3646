"""`LatentPolicy`: acts on what a world model makes of everything that was seen."""

from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import Batch, DiscreteSpec, SpecTree
from palaestra.nn import LatentOptions, NetworkConfig, WorldModel, mlp_of, require_memory
from palaestra.ops import Categorical, DiagonalGaussian
from palaestra.policies.actions import BoxHead, ChoiceHead, Head, require_continuous, require_discrete
from palaestra.policies.policy import NetworkPolicy, PolicyStep

__all__ = ["LatentPolicy"]

_UNIMIX = 0.01
"""The share of a discrete policy that is uniform."""
_MIN_STD, _MAX_STD = 0.1, 1.0
"""Standard deviations of raw actions."""


class _Agent(nn.Module):
    """A world model, and a head that chooses actions from its features."""

    def __init__(
        self, observation_spec: SpecTree, sizes: tuple[int, int], options: LatentOptions, config: NetworkConfig
    ) -> None:
        super().__init__()
        action_size, out_size = sizes
        self.world = WorldModel(observation_spec, action_size, options, config)
        inner = config.on_features()
        self.head = mlp_of(self.world.feature_size, inner.hidden_sizes, out_size, inner, out_gain=0.01)


@final
class LatentPolicy(NetworkPolicy):
    """Draws actions from a distribution over what a world model remembers: a choice, or normal within a box.

    Choices are mixed with 1% of uniform ones. Means of a box lie in [-1, 1] raw, which are its ends, and standard
    deviations between 0.1 and 1: Hafner et al. 2025, https://doi.org/10.1038/s41586-025-08744-2. The memory of a lane
    is the model's state: `memory`, `latent` and the last `action`. Where actions are deterministic, so are latents.

    Args:
        network: made by `build`.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec`, or a floating-point tensor.
        normalizer: of what the network sees.
        exploration: none; the policy is drawn from.

    Raises:
        ConfigError: the action space is another one.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> options = {"memory_size": 8, "num_latents": 3, "num_classes": 4}
        >>> LatentPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2), **options)([0.0, 0.0, 0.0, 0.0]).shape
        ()
    """

    network: _Agent  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        if isinstance(action_spec, DiscreteSpec):
            return ChoiceHead(require_discrete(cls.__name__, action_spec))
        return BoxHead(require_continuous(cls.__name__, action_spec))

    @classmethod
    def network_for(
        cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, **options: Any
    ) -> nn.Module:
        """A fresh world model and actor.

        Args:
            observation_spec: of what it sees.
            action_spec: of what it does.
            options: the fields of `LatentOptions`.

        Raises:
            ConfigError: the action space, the config or the options do not fit.
        """
        head = cls.action_head(observation_spec, action_spec)
        return _Agent(observation_spec, (head.size, head.size + head.num_std), LatentOptions(**options), config)

    @property
    def state_spec(self) -> Any:
        return self.network.world.state_spec

    def _initial_state(self, batch_size: int) -> Any:
        return self.network.world.initial_state(batch_size)

    def distribution_of(self, outputs: Tensor, mask: Any = None) -> Categorical | DiagonalGaussian:
        """The distribution over raw actions.

        Args:
            outputs: of `head`.
            mask: which actions are allowed; `None` is all.
        """
        if isinstance(self.action_spec, DiscreteSpec):
            probs = (1 - _UNIMIX) * outputs.softmax(-1) + _UNIMIX / outputs.shape[-1]
            return Categorical(probs.log(), mask)
        mean, spread = outputs.chunk(2, -1)
        std = (_MAX_STD - _MIN_STD) * (spread + 2).sigmoid() + _MIN_STD
        return DiagonalGaussian(mean.tanh(), std.log())

    def action_noise(self, rows: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Random numbers from which distributions draw actions: `sample_from`.

        Args:
            rows: leading dimensions.
            generator: on the CPU.

        Returns:
            [*rows, A].
        """
        assert self._action_head is not None
        noise = torch.empty(*rows, self._action_head.size)
        if isinstance(self.action_spec, DiscreteSpec):
            return noise.exponential_(generator=generator).log_()
        return noise.normal_(generator=generator)

    def encoded(self, action: Tensor) -> Tensor:
        """Raw actions as the world model sees them: one-hot choices, and boxes as they are executed.

        Args:
            action: [...] choices, or [..., A].

        Returns:
            [..., A].
        """
        if isinstance(self.action_spec, DiscreteSpec):
            return nn.functional.one_hot(action, self.action_spec.num).float()
        assert isinstance(self._action_head, BoxHead)
        return self._action_head.clipped(action)

    def acted(self, step: PolicyStep, action: Any) -> PolicyStep:
        return PolicyStep(action, step.state.replace(action=self.encoded(action)))

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        require_memory(state)
        world, dynamics = self.network.world, self.network.world.dynamics
        memory = dynamics.advance(state["memory"], state["latent"], state["action"])
        probs = dynamics.posterior(memory, world.encode(self.seen_normalized(observation)))
        if deterministic:
            latent = dynamics.most_probable(probs)
        else:
            uniform = torch.rand(probs.shape[:-1], generator=self.generator, device=probs.device)
            latent = dynamics.sample(probs, uniform)
        mask = self.action_mask(observation)
        distribution = self.distribution_of(self.network.head(torch.cat((memory, latent), -1)), mask)
        action = distribution.mode() if deterministic else distribution.sample(self.generator)
        action = self._explored(action, explore, mask)
        return PolicyStep(action, Batch.of({"memory": memory, "latent": latent, "action": self.encoded(action)}))
