"""The driver's bookkeeping is linear in the workers."""

import sys
from functools import partial

from benchmarks.speed.instant import Instant
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.worker_group import WorkerGroup


def lines_of(number: int) -> int:
    """Lines executed to start workers, ask each once, and restart each."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += 1
        return trace

    group = WorkerGroup(Instant(), partial(list), DistributedConfig(num_workers=number), name="w")
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        group.start()
        for worker in group.idle:
            group.give(worker, "work")
        taken = group.take(at_least=number, timeout_s=60.0)
        for worker in group.workers:
            group.runtime.restart(worker.id)
    finally:
        sys.settrace(before)
    assert [worker.number for worker, _, _ in taken] == list(range(number))
    return count


def test_four_times_the_workers_cost_about_four_times_the_lines():
    assert lines_of(400) < 6 * lines_of(100)
