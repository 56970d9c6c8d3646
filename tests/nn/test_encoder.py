"""Tests of `palaestra.nn.encoder`."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import DQN, PPO
from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    TensorSpec,
)
from palaestra.nn import Encoder, Network, NetworkConfig, has_pictures
from palaestra.nn.encoder import channels_first, picture_shape

VECTOR = TensorSpec((3,))


def test_a_float_vector_passes_through_without_a_copy():
    encoder, x = Encoder(VECTOR), torch.randn(2, 3)
    assert encoder.is_identity
    assert encoder(x) is x


@pytest.mark.parametrize(
    ("spec", "value", "code"),
    [
        (TensorSpec((2,), torch.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64), [[1.0, 2.0]]),
        (TensorSpec(()), torch.tensor([3.0]), [[3.0]]),
        (TensorSpec((2, 2)), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), [[1.0, 2.0, 3.0, 4.0]]),
        (TensorSpec((2,), torch.uint8), torch.tensor([[0, 255]], dtype=torch.uint8), [[0.0, 1.0]]),
        (TensorSpec((2,), torch.int64), torch.tensor([[0, 255]]), [[0.0, 255.0]]),
        (DiscreteSpec(num=3), torch.tensor([1]), [[0.0, 1.0, 0.0]]),
        (DiscreteSpec(num=3, start=-1), torch.tensor([-1]), [[1.0, 0.0, 0.0]]),
        (MultiDiscreteSpec(nvec=(2, 3)), torch.tensor([[1, 2]]), [[0.0, 1.0, 0.0, 0.0, 1.0]]),
        (MultiBinarySpec((2,)), torch.tensor([[1, 0]], dtype=torch.int8), [[1.0, 0.0]]),
    ],
    ids=["float64", "scalar", "matrix", "bytes", "integers", "discrete", "start", "multi-discrete", "multi-binary"],
)
def test_leaves_are_encoded(spec, value, code):
    encoder = Encoder(spec)
    expected = torch.tensor(code)
    assert_close(encoder(value), expected)
    assert encoder.out_size == expected.shape[-1]
    # any leading dimensions: [2, 1, ...]
    assert_close(encoder(torch.stack([value, value])), torch.stack([expected, expected]))
    assert encoder(value[0]).shape == expected[0].shape


@pytest.mark.parametrize("spec", [DiscreteSpec(num=2**40), MultiDiscreteSpec(nvec=(3, 2**40))])
def test_more_categories_than_a_network_has_numbers_for_are_refused(spec):
    """Lists of as many elements were made, until memory ran out."""
    with pytest.raises(ConfigError, match=r"the observation 'x' has 1,099,511,6.* at most 16,777,216: hash them"):
        Encoder({"x": spec})
    with pytest.raises(ConfigError, match=r"the action has 1,099,511,6.* categories"):
        PPO(VECTOR, spec)


def test_a_policy_of_one_choice_among_too_many_is_refused_and_an_own_encoder_takes_them():
    many = DiscreteSpec(num=2**40)
    with pytest.raises(ConfigError, match=r"the action has 1,099,511,627,776 categories"):
        DQN(VECTOR, many)
    network = NetworkConfig(encoder=lambda spec: Digits())
    assert Network(many, 2, network)(torch.tensor([2**39])).shape == (1, 2)


class Digits(torch.nn.Module):
    def forward(self, number):
        return torch.stack([(number >> shift & 1).float() for shift in range(40)], -1)


def test_nests_are_concatenated_in_the_order_of_the_spec():
    spec = {"body": VECTOR, "rooms": (DiscreteSpec(num=2), TensorSpec((1,)))}
    observation = Batch(
        rooms=Batch(**{"0": torch.tensor([1]), "1": torch.tensor([[9.0]])}), body=torch.tensor([[1.0, 2.0, 3.0]])
    )
    assert_close(Encoder(spec)(observation), torch.tensor([[1.0, 2.0, 3.0, 0.0, 1.0, 9.0]]))


def test_the_action_mask_is_not_encoded():
    encoder = Encoder({"x": VECTOR, "action_mask": MultiBinarySpec((2,))})
    x = torch.randn(1, 3)
    for mask in (torch.tensor([[1, 0]]), torch.tensor([[0, 1]])):
        assert torch.equal(encoder(Batch(x=x, action_mask=mask)), x)


@pytest.mark.parametrize("empty", [{}, (), {"deeper": {}}, TensorSpec((0,))], ids=["{}", "()", "nested", "0"])
def test_a_child_with_nothing_to_encode_is_left_out(empty):
    encoder = Encoder({"none": empty, "x": VECTOR, "nest": {"y": TensorSpec(()), "none": empty}})
    x, y = torch.randn(2, 3), torch.randn(2)
    none = torch.zeros(2, 0) if isinstance(empty, TensorSpec) else Batch.of({})
    observation = Batch.of({"none": none, "x": x, "nest": Batch.of({"y": y, "none": none})})
    assert_close(encoder(observation), torch.cat((x, y[:, None]), -1))


def test_channels_may_come_first_or_last():
    image = torch.randint(256, (2, 3, 36, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first, last = (Encoder(TensorSpec(shape, torch.uint8), image_size=8) for shape in ((3, 36, 40), (36, 40, 3)))
    last.load_state_dict(first.state_dict())
    assert first(image).shape == (2, 8)
    assert_close(first(image), last(image.permute(0, 2, 3, 1)))


@pytest.mark.parametrize("shape", [(4, 36, 40, 3), (4, 3, 36, 40)], ids=["channels last", "channels first"])
def test_colour_images_in_a_row_are_one_image_of_many_channels(shape):
    """A stack of colour frames goes through convolutions, as one of gray frames does."""
    images = torch.randint(256, (2, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    spec = TensorSpec(shape, torch.uint8)
    row, flat = Encoder(spec, image_size=8), Encoder(TensorSpec((12, 36, 40), torch.uint8), image_size=8)
    flat.load_state_dict(row.state_dict())
    first = images.movedim(-1, -3) if shape[-1] == 3 else images
    assert_close(row(images), flat(first.reshape(2, 12, 36, 40)))
    assert row(images[:, None].expand(2, 5, *shape)).shape == (2, 5, 8)
    assert has_pictures(spec)


@pytest.mark.parametrize(
    ("shape", "channels", "found"),
    [
        ((8, 8, 111), "last", (111, 8, 8)),
        ((9, 9, 17), "last", (17, 9, 9)),
        ((10, 10, 4), "last", (4, 10, 10)),
        ((10, 10, 10), "last", (10, 10, 10)),
        ((111, 8, 8), "first", (111, 8, 8)),
        ((4, 84, 84), "first", (4, 84, 84)),
        ((84, 84, 4), "last", (4, 84, 84)),
        ((3, 36, 40), "first", (3, 36, 40)),
        ((36, 40, 3), "last", (3, 36, 40)),
        ((4, 3, 84, 84), "first", (12, 84, 84)),
        ((4, 84, 84, 3), "last", (12, 84, 84)),
        ((2, 8, 8, 111), "last", (222, 8, 8)),
    ],
    ids=str,
)
def test_two_equally_long_axes_beside_each_other_are_pixels(shape, channels, found):
    """Of boards with many planes, too; else the shortest axis at an end has the channels."""
    assert picture_shape(TensorSpec(shape, torch.bool)) == found
    picture = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = picture.movedim(-1, -3) if channels == "last" else picture
    assert torch.equal(channels_first(picture, TensorSpec(shape, torch.bool)), expected.reshape(2, *found))


def test_frames_of_a_board_as_high_as_they_are_many_are_no_pixels():
    assert picture_shape(TensorSpec((8, 8, 8), torch.uint8, stacked=8)) == (8, 8, 8)
    frames = torch.arange(8**3, dtype=torch.uint8).reshape(8, 8, 8)
    assert torch.equal(channels_first(frames, TensorSpec((8, 8, 8), torch.uint8, stacked=8)), frames)
    assert picture_shape(TensorSpec((6, 6, 7), torch.uint8, stacked=6)) == (6, 6, 7)


def test_rows_of_a_board_are_no_planes_of_it():
    """The network moved axes, or not, by the shape alone, which says nothing where all are equally long."""
    board = torch.rand(10, 10, 10, generator=torch.Generator().manual_seed(0)) < 0.5
    spec = TensorSpec((10, 10, 10), torch.bool)
    moved = channels_first(board, spec)
    rows, planes = board[[1, 0, *range(2, 10)]], board[..., [1, 0, *range(2, 10)]]
    assert torch.equal(channels_first(planes, spec), moved[[1, 0, *range(2, 10)]])
    assert torch.equal(channels_first(rows, spec), moved[:, [1, 0, *range(2, 10)]])
    encoder = Encoder(spec, image_size=8)
    (network,) = (module for module in encoder.modules() if hasattr(module, "convolutions"))
    seen = []
    network.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    encoder(board[None])
    assert torch.equal(seen[0].bool().reshape(10, 10, 10), moved)


def test_images_too_small_for_convolutions_are_flattened():
    assert Encoder(BoundedSpec((4, 4, 3), torch.uint8, np.array(0), np.array(10))).out_size == 4 * 4 * 3


@pytest.mark.parametrize(
    "spec", [{}, {"action_mask": MultiBinarySpec((2,))}, TensorSpec((0,))], ids=["{}", "mask", "0"]
)
def test_nothing_to_encode_is_an_error(spec):
    with pytest.raises(ConfigError, match="no numbers to encode"):
        Encoder(spec)
