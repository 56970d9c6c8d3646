"""Two processes on one run directory (F26)."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

import palaestra
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import RunDirectory, find_run, list_groups, list_runs
from palaestra.runs.records import say_once
from tests.experiments.parts import trained
from tests.faults.parts import child_environment, command

HOLD = """
import sys
from palaestra.experiments import RunDirectory
run = RunDirectory(sys.argv[1])
run.lock()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path):
    """A run that has come to its end."""
    return palaestra.train(
        "ppo",
        "palaestra.envs.tiny:Chain",
        env__max_episode_steps=5,
        trainer__total_env_steps=64,
        trainer__eval_episodes=1,
        algorithm__unroll_length=8,
        run__directory=str(tmp_path / "runs"),
        run__name="run",
        run__tensorboard=False,
    ).directory


FORKS = """
import os, signal, sys
from functools import partial
import torch
from palaestra.envs import LaneEnvironment, load
from palaestra.envs.stepping.process import ProcessDriver
from palaestra.experiments import RunDirectory
run = RunDirectory(sys.argv[1])
run.lock()
driver = ProcessDriver([partial(load, "CartPole-v1")])
env = LaneEnvironment(driver, lane_seeds=[1])
env.reset()
if not os.fork():
    sys.exit()
os.wait()
env.step(torch.zeros(1, dtype=torch.int64))
child = os.fork()
if child:
    print(child, *driver.worker_pids, flush=True)
signal.pause()
"""


def is_free(run) -> bool:
    directory = RunDirectory(run)
    with contextlib.suppress(ConfigError):
        directory.lock()
        directory.unlock()
        return True
    return False


@pytest.mark.fault
def test_a_fork_of_an_environments_own_keeps_neither_the_run_nor_its_workers(run, wait_until):
    """F26: one ends beside the run, which goes on; one outlives it."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORKS, str(run)], env=child_environment(), **options) as holder:
        child, worker = map(int, holder.stdout.readline().split())
        try:
            holder.kill()
            wait_until(lambda: is_free(run), 10)
            wait_until(lambda: not os.path.exists(f"/proc/{worker}"), 10)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_who_looks_whether_a_run_is_in_use_keeps_nobody_from_it(run, monkeypatch):
    monkeypatch.setattr("palaestra.runs.run_directory._LOOKED_AT_S", 10.0)  # the machine may be busy
    with (run / "run.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        looked = threading.Timer(0.02, file.close)
        looked.start()
        found = RunDirectory(run)
        found.lock()
        found.unlock()
        looked.join()


@pytest.mark.fault
def test_a_second_process_is_refused_and_a_dead_one_does_not_matter(run):
    """F26: the message names process and machine; the lock of a process that was killed is no lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = sorted(path.name for path in run.rglob("*"))
        with pytest.raises(
            ConfigError, match=rf"in use by process {holder.pid} on {os.uname().nodename}; wait"
        ) as caught:
            palaestra.resume(str(run))
        assert caught.value.exit_code == 2
        assert sorted(path.name for path in run.rglob("*")) == before
        text = command("resume", "run", folder=run.parent.parent, check=2)
        assert f"in use by process {holder.pid}" in text
        holder.send_signal(signal.SIGKILL)
    assert palaestra.resume(str(run)).result.status == "done"


def test_a_lock_is_let_go_at_the_end_and_can_be_taken_again(run):
    first, second = RunDirectory(run), RunDirectory(run)
    first.lock()
    with pytest.raises(ConfigError, match="in use by process"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()
    second.unlock()


def test_a_file_system_without_locks_is_said_once_and_holds_nobody_up(run, monkeypatch, caplog):
    def refuse(file, kind):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    say_once.cache_clear()
    directory = RunDirectory(run)
    directory.write_info({"status": "running"})
    for number in (errno.ENOLCK, errno.ENOLCK, errno.EAGAIN, errno.EACCES):
        if number == errno.ENOLCK:
            directory.lock()
            directory.unlock()
            assert directory.status == "killed"
        else:
            assert directory.status == "running"
            with pytest.raises(ConfigError, match="is in use by another process"):
                directory.lock()
    assert caplog.text.count(f"this file system has no locks ({os.strerror(errno.ENOLCK)})") == 1


def test_evaluating_needs_no_lock(run):
    directory = RunDirectory(run)
    directory.lock()
    assert palaestra.evaluate_run(str(run), episodes=2).episodes == 2
    directory.unlock()


def test_a_new_run_never_writes_into_an_old_directory(run):
    """F26, F27: a name that is taken is an error that says how to continue it."""
    with pytest.raises(ConfigError, match=r"exists already; choose another name, or continue it with `palaestra"):
        palaestra.train("ppo", "CartPole-v1", run__directory=str(run.parent), run__name="run")


def test_a_run_that_could_not_be_made_leaves_nothing(tmp_path, monkeypatch):
    """F9, F10: a full disk, or a kill while it is made; a job that begins again finds the name free."""
    with monkeypatch.context() as patched:
        patched.setattr("palaestra.runs.run_directory.provenance", lambda env: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()  # what a kill leaves
    (tmp_path / ".tmp-1/seed_0").mkdir(parents=True)
    for name in ("run.json", "config.yaml"):
        (tmp_path / ".tmp-1" / name).write_text("{}")
        (tmp_path / ".tmp-1/seed_0" / name).write_text("{}")
    (tmp_path / ".tmp-1/group.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"run is no run, for it has no config.yaml; runs in .*: none yet"):
        find_run(tmp_path / "run", tmp_path)
    assert list_runs(tmp_path) == list_groups(tmp_path) == []
    assert trained(tmp_path).result.status == "done"


def test_a_folder_of_something_else_is_no_run_to_be_continued(tmp_path):
    """F27: the message offers no `resume`."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"run exists already; choose another name$"):
        trained(tmp_path)


def test_runs_without_a_name_never_share_a_directory(tmp_path):
    """F26: even when they start in the same second."""
    config = palaestra.ExperimentConfig(run=palaestra.RunConfig(directory=str(tmp_path)))
    assert len({RunDirectory.create(config).path for _ in range(3)}) == 3
