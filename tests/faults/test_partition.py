"""What happens to a run when the network between two machines is slow, loses packets, fails and is mended."""

import contextlib
import fcntl
import heapq
import importlib.util
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.experiments import RunDirectory, read_faults
from tests.faults.parts import COMMAND, TIMEOUT_S, child_environment, logged, steps_of
from tests.faults.test_cluster import RUN

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

DELAY_S, LOSS = 0.02, 0.01
CUT_OFF_S = 30.0
EPOCHS = 4
ON_THE_SECOND = ("--distributed.num-gpus-per-learner", "1")
MAKE_DEVICE, IS_TUN, IS_BARE = 0x400454CA, 0x0001, 0x1000  # of linux/if_tun.h


class Line:
    """A line between two network devices (TUN): packets take `delay_s` one way; of all of them `loss` are lost.

    The kernel's own queue with delay and loss (netem) is not built into every kernel. The delay and the loss here are
    those of IP packets too: TCP notices, sends again and slows down.
    """

    def __init__(self, devices: list[str]) -> None:
        self.delay_s, self.loss, self.whole = 0.0, 0.0, True
        self.carried = self.lost = 0
        self._ends = [self._device(name) for name in devices]
        self._open, self._thread = True, threading.Thread(target=self._carry, name="line", daemon=True)
        self._thread.start()

    def _device(self, name: str) -> int:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, MAKE_DEVICE, struct.pack("16sH22x", name.encode(), IS_TUN | IS_BARE))
        return end

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        draw = random.Random(0).random
        while self._open:
            wait_s = max(under_way[0][0] - time.monotonic(), 0.0) if under_way else 0.1
            ready, _, _ = select.select(self._ends, [], [], wait_s)
            now = time.monotonic()
            for end in ready:
                packet = os.read(end, 1 << 16)
                self.carried += 1
                if not self.whole or draw() < self.loss:
                    self.lost += 1
                else:
                    other = self._ends[1 - self._ends.index(end)]
                    heapq.heappush(under_way, (now + self.delay_s, self.carried, other, packet))
            while under_way and under_way[0][0] <= now:
                with contextlib.suppress(OSError):  # nobody is there yet, or any more
                    os.write(under_way[0][2], under_way[0][3])
                heapq.heappop(under_way)

    def close(self) -> None:
        self._open = False
        self._thread.join()
        for end in self._ends:
            os.close(end)


class Machines:
    """Two machines, as far as the network can tell (network namespaces), and the line between them."""

    def __init__(self, folder: Path) -> None:
        self.names = [f"palaestra-{os.getpid()}-{side}" for side in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self._folder, self._begun = folder, list[subprocess.Popen[bytes]]()
        self.temporary = tempfile.mkdtemp(prefix="r")  # the path of a socket must be short
        ends = [f"pa{os.getpid()}{side}" for side in "ab"]
        self.line = Line(ends)
        for side, name in enumerate(self.names):
            self.ip("netns", "add", name)
            self.ip("link", "set", ends[side], "netns", name)
            self.inside(side, "ip", "addr", "add", f"{self.addresses[side]}/24", "dev", ends[side])
            self.inside(side, "ip", "link", "set", ends[side], "up")
            self.inside(side, "ip", "link", "set", "lo", "up")

    def ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def inside(self, side: int, *arguments: str) -> None:
        self.ip("netns", "exec", self.names[side], *arguments)

    def start(self, side: int, *arguments: str, out: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Starts a program on one of both machines."""
        program = ["ip", "netns", "exec", self.names[side], sys.executable, *arguments]
        environment = {
            **child_environment(),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0" * 32,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        begun = subprocess.Popen(program, cwd=self._folder, env=environment, stdout=out, stderr=out)
        self._begun.append(begun)
        return begun

    def ray(self, side: int, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a node of Ray."""
        own = ("start", "--block", "--num-cpus", "1", "--node-ip-address", self.addresses[side])
        return self.start(side, "-m", "ray.scripts.scripts", *own, *arguments)

    def reachable(self, address: str) -> bool:
        """Whether somebody listens there."""
        host, _, port = address.partition(":")
        knock = f"import socket; socket.create_connection(('{host}', {port}), 1)"
        return not self.start(0, "-c", knock).wait()

    def kill(self, side: int) -> None:
        """Cuts the power of one of them."""
        found = subprocess.run(["ip", "netns", "pids", self.names[side]], check=True, capture_output=True, text=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        for side, name in enumerate(self.names):
            self.kill(side)
            self.ip("netns", "del", name)
        self.line.close()
        for begun in self._begun:
            begun.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    probe = f"palaestra-{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", probe], check=False).returncode:
        pytest.skip("two machines need network namespaces: `ip`, as root")
    subprocess.run(["ip", "netns", "del", probe], check=True)
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("a line between two machines needs TUN devices: /dev/net/tun")
    two = Machines(tmp_path)
    yield two
    two.close()
    shutil.rmtree(two.temporary, ignore_errors=True)


class Run:
    """A run with two workers on a cluster of both machines."""

    def __init__(self, machines: Machines, folder: Path, wait_until: Any, cpus: int = 1) -> None:
        self.machines, self.directory, self.log = machines, folder / "runs/run", folder / "log"
        self.wait_until, self._cpus = wait_until, cpus
        self.head = f"{machines.addresses[0]}:6399"
        head = ("--head", "--port", "6399", "--include-dashboard", "false", "--temp-dir", machines.temporary)
        machines.ray(0, *head)
        wait_until(lambda: machines.reachable(self.head), TIMEOUT_S, what="the head")
        self.join()

    def join(self) -> None:
        """Makes the second machine a node of the cluster, which alone is said to have a GPU."""
        self.machines.ray(1, "--address", self.head, "--num-gpus", "1", "--num-cpus", str(self._cpus))

    def begin(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self.process = self.machines.start(0, "-c", COMMAND, *arguments, out=log)

    def train(self, timeout_s: float, *more: str) -> None:
        workers = ("--distributed.num-workers", "2", "--distributed.timeout-s", str(timeout_s))
        patience = ("--distributed.recover-timeout-s", "200", "--distributed.max-restarts", "50")
        only_rows = ("--trainer.checkpoint-every-steps", "0", "--algorithm.num-epochs", str(EPOCHS))
        self.begin(*RUN, "--distributed.address", self.head, *workers, *patience, *only_rows, *more)

    def ended(self, code: int) -> None:
        assert self.process.wait(TIMEOUT_S) == code, self.log.read_text()[-3000:]

    def so_many(self, workers: int, what: str, learners: int | None = None, steps: int = 500) -> None:
        """Waits until so many workers and learners are there, and until training has gone on with them."""
        wanted = {"workers/there": workers} | ({} if learners is None else {"learners/there": learners})

        def there(beyond: int = 0) -> bool:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            rows = logged(self.directory)[-1:]
            return bool(rows) and wanted.items() <= rows[0].items() and rows[0]["env_steps"] > beyond

        self.wait_until(there, TIMEOUT_S, what=what)
        reached = logged(self.directory)[-1]["env_steps"]
        self.wait_until(lambda: there(reached + steps), TIMEOUT_S, what=f"steps {what}")


@pytest.fixture
def run(machines: Machines, tmp_path: Path, wait_until: Callable[..., Any]) -> Run:
    return Run(machines, tmp_path, wait_until)


def test_a_machine_that_is_cut_off_comes_back_and_is_lost_while_the_run_goes_on(run, machines):
    """F15, MARO-26: the network of one of two machines fails until Ray gives it up, then its power."""
    run.train(timeout_s=30)
    run.so_many(2, "with both")
    machines.line.whole = False
    run.so_many(1, "with one that is cut off")
    machines.line.whole = True
    machines.kill(1)  # Ray has given its node up
    run.join()
    run.so_many(2, "with both again")
    machines.kill(1)
    run.so_many(1, "with one that is lost")
    os.kill(run.process.pid, signal.SIGINT)
    run.ended(130)
    assert steps_of(run.directory)


def test_a_slow_line_that_loses_packets_and_fails_for_half_a_minute_costs_what_was_under_way(run, machines, wait_until):
    """F15, MARO-26: 20 ms and 1% loss; cut off for 30 s, and back: nothing is trained twice, each drop is named."""
    machines.line.delay_s, machines.line.loss = DELAY_S, LOSS
    run.train(timeout_s=20)
    run.so_many(2, "with both")
    before = logged(run.directory)[-1]
    assert before["workers/dropped"] == 0, "a slow line alone loses nothing"
    assert machines.line.lost > 0
    machines.line.whole, began = False, time.monotonic()
    run.so_many(1, "with one that is cut off")
    wait_until(lambda: time.monotonic() - began >= CUT_OFF_S, TIMEOUT_S, what="the end of the failure")
    machines.line.whole = True
    run.so_many(2, "with both again")
    os.kill(run.process.pid, signal.SIGINT)
    run.ended(130)
    saved = steps_of(run.directory)[-1]
    run.begin("resume", "runs/run", "--until", str(saved + 500))
    run.ended(0)
    check_records(run.directory, saved + 500)


def test_a_learner_on_a_machine_that_is_cut_off_for_half_a_minute_comes_back_and_is_lost_with_it(
    machines, tmp_path, wait_until
):
    """F15: 20 ms and 1% loss; rank 0 goes on alone, nothing is learned twice, each end and drop is named."""
    run = Run(machines, tmp_path, wait_until, cpus=2)  # for a worker and the learner
    machines.line.delay_s, machines.line.loss = DELAY_S, LOSS
    run.train(20, "--distributed.num-learners", "2", "--distributed.gradient-shards", "2", *ON_THE_SECOND)
    run.so_many(2, "with both", learners=2, steps=100)
    assert logged(run.directory)[-1]["learners/lost"] == 0, "a slow line alone loses none"
    machines.line.whole, began = False, time.monotonic()
    wait_until(lambda: time.monotonic() - began >= CUT_OFF_S, TIMEOUT_S, what="the end of the failure")
    machines.line.whole = True
    run.so_many(2, "with both again", learners=2, steps=100)
    assert logged(run.directory)[-1]["learners/lost"] >= 1
    machines.kill(1)
    run.so_many(1, "with one that is lost", learners=1, steps=100)
    os.kill(run.process.pid, signal.SIGINT)
    run.ended(130)
    lost = logged(run.directory)[-1]["learners/lost"]
    named = [fault for fault in read_faults(run.directory) if "the learner of rank 1 of 2 is lost" in fault.message]
    named += [fault for fault in read_faults(run.directory) if "a learner is lost between" in fault.message]
    assert len(named) == lost >= 2
    machines.line.delay_s = machines.line.loss = 0.0
    run.join()
    saved = steps_of(run.directory)[-1]
    run.begin("resume", "runs/run", "--until", str(saved + 100))
    run.ended(0)
    check_records(run.directory, saved + 100)


def check_records(directory: Path, until: int) -> None:
    """Every row was trained `EPOCHS` times, every fragment counts once, and a life that lost one has a record."""
    rows = logged(directory)
    assert RunDirectory(directory).status == "done"
    assert rows[-1]["env_steps"] >= until
    for row in rows:
        assert row["rows_trained"] == EPOCHS * row["env_steps"]
        steps = 8 * row["workers/fragments"] - row["episodes"]  # at the last time step of an episode nothing is done
        assert abs(steps - row["env_steps"]) <= 2 + row["workers/restarts"]  # episodes that begin anew
    faults = read_faults(directory)
    assert {(fault.kind, fault.action) for fault in faults} == {("WorkersLostError", "restarted")}
    lives = [(fault.details["worker"], fault.details["incarnation"]) for fault in faults]
    assert len(lives) == len(set(lives))
    of_workers = [fault for fault in faults if "learner" not in fault.message]
    lost = [fault for fault in of_workers if "was not there after" not in fault.message]  # those had begun nothing
    assert 1 <= max(row["workers/dropped"] for row in rows) <= len(lost)
