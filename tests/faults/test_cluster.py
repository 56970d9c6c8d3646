"""What happens to a run when Ray's own processes fail: its node, its head, its object store."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from palaestra.experiments import RunDirectory
from palaestra.runtime import ClusterError, RayRuntime, Shared
from tests.contracts.workers import Counter
from tests.distributed.test_processes import descendants
from tests.faults.parts import COMMAND, TIMEOUT_S, child_environment, command, logged, steps_of

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

RUN = (
    *("train", "ppo", "CartPole-v1", "--env.num-envs", "2", "--distributed.runtime", "ray"),
    *("--trainer.checkpoint-every-steps", "200", "--trainer.log-every-steps", "50", "--trainer.eval-every-steps", "0"),
    *("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8", "--run.no-tensorboard"),
    *("--trainer.total-env-steps", "50000000", "--run.name", "run"),
)


LEFT_S = 10.0


def lives(process: psutil.Process) -> bool:
    """Whether a process still does anything; one that has ended waits for the process that adopted it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def processes_of(run: subprocess.Popen[Any], name: str) -> list[int]:
    """Processes that a run has started, by a part of the name of their program."""
    found = []
    for pid in descendants(run.pid):
        with contextlib.suppress(OSError):
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            found += [pid] * (name in program)
    return found


@pytest.fixture
def training(tmp_path: Path, wait_until: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Begins a run in a process of its own, and waits until it has saved."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", COMMAND, *RUN, *options]
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        run = subprocess.Popen(program, cwd=tmp_path, env=child_environment(), start_new_session=True, **pipes)
        begun.append(run)
        wait_until(lambda: run.poll() is not None or steps_of(tmp_path / "runs/run"), TIMEOUT_S, what="a checkpoint")
        assert run.poll() is None, run.communicate()[0]
        return run

    yield begin
    for run in begun:
        for pid in [run.pid, *processes_of(run, "")] if run.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        run.communicate()


def check_lost(run: subprocess.Popen[str], directory: Path, words: str) -> str:
    """One message, a record, exit code 3, and the way to go on."""
    text, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 3, text
    assert text.count("ClusterError") == 1
    assert words in text
    assert "Traceback" not in text
    assert "palaestra resume runs/run" in text
    assert RunDirectory(directory).status == "failed"
    (record,) = (json.loads(path.read_text()) for path in (directory / "faults").glob("*.json"))
    assert words in json.dumps(record)
    return text


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_d11_a_run_whose_node_is_lost_says_so_and_goes_on_elsewhere(mode, training, tmp_path):
    """F15, F16: the raylet of this machine is killed; afterwards a new Ray takes the run on from its checkpoint."""
    run, directory = training("--distributed.mode", mode), tmp_path / "runs/run"
    (raylet,) = processes_of(run, "raylet")
    os.kill(raylet, signal.SIGKILL)
    check_lost(run, directory, "the Ray node of this machine has ended")
    saved = steps_of(directory)[-1]
    command("resume", "runs/run", "--until", str(saved + 500), folder=tmp_path)
    assert logged(directory)[-1]["env_steps"] >= saved + 500


def test_a_killed_run_leaves_no_process_of_ray(training, wait_until):
    """F16: `kill -9` of the run alone; Ray's agents would look a minute for their head, which has ended, too."""
    run = training()
    begun = {pid: psutil.Process(pid) for pid in descendants(run.pid)}
    names = {process.name() for process in begun.values()}
    assert {"raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= names
    run.kill()
    assert run.wait(LEFT_S) == -signal.SIGKILL
    wait_until(lambda: not any(lives(one) for one in begun.values()), LEFT_S, what="the end of Ray's processes")


def test_sigterm_to_every_process_of_a_run_on_ray_saves_and_ends_with_143(training, tmp_path, wait_until):
    """F16, F22: Ray's own processes, too, as a service manager sends it; the run is the last to end, and goes on."""
    run, directory = training(), tmp_path / "runs/run"
    begun = [psutil.Process(pid) for pid in (run.pid, *descendants(run.pid))]
    for one in begun[::-1]:
        one.terminate()
    text, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 143, text
    saved = steps_of(directory)[-1]
    assert f"stopped after {saved:,} env steps; saved" in text
    wait_until(lambda: not any(lives(one) for one in begun), LEFT_S, what="the end of Ray's processes")
    command("resume", "runs/run", "--until", str(saved + 500), folder=tmp_path)
    assert logged(directory)[-1]["env_steps"] >= saved + 500


def test_a_cluster_that_a_killed_run_has_joined_stays(tmp_path, wait_until):
    """F16: only what a run has started ends with it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        join = f"from palaestra.runtime import RayRuntime; r = RayRuntime(address={cluster.address!r}); print('joined')"
        program = [sys.executable, "-c", f"{join}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "joined\n")
        with RayRuntime(address=cluster.address) as runtime:
            worker = runtime.start(Counter, name="counter")
            (result,) = runtime.wait([runtime.call(worker, "add", 1)], timeout_s=TIMEOUT_S)
            assert result.unwrap() == 1
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_run_whose_head_is_lost_says_so(training, tmp_path):
    """F15, F16: while its workers still answer; Ray would end it after a minute, without a word."""
    run, directory = training(), tmp_path / "runs/run"
    (head,) = processes_of(run, "gcs_server")
    os.kill(head, signal.SIGKILL)
    check_lost(run, directory, "the head of the Ray cluster")


@pytest.mark.slow
def test_an_object_store_that_is_full_is_named_with_what_was_to_be_sent():
    """F15: and with what to do; the disk that Ray would use instead counts as full."""
    from ray.cluster_utils import Cluster

    full = {"local_fs_capacity_threshold": 0.01}
    arguments = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20, "_system_config": full}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    try:
        with RayRuntime(address=cluster.address) as runtime:
            worker = runtime.start(Counter, name="counter")
            large = Shared(np.zeros(200 << 20, np.uint8))
            with pytest.raises(
                ClusterError, match=r"no room for 209,\d+,\d+ bytes.*full.*object-store-memory"
            ) as caught:
                runtime.wait([runtime.call(worker, "echo", large)], timeout_s=TIMEOUT_S)
            assert caught.value.exit_code == 3
    finally:
        cluster.shutdown()


class Namespaces:
    """Two machines, as far as the network can tell, with a cable between them."""

    def __init__(self, folder: Path) -> None:
        self.names = [f"palaestra-{os.getpid()}-{side}" for side in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self._folder, self._begun = folder, list[subprocess.Popen[bytes]]()
        self.temporary = tempfile.mkdtemp(prefix="r")  # the path of a socket must be short
        ends = [f"pa{os.getpid()}{side}" for side in "ab"]
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", ends[0], "netns", self.names[0], "type", "veth", "peer", ends[1], "netns", self.names[1])
        self.ends = ends
        for side in (0, 1):
            self.inside(side, "ip", "addr", "add", f"{self.addresses[side]}/24", "dev", ends[side])
            self.cable(side, "up")
            self.inside(side, "ip", "link", "set", "lo", "up")

    def ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def inside(self, side: int, *arguments: str) -> None:
        self.ip("netns", "exec", self.names[side], *arguments)

    def cable(self, side: int, how: str) -> None:
        """Pulls the cable (`down`), or plugs it in (`up`)."""
        self.inside(side, "ip", "link", "set", self.ends[side], how)

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
        for begun in self._begun:
            begun.wait()


@pytest.fixture
def two_machines(tmp_path: Path) -> Iterator[Namespaces]:
    probe = f"palaestra-{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", probe], check=False).returncode:
        pytest.skip("two machines need network namespaces: `ip`, as root")
    subprocess.run(["ip", "netns", "del", probe], check=True)
    machines = Namespaces(tmp_path)
    yield machines
    machines.close()
    shutil.rmtree(machines.temporary, ignore_errors=True)


@pytest.mark.slow
def test_a_machine_that_is_cut_off_comes_back_and_is_lost_while_the_run_goes_on(two_machines, tmp_path, wait_until):
    """F15, MARO-26: the network of one of two machines fails and is mended, then its power; the other one goes on."""
    directory, head = tmp_path / "runs/run", f"{two_machines.addresses[0]}:6399"
    two_machines.ray(
        0, "--head", "--port", "6399", "--include-dashboard", "false", "--temp-dir", two_machines.temporary
    )
    join = ("--address", head)
    wait_until(lambda: two_machines.reachable(head), TIMEOUT_S, what="the head")
    two_machines.ray(1, *join)
    options = ("--distributed.address", head, "--distributed.num-workers", "2", "--distributed.timeout-s", "30")
    more = ("--distributed.recover-timeout-s", "200", "--distributed.max-restarts", "50")
    with open(tmp_path / "log", "wb") as log:
        run = two_machines.start(0, "-c", COMMAND, *RUN, *options, *more, out=log)

    def there(workers: int, beyond: int = 0) -> bool:
        assert run.poll() is None, (tmp_path / "log").read_text()[-3000:]
        rows = logged(directory)[-1:]
        return bool(rows) and rows[0]["workers/there"] == workers and rows[0]["env_steps"] > beyond

    def so_many(workers: int, what: str) -> None:
        wait_until(lambda: there(workers), TIMEOUT_S, what=what)
        reached = logged(directory)[-1]["env_steps"]
        wait_until(lambda: there(workers, reached + 500), TIMEOUT_S, what=f"steps {what}")

    so_many(2, "with both")
    two_machines.cable(0, "down")
    so_many(1, "with one that is cut off")
    two_machines.cable(0, "up")
    two_machines.kill(1)  # Ray has given its node up
    two_machines.ray(1, *join)
    so_many(2, "with both again")
    two_machines.kill(1)
    so_many(1, "with one that is lost")
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(TIMEOUT_S) == 130, (tmp_path / "log").read_text()[-3000:]
    assert steps_of(directory)
