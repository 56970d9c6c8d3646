"""The driver's bookkeeping is linear in the workers."""

import sys
from functools import partial

from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.worker_group import WorkerGroup
from palaestra.runtime import Runtime
from palaestra.runtime.calls import Arrival


class Instant(Runtime):
    """Workers that answer at once, 10 of them in a poll."""

    def __init__(self):
        super().__init__()
        self.arrivals = []

    def launch(self, worker):
        self.arrivals.append(Arrival(worker.id, worker.incarnation, 0))
        return True

    def submit(self, worker, call, request):
        self.arrivals.append(Arrival(call.worker, call.incarnation, call.sequence))

    def poll(self, timeout_s):
        now, self.arrivals = self.arrivals[:10], self.arrivals[10:]
        return now

    def dismiss(self, worker):
        pass

    def end(self, worker, timeout_s):
        pass


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
