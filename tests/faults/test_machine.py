"""What a machine does to a run: full disks, clocks that jump, many processes, rows and runs, and killed groups."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.core import EnvError
from palaestra.envs import LaneEnvironment, ProcessDriver, SerialDriver, load
from palaestra.experiments import RunDirectory
from tests.distributed.test_processes import descendants
from tests.faults.parts import COMMAND, TIMEOUT_S, child_environment, command, logged, run_contents

pytestmark = pytest.mark.fault

SMALL = (
    *("--algorithm.network.hidden-sizes", "8", "--run.no-tensorboard", "--trainer.eval-episodes", "2"),
    *("--trainer.eval-every-steps", "0", "--env.max-episode-steps", "40"),
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that may die."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


MAPPED = """
import pathlib, shutil, sys, torch
from palaestra.buffers import MappedFiles, ReplayBuffer
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from tests.buffers.mapped_child import arrival, write

def made(folder):
    spec = TensorSpec((1024,), torch.int64)
    return ReplayBuffer(160, 4, observation_spec=spec, action_spec=DiscreteSpec(num=5), storage=MappedFiles(folder))

folder = pathlib.Path(sys.argv[1])
buffer = made(folder / "first")
try:
    made(folder / "second")
except ConfigError as error:
    print(error)
(folder / "filler").write_bytes(bytes(shutil.disk_usage(folder).free))
buffer.open(arrival(0))
for serial in range(60):
    write(buffer, serial)
print("rows", len(buffer))
"""


def test_a_mapped_buffer_has_its_room_before_anything_is_written(small_disk):
    """F10, F21: a second one is refused, and another program that fills the disk does not kill who writes the first."""
    done = python(MAPPED, str(small_disk))
    assert done.returncode == 0, (done.returncode, done.stderr)
    refused, rows = done.stdout.splitlines()
    assert "the buffer needs" in refused
    assert "MappedFiles" in refused
    assert rows == "rows 160"


def test_a_film_that_fills_the_disk_is_given_up_and_the_run_goes_on(small_disk, tmp_path):
    """F10: with one warning that names it."""
    pytest.importorskip("imageio_ffmpeg", reason="films need the extra `video`")
    (small_disk / "filler").write_bytes(bytes(2 << 20))
    text = command(
        *("train", "ppo", "CartPole-v1", *SMALL, "--env.kwargs", "render_mode", "rgb_array", "--run.name", "run"),
        *("--env.train-wrappers", f"RecordVideo(directory='{small_disk}')", "--trainer.total-env-steps", "400"),
        folder=tmp_path,
    )
    assert f"the film {small_disk}/episode_0.mp4 could not be written and is given up" in text
    assert RunDirectory(tmp_path / "runs/run").status == "done"


JUMPING = f"""
import itertools, sys, time
real, calls = time.time, itertools.count()
time.time = lambda: real() + (next(calls) % 3 - 1) * 86_400.0
{COMMAND}
"""


@pytest.mark.parametrize("vectorization", ["serial", "process"])
def test_a_clock_that_jumps_by_days_changes_nothing(vectorization, tmp_path):
    """F32: a day forwards, a day backwards, at every look at it; deadlines, durations and results are as without."""
    arguments = ("train", "dqn", "CartPole-v1", *SMALL, "--env.vectorization", vectorization, "--env.timeout-s", "5")
    steps = ("--trainer.total-env-steps", "600", "--trainer.time-limit-s", "200", "--algorithm.learning-starts", "50")
    for name, program in (("steady", COMMAND), ("jumping", JUMPING)):
        command(*arguments, *steps, "--run.name", name, folder=tmp_path, program=program)
    assert run_contents(tmp_path / "runs/jumping")["files"] == run_contents(tmp_path / "runs/steady")["files"]
    seconds = [value for row in logged(tmp_path / "runs/jumping") for name, value in row.items() if "time/" in name]
    assert seconds
    assert all(value >= 0 for value in seconds)
    assert json.loads((tmp_path / "runs/jumping/run.json").read_text())["train_s"] < 200


def listening(pids: list[int]) -> list[str]:
    """Ports on which processes listen."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "udp", "udp6")]
    lines = [line.split() for table in tables for line in table]
    ports = {f"socket:[{line[9]}]": line[1] for line in lines if line[3] in ("0A", "07")}
    found = []
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found += [ports[os.readlink(entry)]]
            except (KeyError, OSError):
                continue
    return found


@pytest.mark.parametrize("options", [(), ("--distributed.num-policy-hosts", "1", "--distributed.gradient-shards", "2")])
@pytest.mark.needs_linux
def test_no_process_of_a_run_listens_on_a_port(options, tmp_path, wait_until):
    """F29, F30: policy servers, hosts and workers talk over pipes that only they have; nobody else can write there.

    Gradient workers do listen, on loopback: `test_replicas.py`.
    """
    program = [sys.executable, "-c", COMMAND, "train", "impala", "CartPole-v1", *SMALL, "--env.num-envs", "2", *options]
    distributed = ("--distributed.runtime", "process", "--distributed.mode", "async", "--run.name", "run")
    endless = ("--trainer.total-env-steps", "50000000", "--trainer.log-every-steps", "50")
    with open(tmp_path / "log", "wb") as log:
        run = subprocess.Popen(
            [*program, *distributed, *endless], cwd=tmp_path, env=child_environment(), stdout=log, stderr=log
        )
    try:
        there = functools.partial(logged, tmp_path / "runs/run")
        wait_until(lambda: run.poll() is not None or there(), TIMEOUT_S, what="metrics")
        pids = [run.pid, *descendants(run.pid)]
        assert run.poll() is None, (tmp_path / "log").read_text()
        assert len(pids) >= 3
        assert listening(pids) == []
        sockets = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "pymp-" in line]
        assert all(os.stat(os.path.dirname(path)).st_mode & 0o077 == 0 for path in sockets if os.path.exists(path))
    finally:
        run.kill()
        run.wait()


def semaphores() -> set[str]:
    """Names that semaphores of this library have at the moment."""
    return {name for name in os.listdir("/dev/shm") if "palaestra" in name}


@pytest.mark.needs_linux
def test_a_killed_process_group_leaves_no_semaphore_and_no_process(tmp_path, wait_until):
    """F3, F31: everything is killed at once, the process that would clean up included."""
    before = semaphores()
    program = [sys.executable, "-c", COMMAND, "train", "ppo", "CartPole-v1", *SMALL, "--run.name", "run"]
    workers = ("--env.vectorization", "process", "--env.num-envs", "4", "--env.num-workers", "2")
    endless = ("--trainer.total-env-steps", "50000000", "--trainer.log-every-steps", "50")
    run = subprocess.Popen(
        [*program, *workers, *endless],
        cwd=tmp_path,
        env=child_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        there = functools.partial(logged, tmp_path / "runs/run")
        wait_until(lambda: run.poll() is not None or there(), TIMEOUT_S, what="metrics")
        pids = descendants(run.pid)
        mapped = [line for line in Path(f"/proc/{run.pid}/maps").read_text().splitlines() if "/dev/shm/sem." in line]
        assert len(mapped) >= 4
        assert all(line.endswith("(deleted)") for line in mapped)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 10.0, what="the end of every process")
    wait_until(lambda: not semaphores() - before, 10.0, what="the end of every semaphore")


@pytest.mark.slow
@pytest.mark.needs_linux
def test_256_environments_in_256_processes_give_the_stream_of_one(wait_until):
    """F3, F31: all are there, step, lose a worker by name, and are gone."""
    make, ones = functools.partial(load, "CartPole-v1"), torch.ones(256, dtype=torch.int64)
    seeds = list(range(256))
    with (
        LaneEnvironment(ProcessDriver([make] * 256, num_workers=256), lane_seeds=seeds) as many,
        LaneEnvironment(SerialDriver([make() for _ in seeds]), lane_seeds=seeds) as one,
    ):
        pids = many.driver.worker_pids
        assert len(set(pids)) == 256
        for _ in range(30):
            ours, theirs = many.step(ones), one.step(ones)
            assert torch.equal(ours.observation, theirs.observation)
        os.kill(pids[200], signal.SIGKILL)
        wait_until(lambda: not many.driver._seats[200].process.alive, 10.0, what="the end of a worker")
        with pytest.raises(EnvError, match=r"environment 200 lost its worker process(?s:.*)SIGKILL"):
            many.step(ones)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


ROWS = 10_000_000
FILL = f"""
import os, signal, sys, torch
from palaestra.buffers import MappedFiles, ReplayBuffer
from palaestra.core import DiscreteSpec, TensorSpec
from palaestra.testing.buffers import FIRST, MID
from tests.buffers.model import step

def seen(serial):
    value = torch.full((10_000,), float(serial))
    return step([FIRST if serial % 100 == 0 else MID] * 10_000, value[:, None], value)

spec = TensorSpec((1,), torch.float32)
storage = MappedFiles(sys.argv[1])
buffer = ReplayBuffer({ROWS}, 10_000, observation_spec=spec, action_spec=DiscreteSpec(num=2), storage=storage)
if sys.argv[2] == "fill":
    buffer.open(seen(0))
    for serial in range(1, 1001):
        buffer.append(torch.zeros(10_000, dtype=torch.int64), seen(serial), policy_version=serial)
    print(len(buffer), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
print(len(buffer), buffer.newest(3).observation[-1].unique().tolist())
"""


@pytest.mark.slow
def test_ten_million_rows_on_disk_outlive_a_kill(tmp_path):
    """F9, F21: all of them, in a new process."""
    done = python(FILL, str(tmp_path), "fill")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert int(done.stdout) == ROWS
    again = python(FILL, str(tmp_path), "look")
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{ROWS} [1000.0]\n"


@pytest.mark.slow
def test_ten_runs_at_once_do_not_touch_each_other(tmp_path):
    """F26: in one folder, without names, begun in the same second; equal seeds give equal runs."""
    arguments = ("train", "dqn", "CartPole-v1", *SMALL, "--trainer.total-env-steps", "500")
    program = [sys.executable, "-c", COMMAND, *arguments, "--algorithm.learning-starts", "50"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    runs = [subprocess.Popen(program, cwd=tmp_path, env=child_environment(), **pipes) for _ in range(10)]
    texts = [run.communicate(timeout=TIMEOUT_S)[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 10, texts
    directories = sorted((tmp_path / "runs").iterdir())
    assert len(directories) == 10
    assert len({json.dumps(run_contents(directory)["files"]) for directory in directories}) == 1
    assert all(RunDirectory(directory).status == "done" for directory in directories)
