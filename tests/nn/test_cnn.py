"""Tests of `palaestra.nn.encoder`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.nn import NatureCNN

SMALL = (1, 36, 36)  # the smallest image that all three convolutions can be laid on


def images(*shape):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_the_layers_are_those_of_the_paper():
    cnn = NatureCNN((4, 84, 84))
    shapes = [tuple(parameter.shape) for parameter in cnn.parameters() if parameter.ndim > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7)]


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)], ids=str)
def test_leading_dimensions_are_kept(leading):
    cnn = NatureCNN(SMALL, out_size=16)
    image = images(*leading, *SMALL)
    assert cnn(image).shape == (*leading, 16)
    assert_close(cnn(image).reshape(-1, 16), cnn(image.reshape(-1, *SMALL)))


def test_bytes_are_scaled_to_one():
    cnn, image = NatureCNN(SMALL, out_size=16), images(2, *SMALL)
    assert_close(cnn(image), cnn(image.float() / 255))
    assert image.dtype == torch.uint8  # untouched


def test_floats_are_not_changed_in_place():
    cnn, image = NatureCNN(SMALL, out_size=16), torch.rand(2, *SMALL)
    before = image.clone()
    cnn(image).sum().backward()
    assert torch.equal(image, before)


def test_an_image_that_is_too_small_is_refused_with_what_to_do():
    with pytest.raises(ShapeError, match=r"shape \(3, 35, 64\).*at least 36 pixels: resize"):
        NatureCNN((3, 35, 64))
