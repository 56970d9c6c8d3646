"""Layers whose weights are vectors of length 1, and the blocks made of them: XQC's and those of SimbaV2."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palaestra.nn.batch_norm import BatchNorm
from palaestra.nn.fast import Linear
from palaestra.nn.optimizer import unit

__all__ = ["BatchNormBlock", "SphereBlock", "SphereHead", "SphereInput", "UnitLinear", "UnitScale"]

Part = Callable[[str, Tensor], Tensor]
"""A part of a block on what it sees: of one network, or of all members of an ensemble."""


class UnitLinear(Linear):
    """A linear layer whose units have weights of length 1: y = W x + b with ‖Wᵢ‖ = 1 for each unit i.

    Weights start orthogonal, biases at 0. `CoreModel` brings the weights back to length 1 after each step of their
    optimizer, so that a step of one length turns them equally far throughout a run.

    Args:
        in_features: of the input.
        out_features: units.
        bias: whether there is b.

    Examples:
        >>> layer = UnitLinear(4, 2)
        >>> layer.weight.norm(dim=1).detach()
        tensor([1., 1.])
    """

    unit_vectors: ClassVar = {"weight": 1}

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        nn.init.orthogonal_(self.weight)
        with torch.no_grad():
            self.weight.copy_(unit(self.weight, 1))
            if bias:
                self.bias.zero_()


class BatchNormBlock(nn.Module):
    """A hidden layer of XQC: y = φ(norm(W x)) with weights of length 1, normalised by the minibatch.

    Palenicek et al. 2025, https://arxiv.org/abs/2509.25174, section 4.

    Args:
        in_size: features of the input.
        out_size: units.
        function: φ.
    """

    def __init__(self, in_size: int, out_size: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = UnitLinear(in_size, out_size, bias=False)
        self.norm = BatchNorm(out_size, renormalizes=False)
        self.function = function

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The block, whoever computes its parts.

        Args:
            x: [..., in_size].
            part: computes one, given its name and what it sees.
            function: φ.
        """
        return function(part("norm", part("linear", x)))

    def forward(self, x: Tensor, moments: list[Tensor] | None = None) -> Tensor:
        """The output for every row.

        Args:
            x: [..., in_size]; with `moments` a minibatch [N, in_size].
            moments: see `BatchNorm`.

        Returns:
            [..., out_size].
        """
        return self.function(self.norm(self.linear(x), moments))


class UnitScale(nn.Module):
    """A learned factor for each unit: y = (g / s) f ⊙ x, where f starts at s, so that factors start at g.

    Args:
        size: units.
        initial: g.
        speed: s; the smaller, the faster an optimizer's steps change the factors.
    """

    def __init__(self, size: int, initial: float = 1.0, speed: float = 1.0) -> None:
        super().__init__()
        self.factor, self.unit = nn.Parameter(torch.full((size,), speed)), initial / speed

    def forward(self, x: Tensor) -> Tensor:
        """The scaled units.

        Args:
            x: [..., size].
        """
        return x * (self.factor * self.unit)


class _Block(nn.Module):
    rule: Any
    function: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """The output for every row.

        Args:
            x: [..., in_size].
        """
        return self.rule(x, lambda name, x: getattr(self, name)(x), self.function)


class SphereInput(_Block):
    """The first layer of SimbaV2: the input, with a constant beside it, as a point of a sphere.

        h = ℓ(g ⊙ W ℓ([x, 3])),   ℓ(x) = x / ‖x‖

    Lee et al. 2025, https://arxiv.org/abs/2502.15280, section 4.1; the constant keeps the length of x from being lost.

    Args:
        in_size: features of the input.
        size: n, units.
    """

    def __init__(self, in_size: int, size: int) -> None:
        super().__init__()
        gain = math.sqrt(2 / size)
        self.linear, self.scale = UnitLinear(in_size + 1, size, bias=False), UnitScale(size, gain, gain)

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The layer, whoever computes its parts; see `BatchNormBlock.rule`."""
        shifted = unit(nn.functional.pad(x, (0, 1), value=3.0), -1)
        return unit(part("scale", part("linear", shifted)), -1)


class SphereBlock(_Block):
    """A hidden layer of SimbaV2: a point of a sphere moves part of the way to another.

        y = ℓ(x + a ⊙ (ℓ(W₂ φ(g ⊙ W₁ x)) − x)),   W₁ [4 n, n]

    Lee et al. 2025, https://arxiv.org/abs/2502.15280, section 4.2. The shares a start at 1 / (blocks + 1).

    Args:
        size: n, features of input and output.
        function: φ.
        num_blocks: in the network.
    """

    def __init__(self, size: int, function: Callable[[Tensor], Tensor], num_blocks: int) -> None:
        super().__init__()
        self.up, self.down = UnitLinear(size, 4 * size, bias=False), UnitLinear(4 * size, size, bias=False)
        gain = math.sqrt(2 / (4 * size))
        self.scale = UnitScale(4 * size, gain, gain)
        self.share = UnitScale(size, 1 / (num_blocks + 1), 1 / math.sqrt(size))
        self.function = function

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The block, whoever computes its parts; see `BatchNormBlock.rule`."""
        target = unit(part("down", function(part("scale", part("up", x)))), -1)
        return unit(x + part("share", target - x), -1)


class SphereHead(_Block):
    """The last layers of SimbaV2: y = W₂ (g ⊙ W₁ x) + b.

    Lee et al. 2025, https://arxiv.org/abs/2502.15280, section 4.3.

    Args:
        in_features: n, of the input.
        out_features: of the output.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.first, self.scale = UnitLinear(in_features, in_features, bias=False), UnitScale(in_features)
        self.last = UnitLinear(in_features, out_features)

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The layers, whoever computes their parts; see `BatchNormBlock.rule`."""
        return part("last", part("scale", part("first", x)))
