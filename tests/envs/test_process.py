"""Tests of `palaestra.envs.stepping.process`: what only worker processes can get wrong.

That their stream is the one of `SerialDriver` is in `contracts/test_environments.py`.
"""

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError, EnvError, SpecError
from palaestra.envs import FaultPolicy, GymEnvironment, LaneEnvironment, ProcessDriver, load
from tests.envs.worlds import counter, faulty, layered

ZEROS = torch.zeros(2, dtype=torch.int64)
TWO = [counter, counter]


def gone(pid: int) -> bool:
    """Whether no such process runs any more (a zombie, which only waits to be collected, does not run)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def repeat(env: ProcessDriver, count: int) -> None:
    for _ in range(count):
        env.step(torch.zeros(env.batch_size, dtype=torch.int64))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_environments_run_in_their_workers_and_none_is_left(wait_until):
    """ALF-47, ALF-49."""
    with LaneEnvironment(ProcessDriver([functools.partial(layered, "Pid")] * 4, num_workers=2)) as env:
        env.reset()
        pids = env.step(torch.zeros(4, dtype=torch.int64)).env_info.pid.long().tolist()
        assert pids == [env.driver.worker_pids[0]] * 2 + [env.driver.worker_pids[1]] * 2
        assert os.getpid() not in pids
    assert all(gone(pid) for pid in pids)
    assert not multiprocessing.active_children()


def test_there_are_never_more_workers_than_environments():
    with LaneEnvironment(ProcessDriver(TWO[:1], num_workers=8)) as env:
        assert len(env.driver.worker_pids) == 1
    with pytest.raises(ConfigError, match="at least 1"):
        LaneEnvironment(ProcessDriver(TWO, num_workers=0))


def shared() -> set[str]:
    """Names of shared memory and semaphores that this process has."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split("/dev/shm/")[1].split()[0] for line in lines if "/dev/shm/" in line}


@pytest.mark.needs_linux
def test_opening_and_closing_leaves_no_files_and_no_shared_memory():
    """F31."""
    with LaneEnvironment(ProcessDriver(TWO, num_workers=2)) as env:
        env.reset()
    files, before, own = open_files(), shared(), set()
    for _ in range(3):
        with LaneEnvironment(ProcessDriver(TWO, num_workers=2)) as env:
            env.step(ZEROS)
            own |= shared()
    assert open_files() == files
    assert shared() == before < own
    assert not (own - before) & set(os.listdir("/dev/shm"))  # of which other programs have some, too


@pytest.mark.fault
def test_a_killed_worker_is_named_with_what_it_was_doing_within_a_second():
    """F3."""
    env = LaneEnvironment(ProcessDriver([counter, counter, functools.partial(faulty, "kill", 4)], num_workers=2))
    actions = torch.tensor([0, 1, 2])
    env.reset()
    for _ in range(3):
        env.step(actions)
    started = time.monotonic()
    with pytest.raises(EnvError) as caught:
        env.step(actions)
    assert time.monotonic() - started < 1
    message = str(caught.value)
    words = (
        "environment 2 lost its worker",
        "signal 9 (SIGKILL)",
        "environments 1 to 2",
        "episode 0",
        "seed",
        "step 4",
    )
    assert all(word in message for word in words), message
    assert "with action 2" in message
    assert all(gone(pid) for pid in env.driver.worker_pids)
    with pytest.raises(EnvError, match="has ended"):
        env.step(actions)
    env.close()


@pytest.mark.fault
@pytest.mark.parametrize("when", [0, 3, 8])
def test_a_worker_killed_from_outside_is_noticed_at_the_next_step(when):
    """F3."""
    env = LaneEnvironment(ProcessDriver(TWO, num_workers=2))
    env.reset()
    for _ in range(when):
        env.step(ZEROS)
    os.kill(env.driver.worker_pids[1], signal.SIGKILL)
    with pytest.raises(EnvError, match=r"environment 1 lost its worker .*SIGKILL"):
        repeat(env, 2)
    env.close()


@pytest.mark.fault
def test_a_worker_that_exits_is_named_with_its_code():
    """F3."""
    env = LaneEnvironment(ProcessDriver([functools.partial(faulty, "exit")], num_workers=1))
    env.reset()
    with pytest.raises(EnvError, match="exited with code 0"):
        repeat(env, 3)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("fault", "words"),
    [("raise", "KeyError"), ("unpicklable", "UnpicklableError"), ("two arguments", "TwoArgumentError")],
)
def test_any_exception_arrives_as_text_with_its_traceback(fault, words):
    """F1, F2: also of a class that cannot be pickled or rebuilt."""
    with LaneEnvironment(ProcessDriver([counter, functools.partial(faulty, fault)], num_workers=2)) as env:
        env.reset()
        for _ in range(2):
            env.step(ZEROS)
        with pytest.raises(EnvError, match=rf"environment 1 raised {words} .*at step 3") as caught:
            env.step(ZEROS)
        assert "in misbehave" in str(caught.value)
        # nobody died: all go on, with new episodes, also from a checkpoint
        env.load_state_dict(env.state_dict())
        assert env.step(ZEROS).step_type.tolist() == [0, 0]
        assert env.state_dict()["episode"].tolist() == [1, 1]


@pytest.mark.fault
@pytest.mark.parametrize("at", [0, 2])
def test_a_hanging_environment_is_stopped_at_the_deadline_and_its_stack_shown(at):
    """F4."""
    env = LaneEnvironment(
        ProcessDriver(
            [counter, functools.partial(faulty, "hang", at)],
            num_workers=2,
            faults=FaultPolicy(timeout_s=0.5, reset_timeout_s=1.5),
        )
    )
    pids = env.driver.worker_pids
    started = time.monotonic()
    with pytest.raises(EnvError, match=r"environment 1 did not answer in time .*(step 2|its reset)") as caught:
        repeat(env, 4)
    assert time.monotonic() - started < 5
    assert "misbehave" in str(caught.value)
    assert all(gone(pid) for pid in pids)


@pytest.mark.fault
def test_a_hanging_worker_does_not_hold_up_closing(monkeypatch):
    """F4: shutdown within seconds."""
    monkeypatch.setattr("palaestra.envs.stepping.process.CLOSE_S", 0.3)
    env = LaneEnvironment(ProcessDriver([functools.partial(faulty, "hang", 1)], num_workers=1))
    env.reset()
    env.send(ZEROS[:1])
    started = time.monotonic()
    with contextlib.suppress(EnvError):  # says that it was stopped, if it hung by then
        env.close()
    assert time.monotonic() - started < 3
    assert all(gone(pid) for pid in env.driver.worker_pids)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "environment 1 could not be made: KeyError"),
        pytest.param("exit", r"exited with code 0\. If its own output", marks=pytest.mark.fault),
    ],
)
def test_an_environment_that_cannot_be_made_is_named(fault, words):
    with pytest.raises(EnvError, match=words):
        LaneEnvironment(ProcessDriver([counter, functools.partial(faulty, fault, -1)], num_workers=1))
    assert not multiprocessing.active_children()


@pytest.mark.fault
def test_workers_end_when_their_parent_is_killed(wait_until):
    """F16: also one that hangs in a step."""
    script = (
        "import functools, os, sys, torch\n"
        "from palaestra.envs import LaneEnvironment, ProcessDriver\n"
        "from tests.envs.worlds import counter, faulty\n"
        "if __name__ == '__main__':\n"
        "    factories = [counter, functools.partial(faulty, 'hang', 1)]\n"
        "    env = LaneEnvironment(ProcessDriver(factories, num_workers=2))\n"
        "    env.reset()\n"
        "    env.send(torch.zeros(2, dtype=torch.int64))\n"
        "    sys.stdout.write(' '.join(map(str, env.driver.worker_pids)) + '\\n')\n"
        "    sys.stdout.flush()\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.communicate()
    wait_until(lambda: all(gone(pid) for pid in pids), what="the workers to end")


def test_lambdas_with_what_they_have_bound_make_environments_in_a_worker():
    bound = counter
    with LaneEnvironment(ProcessDriver([lambda: bound(), bound], num_workers=1)) as env:
        assert env.reset().step_type.tolist() == [0, 0]


def test_factories_that_cannot_be_sent_are_refused():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker: .*lock.*where it is used"):
        LaneEnvironment(ProcessDriver([lambda: lock and counter()]))


def test_workers_with_different_specs_are_refused():
    with pytest.raises(SpecError, match="environment 1 has the specs"):
        LaneEnvironment(ProcessDriver([counter, functools.partial(layered, "Nested")], num_workers=2))


def test_send_and_recv_overlap_and_come_in_pairs():
    with LaneEnvironment(ProcessDriver(TWO, num_workers=1)) as env:
        with pytest.raises(EnvError, match="without send"):
            env.recv()
        env.send(ZEROS)
        with pytest.raises(EnvError, match="twice"):
            env.send(ZEROS)
        with pytest.raises(EnvError, match="between"):
            env.state_dict()
        assert env.recv().step_type.tolist() == [0, 0]
        env.send(ZEROS)
        assert env.reset().step_type.tolist() == [0, 0]
        with pytest.raises(SpecError, match="environment 1 has value 7"):
            env.step(torch.tensor([0, 7]))


def test_large_infos_do_not_block_anybody():
    """More than a pipe holds, from both workers."""
    with LaneEnvironment(ProcessDriver([talkative] * 2, num_workers=2)) as env:
        env.reset()
        info = env.step(ZEROS).env_info
        assert len(info.keys()) == 20_000
        assert info["key 7"].tolist() == [7, 7]


def talkative() -> GymEnvironment:
    class Talkative(type(layered("Counter").gym_env)):
        def step(self, action):
            *values, _ = super().step(action)
            return *values, {f"key {i}": i for i in range(20_000)}

    return GymEnvironment(Talkative())


def test_spawned_workers_do_the_same():
    with LaneEnvironment(ProcessDriver(TWO, num_workers=1, context="spawn")) as env:
        env.reset()
        assert env.step(ZEROS).reward.tolist() == [10, 10]


def test_a_picture_of_the_first_environment():
    with LaneEnvironment(ProcessDriver([functools.partial(layered, "Drawing")] * 2, num_workers=2)) as env:
        env.step(ZEROS)
        env.step(ZEROS)
        assert env.render().tolist() == np.ones((2, 3, 3)).tolist()
        assert env.step(ZEROS).reward.tolist() == [20, 20]
        env.send(ZEROS)
        with pytest.raises(EnvError, match="render was called between send and recv"):
            env.render()
        env.recv()


def test_no_picture_of_an_environment_that_was_dropped():
    faults = FaultPolicy(on_fault="drop")
    factories = [functools.partial(faulty, "exit", 2), functools.partial(layered, "Drawing")]
    with LaneEnvironment(ProcessDriver(factories, num_workers=2, faults=faults)) as env:
        for _ in range(4):
            env.step(ZEROS)
        with pytest.raises(EnvError, match="environment 0, which pictures are of, was dropped"):
            env.render()


def test_a_forgotten_environment_leaves_nothing(wait_until):
    env = LaneEnvironment(ProcessDriver([functools.partial(load, "CartPole-v1")], num_workers=1))
    pids = env.driver.worker_pids
    del env
    wait_until(lambda: all(gone(pid) for pid in pids), what="the workers to end")


@pytest.mark.slow
@pytest.mark.needs_linux
def test_a_million_steps_and_a_hundred_openings_leave_nothing_behind():
    """F31: resident memory, open files and processes are flat."""
    make = functools.partial(load, "CartPole-v1")
    ones = torch.ones(64, dtype=torch.int64)

    def cycle(steps: int) -> None:
        with LaneEnvironment(ProcessDriver([make] * 64, num_workers=2)) as env:
            env.reset()
            for _ in range(steps):
                env.step(ones)

    for _ in range(5):
        cycle(20)
    files, memory = open_files(), resident_bytes()
    for _ in range(100):
        cycle(157)  # 100 x 157 x 64 > 10^6
    assert open_files() == files
    assert not multiprocessing.active_children()
    assert resident_bytes() - memory < 8 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_info_travels_in_shared_memory_once_its_names_are_known():
    """Only new names go through the pipe; NaN is what an environment did not report, absent what nobody did."""
    factories = [functools.partial(layered, name) for name in ("Pid", "Counter")]
    with LaneEnvironment(ProcessDriver(factories, num_workers=2)) as env:
        assert env.reset().env_info == ()
        for _ in range(3):
            info = env.step(ZEROS).env_info
            assert info.pid[0] == env.driver.worker_pids[0]
            assert torch.isnan(info.pid[1])
        assert env.reset().env_info == ()


def test_d1_eight_lanes_of_one_worker_resume_from_a_state_larger_than_a_pipe():
    """The saved actions of a long episode are more than a socket takes at once."""
    make, seeds = functools.partial(load, "palaestra.envs.tiny:Endless"), list(range(8))
    actions = torch.zeros(8, dtype=torch.int64)
    with LaneEnvironment(ProcessDriver([make] * 8, num_workers=1), lane_seeds=seeds) as env:
        env.reset()
        for _ in range(1500):
            env.step(actions)
        state = env.state_dict()
        expected = env.step(actions)
        os.kill(env.driver.worker_pids[0], signal.SIGKILL)
    assert len(pickle.dumps(env._log.episodes_of(state))) > 212_992
    with LaneEnvironment(ProcessDriver([make] * 8, num_workers=1), lane_seeds=seeds) as again:
        again.load_state_dict(state)
        found = again.step(actions)
    assert torch.equal(found.observation, expected.observation)
    assert found.step_type.tolist() == [1] * 8


class SlowToLoad:
    """Takes long where it is loaded, as the import of a large package does."""

    def __reduce__(self):
        return time.sleep, (60.0,)


def test_d17_a_worker_that_is_only_slow_to_start_is_not_said_to_hang():
    """No stack is shown, for there is none; what to do is."""
    slow, faults = functools.partial(layered, "Pid", SlowToLoad()), FaultPolicy(reset_timeout_s=0.3)
    with pytest.raises(EnvError) as failed:
        ProcessDriver([slow], num_workers=1, faults=faults)
    said = str(failed.value)
    assert "while it was making its environments" in said
    assert "only slow to start: use fewer workers (`--env.num-workers`), or wait for longer" in said
    assert "It was doing" not in said
    assert "__main__" not in said
