"""Tests of `palaestra.policies.normalizer`."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, BoundedSpec, ConfigError, DiscreteSpec, MultiBinarySpec, TensorSpec
from palaestra.policies import ObservationNormalizer

NEST = {
    "x": TensorSpec((3,)),
    "parts": (TensorSpec((2, 2), torch.float64), DiscreteSpec(num=3)),
    "action_mask": TensorSpec((2,)),
}


def rows(*leading, seed=0):
    return 5 + 3 * torch.randn(*leading, 3, generator=torch.Generator().manual_seed(seed))


def nest(*leading):
    matrix = rows(*leading, 2)[..., :2].double()  # [..., 2, 2]
    parts = Batch(**{"0": matrix, "1": torch.ones(leading, dtype=torch.int64)})
    return Batch(x=rows(*leading, seed=1), parts=parts, action_mask=torch.ones(*leading, 2))


def fed(spec, observation, **options):
    normalizer = ObservationNormalizer(spec, **options)
    normalizer.merge(normalizer.increment(observation))
    return normalizer


def test_nothing_changes_before_the_first_rows():
    normalizer, x = ObservationNormalizer(TensorSpec((3,))), 1000 * rows(5)
    assert torch.equal(normalizer(x), x)
    normalizer.merge(normalizer.increment(x[:0]))
    assert torch.equal(normalizer(x), x)


def test_what_was_seen_has_mean_0_and_standard_deviation_1():
    x = rows(4, 50)
    y = fed(TensorSpec((3,)), x)(x)
    assert_close(y.mean((0, 1)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(y.std((0, 1), correction=0), torch.ones(3))
    assert y.dtype == torch.float32


def test_outliers_are_clipped():
    normalizer = fed(TensorSpec((3,)), rows(50), clip=2.0)
    assert normalizer(torch.full((1, 3), 1e6)).tolist() == [[2.0] * 3]
    assert normalizer(torch.full((1, 3), -1e6)).tolist() == [[-2.0] * 3]


def test_statistics_are_frozen_unless_merged():
    normalizer, x = fed(TensorSpec((3,)), rows(50)), rows(50, seed=7)
    before = {name: value.clone() for name, value in normalizer.state_dict().items()}
    normalizer(x)
    normalizer.increment(x)
    assert all(torch.equal(value, before[name]) for name, value in normalizer.state_dict().items())


def test_increments_of_workers_merge_to_the_statistics_of_all_rows():
    x, whole = rows(40), fed(TensorSpec((3,)), rows(40))
    parts = ObservationNormalizer(TensorSpec((3,)))
    for part in (x[:7], x[7:7], x[7:30], x[30:]):
        parts.merge(ObservationNormalizer(TensorSpec((3,))).increment(part))
    assert_close(parts.moments, whole.moments)
    assert_close(parts(x), whole(x))


def test_the_version_counts_merges_and_is_saved():
    normalizer = fed(TensorSpec((3,)), rows(5))
    assert normalizer.version == 1
    other = ObservationNormalizer(TensorSpec((3,)))
    other.load_state_dict(normalizer.state_dict())
    assert other.version == 1
    assert torch.equal(other(rows(5)), normalizer(rows(5)))


def test_rows_that_are_not_valid_do_not_count():
    x, valid = rows(4, 10), torch.ones(4, 10)
    valid[:, 3:] = 0
    normalizer = ObservationNormalizer(TensorSpec((3,)))
    assert_close(normalizer.increment(x, valid), normalizer.increment(x[:, :3]))


def test_only_floating_point_leaves_are_normalised_and_masks_never():
    observation = nest(6, 5)
    result = fed(NEST, observation)(observation)
    assert_close(result.x.mean((0, 1)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(result.parts["0"].mean((0, 1)), torch.zeros(2, 2).double(), atol=1e-5, rtol=0)
    assert result.parts["1"] is observation.parts["1"]
    assert result.action_mask is observation.action_mask


def test_leaves_of_several_axes_are_normalised_element_by_element():
    spec = TensorSpec((2, 2))
    x = rows(30, 4)[..., :1].reshape(30, 2, 2) * torch.tensor([[1.0, 10.0], [100.0, 0.0]])
    y = fed(spec, x)(x)
    assert_close(y.mean(0), torch.zeros(2, 2), atol=1e-4, rtol=0)
    assert_close(y.std(0, correction=0), torch.tensor([[1.0, 1.0], [1.0, 0.0]]), atol=1e-3, rtol=0)


def test_large_offsets_keep_their_precision():
    x = 1e6 + torch.arange(8.0).unsqueeze(-1)
    y = fed(TensorSpec((1,)), x)(x)
    assert_close(y, (x - x.mean()) / x.std(correction=0))


@pytest.mark.parametrize("spec", [DiscreteSpec(num=2), {"action_mask": TensorSpec((2,)), "b": MultiBinarySpec((1,))}])
def test_a_spec_without_numbers_is_refused(spec):
    with pytest.raises(ConfigError, match="no box of numbers to normalise"):
        ObservationNormalizer(spec)


def test_boxes_of_integers_are_normalised_and_until_then_scaled_by_their_bounds():
    spec = BoundedSpec((2,), torch.int64, minimum=np.array(0), maximum=np.array([10**6, 3]))
    x = torch.tensor([[10**6, 0], [10**6 - 2, 3]])
    normalizer = ObservationNormalizer(spec)
    assert_close(normalizer(x), torch.tensor([[1.0, 0.0], [1 - 2e-6, 1.0]]))
    normalizer.merge(normalizer.increment(x))
    assert_close(normalizer(x), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))


def test_statistics_of_a_version_that_left_integers_alone_go_on_so():
    spec = {"x": TensorSpec((3,)), "count": BoundedSpec((2,), torch.int32, minimum=np.array(0), maximum=np.array(9))}
    observation = Batch(x=rows(7), count=torch.randint(0, 9, (7, 2), dtype=torch.int32))
    older = fed({"x": spec["x"]}, Batch(x=observation.x))
    normalizer = ObservationNormalizer(spec)
    normalizer.load_state_dict(older.state_dict())
    result = normalizer(observation)
    assert torch.equal(result.x, older(Batch(x=observation.x)).x)
    assert result.count is observation.count
    again = ObservationNormalizer(spec)
    again.load_state_dict(normalizer.state_dict())
    assert torch.equal(again(observation).x, result.x)


def test_a_clip_that_leaves_nothing_is_refused():
    with pytest.raises(ConfigError, match="clip=0; it must be greater than 0"):
        ObservationNormalizer(TensorSpec((3,)), clip=0)


def test_what_never_varied_is_scaled_as_the_formula_says():
    """(x − mean) / √(0 + 1e-8): a difference of 3e-4 is 3."""
    normalizer = fed(TensorSpec((1,)), torch.zeros(8, 1))
    assert_close(normalizer(torch.tensor([[3e-4]])), torch.tensor([[3.0]]))


def test_digits_beside_a_large_offset_are_kept_in_float64():
    """Seconds since 1970, say, of which float32 knows every 128th."""
    seen = 1.7e9 + rows(1000).double()
    normalized = fed(TensorSpec((3,), torch.float64), seen)(seen)
    assert_close(normalized.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-3, rtol=0)
    assert_close(normalized.std(0), torch.ones(3, dtype=torch.float64), atol=1e-2, rtol=0)
