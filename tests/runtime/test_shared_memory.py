"""Tests of `palaestra.runtime.SharedArrays`."""

import os
import time

import numpy as np
import pytest

from palaestra.runtime import SharedArrays, SupervisedProcess
from palaestra.runtime.memory import aligned


def writes_back(connection):
    shared = SharedArrays.receive(connection)
    shared["numbers"][:] = np.arange(3)
    connection.send(shared["flags"].tolist())


def test_two_processes_see_the_same_arrays():
    process = SupervisedProcess(writes_back, (), context="forkserver", name="the worker")
    shared = SharedArrays({"numbers": ((3,), np.float32), "flags": ((2, 2), bool), "none": ((0,), np.int64)})
    shared["flags"][1] = True
    deadline = time.monotonic() + 30.0
    shared.send(process, deadline)
    assert process.receive(deadline) == [[False, False], [True, True]]
    assert shared["numbers"].tolist() == [0, 1, 2]
    process.stop(5.0)
    shared.close()


def named_segments() -> set[str]:
    """Shared memory with a name; tests that run meanwhile may own semaphores there."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.mark.needs_linux
def test_nothing_is_named_and_everything_is_freed():
    before, segments = len(os.listdir("/proc/self/fd")), named_segments()
    shared = SharedArrays({"a": ((1000,), np.float64)})
    assert named_segments() <= segments
    kept = shared["a"]
    shared.close()
    kept[:] = 1
    assert kept.sum() == 1000
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    del kept
    assert len(os.listdir("/proc/self/fd")) == before


class Unread:
    """A process that nothing may be sent to."""


def test_sealed_arrays_cannot_be_sent():
    shared = SharedArrays({"a": ((1,), np.float64)})
    shared.seal()
    with pytest.raises(ValueError, match="sealed"):
        shared.send(Unread())


def test_an_array_begins_at_the_next_multiple_and_no_later():
    step = aligned(1)
    assert 8 <= step <= 4096
    for size in (0, 1, step - 1, step, step + 1, 10 * step + 3):
        assert aligned(size) == next(place for place in range(size, size + step) if place % step == 0)
