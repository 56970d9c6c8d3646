"""Layers whose weights are vectors of length 1, and the blocks made of them: XQC's."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palaestra.nn.batch_norm import BatchNorm
from palaestra.nn.fast import Linear
from palaestra.nn.optimizer import unit

__all__ = ["BatchNormBlock", "UnitLinear"]

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
