"""Convolutional networks: `NatureCNN`, the residual network of IMPALA, and two for pictures below 36 pixels."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from palaestra.core import ACTION_MASK, ConfigError, ShapeError, SpecTree, did_you_mean
from palaestra.nn.blocks import NormalizedLinear
from palaestra.nn.config import CNN
from palaestra.nn.fast import in_graph

__all__ = [
    "BoardNetwork",
    "ConvolutionalNetwork",
    "ImpalaCNN",
    "MinAtarCNN",
    "NatureCNN",
    "SmallCNN",
    "WideBoardNetwork",
]

_BOARD = "observation"
_AT_ONCE = 64
"""Pictures that a CPU takes at once where no gradient is wanted: what lies between two layers then stays in its cache,
and below the size that glibc asks the system for anew each time."""


class ConvolutionalNetwork(nn.Module):
    """Turns pictures into feature vectors: convolutions, a fully connected layer and a relu.

    Args:
        shape: [C, H, W], channels first.
        out_size: features.
        layer_norm: whether what each layer gives is normalised before its relu: of a convolution the channels of every
            pixel. Inside residual blocks it is not.

    Raises:
        ShapeError: the shape is no picture, or one that is too small.
    """

    smallest: ClassVar[int] = 5
    """The least height and width, pixels: what is smaller is a table of numbers rather than a picture."""

    usual_size: ClassVar[int] = 512
    """Features where none are asked for."""

    def __init__(self, shape: Sequence[int], out_size: int | None = None, *, layer_norm: bool = False) -> None:
        super().__init__()
        if not self.fits(shape):
            raise ShapeError(
                f"{type(self).__name__} was given an image of shape {tuple(shape)}; it needs [C, H, W] with H and W of "
                f"at least {self.smallest} pixels: resize the images, or take a network for smaller ones"
            )
        self.shape, self.out_size = tuple(shape), out_size or self.usual_size
        channels, height, width = shape
        layers = list[nn.Module]()
        for layer in self._layers(channels):
            if layers and self._is_plain:
                layers.append(nn.ReLU(inplace=True))
            layers.append(layer)
            if layer_norm and isinstance(layer, nn.Conv2d):
                layers.append(_PixelNorm(layer.out_channels))
        self.convolutions = nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten())
        kind = NormalizedLinear if layer_norm else nn.Linear
        self.linear = kind(self._num_channels * self._pixels_out(height) * self._pixels_out(width), self.out_size)
        for module in self.modules() if self._is_plain else ():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, 2**0.5)
                nn.init.constant_(module.bias, 0.0)  # pyright: ignore[reportArgumentType]

    _num_channels: ClassVar[int]
    _is_plain: ClassVar[bool] = True
    """Whether a relu is between convolutions, whose weights start orthogonal, with gain √2, and biases 0."""
    _channels_last: ClassVar[bool] = False
    """Whether pixels lie one after another on a CPU, each with its channels: large convolutions take half the time."""

    @abstractmethod
    def _layers(self, channels: int) -> list[nn.Module]:
        """The convolutions, without the relu that ends them."""

    @abstractmethod
    def _pixels_out(self, pixels: int) -> int:
        """Height or width of what the convolutions give."""

    @classmethod
    def fits(cls, shape: Sequence[int]) -> bool:
        """Whether images of a shape can be taken.

        Args:
            shape: [C, H, W].
        """
        return len(shape) == 3 and min(shape[1:]) >= cls.smallest

    def forward(self, image: Tensor) -> Tensor:
        """The features of every image.

        Args:
            image: [..., C, H, W], uint8 in 0 ... 255, or float already scaled, or bool.

        Returns:
            [..., out_size] float32, at least 0.
        """
        leading = image.shape[:-3]
        image = image.reshape(-1, *self.shape)
        if image.is_cpu and not torch.is_grad_enabled() and not in_graph() and len(image) > _AT_ONCE:
            features = torch.cat([self._features(part) for part in image.split(_AT_ONCE)])
        else:
            features = self._features(image)
        return features.reshape(*leading, self.out_size)

    def _features(self, image: Tensor) -> Tensor:
        """[N, out_size] of images [N, C, H, W]."""
        if self._channels_last and image.is_cpu:
            image = image.movedim(1, -1).contiguous().movedim(-1, 1)  # with a memory format `vmap` refuses it
        image = image.float().mul_(1 / 255) if image.dtype == torch.uint8 else image.float()
        return torch.relu_(self.linear(self.convolutions(image)))


class NatureCNN(ConvolutionalNetwork):
    """Three convolutions and one fully connected layer, each with a relu.

    Mnih et al. 2015, https://doi.org/10.1038/nature14236, methods.
    Departs from the paper: any image size; orthogonal initialisation with gain √2, biases 0.

    Args:
        shape: [C, H, W], channels first; H and W at least 36 pixels.
        out_size: features.
        layer_norm: see `ConvolutionalNetwork`.

    Raises:
        ShapeError: the shape is no image or too small.

    Examples:
        >>> NatureCNN((4, 84, 84))(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([2, 512])
    """

    smallest = 36  # below, the third convolution has nothing to look at
    _num_channels = 64
    _channels_last = True

    def _layers(self, channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3)]

    def _pixels_out(self, pixels: int) -> int:
        for size, stride in ((8, 4), (4, 2), (3, 1)):
            pixels = (pixels - size) // stride + 1
        return pixels


class SmallCNN(ConvolutionalNetwork):
    """Three convolutions of 3 x 3 pixels with 32, 64 and 64 channels, and one fully connected layer, each with a relu.

    The first convolution sees every pixel, the two after it every other one; the border is padded with zeros, so that
    grids such as those of MiniGrid (7 x 7) and MinAtar (10 x 10) keep their corners. Orthogonal initialisation with
    gain √2, biases 0. It is this library's own, for what the kernels of `NatureCNN` cannot be laid on.

    Args:
        shape: [C, H, W], channels first; H and W at least 5 pixels.
        out_size: features.
        layer_norm: see `ConvolutionalNetwork`.

    Raises:
        ShapeError: the shape is no image or too small.

    Examples:
        >>> SmallCNN((3, 7, 7))(torch.zeros(2, 3, 7, 7, dtype=torch.uint8)).shape
        torch.Size([2, 512])
    """

    _num_channels = 64

    def _layers(self, channels: int) -> list[nn.Module]:
        again = (nn.Conv2d(before, 64, 3, stride=2, padding=1) for before in (32, 64))
        return [nn.Conv2d(channels, 32, 3, padding=1), *again]

    def _pixels_out(self, pixels: int) -> int:
        return -(-pixels // 4)


class MinAtarCNN(ConvolutionalNetwork):
    """One convolution of 3 x 3 pixels with 16 channels, and one fully connected layer, each with a relu.

    Young and Tian 2019, https://arxiv.org/abs/1903.03176, section 3; with `layer_norm` that of Gallici et al. 2025,
    https://arxiv.org/abs/2407.04811, for MinAtar. Departs from the papers: orthogonal initialisation with gain √2,
    biases 0.

    Args:
        shape: [C, H, W], channels first; H and W at least 5 pixels.
        out_size: features; 128 in the papers.
        layer_norm: see `ConvolutionalNetwork`.

    Raises:
        ShapeError: the shape is no image or too small.

    Examples:
        >>> MinAtarCNN((4, 10, 10))(torch.zeros(2, 4, 10, 10, dtype=torch.bool)).shape
        torch.Size([2, 128])
    """

    usual_size = 128
    _num_channels = 16

    def _layers(self, channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, 16, 3)]

    def _pixels_out(self, pixels: int) -> int:
        return pixels - 2


class BoardNetwork(nn.Module):
    """Features of a board: a convolution over windows of 4 x 4 cells, and a fully connected layer, each with a relu.

    An encoder, `palaestra.nn:BoardNetwork`. The convolution has 64 channels. Each line of four cells lies in a window,
    and the weights of all windows are the same. It is a product of gathered cells, which takes a CPU a third of the
    time of `Conv2d`.

    Args:
        observation_spec: of a board, [C, H, W], or of a dict that has one as `observation` and nothing else to see.

    Raises:
        ShapeError: there is no board, or it is smaller than a window, or there is more in the dict.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> BoardNetwork(TensorSpec((2, 6, 7)))(torch.zeros(5, 2, 6, 7)).shape
        torch.Size([5, 128])
    """

    _cells: Tensor
    _window, _channels, _features = 4, 64, 128

    def __init__(self, observation_spec: SpecTree) -> None:
        super().__init__()
        self._is_dict = isinstance(observation_spec, Mapping)
        spec: Any = observation_spec.get(_BOARD) if isinstance(observation_spec, Mapping) else observation_spec
        shape: Sequence[int] = getattr(spec, "shape", ())
        more = self._is_dict and {*observation_spec} - {_BOARD, ACTION_MASK}
        if more or len(shape) != 3 or min(shape[1:]) < self._window:
            raise ShapeError(
                f"a board needs the shape [C, H, W], with H and W of at least {self._window} cells, alone or as "
                f"{_BOARD!r} of a dict with nothing else to see; this is {observation_spec}: leave the encoder out, or "
                "name one of your own"
            )
        cells = torch.arange(math.prod(shape)).view(*shape).unfold(1, self._window, 1).unfold(2, self._window, 1)
        cells = cells.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
        self.register_buffer("_cells", cells, persistent=False)  # [windows, C x 4 x 4] places in a board
        self.convolution = nn.Linear(cells.shape[1], self._channels)
        self.linear = nn.Linear(self._channels * len(cells), self._features)

    def forward(self, observation: Any) -> Tensor:
        """Features [..., 128].

        Args:
            observation: [..., C, H, W], or the dict.
        """
        board = observation[_BOARD] if self._is_dict else observation
        seen = board.flatten(0, -4).float().flatten(1).index_select(1, self._cells.flatten())
        found = self.convolution(seen.unflatten(1, self._cells.shape)).relu_().flatten(1)
        return self.linear(found).relu_().unflatten(0, board.shape[:-3])


class WideBoardNetwork(BoardNetwork):
    """`BoardNetwork` with features [..., 256], for layers of 256 units after it: `palaestra.nn:WideBoardNetwork`."""

    _features = 256


class ImpalaCNN(ConvolutionalNetwork):
    """The residual network of IMPALA: fifteen convolutions of 3 x 3 pixels and one fully connected layer.

    Three sections of 16, 32 and 32 channels; each is a convolution, a maximum over 3 x 3 pixels with stride 2, and two
    residual blocks x + conv(relu(conv(relu(x)))).

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3 (right), without its LSTM.
    Departs from the paper: any image size; PyTorch's initialisation.

    Args:
        shape: [C, H, W], channels first; H and W at least 5 pixels.
        out_size: features; 256 in the paper.
        layer_norm: see `ConvolutionalNetwork`.

    Raises:
        ShapeError: the shape is no image or too small.

    Examples:
        >>> ImpalaCNN((3, 64, 64))(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([2, 256])
    """

    usual_size = 256
    _num_channels = 32
    _channels_last, _is_plain = True, False

    def _layers(self, channels: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for before, after in ((channels, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [_Residual(after), _Residual(after)]
        return layers

    def _pixels_out(self, pixels: int) -> int:
        return -(-pixels // 8)


class _PixelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of every pixel, [N, C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu_(self.first(torch.relu(x))))


_KINDS = {"nature": NatureCNN, "small": SmallCNN, "impala": ImpalaCNN, "minatar": MinAtarCNN}


def cnn_of(shape: Sequence[int], kind: CNN, out_size: int, *, layer_norm: bool = False) -> ConvolutionalNetwork:
    """The convolutional network that a configuration asks for.

    Args:
        shape: [C, H, W], channels first.
        kind: see `NetworkConfig.cnn`.
        out_size: features.
        layer_norm: see `ConvolutionalNetwork`.

    Raises:
        ConfigError: the images are too small for it.
    """
    if kind not in get_args(CNN):
        raise ConfigError(f"unknown network.cnn {kind!r}{did_you_mean(kind, get_args(CNN))}")
    network = _KINDS["small" if not NatureCNN.fits(shape) else "nature"] if kind == "auto" else _KINDS[kind]
    if not network.fits(shape):
        raise ConfigError(
            f"network.cnn is {kind!r}, which needs images of at least {network.smallest} x {network.smallest} pixels, "
            f"and they are {list(shape)}, channels first; choose small, minatar or impala, or leave it out"
        )
    return network(shape, out_size, layer_norm=layer_norm)
