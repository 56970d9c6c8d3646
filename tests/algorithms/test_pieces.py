"""Tests of how `palaestra.algorithms.compiled_steps` cuts a minibatch for the cache."""

import pytest
import torch

from palaestra.algorithms import compiled_steps
from palaestra.core import Batch
from tests.algorithms.parts import collected


@pytest.mark.parametrize("rows", [4096, 4097, 6144, 10_000, 65_536, 100_003])
def test_pieces_are_of_equal_size_and_fit_the_cache(rows):
    """A mean over pieces of unequal size is not the mean over rows; what has no divisor near stays whole."""
    algorithm, _ = collected("ppo", "discrete", mini_batch_length=1)
    most = compiled_steps._ROWS_IN_CACHE
    parts = compiled_steps.CompiledSteps(algorithm, 0)._parts([Batch(action=torch.zeros(rows))], 0)
    near = [count for count in range(rows // most, 2 * rows // most) if rows % count == 0]
    assert [len(part.action) for part in parts] == ([rows // near[0]] * near[0] if near and near[0] > 1 else [])
