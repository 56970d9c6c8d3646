"""`NoisyMLP`: fully connected layers whose weights are random, so that acting explores by itself."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from palaestra.nn.fast import Linear
from palaestra.nn.mlp import MLP, Activation

__all__ = ["NoisyMLP"]


class NoisyMLP(nn.Module):
    """Fully connected layers with factorised Gaussian noise on every weight and bias.

        y = (μʷ + σʷ ⊙ f(ε') f(ε)ᵀ) x + μᵇ + σᵇ ⊙ f(ε'),   f(e) = sign(e) √|e|,   ε, ε' ~ N(0, 1)

    Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, equations (9) to (11) and section 3.2; σ starts at
    0.5 / √inputs. μ and σ are parameters. The noise is an argument, so that nothing is drawn in here; every row may
    have noise of its own, which costs no more than shared noise, because the noise is of rank one.

    Args:
        in_size: features of the input.
        hidden_sizes: units of each hidden layer; may be empty.
        out_size: features of the output; `None` ends with the last hidden layer's activation.
        activation: the function between two layers.

    Raises:
        ConfigError: a size is not positive, or the activation is unknown.

    Examples:
        >>> mlp = NoisyMLP(4, (8,), 2)
        >>> mlp.noise_size  # 4 + 8 for the first layer, 8 + 2 for the second
        22
        >>> mlp(torch.zeros(5, 4), torch.randn(5, 22)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        in_size: int,
        hidden_sizes: Sequence[int],
        out_size: int | None = None,
        *,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.mean = MLP(in_size, hidden_sizes, out_size, activation=activation, init="default")
        self.in_size, self.out_size = self.mean.in_size, self.mean.out_size
        sizes = [in_size, *hidden_sizes, *([] if out_size is None else [out_size])]
        self._sizes = list(itertools.pairwise(sizes))
        self.noise_size = sum(n + m for n, m in self._sizes)
        """Random numbers that one row needs."""
        self._ends_with_activation = out_size is None
        self.scale = nn.ModuleList(Linear(n, m) for n, m in self._sizes)
        with torch.no_grad():
            for (n, _), mean, scale in zip(self._sizes, self.mean.layers, self.scale, strict=True):
                for parameter in mean.parameters():
                    parameter.uniform_(-1 / math.sqrt(n), 1 / math.sqrt(n))
                for parameter in scale.parameters():
                    parameter.fill_(0.5 / math.sqrt(n))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The output for every row.

        Args:
            x: [..., in_size] float.
            noise: [..., noise_size] standard normal, or [noise_size] for all rows alike; `None` takes the mean weights.

        Returns:
            [..., out_size].
        """
        if noise is None:
            return self.mean(x)
        noise, at, last = noise.sign() * noise.abs().sqrt(), 0, len(self._sizes) - 1
        layers = zip(self._sizes, self.mean.layers, self.scale, strict=True)
        for index, ((n, m), mean, scale) in enumerate(layers):
            inputs, outputs = noise[..., at : at + n], noise[..., at + n : at + n + m]
            x = mean(x) + outputs * scale(x * inputs)
            at += n + m
            if index < last or self._ends_with_activation:
                x = self.mean.activate(x)
        return x
