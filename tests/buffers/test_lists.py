"""Tests of `palaestra.buffers.ListReplayBuffer`."""

import numpy as np
import pytest

from palaestra.buffers import ListReplayBuffer
from palaestra.core import ConfigError
from tests.buffers.model import generator, replay


def test_any_objects_are_kept_in_order_without_a_limit():
    """TS-10."""
    buffer = ListReplayBuffer()
    for i in range(1000):
        buffer.append({"graph": [i] * (i % 3)})
    assert len(buffer) == 1000
    assert buffer[4] == {"graph": [4]}
    assert buffer[[1, 2]] == buffer[np.array([1, 2])] == buffer[1:3] == [{"graph": [1]}, {"graph": [2, 2]}]
    other = ListReplayBuffer(["x"])
    other.extend(buffer)
    assert [*other][:2] == ["x", {"graph": []}]
    buffer.clear()
    assert (len(buffer), len(other)) == (0, 1001)


def test_it_cannot_be_sampled():
    """TS-10 (c)."""
    with pytest.raises(ConfigError, match="a ListReplayBuffer cannot be sampled"):
        ListReplayBuffer([1]).draw(replay(), generator())
