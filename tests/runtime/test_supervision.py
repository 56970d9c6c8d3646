"""Tests of `palaestra.runtime.supervision`."""

import contextlib
import functools
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palaestra.runtime import (
    CLOCK,
    STOP_SIGNALS,
    Companion,
    SupervisedProcess,
    WorkerDiedError,
    WorkerTimeoutError,
    stop_all,
    supervision,
)
from palaestra.runtime.memory import SharedSemaphore

NAME, PRELOAD = "the worker under test", ["palaestra.envs.stepping.worker"]


def echo(connection, *words):
    connection.send(words)
    while (message := connection.recv()) != "stop":
        connection.send(message)


def hang_here(connection):
    connection.send("ready")
    threading.Event().wait()


def fall(connection):
    connection.recv()
    os.kill(os.getpid(), signal.SIGSEGV)


def soon(seconds: float = 5.0) -> float:
    return CLOCK.now() + seconds


@pytest.fixture
def start():
    workers = []

    def start_worker(target, *args):
        workers.append(SupervisedProcess(target, args, context="forkserver", name=NAME, preload=PRELOAD))
        return workers[-1]

    yield start_worker
    for worker in workers:
        worker.kill()


def test_a_worker_talks_and_stops(start):
    worker = start(echo, "a", 1)
    assert worker.receive(soon(20)) == ("a", 1)
    worker.send({"x": 2})
    assert worker.receive(soon()) == {"x": 2}
    worker.send("stop")
    stop_all([worker], 5.0)
    assert not worker.alive
    assert worker.cause() == "exited with code 0"


def test_whoever_talks_to_a_worker_that_was_ended_is_told_how_it_ended(start):
    worker = start(echo)
    worker.kill()
    for talk in (lambda: worker.send("x"), lambda: worker.send_file(0), lambda: worker.receive(soon())):
        with pytest.raises(WorkerDiedError, match=r"SIGKILL"):
            talk()


@pytest.mark.fault
def test_a_silent_worker_has_a_deadline_and_shows_its_stack(start):
    """F4."""
    worker = start(hang_here)
    worker.receive(soon(20))
    semaphore = SharedSemaphore()
    with pytest.raises(WorkerTimeoutError, match="the worker under test"):
        worker.receive(soon(0.1))
    with pytest.raises(WorkerTimeoutError, match="did not answer"):
        worker.acquire(semaphore, soon(0.1))
    assert "hang_here" in worker.stacks()
    stop_all([worker], 0.1)
    assert worker.cause() == "was killed by signal 9 (SIGKILL)"
    assert worker.stacks() == ""


@pytest.mark.fault
def test_a_dead_worker_is_named_with_its_signal(start):
    """F3."""
    semaphore = SharedSemaphore()
    worker = start(fall)
    worker.send("now")
    with pytest.raises(WorkerDiedError, match=r"SIGSEGV"):
        worker.acquire(semaphore, soon(20))
    with pytest.raises(WorkerDiedError, match=r"signal 11"):
        worker.receive(soon())


@pytest.mark.fault
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_signals_to_a_whole_group_are_left_to_whoever_started_the_worker(start, number):
    """F22."""
    worker = start(echo)
    worker.receive(soon(20))
    os.kill(worker.pid, number)
    worker.send("still there")
    assert worker.receive(soon()) == "still there"


OWN_PROCESSES = """
import multiprocessing, time
from palaestra.runtime import SupervisedProcess

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["wave"])
SupervisedProcess(print, (), context="forkserver", name="worker", preload=["palaestra.runtime"])
preloaded = context.Process(target=exec, args=("import sys; sys.exit(int('wave' not in sys.modules))",))
endless = context.Process(target=time.sleep, args=(600,))
for process in preloaded, endless:
    process.start()
endless.terminate()
for process in preloaded, endless:
    process.join(60)
assert (preloaded.exitcode, endless.exitcode) == (0, -15), (preloaded, endless)
"""


@pytest.mark.fault
def test_a_process_of_the_user_hears_signals_and_finds_its_preloaded_modules_after_workers_have_started():
    """All that is forked later comes from the fork server that the first worker has started."""
    done = subprocess.run([sys.executable, "-c", OWN_PROCESSES], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_companion_has_a_process_group_of_its_own_in_the_session_of_its_run():
    """Linux shares the processor between sessions first: in one of its own its low priority would count for nothing."""
    companion = Companion(functools.partial(time.sleep, 600))
    try:
        assert os.getsid(companion.pid) == os.getsid(0)
        assert os.getpgid(companion.pid) == companion.pid
    finally:
        companion.end()


def test_what_a_companion_has_started_removes_its_half_file(wait_until, tmp_path):
    """Compilers do; half a file of theirs counts as whole in PyTorch's cache."""
    half = tmp_path / "half"
    script = f"trap 'rm {half}; exit' TERM; touch {half}; while :; do sleep 0.05; done"
    companion = Companion(functools.partial(subprocess.run, ["sh", "-c", script]))
    wait_until(half.exists)
    companion.end()
    assert not half.exists()


@pytest.mark.fault
def test_d1_a_message_that_is_not_read_has_a_deadline(start):
    """F4."""
    worker = start(hang_here)
    worker.receive(soon(20))
    with pytest.raises(WorkerTimeoutError, match="did not read its message in time"):
        worker.send(bytes(64 << 20), soon(0.1))
    stop_all([worker], 0.1)
    assert worker.cause() == "was killed by signal 9 (SIGKILL)"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass where the test says so, besides those that do pass."""
    true, seconds = time.monotonic, [0.0]
    for kept in ("_stopped_s", "_counted_s"):
        monkeypatch.setattr(CLOCK, kept, 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: true() + seconds[0])
    return seconds


def test_time_in_which_all_are_stopped_is_no_silence(start, clock, monkeypatch):
    """F4: Ctrl-Z while an answer is waited for; the worker is stopped with it and goes on with it."""
    worker, stops = start(echo), [3600.0, 3600.0]

    class Released:
        def acquire(self, block, timeout_s=None):
            if block and stops:
                clock[0] += stops.pop()
                return False
            return block

    worker.receive(soon(20))
    worker.acquire(Released(), soon())
    assert not stops
    wait = supervision.mp_connection.wait

    def stopped(ends, timeout_s):
        if clock[0] > 2 * 3600.0:
            return wait(ends, timeout_s)
        clock[0] += 3600.0
        worker.send("at work again")
        return []

    monkeypatch.setattr(supervision.mp_connection, "wait", stopped)
    assert worker.receive(soon()) == "at work again"


def test_one_stop_is_counted_once_however_many_threads_wait(clock):
    """Each of two that look what was counted before the other counts would count it."""
    begun, looked = threading.Barrier(2), threading.Barrier(2)

    class Raced(supervision.StoppableClock):
        @property
        def _counted_s(self):
            found = self.kept_s
            with contextlib.suppress(threading.BrokenBarrierError):
                looked.wait(0.2)
            return found

        @_counted_s.setter
        def _counted_s(self, seconds):
            self.kept_s = seconds

    def stopped(wait_s):
        begun.wait(20.0)
        clock[0] = 3600.0

    stoppable = Raced(1.0)
    before_s = stoppable.now()
    threads = [threading.Thread(target=stoppable.wait, args=(stopped,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.0 <= stoppable.now() - before_s < 60.0


def test_a_fork_counts_stops_while_another_thread_of_its_parent_does():
    held, over, counting = threading.Event(), threading.Event(), supervision.StoppableClock.counting

    def count():
        with counting:
            held.set()
            over.wait(20.0)

    thread = threading.Thread(target=count)
    thread.start()
    held.wait(20.0)
    fork = os.fork()
    if not fork:
        os._exit(not supervision.StoppableClock.counting.acquire(blocking=False))
    over.set()
    thread.join()
    assert os.waitpid(fork, 0)[1] == 0


def halves(connection):
    """Answers with the first half of a message."""
    os.write(connection.fileno(), struct.pack("!i", 1 << 20) + bytes(1 << 19))
    threading.Event().wait()


@pytest.mark.fault
def test_d1_a_message_that_stops_in_its_middle_has_a_deadline(start):
    """F4."""
    worker = start(halves)
    with pytest.raises(WorkerTimeoutError, match="did not answer in time"):
        worker.receive(soon(2))
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        worker.receive(soon())


@pytest.fixture(scope="module")
def echoing():
    worker = SupervisedProcess(echo, (), context="forkserver", name=NAME, preload=PRELOAD)
    worker.receive(soon(20))
    yield worker
    worker.kill()


@pytest.mark.slow
@settings(max_examples=25)
@given(bits=st.integers(0, 26), fraction=st.floats(0.0, 1.0), again=st.integers(1, 3))
@example(bits=26, fraction=0.0, again=1)
def test_d1_messages_of_every_size_arrive(echoing, bits, fraction, again):
    """From 1 B to 64 MiB, several of them in a row."""
    size = min((1 << bits) + int(fraction * (1 << bits)), 64 << 20)
    for number in range(again if size < 1 << 20 else 1):
        message = bytes([number]) * size
        echoing.send(message, soon(30))
        assert echoing.receive(soon(30)) == message
