"""The driver's bookkeeping is linear in the workers, and does not grow with the run."""

import sys
import tracemalloc
from functools import partial

import pytest

from benchmarks.speed.instant import Instant
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.worker_group import WorkerFault, WorkerGroup
from palaestra.envs import EventLog
from palaestra.runtime import Call, RestartPolicy, WorkerDiedError
from palaestra.runtime.calls import Arrival


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


class Doomed(Instant):
    """Whoever gets work dies of it."""

    def submit(self, worker, call, request):
        if call.method == "work":
            error = WorkerDiedError(f"{worker.name} died at call {call.sequence} of life {call.incarnation}")
            self._arrivals.append(Arrival(call.worker, call.incarnation, None, error=error))
        else:
            super().submit(worker, call, request)


@pytest.mark.slow
def test_a_run_that_goes_wrong_all_the_time_keeps_no_more_and_counts_all():
    """F14: 100,000 events; the newest hundred are there, the counts are exact, and memory is flat."""
    group = WorkerGroup(Instant(), partial(list), DistributedConfig(num_workers=2), name="w")
    grown = list[int]()
    tracemalloc.start()
    try:
        for number in range(50_000):
            call = Call(f"w-{number % 3}", number // 10, number, "collect")
            group.drop(call, f"it is {number} policy versions old", "old" if number % 5 else "lost")
            group.faults.append(WorkerFault(call.worker, call.incarnation, f"killed by signal {number}", "restart"))
            if number % 10_000 == 9_999:
                grown.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert grown[-1] - grown[0] < 20_000, "a fifth of the events would be megabytes"
    assert group.dropped.total == group.faults.total == 50_000
    assert [one.sequence for one in group.dropped] == list(range(49_900, 50_000))
    expected = {(kind, f"w-{worker}"): 0 for kind in ("old", "lost") for worker in range(3)}
    for number in range(50_000):
        expected["old" if number % 5 else "lost", f"w-{number % 3}"] += 1
    assert group.dropped.counts == expected
    assert group.faults.counts == {("restart", f"w-{worker}"): 16_667 - (worker == 2) for worker in range(3)}


def test_every_death_of_a_worker_is_counted_when_the_first_are_forgotten():
    """F14."""
    runtime = Doomed()
    runtime._policy = RestartPolicy(max_restarts=1000, backoff_s=0.0, max_backoff_s=0.0)
    group = WorkerGroup(runtime, partial(list), DistributedConfig(num_workers=2, min_workers=1), name="w")
    group.start()
    for turn in range(150):
        while len(group.idle) < 2:
            group.admit(1.0, at_least=2)
        for worker in group.idle:
            group.give(worker, "work")
        assert group.take(at_least=2, timeout_s=10.0) == [], turn
    assert group.faults.counts == {("restart", "w-0"): 150, ("restart", "w-1"): 150}
    assert group.dropped.counts == {("lost", "w-0"): 150, ("lost", "w-1"): 150}
    assert len(group.faults) == len(group.dropped) == 100
    assert {one.incarnation for one in group.faults} == set(range(100, 150))


def test_what_was_not_told_yet_is_told_as_far_as_it_is_kept():
    log = EventLog(most=3)
    told = log.total
    for number in range(5):
        log.append(WorkerFault("w", number, "killed", "restart"))
        if number == 1:
            assert [one.incarnation for one in log.since(told)] == [0, 1]
            told = log.total
    assert [one.incarnation for one in log.since(told)] == [2, 3, 4]
    assert log.since(log.total) == []
    assert [one.incarnation for one in log.since(0)] == [2, 3, 4]
