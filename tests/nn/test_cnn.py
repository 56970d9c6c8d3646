"""Tests of `palaestra.nn.cnn`, and of how `NetworkConfig.cnn` chooses among them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.core import ConfigError, ShapeError, TensorSpec
from palaestra.nn import (
    BoardNetwork,
    Encoder,
    ImpalaCNN,
    MinAtarCNN,
    NatureCNN,
    SmallCNN,
    WideBoardNetwork,
    network_summary,
)

SMALLEST = {NatureCNN: (1, 36, 36), SmallCNN: (1, 5, 5), ImpalaCNN: (1, 5, 5), MinAtarCNN: (1, 5, 5)}


def images(*shape):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def built(cnn, *shape, dtype=torch.uint8):
    """The class of network that an encoder builds for images; `None` where it builds none."""
    encoder = Encoder(TensorSpec(shape, dtype), image_size=8, cnn=cnn)
    return next((type(module) for module in encoder.modules() if type(module) in SMALLEST), None)


def test_the_layers_are_those_of_the_paper():
    cnn = NatureCNN((4, 84, 84))
    shapes = [tuple(parameter.shape) for parameter in cnn.parameters() if parameter.ndim > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7)]


def test_the_residual_network_has_fifteen_convolutions_in_sections_that_halve_the_picture():
    cnn = ImpalaCNN((4, 72, 96))  # the size in the paper
    convolutions = [module for module in cnn.modules() if isinstance(module, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [16] * 5 + [32] * 10
    assert {c.kernel_size for c in convolutions} == {(3, 3)}
    assert tuple(cnn.linear.weight.shape) == (256, 32 * 9 * 12)


@pytest.mark.parametrize(("kind", "features"), [(BoardNetwork, 128), (WideBoardNetwork, 256)])
def test_a_board_has_the_same_features_alone_and_in_a_dict_for_any_leading_axes(kind, features):
    spec, board = TensorSpec((2, 6, 7)), images(3, 5, 2, 6, 7)
    network = kind({"observation": spec, "action_mask": TensorSpec((7,))})
    alone = kind(spec)
    alone.load_state_dict(network.state_dict())
    assert network({"observation": board}).shape == (3, 5, features)
    assert_close(network({"observation": board})[1], alone(board[1]))


def test_a_line_of_stones_counts_the_same_in_every_window():
    network, board = BoardNetwork(TensorSpec((2, 6, 7))), images(5, 2, 6, 7).float() / 255
    weight = network.convolution.weight.view(64, 2, 4, 4)
    windows = torch.nn.functional.conv2d(board, weight, network.convolution.bias).relu().flatten(2).movedim(1, 2)
    assert_close(network(board), network.linear(windows.flatten(1)).relu())


MORE = {"observation": TensorSpec((2, 6, 7)), "player": TensorSpec(())}


@pytest.mark.parametrize("spec", [TensorSpec((2, 3, 3)), TensorSpec((42,)), {"board": TensorSpec((2, 6, 7))}, MORE])
def test_what_is_no_board_is_refused(spec):
    with pytest.raises(ShapeError, match=r"a board needs the shape \[C, H, W\], with H and W of at least 4 cells"):
        BoardNetwork(spec)


def test_a_residual_block_adds_its_input():
    cnn = ImpalaCNN((1, 8, 8))
    block = cnn.convolutions[2]
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(block(x), x)


def test_the_network_of_minatar_is_one_convolution_and_one_layer():
    cnn = MinAtarCNN((4, 10, 10))
    shapes = [tuple(parameter.shape) for parameter in cnn.parameters() if parameter.ndim > 1]
    assert shapes == [(16, 4, 3, 3), (128, 16 * 8 * 8)]


def test_normalised_layers_are_those_of_the_equation():
    """Ba et al. 2016, equation (4): over the channels of each pixel, and over the units of the last layer."""
    cnn = MinAtarCNN((2, 6, 7), out_size=5, layer_norm=True)
    for parameter in cnn.parameters():
        nn.init.normal_(parameter)
    weights = dict(cnn.named_parameters())
    image = torch.rand(3, 2, 6, 7)

    def normal(x, axis):
        return (x - x.mean(axis, keepdim=True)) / (x.var(axis, correction=0, keepdim=True) + 1e-5).sqrt()

    x = nn.functional.conv2d(image, weights["convolutions.0.weight"], weights["convolutions.0.bias"])
    gain, shift = (weights[f"convolutions.1.{name}"].view(1, 16, 1, 1) for name in ("weight", "bias"))
    x = (normal(x, 1) * gain + shift).relu().flatten(1)
    x = normal(x @ weights["linear.weight"].T + weights["linear.bias"], 1)
    assert_close(cnn(image), (x * weights["linear.gain"] + weights["linear.shift"]).relu())


@pytest.mark.parametrize("kind", SMALLEST)
def test_a_network_is_normalised_where_it_is_asked_for(kind):
    plain, normalised = (kind(SMALLEST[kind], out_size=8, layer_norm=on) for on in (False, True))
    assert not any(isinstance(module, nn.LayerNorm) for module in plain.modules())
    assert any(isinstance(module, nn.LayerNorm) for module in normalised.modules())
    assert normalised(images(2, *SMALLEST[kind])).shape == (2, 8)


@pytest.mark.parametrize("kind", SMALLEST)
@pytest.mark.parametrize("leading", [(), (2,), (3, 2)], ids=str)
def test_leading_dimensions_are_kept(kind, leading):
    cnn, shape = kind(SMALLEST[kind], out_size=16), SMALLEST[kind]
    image = images(*leading, *shape)
    assert cnn(image).shape == (*leading, 16)
    assert_close(cnn(image).reshape(-1, 16), cnn(image.reshape(-1, *shape)))


@pytest.mark.parametrize("kind", SMALLEST)
def test_bytes_are_scaled_to_one(kind):
    cnn, image = kind(SMALLEST[kind], out_size=16), images(2, *SMALLEST[kind])
    assert_close(cnn(image), cnn(image.float() / 255))
    assert image.dtype == torch.uint8  # untouched


@pytest.mark.parametrize("kind", SMALLEST)
def test_floats_are_not_changed_in_place(kind):
    cnn, image = kind(SMALLEST[kind], out_size=16), torch.rand(2, *SMALLEST[kind])
    before = image.clone()
    cnn(image).sum().backward()
    assert torch.equal(image, before)
    assert all(parameter.grad is not None for parameter in cnn.parameters())


@pytest.mark.parametrize(("height", "width"), [(5, 9), (10, 10), (33, 40)])
@pytest.mark.parametrize("kind", [SmallCNN, ImpalaCNN])
def test_any_size_from_five_pixels_is_taken(kind, height, width):
    assert kind((3, height, width), 4)(images(2, 3, height, width)).shape == (2, 4)


def test_an_image_that_is_too_small_is_refused_with_what_to_do():
    with pytest.raises(ShapeError, match=r"shape \(3, 35, 64\).*at least 36 pixels: resize"):
        NatureCNN((3, 35, 64))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((36, 36, 3), NatureCNN),
        ((35, 84, 3), SmallCNN),
        ((7, 7, 3), SmallCNN),
        ((3, 8, 8), SmallCNN),
        ((4, 4, 3), None),
    ],
    ids=str,
)
def test_small_images_meet_a_small_network(shape, kind):
    assert built("auto", *shape) is kind  # none: a table of numbers


def test_planes_of_booleans_are_a_picture_whose_channels_are_the_shortest_axis():
    assert built("auto", 10, 10, 7, dtype=torch.bool) is SmallCNN  # MinAtar
    network = next(m for m in Encoder(TensorSpec((10, 10, 7), torch.bool)).modules() if isinstance(m, SmallCNN))
    assert network.shape == (7, 10, 10)


@pytest.mark.parametrize(("cnn", "kind"), [("impala", ImpalaCNN), ("small", SmallCNN), ("nature", NatureCNN)])
def test_the_network_can_be_chosen(cnn, kind):
    assert built(cnn, 40, 40, 3) is kind


def test_a_network_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"network.cnn is 'nature'.*36 x 36 pixels.*\[3, 32, 32\].*small, minatar or"):
        Encoder(TensorSpec((32, 32, 3), torch.uint8), cnn="nature")
    with pytest.raises(ConfigError, match=r"unknown network.cnn 'smal'.*did you mean 'small'"):
        Encoder(TensorSpec((32, 32, 3), torch.uint8), cnn="smal")  # pyright: ignore[reportArgumentType]


def test_what_was_built_for_small_images_is_said():
    assert network_summary(Encoder(TensorSpec((32, 32, 3), torch.uint8), image_size=16)) == (
        "SmallCNN 3x32x32 (below the 36 pixels of NatureCNN) → 16, 121,872 parameters"
    )


@pytest.mark.parametrize(("kind", "size"), [(NatureCNN, 40), (ImpalaCNN, 16)])
def test_pixels_beside_each_other_give_the_same_features_and_gradients(kind, size, monkeypatch):
    network, image = kind((4, size, size), 8), torch.randint(0, 256, (3, 4, size, size), dtype=torch.uint8)

    def features_and_gradients() -> list[torch.Tensor]:
        features = network(image)
        return [features, *torch.autograd.grad(features.square().sum(), list(network.parameters()))]

    beside = features_and_gradients()
    monkeypatch.setattr(kind, "_channels_last", False)
    torch.testing.assert_close(beside, features_and_gradients(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "size"), [(NatureCNN, 40), (ImpalaCNN, 16)])
def test_a_population_of_networks_sees_pictures(kind, size):
    """Evolution strategies act with one network for each lane."""
    network, images = kind((4, size, size), 8), torch.rand(3, 4, size, size)
    several = {name: value.detach().expand(3, *value.shape) for name, value in network.named_parameters()}
    found = torch.func.vmap(lambda own, image: torch.func.functional_call(network, own, (image,)))(several, images)
    torch.testing.assert_close(found, network(images), rtol=1e-4, atol=1e-5)


def test_many_pictures_without_gradients_are_taken_in_parts():
    network, images = NatureCNN((4, 40, 40), 8), torch.randint(0, 256, (5, 30, 4, 40, 40), dtype=torch.uint8)
    taken = list[int]()
    network.convolutions.register_forward_hook(lambda _, given, __: taken.append(len(given[0])))
    together = network(images)
    with torch.no_grad():
        in_parts = network(images)
    assert taken == [150, 64, 64, 22]
    torch.testing.assert_close(in_parts, together, rtol=1e-4, atol=1e-5)
