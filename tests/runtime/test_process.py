"""Tests of `palaestra.runtime.process`: what only processes do."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from palaestra.runtime import ProcessRuntime, RestartPolicy, Shared, WorkerDiedError
from palaestra.runtime.messages import encode
from tests.contracts.workers import Counter

SOON = 30.0


@pytest.fixture
def runtime():
    with ProcessRuntime(RestartPolicy(max_restarts=100, backoff_s=0.0, max_backoff_s=0.0)) as runtime:
        yield runtime


def answer(runtime, worker, method, *args):
    (result,) = runtime.wait([runtime.call(worker, method, *args)], timeout_s=SOON)
    return result.unwrap()


def exists(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.fault
def test_a_killed_worker_is_seen_within_a_second_and_named_with_its_signal(runtime):
    """F3, F14."""
    worker, other = (runtime.start(Counter, name=name) for name in ("first", "second"))
    pid = answer(runtime, worker, "pid")
    call, beside = runtime.call(worker, "hang"), runtime.call(other, "add")
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    (result,) = runtime.wait([call], timeout_s=SOON)
    assert time.monotonic() - began < 1.0
    assert isinstance(result.error, WorkerDiedError)
    assert f"first (process {pid}) was killed by signal 9 (SIGKILL)" in str(result.error)
    assert runtime.wait([beside], timeout_s=SOON)[0].unwrap() == 1
    runtime.restart(worker)
    assert answer(runtime, worker, "pid") != pid


@pytest.mark.fault
def test_a_worker_that_dies_with_nothing_to_do_is_seen_too(runtime, wait_until):
    worker = runtime.start(Counter, name="counter")
    os.kill(answer(runtime, worker, "pid"), signal.SIGKILL)

    def dead():
        runtime.wait([], at_least=1, timeout_s=0.05)
        (result,) = runtime.wait([runtime.call(worker, "add")], timeout_s=1.0)
        return result.error is not None

    wait_until(dead, what="the death of an idle worker")
    assert "SIGKILL" in runtime.status()[worker].cause


@pytest.mark.fault
def test_a_hanging_worker_delays_nobody_beyond_the_deadline_and_can_be_restarted(runtime):
    """F18."""
    hanging, quick = (runtime.start(Counter, name=name) for name in ("hanging", "quick"))
    pid = answer(runtime, hanging, "pid")
    calls = [runtime.call(hanging, "hang"), runtime.call(quick, "add")]
    began = time.monotonic()
    (result,) = runtime.wait(calls, at_least=1, timeout_s=SOON)
    assert result.unwrap() == 1
    assert runtime.wait(calls[:1], timeout_s=0.2) == []
    assert 0.2 <= time.monotonic() - began < SOON / 2
    assert runtime.status()[hanging].state == "busy"
    runtime.restart(hanging)
    (lost,) = runtime.wait(calls[:1], timeout_s=SOON)
    assert "ended to be restarted" in str(lost.error)
    assert answer(runtime, hanging, "add") == 1
    assert not exists(pid)


@pytest.mark.fault
def test_every_call_ends_exactly_once_whoever_is_killed(runtime):
    """F14: 30 kills at random moments."""
    generator = random.Random(0)
    workers = [runtime.start(Counter, name="counter") for _ in range(2)]
    pids = {worker: answer(runtime, worker, "pid") for worker in workers}
    answered, lost, made = 0, 0, 0
    for _ in range(30):
        calls = [runtime.call(worker, "echo", np.zeros(generator.randrange(5000))) for worker in workers * 3]
        made += len(calls)
        some = runtime.wait(calls, at_least=generator.randrange(len(calls)), timeout_s=SOON)
        victim = generator.choice(workers)
        os.kill(pids[victim], signal.SIGKILL)
        taken = {result.call for result in some}
        rest = runtime.wait([call for call in calls if call not in taken], timeout_s=SOON)
        assert {result.call for result in rest} | taken == set(calls)
        for result in some + rest:
            assert result.error is None or isinstance(result.error, WorkerDiedError)
            lost += result.error is not None
            answered += result.error is None
        runtime.restart(victim)
        pids[victim] = answer(runtime, victim, "pid")
    assert answered + lost == made
    assert runtime.restarted == 30
    assert runtime.duplicates == 0


def test_an_answer_that_comes_twice_is_dropped_and_counted(runtime):
    worker = runtime.start(Counter, name="counter")
    assert answer(runtime, worker, "add") == 1
    seat = runtime._workers[worker].handle
    seat.process.send((1, "add", {}, [], seat.requests.write([encode({})])))  # the first call again
    assert answer(runtime, worker, "add") == 3
    assert runtime.duplicates == 1


@pytest.mark.fault
@pytest.mark.needs_linux
def test_no_worker_outlives_a_driver_that_is_killed(wait_until):
    """F16."""
    command, root = [sys.executable, "-m", __name__], Path(__file__).parents[2]
    driver = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    assert all(exists(pid) for pid in pids)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_until(lambda: not any(exists(pid) for pid in pids), what="the end of the workers")


@pytest.mark.needs_linux
def test_nothing_is_left_of_a_closed_runtime():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with ProcessRuntime() as runtime:
            worker = runtime.start(Counter, name="counter")
            answer(runtime, worker, "echo", np.zeros(100_000))
            pid = answer(runtime, worker, "pid")
        assert not exists(pid)
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # of the server that forks


def test_an_object_that_kills_its_process_hints_at_the_guard_of_scripts(runtime):
    worker = runtime.start(end_at_once, name="counter")
    with pytest.raises(WorkerDiedError, match=r"exited with code 7 while it was making its object.*__main__"):
        answer(runtime, worker, "add")


def end_at_once():
    os._exit(7)


if __name__ == "__main__":
    with ProcessRuntime() as driven:
        counters = [driven.start(Counter, name="counter") for _ in range(2)]
        print(*(answer(driven, counter, "pid") for counter in counters), flush=True)
        driven.wait([driven.call(counter, "hang") for counter in counters], timeout_s=600)


@pytest.mark.needs_linux
def test_large_shared_values_are_written_once_and_read_there_by_all_workers(runtime):
    """Issue 22, weights: whoever breaks the rule and changes a value changes it for all; and memory is given back."""
    workers = [runtime.start(Counter, name="counter") for _ in range(2)]
    opened = None
    for number in range(20):
        weights = Shared({"w": torch.full((50_000,), float(number))})
        for worker in workers:
            assert answer(runtime, worker, "scale", weights, 2)[-1] == 2 * number
        if number == 10:
            opened = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == opened
    answer(runtime, workers[0], "overwrite", weights, 7.0)
    assert answer(runtime, workers[1], "scale", weights, 2)[-1] == 14
    runtime.restart(workers[0])
    assert answer(runtime, workers[0], "scale", weights, 2)[-1] == 14


def private_kb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


@pytest.mark.needs_linux
def test_a_worker_keeps_no_rows_of_many_updates(runtime):
    """20 values of 40 MB: it holds the newest, and what a request is written to."""
    worker = runtime.start(Counter, name="counter")
    pid = answer(runtime, worker, "pid")
    libraries_kb = private_kb(pid)
    for number in range(20):
        rows = Shared({"w": torch.tensor(float(number)), "rows": torch.zeros(10_000_000)})
        assert answer(runtime, worker, "scale", rows, 2) == 2 * number
    assert private_kb(pid) - libraries_kb < 150_000


def test_large_values_of_one_request_stay_for_the_next(runtime):
    """Together they are more than a worker keeps of older ones; the second request sends nothing but their names."""
    weights, offset = (Shared({"w": torch.tensor(n), "rows": torch.zeros(10_000_000)}) for n in (1.0, 0.5))
    worker = runtime.start(Counter, name="counter")
    for _ in range(3):
        (result,) = runtime.wait([runtime.call(worker, "scale", weights, 2, offset=offset)], timeout_s=SOON)
        assert result.unwrap() == 2.5
    assert answer(runtime, worker, "distinct_weights") == 1


def test_a_worker_that_is_stopped_in_its_first_call_closes_its_object(runtime, tmp_path, wait_until):
    """Its answer needs memory that nobody gives it any more."""
    worker, alive, go = runtime.start(Counter, name="counter"), tmp_path / "alive", tmp_path / "go"
    alive.touch()
    runtime.call(worker, "closes_by_removing", str(alive))
    call = runtime.call(worker, "wait_for", str(go))
    wait_until(lambda: (runtime.wait([call], timeout_s=0.01), runtime.status()[worker].calls)[1] == 1)
    go.touch()
    runtime.stop(worker, timeout_s=SOON)
    assert not alive.exists()
