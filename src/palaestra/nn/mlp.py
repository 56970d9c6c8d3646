"""`MLP`: fully connected layers with the least cost per call that PyTorch allows."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from palaestra.core import ConfigError, did_you_mean
from palaestra.nn.fast import Linear, call, submodules

__all__ = ["MLP", "Activation", "Initialisation"]

Activation: TypeAlias = Literal["tanh", "relu", "elu", "silu", "gelu"]
"""The function between two layers."""

Initialisation: TypeAlias = Literal["auto", "orthogonal", "default"]
"""How weights start; `"auto"` is orthogonal for tanh and PyTorch's default for the others."""

# tanh and relu are computed in place: the layer below needs only its input for its gradient, never its output
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": nn.functional.elu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
}


class MLP(nn.Module):
    """Fully connected layers: hidden layers with an activation each, then one without.

        h₀ = x,   hᵢ₊₁ = φ(Wᵢ hᵢ + bᵢ),   y = W h + b

    Orthogonal initialisation has gain √2 for hidden layers, `out_gain` for the last, and biases 0 (Saxe et al. 2013,
    https://arxiv.org/abs/1312.6120). With PyTorch's default one the last layer is multiplied by `out_gain`. Parameters
    are drawn from torch's global generator; wrap the construction in `core.seeded_initialisation`.

    Args:
        in_size: features of the input.
        hidden_sizes: units of each hidden layer; may be empty.
        out_size: features of the output; `None` ends with the last hidden layer's activation.
        activation: φ.
        init: how weights start.
        out_gain: scale of the last layer's weights; small values start a policy near uniform.

    Raises:
        ConfigError: a size is not positive, or the activation is unknown.

    Examples:
        >>> MLP(4, (64, 64), 2)(torch.zeros(8, 4)).shape
        torch.Size([8, 2])
    """

    def __init__(
        self,
        in_size: int,
        hidden_sizes: Sequence[int],
        out_size: int | None = None,
        *,
        activation: Activation = "tanh",
        init: Initialisation = "auto",
        out_gain: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = [in_size, *hidden_sizes, *([] if out_size is None else [out_size])]
        if min(sizes) < 1:
            raise ConfigError(f"MLP was given the layer sizes {sizes}; each must be at least 1")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation {activation!r}{did_you_mean(activation, ACTIVATIONS)}")
        if init not in get_args(Initialisation):
            raise ConfigError(f"unknown initialisation {init!r}{did_you_mean(init, get_args(Initialisation))}")
        self.in_size = in_size
        self.out_size = sizes[-1]
        self.layers = nn.ModuleList(Linear(n, m) for n, m in itertools.pairwise(sizes))
        self.activation = activation
        self._function = ACTIVATIONS[activation]
        self._num_activations = len(hidden_sizes)
        orthogonal = init == "orthogonal" or (init == "auto" and activation == "tanh")
        for layer, is_out in zip(self.layers, [False] * len(hidden_sizes) + [True], strict=False):
            _initialise(layer, out_gain if is_out else math.sqrt(2), orthogonal=orthogonal, is_out=is_out)

    def forward(self, x: Tensor) -> Tensor:
        """The output for every row.

        Args:
            x: [..., in_size] float.

        Returns:
            [..., out_size]. Without layers, `x` itself.
        """
        function, num_activations = self._function, self._num_activations
        for index, layer in enumerate(submodules(submodules(self)["layers"]).values()):
            x = call(layer, x)
            if index < num_activations:
                x = function(x)
        return x

    def hidden(self, x: Tensor) -> Tensor:
        """What the last layer sees: the activations below it.

        Args:
            x: [..., in_size] float.

        Returns:
            [..., units of the last hidden layer]; without hidden layers, `x` itself.
        """
        for layer in self.layers[:-1]:
            x = self._function(layer(x))
        return x

    def activate(self, x: Tensor) -> Tensor:
        """The activation alone; it may overwrite its argument.

        Args:
            x: any shape.
        """
        return self._function(x)


@torch.no_grad()
def _initialise(layer: Any, gain: float, *, orthogonal: bool, is_out: bool) -> None:
    weight, bias = layer.weight, layer.bias
    if orthogonal:
        nn.init.orthogonal_(weight, gain)
        nn.init.zeros_(bias)
    elif is_out:
        weight.mul_(gain)
        bias.mul_(gain)
