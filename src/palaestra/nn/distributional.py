"""Networks that give every action a distribution of returns instead of one value."""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from palaestra.core import ConfigError, SpecTree
from palaestra.nn.config import NetworkConfig
from palaestra.nn.encoder import encoder_of
from palaestra.nn.network import QNetwork, mlp_of
from palaestra.nn.precision import in_full_precision

__all__ = ["ImplicitQuantileNetwork", "ReturnDistribution", "ReturnNetwork"]


class ReturnDistribution(NamedTuple):
    """Representation of an action's distribution of returns."""

    kind: Literal["atoms", "quantiles", "implicit"]
    """Probabilities of fixed returns; returns at fixed fractions; or a network that is asked for any fraction."""
    num: int
    """Q, atoms or quantiles (implicit: those that acting averages)."""
    low: float = -10.0
    """Smallest atom, units of return; for atoms only."""
    high: float = 10.0
    """Largest atom."""

    def network(self, observation_spec: SpecTree, num_actions: int, config: NetworkConfig) -> nn.Module:
        """A fresh network of this kind.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            num_actions: A.

        Raises:
            ConfigError: the numbers, or the config, are impossible.
        """
        if self.num < 1 or (self.kind == "atoms" and not (self.num > 1 and self.low < self.high)):
            raise ConfigError(f"{self}: give at least 1 quantile, or 2 atoms from low to a higher one")
        kind = ImplicitQuantileNetwork if self.kind == "implicit" else ReturnNetwork
        return kind(observation_spec, num_actions, config, self)


class ReturnNetwork(nn.Module):
    """For every action, logits of the atoms of its return, or quantiles of it.

    With `config.dueling`, atom by atom as in Hessel et al. 2018, https://arxiv.org/abs/1710.02298, section "Rainbow".

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        num_actions: A.
        config: the layers; `dueling` and `noisy` are options of it.
        distribution: atoms or quantiles.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> network = ReturnNetwork(TensorSpec((4,)), 2, NetworkConfig(), ReturnDistribution("quantiles", 5))
        >>> network.outputs(torch.zeros(8, 4)).shape, network(torch.zeros(8, 4)).shape
        (torch.Size([8, 2, 5]), torch.Size([8, 2]))
    """

    support: Tensor

    def __init__(
        self, observation_spec: SpecTree, num_actions: int, config: NetworkConfig, distribution: ReturnDistribution
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.head = QNetwork(observation_spec, num_actions, config, num_outputs=distribution.num)
        self.noise_size = self.head.noise_size
        atoms = torch.linspace(distribution.low, distribution.high, distribution.num)
        fractions = (torch.arange(distribution.num) + 0.5) / distribution.num
        self.register_buffer("support", atoms if distribution.kind == "atoms" else fractions, persistent=False)

    def outputs(self, observation: Any, noise: Tensor | None = None) -> Tensor:
        """Logits of the atoms, or quantiles at the fractions `support`.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            noise: [..., noise_size] standard normal, for noisy layers.

        Returns:
            [..., A, Q].
        """
        return self.head(observation, noise)

    def values(self, outputs: Tensor) -> Tensor:
        """The means of the distributions.

        Args:
            outputs: [..., A, Q] of `outputs`.

        Returns:
            [..., A] units of return.
        """
        if self.distribution.kind == "atoms":
            return in_full_precision(torch.matmul, outputs.softmax(-1), self.support)
        return outputs.mean(-1)

    def forward(self, observation: Any, noise: Tensor | None = None) -> Tensor:
        """Action values for every observation.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            noise: [..., noise_size] standard normal, for noisy layers.

        Returns:
            [..., A] units of return.
        """
        return self.values(self.outputs(observation, noise))


class ImplicitQuantileNetwork(nn.Module):
    """For every action, the quantile of its return at any fraction that is asked for.

        Z_τ(x, a) = f(ψ(x) ⊙ φ(τ))ₐ,   φ(τ) = ReLU(W cos(π i τ) + b),   i = 0 … 63

    Dabney et al. 2018, https://arxiv.org/abs/1806.06923, equation (4). ψ is the encoder and all hidden layers but the
    last; f is the last hidden layer and the output.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        num_actions: A.
        distribution: how many fractions acting averages; they are spaced evenly.

    Raises:
        ConfigError: the config asks for dueling or noisy layers, which this network does not have.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> network = ImplicitQuantileNetwork(TensorSpec((4,)), 2, NetworkConfig(), ReturnDistribution("implicit", 32))
        >>> network.outputs(torch.zeros(8, 4), torch.rand(8, 5)).shape, network(torch.zeros(8, 4)).shape
        (torch.Size([8, 2, 5]), torch.Size([8, 2]))
    """

    NUM_COSINES = 64
    """As in the paper's section 4."""
    noise_size = 0
    """It has no noisy layers."""
    support: Tensor
    frequency: Tensor

    def __init__(
        self, observation_spec: SpecTree, num_actions: int, config: NetworkConfig, distribution: ReturnDistribution
    ) -> None:
        super().__init__()
        if config.dueling or config.noisy:
            raise ConfigError("an implicit quantile network is neither dueling nor noisy; C51 and QR-DQN can be")
        shared, last = config.hidden_sizes[:-1], config.hidden_sizes[-1:]
        self.encoder = encoder_of(observation_spec, config)
        self.torso = mlp_of(self.encoder.out_size, shared, None, config)
        self.embedding = nn.Linear(self.NUM_COSINES, self.torso.out_size)
        self.head = mlp_of(self.torso.out_size, last, num_actions, config)
        fractions = (torch.arange(distribution.num) + 0.5) / distribution.num
        self.register_buffer("support", fractions, persistent=False)
        self.register_buffer("frequency", math.pi * torch.arange(self.NUM_COSINES), persistent=False)

    def outputs(self, observation: Any, fraction: Tensor) -> Tensor:
        """Quantiles of the return.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            fraction: [..., Q] τ in (0, 1).

        Returns:
            [..., A, Q] units of return.
        """
        features = self.torso(self.encoder(observation)).unsqueeze(-2)  # [..., 1, features]
        code = relu(self.embedding((fraction.unsqueeze(-1) * self.frequency).cos()))  # [..., Q, features]
        return self.head(features * code).transpose(-1, -2)

    def forward(self, observation: Any, noise: Tensor | None = None) -> Tensor:
        """Action values for every observation: the mean over evenly spaced fractions.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            noise: not used.

        Returns:
            [..., A] units of return.
        """
        return self.outputs(observation, self.support).mean(-1)
