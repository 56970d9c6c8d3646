"""What networks are made of: `MLP`, of layers or of the blocks in `LAYERS`, and `NoisyMLP` with noise on weights.

It knows nothing of observations and actions, nor of what is learned: numbers in, numbers out.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

from palaestra.core import ConfigError, did_you_mean
from palaestra.nn.batch_norm import BatchNorm, BatchNormLinear, MixesRows
from palaestra.nn.fast import call, has_autocast, through
from palaestra.nn.optimizer import unit
from palaestra.nn.precision import in_full_precision

__all__ = [
    "MLP",
    "Activation",
    "BatchNormBlock",
    "Initialisation",
    "InvertedBlock",
    "Layers",
    "NoisyMLP",
    "NormalizedInput",
    "NormalizedLinear",
    "RMSNorm",
    "ResidualBlock",
    "SphereBlock",
    "SphereHead",
    "SphereInput",
    "UnitLinear",
    "UnitScale",
]


Activation: TypeAlias = Literal["tanh", "relu", "elu", "silu", "gelu"]
"""The function between two layers."""

Initialisation: TypeAlias = Literal["auto", "orthogonal", "default"]
"""How weights start; `"auto"` is orthogonal for tanh and PyTorch's default for the others."""

Block: TypeAlias = Literal["simba", "simba2", "xqc", "flash"]
"""Blocks instead of hidden layers: `ResidualBlock`, `SphereBlock`, `BatchNormBlock`, `InvertedBlock`."""

Layers: TypeAlias = Literal["linear", "layer_norm", "batch_norm"] | Block
"""What networks are made of: linear layers, `NormalizedLinear`, `BatchNormLinear`, or blocks."""

# tanh and relu are computed in place: the layer below needs only its input for its gradient, never its output
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": nn.functional.elu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
}


class NormalizedLinear(nn.Linear):
    """A linear layer whose outputs are normalised over its units, for every row by itself.

        y = g ⊙ (a − mean(a)) / √(var(a) + 10⁻⁵) + s,   a = W x + b

    Ba et al. 2016, https://arxiv.org/abs/1607.06450, equation (4). The gains g start at 1 and the shifts s at 0.

    Args:
        in_features: of the input.
        out_features: units.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.gain, self.shift = nn.Parameter(torch.ones(out_features)), nn.Parameter(torch.zeros(out_features))

    def forward(self, input: Tensor) -> Tensor:
        """The normalised outputs.

        Args:
            input: [..., in_features].

        Returns:
            [..., out_features].
        """
        return nn.functional.layer_norm(super().forward(input), (self.out_features,), self.gain, self.shift)


Part = Callable[[str, Tensor], Tensor]
"""A part of a block on what it sees: of one network, or of all members of an ensemble."""


class UnitLinear(nn.Linear):
    """A linear layer whose units have weights of length 1: y = W x + b with ‖Wᵢ‖ = 1 for each unit i.

    Weights start orthogonal, biases at 0. `CoreModel` brings the weights back to length 1 after each step of their
    optimizer, so that a step of one length turns them equally far throughout a run.

    Args:
        in_features: of the input.
        out_features: units.
        bias: whether there is b.

    Examples:
        >>> layer = UnitLinear(4, 2)
        >>> layer.weight.norm(dim=1).detach().round(decimals=3)
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


class _Block(nn.Module):
    rule: Any
    function: Any = None

    def forward(self, x: Tensor, moments: list[Tensor] | None = None) -> Tensor:
        """The output for every row.

        Args:
            x: [..., in_size]; with `moments` a minibatch [N, in_size].
            moments: see `BatchNorm`; for layers that mix rows.

        Returns:
            [..., out_size].
        """

        def part(name: str, x: Tensor) -> Tensor:
            layer = getattr(self, name)
            return layer(x, moments) if isinstance(layer, MixesRows) else layer(x)

        return self.rule(x, part, self.function)


class BatchNormBlock(_Block, MixesRows):
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


class NormalizedInput(_Block, MixesRows):
    """The first layer of FlashSAC: h = W norm(x), normalised by the minibatch, with weights of length 1.

    Kim et al. 2026, https://arxiv.org/abs/2604.04539.

    Args:
        in_size: features of the input.
        size: units.
    """

    def __init__(self, in_size: int, size: int) -> None:
        super().__init__()
        self.norm = BatchNorm(in_size, renormalizes=False, one_scale=True)
        self.linear = UnitLinear(in_size, size, bias=False)

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The layer, whoever computes its parts; see `BatchNormBlock.rule`."""
        return part("linear", part("norm", x))


class InvertedBlock(_Block, MixesRows):
    """What a hidden layer of FlashSAC adds to its input: wider inside, normalised by the minibatch before each φ.

        y = x + φ(norm₂(W₂ φ(norm₁(W₁ x)))),   W₁ [4 n, n]

    Kim et al. 2026, https://arxiv.org/abs/2604.04539. Weights of each unit keep length 1, and the gains and shifts of a
    normalisation one scale together.

    Args:
        size: n, features of input and output.
        function: φ.
    """

    def __init__(self, size: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down = UnitLinear(size, 4 * size, bias=False), UnitLinear(4 * size, size, bias=False)
        self.up_norm = BatchNorm(4 * size, renormalizes=False, one_scale=True)
        self.down_norm = BatchNorm(size, renormalizes=False, one_scale=True)
        self.function = function

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The block, whoever computes its parts; see `BatchNormBlock.rule`."""
        inside = function(part("up_norm", part("up", x)))
        return x + function(part("down_norm", part("down", inside)))


class UnitScale(nn.Module):
    """A learned factor for each unit: y = (g / s) f ⊙ x, where f starts at s, so that factors start at g.

    Args:
        size: units.
        initial: g.
        speed: s; the smaller, the faster an optimizer's steps change the factors.
        one_scale: whether the squares of f are kept at a mean of 1; see `CoreModel`.
    """

    def __init__(self, size: int, initial: float = 1.0, speed: float = 1.0, *, one_scale: bool = False) -> None:
        super().__init__()
        self.factor, self.unit = nn.Parameter(torch.full((size,), speed)), initial / speed
        self.one_scale = ("factor",) if one_scale else ()

    def forward(self, x: Tensor) -> Tensor:
        """The scaled units.

        Args:
            x: [..., size].
        """
        return x * (self.factor * self.unit)


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


class RMSNorm(_Block):
    """Features of a root mean square of 1, row by row: y = g ⊙ x / √(mean(x²) + 10⁻⁶), where mean(g²) = 1.

    Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467, equation (4); gains that keep one scale as in FlashSAC.

    Args:
        size: features.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = UnitScale(size, one_scale=True)

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The layer, whoever computes its parts; see `BatchNormBlock.rule`."""
        return part("scale", x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())


class ResidualBlock(nn.Module):
    """What a hidden layer adds to its input, instead of what it makes of it.

        y = x + W₂ φ(W₁ norm(x) + b₁) + b₂,   W₁ [4 n, n]

    Lee et al. 2025, "SimBa", https://arxiv.org/abs/2410.09754, section 4; norm is layer normalisation. Weights start
    as He et al. 2015, https://arxiv.org/abs/1502.01852, biases at 0.

    Args:
        size: n, features of input and output.
        function: φ.
    """

    def __init__(self, size: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.function = function
        for layer in (self.up, self.down):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The output for every row.

        Args:
            x: [..., size].

        Returns:
            [..., size].
        """
        return x + call(self, "down", self.function(call(self, "up", call(self, "norm", x))))

    @staticmethod
    def rule(x: Tensor, part: Part, function: Any) -> Tensor:
        """The block, whoever computes its parts; see `BatchNormBlock.rule`."""
        return x + part("down", function(part("up", part("norm", x))))


class MLP(nn.Module):
    """Fully connected layers: hidden layers with an activation each, then one without.

        h₀ = x,   hᵢ₊₁ = φ(Wᵢ hᵢ + bᵢ),   y = W h + b

    Orthogonal initialisation has gain √2 for hidden layers, `out_gain` for the last, and biases 0 (Saxe et al. 2013,
    https://arxiv.org/abs/1312.6120). With PyTorch's default one the last layer is multiplied by `out_gain`. Parameters
    are drawn from torch's global generator; wrap the construction in `core.seeded_initialisation`.

    With layers of the kind "simba" a linear one leads to n features, a `ResidualBlock` of them stands for each hidden
    layer, and layer normalisation follows the last; linear layers start orthogonal, with gain 1 for the first. With
    "xqc" the input is normalised by the minibatch, and a `BatchNormBlock` stands for each hidden layer; the last layer
    has weights of length 1, whatever `out_gain` says. With "simba2" they are `SphereInput`, a `SphereBlock` for each
    hidden layer, and `SphereHead`; with "flash" `NormalizedInput`, an `InvertedBlock` for each, `RMSNorm` and a last
    layer with weights of length 1.

    Args:
        in_size: features of the input.
        hidden_sizes: units of each hidden layer; may be empty.
        out_size: features of the output; `None` ends with the last hidden layer's activation, or normalisation.
        activation: φ.
        init: how weights start.
        out_gain: scale of the last layer's weights; small values start a policy near uniform.
        layers: kind of the hidden layers; `BatchNormLinear` throughout.

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
        layers: Layers = "linear",
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
        kind = LAYERS[layers]
        if kind.needs_hidden and not hidden_sizes:
            kind = LAYERS["linear"]
        self.layers = nn.ModuleList(kind.make(sizes[:1] + list(hidden_sizes), ACTIVATIONS[activation], out_size))
        self.activation = activation
        self._function = ACTIVATIONS[activation]
        self._last = None if out_size is None else len(self.layers) - 1
        self.num_activations = 0 if kind.is_block else len(hidden_sizes)
        """Layers that are followed by an activation, from the first."""
        orthogonal = init == "orthogonal" or (init == "auto" and (kind.starts_orthogonal or activation == "tanh"))
        for index, layer in enumerate(self.layers):
            if isinstance(layer, nn.Linear) and not isinstance(layer, UnitLinear):
                gain = out_gain if index == self._last else 1.0 if kind.is_block else math.sqrt(2)
                _initialise(layer, gain, orthogonal=orthogonal, is_out=index == self._last)

    def forward(self, x: Tensor, moments: list[Tensor] | None = None) -> Tensor:
        """The output for every row.

        Args:
            x: [..., in_size] float; with `moments` a minibatch [N, in_size].
            moments: see `BatchNorm`; nothing without batch normalisation.

        Returns:
            [..., out_size]. Without layers, `x` itself.
        """
        if moments is None and not has_autocast():
            return through(self, "layers", x, self._function, self.num_activations)
        for index, layer in enumerate(self.layers):
            given = (moments,) if isinstance(layer, MixesRows) else ()
            x = in_full_precision(layer, x, *given) if index == self._last else layer(x, *given)
            if index < self.num_activations:
                x = self._function(x)
        return x

    def hidden(self, x: Tensor) -> Tensor:
        """What the last layer sees: the activations below it.

        Args:
            x: [..., in_size] float.

        Returns:
            [..., units of the last hidden layer]; without hidden layers, `x` itself.
        """
        for index, layer in enumerate(self.layers[:-1]):
            x = layer(x)
            if index < self.num_activations:
                x = self._function(x)
        return x

    def activate(self, x: Tensor) -> Tensor:
        """The activation alone; it may overwrite its argument.

        Args:
            x: any shape.
        """
        return self._function(x)


class _Kind(NamedTuple):
    """How layers of one kind are made."""

    make: Callable[[list[int], Callable[[Tensor], Tensor], int | None], list[nn.Module]]
    """Of the sizes of input and hidden layers, the activation, and features of the output, if there is a last layer."""
    is_block: bool = False
    """Whether the activation is inside, instead of after each hidden layer."""
    needs_hidden: bool = False
    """Whether without hidden layers there is a linear one."""
    starts_orthogonal: bool = False
    """Whether its linear layers do, whatever the activation is."""
    starts_itself: bool = False
    """Whether it has weights of its own to start with."""


def _plain(hidden: Any, last: Any, sizes: list[int], function: Any, out: int | None) -> list[nn.Module]:
    made: list[nn.Module] = [hidden(n, m) for n, m in itertools.pairwise(sizes)]
    return made if out is None else [*made, last(sizes[-1], out)]


def _require_equal(sizes: list[int]) -> None:
    if len(set(sizes[1:])) > 1:
        raise ConfigError(
            f"blocks of the sizes {sizes[1:]} were asked for; what they make is added to their input, so that all must "
            "be of one size"
        )


def _residual(sizes: list[int], function: Callable[[Tensor], Tensor], out: int | None) -> list[nn.Module]:
    _require_equal(sizes)
    blocks = [ResidualBlock(size, function) for size in sizes[1:]]
    made: list[nn.Module] = [nn.Linear(sizes[0], sizes[1]), *blocks, nn.LayerNorm(sizes[1])]
    return made if out is None else [*made, nn.Linear(sizes[1], out)]


def _sphere(sizes: list[int], function: Callable[[Tensor], Tensor], out: int | None) -> list[nn.Module]:
    _require_equal(sizes)
    blocks = [SphereBlock(size, function, len(sizes) - 1) for size in sizes[1:]]
    made: list[nn.Module] = [SphereInput(sizes[0], sizes[1]), *blocks]
    return made if out is None else [*made, SphereHead(sizes[1], out)]


def _unit(sizes: list[int], function: Callable[[Tensor], Tensor], out: int | None) -> list[nn.Module]:
    blocks = [BatchNormBlock(n, m, function) for n, m in itertools.pairwise(sizes)]
    made: list[nn.Module] = [BatchNorm(sizes[0], renormalizes=False), *blocks]
    return made if out is None else [*made, UnitLinear(sizes[-1], out)]


def _inverted(sizes: list[int], function: Callable[[Tensor], Tensor], out: int | None) -> list[nn.Module]:
    _require_equal(sizes)
    blocks = [InvertedBlock(size, function) for size in sizes[1:]]
    made: list[nn.Module] = [NormalizedInput(sizes[0], sizes[1]), *blocks, RMSNorm(sizes[1])]
    return made if out is None else [*made, UnitLinear(sizes[1], out)]


LAYERS: dict[Layers, _Kind] = {
    "linear": _Kind(partial(_plain, nn.Linear, nn.Linear)),
    "layer_norm": _Kind(partial(_plain, NormalizedLinear, nn.Linear)),
    "batch_norm": _Kind(partial(_plain, BatchNormLinear, BatchNormLinear)),
    "simba": _Kind(_residual, is_block=True, needs_hidden=True, starts_orthogonal=True),
    "simba2": _Kind(_sphere, is_block=True, needs_hidden=True, starts_orthogonal=True, starts_itself=True),
    "xqc": _Kind(_unit, is_block=True, starts_itself=True),
    "flash": _Kind(_inverted, is_block=True, needs_hidden=True, starts_itself=True),
}
"""How the layers of each kind are made. A new kind of block is an entry here, and a name in `Block`."""


@torch.no_grad()
def _initialise(layer: Any, gain: float, *, orthogonal: bool, is_out: bool) -> None:
    weight, bias = layer.weight, layer.bias
    if orthogonal:
        nn.init.orthogonal_(weight, gain)
        nn.init.zeros_(bias)
    elif is_out:
        weight.mul_(gain)
        bias.mul_(gain)


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
        self, in_size: int, hidden_sizes: Sequence[int], out_size: int | None = None, *, activation: Activation = "relu"
    ) -> None:
        super().__init__()
        self.mean = MLP(in_size, hidden_sizes, out_size, activation=activation, init="default")
        self.in_size, self.out_size = self.mean.in_size, self.mean.out_size
        sizes = [in_size, *hidden_sizes, *([] if out_size is None else [out_size])]
        self._sizes = list(itertools.pairwise(sizes))
        self.noise_size = sum(n + m for n, m in self._sizes)
        """Random numbers that one row needs."""
        self._ends_with_activation = out_size is None
        self.scale = nn.ModuleList(nn.Linear(n, m) for n, m in self._sizes)
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
            if index == last and not self._ends_with_activation:
                x = in_full_precision(mean, x) + outputs * in_full_precision(scale, x * inputs)
            else:
                x = mean(x) + outputs * scale(x * inputs)
            at += n + m
            if index < last or self._ends_with_activation:
                x = self.mean.activate(x)
        return x
