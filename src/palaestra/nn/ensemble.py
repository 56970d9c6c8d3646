"""Layers of several networks of one shape, side by side, each computed in one batched product."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.nn.batch_norm import BatchNorm, BatchNormLinear
from palaestra.nn.blocks import NormalizedLinear, UnitLinear, UnitScale


def ensemble_of(layers: Sequence[Any]) -> nn.Module:
    """The layers of K networks as one.

    Args:
        layers: the same one of each, whose parameters it starts with.
    """
    kinds: dict[type[nn.Module], Any] = {nn.LayerNorm: EnsembleNorm, BatchNorm: EnsembleBatchNorm}
    kinds[UnitScale] = EnsembleScale
    return kinds.get(type(layers[0]), EnsembleBlock if hasattr(layers[0], "rule") else EnsembleLinear)(layers)


def _of(parameter: Tensor, members: Any) -> Tensor:
    return parameter if members is None else parameter[members]


class EnsembleLinear(nn.Module):
    """K linear layers of one shape in one batched product, each with its normalisation if they have one.

    Args:
        layers: K layers, whose weights it starts with.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]).contiguous())
        biased = layers[0].bias is not None
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers])) if biased else None
        self.unit_vectors = {"weight": 1} if isinstance(layers[0], UnitLinear) else {}
        self._normalizes = isinstance(layers[0], NormalizedLinear)
        if self._normalizes:
            self.gain = nn.Parameter(torch.stack([layer.gain.detach()[None] for layer in layers]))
            self.shift = nn.Parameter(torch.stack([layer.shift.detach()[None] for layer in layers]))
        self.norm = BatchNorm(layers[0].in_features, len(layers)) if isinstance(layers[0], BatchNormLinear) else None

    def forward(self, x: Tensor, members: Any = None, moments: list[Tensor] | None = None) -> Tensor:
        """The outputs of the members.

        Args:
            x: [N, in] for all of them, or [K, N, in].
            members: which; default all.
            moments: see `BatchNorm`; of all members.

        Returns:
            [K, N, out].
        """
        weight, bias = _of(self.weight, members), None if self.bias is None else _of(self.bias, members)
        x = x if x.ndim == 3 else x.expand(weight.shape[0], -1, -1)
        if self.norm is not None:
            x = self.norm(x, moments, members)
        out = torch.bmm(x, weight) if bias is None else torch.bmm(x, weight).add_(bias)
        if not self._normalizes:
            return out
        return nn.functional.layer_norm(out, out.shape[-1:]) * _of(self.gain, members) + _of(self.shift, members)


class EnsembleNorm(nn.Module):
    """K layer normalisations.

    Args:
        layers: K of them.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.stack([layer.weight.detach()[None] for layer in layers]))
        self.shift = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor, members: Any = None, moments: list[Tensor] | None = None) -> Tensor:
        """The normalised features of the members.

        Args:
            x: [K, N, n].
            members: which; default all.
            moments: nothing here.

        Returns:
            [K, N, n].
        """
        return nn.functional.layer_norm(x, x.shape[-1:]) * _of(self.gain, members) + _of(self.shift, members)


class EnsembleBatchNorm(nn.Module):
    """K batch normalisations.

    Args:
        layers: K of them.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        options = {"renormalizes": layers[0].renormalizes, "one_scale": bool(layers[0].one_scale)}
        self.norm = BatchNorm(layers[0].size, len(layers), **options)

    def forward(self, x: Tensor, members: Any = None, moments: list[Tensor] | None = None) -> Tensor:
        """The normalised units of the members.

        Args:
            x: [N, n] for all of them, or [K, N, n].
            members: which; default all.
            moments: see `BatchNorm`; of all members.

        Returns:
            [K, N, n].
        """
        count = len(_of(self.norm.gain, members))
        return self.norm(x if x.ndim == 3 else x.expand(count, -1, -1), moments, members)


class EnsembleScale(nn.Module):
    """K layers of learned factors.

    Args:
        layers: K of them.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.stack([layer.factor.detach()[None] for layer in layers]))
        self._unit, self.one_scale = layers[0].unit, layers[0].one_scale

    def forward(self, x: Tensor, members: Any = None, moments: list[Tensor] | None = None) -> Tensor:
        """The scaled units of the members.

        Args:
            x: [K, N, n].
            members: which; default all.
            moments: nothing here.

        Returns:
            [K, N, n].
        """
        return x * (_of(self.factor, members) * self._unit)


class EnsembleBlock(nn.Module):
    """K blocks made of parts.

    Args:
        blocks: K of them, each with a `rule`.
    """

    def __init__(self, blocks: Sequence[Any]) -> None:
        super().__init__()
        for name, _ in blocks[0].named_children():
            setattr(self, name, ensemble_of([getattr(block, name) for block in blocks]))
        self._rule, self._function = blocks[0].rule, blocks[0].function

    def forward(self, x: Tensor, members: Any = None, moments: list[Tensor] | None = None) -> Tensor:
        """The outputs of the members.

        Args:
            x: [K, N, n], or [N, n] for all of them.
            members: which; default all.
            moments: see `BatchNorm`; of all members.

        Returns:
            [K, N, out].
        """
        return self._rule(x, lambda name, x: getattr(self, name)(x, members, moments), self._function)
