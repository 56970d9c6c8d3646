"""`NatureCNN`: the convolutional network of the Atari experiments."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from palaestra.core import ShapeError

__all__ = ["NatureCNN"]

_MIN_SIZE = 36  # pixels: below, the third convolution has nothing to look at


class NatureCNN(nn.Module):
    """Turns images into feature vectors: three convolutions and one fully connected layer, each with a relu.

    Mnih et al. 2015, https://doi.org/10.1038/nature14236, methods.
    Departs from the paper: any image size; orthogonal initialisation with gain √2, biases 0.

    Args:
        shape: [C, H, W], channels first; H and W at least 36 pixels.
        out_size: features.

    Raises:
        ShapeError: the shape is no image or too small.

    Examples:
        >>> NatureCNN((4, 84, 84))(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([2, 512])
    """

    def __init__(self, shape: Sequence[int], out_size: int = 512) -> None:
        super().__init__()
        if not self.fits(shape):
            raise ShapeError(
                f"NatureCNN was given an image of shape {tuple(shape)}; it needs [C, H, W] with H and W of at least "
                f"{_MIN_SIZE} pixels: resize the images, or flatten them into an MLP"
            )
        self.shape = tuple(shape)
        self.out_size = out_size
        channels, height, width = shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        self.linear = nn.Linear(64 * _pixels_out(height) * _pixels_out(width), out_size)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, 2**0.5)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    @staticmethod
    def fits(shape: Sequence[int]) -> bool:
        """Whether images of a shape can be taken.

        Args:
            shape: [C, H, W].
        """
        return len(shape) == 3 and min(shape[1:]) >= _MIN_SIZE

    def forward(self, image: Tensor) -> Tensor:
        """The features of every image.

        Args:
            image: [..., C, H, W], uint8 in 0 ... 255, or float already scaled.

        Returns:
            [..., out_size] float32, at least 0.
        """
        leading = image.shape[:-3]
        image = image.reshape(-1, *self.shape)
        image = image.float().mul_(1 / 255) if image.dtype == torch.uint8 else image.float()
        return torch.relu_(self.linear(self.convolutions(image))).reshape(*leading, self.out_size)


def _pixels_out(pixels: int) -> int:
    for size, stride in ((8, 4), (4, 2), (3, 1)):
        pixels = (pixels - size) // stride + 1
    return pixels
