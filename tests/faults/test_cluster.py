"""What happens to a run when Ray's own processes fail: its node, its head, its object store."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
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
    pytest.mark.needs_linux,
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


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["term", "hup"])
def test_sigterm_to_every_process_of_a_run_on_ray_saves_and_ends_with_143(training, tmp_path, wait_until, number, code):
    """F16, F22: Ray's own processes, too, as a service manager sends it; the run is the last to end, and goes on.

    So does SIGHUP, which a closed terminal sends to all of them, and the run ends with 129.
    """
    run, directory = training(), tmp_path / "runs/run"
    begun = [psutil.Process(pid) for pid in (run.pid, *descendants(run.pid))]
    for one in begun[::-1]:
        one.send_signal(number)
    text, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == code, text
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
