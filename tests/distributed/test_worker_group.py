"""`WorkerGroup`: whose silence counts, and for how long."""

import time

import pytest

from palaestra.distributed import DistributedConfig
from palaestra.distributed.worker_group import WorkerGroup
from palaestra.runtime import LocalRuntime, RestartPolicy
from tests.distributed.parts import QUICK
from tests.distributed.runs import HoldBack, fake_time, kill, make_trainer


class Apart(LocalRuntime):
    """As if workers were elsewhere: they may be silent."""

    works_here = False


class Works:
    def begin(self, position: object) -> str:
        return "exact"

    def work(self, passes_s: float = 0.0) -> int:
        CLOCK[0] += passes_s
        return 7


CLOCK = [0.0]


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass where the test says so, besides those that do pass."""
    true = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: true() + CLOCK[0])
    return CLOCK


def group_in(runtime: LocalRuntime, **settings: object) -> WorkerGroup:
    config = DistributedConfig(num_workers=2, **settings)  # type: ignore[arg-type]
    group = WorkerGroup(runtime, lambda number: Works(), config, name="worker")
    group.start()
    return group


def lose(runtime: LocalRuntime, group: WorkerGroup) -> None:
    """Ends a worker at work; its next incarnation is asked to begin."""
    for worker in group.idle:
        group.give(worker, "work")
    kill(runtime, group.workers[0].id)
    group.take(at_least=2, timeout_s=60.0)
    assert group.workers[0].state == "joining"


@pytest.mark.parametrize("min_workers", [1, 2])
def test_time_in_which_the_driver_learns_is_no_silence_of_workers(clock, min_workers, wait_until):
    """F15: nobody hears during an update, however long it is; a new incarnation can begin only after it."""
    with Apart(QUICK) as runtime:
        group = group_in(runtime, timeout_s=20.0, recover_timeout_s=20.0, min_workers=min_workers)
        lose(runtime, group)
        for _ in range(3):
            clock[0] += 600.0
            group.admit()
        wait_until(lambda: group.admit() or len(group.idle) == 2)
        assert len(group.faults) == 1


def test_a_pause_before_a_restart_is_no_silence(clock, wait_until):
    """F15: it may be longer than `timeout_s`, and costs no further restart."""
    with Apart(RestartPolicy(backoff_s=30.0)) as runtime:
        group = group_in(runtime, timeout_s=20.0, recover_timeout_s=1000.0)
        lose(runtime, group)
        wait_until(lambda: group.admit() or len(group.idle) == 2)
        lose(runtime, group)
        for _ in range(5):
            clock[0] += 4.9
            group.admit()
        assert group.workers[0].state == "joining"
        clock[0] += 10.0
        wait_until(lambda: group.admit() or len(group.idle) == 2)
        assert len(group.faults) == 2
        assert runtime.restarted == 2


def test_a_worker_that_is_silent_while_the_driver_listens_is_replaced(clock):
    """F15: short updates between do not hide it."""
    with Apart(QUICK) as runtime:
        group = group_in(runtime, timeout_s=20.0)
        runtime.submit = lambda *given: None  # type: ignore[method-assign]  # no call arrives any more
        group.give(group.workers[0], "work")
        for _ in range(8):
            clock[0] += 4.0
            group.take(at_least=0, timeout_s=0.0)
        assert [fault.what for fault in group.faults] == [f"{group.workers[0].id} did not answer within 20 s"]


def test_time_in_which_the_driver_is_stopped_is_no_silence_of_workers(clock, wait_until):
    """F15: Ctrl-Z, most likely while answers are waited for; workers are stopped with it and go on with it."""
    with Apart(QUICK) as runtime:
        group = group_in(runtime, timeout_s=20.0, recover_timeout_s=20.0)
        submit, held, poll = runtime.submit, [], runtime.poll
        runtime.submit = lambda *given: held.append(given)  # type: ignore[method-assign]
        group.give(group.workers[0], "work")

        def stopped(timeout_s):
            if timeout_s:
                clock[0] += 600.0
                runtime.poll = poll  # type: ignore[method-assign]
            return poll(timeout_s)

        runtime.poll = stopped  # type: ignore[method-assign]
        assert group.take(at_least=1, timeout_s=0.1) == []
        assert not group.faults
        submit(*held.pop())
        assert [answer for *_, answer in group.take(at_least=1, timeout_s=60.0)] == [7]


def stop_often(runtime, clock, hold: HoldBack) -> None:
    """All is stopped for ten minutes in every wait; who is held back answers a second later."""
    seconds, poll = fake_time(runtime, silent_s=0.1), runtime.poll

    def stopped(timeout_s):
        clock[0] += 600.0
        if seconds[0] > 1.0:
            hold.held.clear()
        return poll(timeout_s)

    runtime.poll = stopped


def test_a_stop_while_workers_start_leaves_none_behind(clock):
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        stop_often(runtime, clock, hold)
        manager = make_trainer(runtime, "ppo", num_workers=2).collector
        hold.held.add("rollout-1")
        manager.begin()
        assert len(manager.group.idle) == 2


def test_a_stop_while_workers_tell_their_state_keeps_it_exact(clock):
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        manager = make_trainer(runtime, "ppo", num_workers=2).collector
        manager.begin()
        stop_often(runtime, clock, hold)
        hold.held.add("rollout-1")
        assert manager.state()["exact"]


def test_a_stop_in_an_unroll_that_ends_soon_leaves_its_last_seconds(clock):
    """Fragments on their way when a signal comes are waited for."""
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        manager = make_trainer(runtime, "ppo", num_workers=2).collector
        manager.begin()
        stop_often(runtime, clock, hold)
        hold.held.add("rollout-1")
        runtime.submit = lambda *given, submit=runtime.submit: manager.pause() or submit(*given)
        assert manager.unroll(5).rows == 5
        assert not manager.unfinished


def test_workers_in_this_process_wait_for_each_other_and_are_never_silent(clock):
    with LocalRuntime(QUICK) as runtime:
        group = group_in(runtime, timeout_s=20.0)
        for worker in group.idle:
            group.give(worker, "work", 40.0)  # each takes longer than a worker may be silent
        assert len(group.take(at_least=2, timeout_s=60.0)) == 2
        assert not group.faults


def test_too_few_that_begin_are_waited_for_as_long_as_a_start_may_take(clock):
    """`recover_timeout_s` is for those that were there; the first of several to join is no start."""
    with Apart(QUICK) as runtime:
        config = DistributedConfig(num_workers=2, min_workers=2, timeout_s=40.0, recover_timeout_s=4.0)
        group = WorkerGroup(runtime, lambda number: Works(), config, name="worker")
        submit, held = runtime.submit, []
        runtime.submit = lambda worker, call, request: (  # type: ignore[method-assign]
            held.append((worker, call, request)) if worker.name == "worker-1" else submit(worker, call, request)
        )
        group.limit_s = 0.0
        group.start()
        for _ in range(7):  # 35 of 40 seconds
            clock[0] += 5.0
            group.admit()
        assert [worker.state for worker in group.workers] == ["idle", "joining"]
        assert not group.faults


def test_who_is_back_counts_while_the_others_are_still_at_work(clock):
    """F14: their work may take longer than lost workers have to come back."""
    with Apart(QUICK) as runtime:
        group = group_in(runtime, timeout_s=60.0, recover_timeout_s=20.0, min_workers=2)
        lose(runtime, group)
        runtime.submit = lambda *given: None  # type: ignore[method-assign]  # the other one goes on and on
        group.give(group.workers[1], "work")
        for _ in range(8):
            clock[0] += 4.0
            group.take(at_least=2, timeout_s=0.0)
        assert group.workers[0].state == "idle"


def test_work_that_is_given_after_a_long_update_is_as_old_as_it_is(clock):
    """Not younger by what the update took: a worker that is silent then is replaced as soon as any other."""
    with Apart(QUICK) as runtime:
        group = group_in(runtime, timeout_s=20.0)
        clock[0] += 600.0
        runtime.submit = lambda *given: None  # type: ignore[method-assign]  # no call arrives any more
        group.give(group.workers[0], "state")
        for _ in range(8):
            clock[0] += 4.0
            group.take(at_least=0, timeout_s=0.0)
        assert len(group.faults) == 1
