"""Tests of `palaestra.buffers.streams`: what write positions say about their lanes."""

import numpy as np

from palaestra.buffers.streams import WritePositions
from tests.buffers.model import filled


def test_lanes_of_equal_length_are_in_lockstep_after_a_restart():
    positions = WritePositions(3, rows=8)
    positions.advance(np.array([1]))
    assert not positions.lockstep
    positions.restart(5)
    assert positions.lockstep
    positions.restart(np.array([5, 5, 4]))
    assert not positions.lockstep
    one = WritePositions(1, rows=8)
    one.restart(np.array([5]))
    assert one.lockstep


def test_the_stamp_changes_whenever_a_row_does():
    """Forgotten, moved, written, taken back or exchanged."""
    positions = WritePositions(2, rows=8)
    both = np.array([0, 1])
    stamps = [positions.stamp]
    for change in (
        lambda: positions.advance(both, 4),
        lambda: positions.keep(np.array([2, 3])),
        lambda: positions.restart(np.array([4, 4])),
        lambda: positions.exchange(both),
        lambda: positions.rewind(both, np.array([1, 1])),
    ):
        change()
        stamps.append(positions.stamp)
    assert len(set(stamps)) == len(stamps)


def test_a_step_of_plain_arrays_is_compared_and_written_at_once(monkeypatch):
    """Field by field it takes several times as long."""
    buffer, world = filled(20, 2, 3)
    monkeypatch.delattr("palaestra.buffers.lane_storage.LaneStorage.checked_step")
    for _ in range(3):
        world.append(buffer)
    assert len(buffer) == 12
