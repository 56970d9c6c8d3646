"""`Encoder`: one flat feature vector from any nest of observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.core import (
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiDiscreteSpec,
    SpecTree,
    TensorSpec,
    spec_leaves,
)
from palaestra.nn.cnn import NatureCNN

__all__ = ["ACTION_MASK", "Encoder", "has_pictures"]

ACTION_MASK = "action_mask"
"""The key of a dict observation that says which actions are allowed; no network sees it."""


class Encoder(nn.Module):
    """Maps a nest of observations to [..., out_size] float32.

    | spec | code |
    |---|---|
    | numbers | flattened; uint8 is divided by 255 |
    | discrete, multi-discrete | one-hot |
    | multi-binary | 0.0 or 1.0 |
    | uint8 image of 3 axes, at least 36 x 36 pixels | `NatureCNN`, channels first or last |
    | dict, tuple | the children's codes, one after another; the key `action_mask` of the outermost dict is left out |

    Batched nests are `core.Batch`; the children of a tuple have the names "0", "1", ... . A single vector of float32 is
    passed through as it is: `is_identity` says so, and callers may skip the call.

    Args:
        observation_spec: the spec tree.
        image_size: features of each image.

    Raises:
        ConfigError: there is nothing to encode.

    Examples:
        >>> from palaestra.core import Batch
        >>> encoder = Encoder({"position": TensorSpec((2,)), "room": DiscreteSpec(num=3)})
        >>> encoder(Batch(position=torch.tensor([[0.5, 1.0]]), room=torch.tensor([2])))
        tensor([[0.5000, 1.0000, 0.0000, 0.0000, 1.0000]])
    """

    def __init__(self, observation_spec: SpecTree, *, image_size: int = 512) -> None:
        super().__init__()
        if isinstance(observation_spec, dict):
            observation_spec = {key: child for key, child in observation_spec.items() if key != ACTION_MASK}
        self.root = _encoder_of(observation_spec, image_size)
        self.out_size: int = self.root.out_size  # pyright: ignore[reportAttributeAccessIssue]
        self.is_identity = isinstance(self.root, _Numbers) and self.root.is_identity
        if self.out_size < 1:
            raise ConfigError(
                f"the observation spec {observation_spec} has no numbers to encode; a network needs at least one"
            )

    def forward(self, observation: Any) -> Tensor:
        """The features of every row.

        Args:
            observation: a tensor, or a `Batch` with the fields of the spec, with any leading dimensions.

        Returns:
            [..., out_size] float32.
        """
        if self.is_identity:
            return observation
        modules: dict[str, Any] = vars(self)["_modules"]  # `self.root` would cost a search
        return modules["root"].forward(observation)


def has_pictures(observation_spec: SpecTree) -> bool:
    """Whether anything in an observation is encoded by a convolutional network.

    Args:
        observation_spec: the spec tree.

    Examples:
        >>> has_pictures(TensorSpec((3, 64, 64), torch.uint8)), has_pictures(TensorSpec((2, 2, 2)))
        (True, False)
    """
    return any(
        type(leaf) in (TensorSpec, BoundedSpec) and _channels_first(leaf) is not None
        for leaf in spec_leaves(observation_spec).values()
    )


def _encoder_of(spec: SpecTree, image_size: int) -> nn.Module:
    if isinstance(spec, dict | tuple):
        items = spec.items() if isinstance(spec, dict) else enumerate(spec)
        return _Children({str(name): _encoder_of(child, image_size) for name, child in items})
    if isinstance(spec, DiscreteSpec):
        return _OneHot((spec.num,), spec.start, ndim=0)
    if isinstance(spec, MultiDiscreteSpec):
        return _OneHot(spec.nvec, 0, ndim=1)
    channels_first = _channels_first(spec)
    return _Numbers(spec) if channels_first is None else _Image(spec, channels_first, image_size)


def _channels_first(spec: TensorSpec) -> tuple[int, ...] | None:
    """[C, H, W] where the spec is an image, else `None`. Channels are last where only the last axis is that short.

    Of images in a row, which have one axis more in front, the channels are one after another.
    """
    if spec.dtype != torch.uint8 or len(spec.shape) not in (3, 4):
        return None
    *frames, first, middle, last = spec.shape
    channels, height, width = (last, first, middle) if last <= 4 < first else (first, middle, last)
    shape = (math.prod(frames) * channels, height, width)
    return shape if NatureCNN.fits(shape) else None


class _Numbers(nn.Module):
    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        self.ndim, self.out_size = len(spec.shape), spec.size
        self.is_identity = spec.dtype == torch.float32 and len(spec.shape) == 1

    def forward(self, value: Tensor) -> Tensor:
        scaled = value.dtype == torch.uint8
        if self.ndim == 1 and not scaled:
            return value.float()
        value = value.reshape(*value.shape[: value.ndim - self.ndim], self.out_size).float()
        return value * (1 / 255) if scaled else value


class _OneHot(nn.Module):
    choice: Tensor
    category: Tensor

    def __init__(self, nvec: Sequence[int], start: int, *, ndim: int) -> None:
        super().__init__()
        self.ndim, self.out_size = ndim, sum(nvec)
        # entry j of the code is 1 where the value number choice[j] equals category[j]
        choice = [index for index, num in enumerate(nvec) for _ in range(num)]
        category = [start + value for num in nvec for value in range(num)]
        self.register_buffer("choice", torch.tensor(choice, dtype=torch.int64), persistent=False)
        self.register_buffer("category", torch.tensor(category, dtype=torch.int64), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        value = value.unsqueeze(-1) if self.ndim == 0 else value.index_select(-1, self.choice)
        return (value == self.category).float()


class _Image(nn.Module):
    def __init__(self, spec: TensorSpec, channels_first: tuple[int, ...], image_size: int) -> None:
        super().__init__()
        self.permute = channels_first[-2:] != spec.shape[-2:]
        self.in_a_row = len(spec.shape) == 4
        self.network = NatureCNN(channels_first, image_size)
        self.out_size = image_size

    def forward(self, value: Tensor) -> Tensor:
        value = value.movedim(-1, -3) if self.permute else value
        return self.network(value.flatten(-4, -3) if self.in_a_row else value)


class _Children(nn.Module):
    def __init__(self, children: dict[str, Any]) -> None:
        super().__init__()
        coded = {name: child for name, child in children.items() if child.out_size}  # not those of an empty dict
        self.names, self.encoders = list(coded), nn.ModuleList(coded.values())
        self.out_size = sum(child.out_size for child in coded.values())

    def forward(self, value: Any) -> Tensor:
        codes = [encoder(value[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        return codes[0] if len(codes) == 1 else torch.cat(codes, -1)
