"""Ensembles: K networks of one shape, computed side by side in one batched product per layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.core import ConfigError, SpecTree
from palaestra.nn.config import NetworkConfig
from palaestra.nn.encoder import encoder_of
from palaestra.nn.mlp import ACTIVATIONS
from palaestra.nn.network import mlp_of

__all__ = ["EnsembleNetwork"]


class EnsembleLinear(nn.Module):
    """K linear layers of one shape in one batched product.

    Args:
        layers: K layers, whose weights it starts with.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]).contiguous())
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor, members: Any = None) -> Tensor:
        """The outputs of the members.

        Args:
            x: [N, in] for all of them, or [K, N, in].
            members: which; default all.

        Returns:
            [K, N, out].
        """
        weight, bias = self.weight, self.bias
        if members is not None:
            weight, bias = weight[members], bias[members]
        return torch.bmm(x if x.ndim == 3 else x.expand(weight.shape[0], -1, -1), weight).add_(bias)


class EnsembleNetwork(nn.Module):
    """K fully connected networks on one encoded observation, and on an action where `action_size` says so.

    Member k is the network that `MLP` would be; its weights are entry k of `[K, in, out]` parameters, so K critics cost
    one call per layer instead of K. Members start from draws of their own. An encoder of images is shared by all.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        out_size: numbers for each input, of each member.
        num_members: K.
        config: the layers.
        action_size: A numbers that follow the encoded observation; 0 for networks of the observation alone.

    Raises:
        ConfigError: a size or name in the config is impossible, or the config asks for dueling or noisy layers, or
            for a memory.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> critics = EnsembleNetwork(TensorSpec((4,)), 1, 2, action_size=3)
        >>> critics(torch.zeros(8, 4), torch.zeros(8, 3)).shape
        torch.Size([2, 8, 1])
    """

    def __init__(
        self,
        observation_spec: SpecTree,
        out_size: int,
        num_members: int,
        config: NetworkConfig | None = None,
        *,
        action_size: int = 0,
    ) -> None:
        super().__init__()
        config = config or NetworkConfig()
        for option in ("dueling", "noisy"):
            if getattr(config, option):
                raise ConfigError(
                    f"{option}={getattr(config, option)!r} is nothing that an ensemble of networks can be"
                )
        if num_members < 1:
            raise ConfigError(f"an ensemble was given num_members={num_members}; it needs at least 1")
        self.num_members, self.out_size = num_members, out_size
        self.encoder = encoder_of(observation_spec, config)
        self._encodes = not self.encoder.is_identity
        in_size = self.encoder.out_size + action_size
        members = [mlp_of(in_size, config.hidden_sizes, out_size, config) for _ in range(num_members)]
        layers = list(zip(*(member.layers for member in members), strict=True))
        self.layers = nn.ModuleList(EnsembleLinear(stack) for stack in layers)
        self._function = ACTIVATIONS[config.activation]

    def forward(self, observation: Any, action: Tensor | None = None, *, members: Any = None) -> Tensor:
        """What the members say.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            action: [..., A], where the networks take one.
            members: which to ask: [M] int64, or a slice; default all K.

        Returns:
            [K, ..., out_size], or [M, ..., out_size].
        """
        x = self.encoder(observation) if self._encodes else observation
        if action is not None:
            x = torch.cat((x, action), -1)
        leading, last = x.shape[:-1], len(self.layers) - 1
        if len(leading) != 1:
            x = x.reshape(-1, x.shape[-1])  # [N, in]
        for index, layer in enumerate(self.layers):
            x = layer(x, members)  # [K, N, out]
            if index < last:
                x = self._function(x)
        return x if len(leading) == 1 else x.reshape(x.shape[0], *leading, self.out_size)
