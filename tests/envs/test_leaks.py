"""Environments that leak: noticed, and named with what grows."""

import functools
import os
import subprocess
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra.core import EnvError
from palaestra.distributed import CollectorFactory, RolloutWorker, worker
from palaestra.distributed.worker import acting_weights
from palaestra.envs import EnvConfig, FaultPolicy, GymEnvironment, LaneEnvironment, ProcessDriver, SerialDriver
from palaestra.experiments import read_faults
from palaestra.runs import records
from palaestra.runtime import LeakWatch, Usage, leaks
from tests.algorithms.parts import make
from tests.envs.worlds import Counter
from tests.experiments.parts import SMALL

STEPS = 1100  # until a worker has looked five times


class Leaky(gymnasium.Env[Any, Any]):
    """Keeps open or alive, from time to time, what nobody closes."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, kind: str = "", every: int = 1) -> None:
        self.kind, self.every, self.steps = kind, every, 0
        self.kept: list[Any] = []
        self.released = threading.Event()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps % self.every == 0:
            self._leak()
        return np.zeros(1, np.float32), 1.0, False, self.steps % 50 == 0, {}

    def _leak(self) -> None:
        if self.kind == "files":
            self.kept.append(os.open(os.devnull, os.O_RDONLY))
        elif self.kind == "threads":
            threading.Thread(target=self.released.wait, name=f"leaked-{self.steps}", daemon=True).start()
        elif self.kind == "processes":
            self.kept.append(subprocess.Popen(["true"]))
        elif self.kind == "memory" and self.steps & (self.steps - 1) == 0:  # between each look and the next
            self.kept.append(b"x" * (70 << 20))

    def close(self) -> None:
        self.released.set()
        for number in self.kept if self.kind == "files" else ():
            os.close(number)
        self.kept = []


def lane(kind: str, every: int, number: int) -> GymEnvironment:
    return GymEnvironment(Leaky(kind, every), number)


def made(kind: str, every: int):
    factories = [functools.partial(lane, "", 1, 0), functools.partial(lane, kind, every, 1)]
    return LaneEnvironment(ProcessDriver(factories, num_workers=2, faults=FaultPolicy()), lane_seeds=[1, 2])


@pytest.mark.parametrize(
    ("kind", "every", "words"),
    [
        ("files", 4, "times /dev/null"),
        pytest.param("threads", 8, "times leaked", marks=pytest.mark.fault),
        pytest.param("processes", 16, "times true", marks=pytest.mark.fault),
    ],
)
def test_a_worker_that_leaks_is_named_once_and_the_run_goes_on(kind, every, words, caplog):
    """D15: what leaks, how many there are, and which; the stream is that of an environment that does not."""
    zeros = torch.zeros(2, dtype=torch.int64)
    with made(kind, every) as env:
        env.reset()
        steps = [env.step(zeros) for _ in range(STEPS)]
        (fault,) = env.faults
    assert (fault.env_id, fault.kind, fault.handled) == (1, "leak", "warn")
    assert str(fault).startswith(f"environment 1 {fault.what}: ") and words in str(fault)
    assert [record.message for record in caplog.records] == [str(fault)]
    assert all(torch.equal(step.step_type[:1], step.step_type[1:]) for step in steps)


@pytest.mark.fault
def test_a_worker_whose_memory_grows_is_named():
    """D15."""
    with made("memory", 1) as env:
        env.reset()
        for _ in range(STEPS):
            env.step(torch.zeros(2, dtype=torch.int64))
        (fault,) = env.faults
    assert (fault.env_id, fault.what) == (1, "leaks memory")
    assert "MiB at first" in fault.detail


def test_environments_that_share_a_worker_are_named_together():
    """D15: which of them it is, the process cannot tell."""
    with LaneEnvironment(ProcessDriver([Shared(1), Shared(2)], num_workers=1), lane_seeds=[1, 2]) as env:
        env.reset()
        for _ in range(STEPS):
            env.step(torch.zeros(2, dtype=torch.int64))
        (fault,) = env.faults
    assert str(fault).startswith("environment 0 (or 1, in the same process) leaks open files: ")


class Shared:
    """Makes a leaky environment."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> GymEnvironment:
        return lane("files", 8, self.number)


def test_a_run_whose_environments_leak_in_its_own_process_warns_and_records_it(tmp_path, caplog, monkeypatch):
    """D15, from outside: `faults/` has what grows; the run goes on to its end."""
    monkeypatch.setattr(records, "LOOK_PERIOD_S", 0.0)
    settings = SMALL | {"trainer__total_env_steps": 1200, "trainer__eval_episodes": 0, "env__max_episode_steps": None}
    del settings["trainer__eval_every_steps"]
    settings |= {"env__kwargs": {"kind": "files", "every": 4}, "run__directory": str(tmp_path)}
    done = palaestra.train("ppo", "tests.envs.test_leaks:Leaky", **settings)
    assert done.result.status == "done"
    (record,) = read_faults(done.directory)
    assert record.message.startswith("the process of the run, which steps the environments itself, leaks open files: ")
    assert (record.action, record.details) == ("warned", {"kind": "leak"})
    assert record.message in caplog.text


def test_a_roll_out_worker_tells_what_leaks_in_its_process(monkeypatch):
    """D15: with Ray, or workers in processes, the manager gets it like any other fault."""
    monkeypatch.setattr(worker, "LOOK_PERIOD_S", 0.0)
    env = EnvConfig(name="tests.envs.test_leaks:Leaky", num_envs=4, kwargs={"kind": "files", "every": 2})
    factory = CollectorFactory(env=env, num_workers=2, algorithm=lambda: make("ppo", palaestra.create_environment(env)))
    one = RolloutWorker(factory, 1)
    weights = acting_weights(one._parts.policies)
    faults = [fault for _ in range(8) for fault in one.collect(20, weights, episodes=False, random=()).faults]
    one.close()
    (fault,) = faults
    assert str(fault).startswith("environment 2 (or 3, in the same process) leaks open files: ")  # of the whole run


def watched(monkeypatch, counts, **options):
    """What a watch says when a process has so many open files, or so many MiB, one look after the other."""
    watch, told = LeakWatch(), []
    for number, count in enumerate(counts):
        now = Usage(count, 1, 0, 0) if not options else Usage(1, 1, 0, count << 20)
        monkeypatch.setattr(leaks, "usage", lambda now=now: now)
        told += [(number, leak.what) for leak in watch.look(**options)]
    return told


def test_what_is_made_once_or_given_back_is_no_leak(monkeypatch):
    """D15: a jump, a slow start, and a rise and fall."""
    assert watched(monkeypatch, [10, 1000, 1000, 1001, 1002, 1000]) == []
    assert watched(monkeypatch, [10, 40, 70, 100, 100, 100]) == []
    assert watched(monkeypatch, [10, 80, 10, 80, 10, 80, 10, 80, 10, 80]) == []


def test_what_grows_slowly_is_told_once(monkeypatch):
    """D15: a file for every look, or a hundred."""
    assert watched(monkeypatch, range(10, 500)) == [(64, "open files")]
    assert watched(monkeypatch, range(10, 5000, 100)) == [(4, "open files")]


def test_buffers_may_fill_up(monkeypatch):
    """D15: memory that was announced is none of a leak."""
    assert watched(monkeypatch, range(100, 1100, 100), allowed_bytes=1000 << 20) == []
    assert watched(monkeypatch, range(100, 2100, 100), allowed_bytes=1000 << 20) == [(14, "memory")]


def test_a_system_that_does_not_tell_is_left_alone(monkeypatch, tmp_path):
    """D15: without /proc nothing is noticed, and nothing breaks."""
    monkeypatch.setattr(leaks, "_SELF", tmp_path / "none")
    assert leaks.usage() is None
    assert LeakWatch().look() == []


class FailsAlways(Counter):
    """Raises in every step."""

    def step(self, action):
        raise KeyError("again")


def test_of_faults_the_newest_are_kept_and_all_are_counted():
    """F31: what is kept does not grow with the run; the first fault is named where it ends one."""
    faults = FaultPolicy(on_fault="restart", max_restarts=1000, backoff_s=0)
    env = LaneEnvironment(SerialDriver([lambda: GymEnvironment(FailsAlways())] * 2, faults=faults))
    env.reset()
    for _ in range(75):
        env.step([0, 0])
    assert (len(env.faults), env.faults.total) == (100, 150)
    assert env.faults.counts == {("raised", "environment 0"): 75, ("raised", "environment 1"): 75}
    assert [fault.episode for fault in env.faults.since(148)] == [74, 74]
    lanes = [GymEnvironment(FailsAlways()) for _ in range(101)]
    dropped = LaneEnvironment(SerialDriver(lanes, faults=FaultPolicy(on_fault="drop")))
    dropped.reset()
    with pytest.raises(EnvError, match=r"The first fault was: environment 0 raised KeyError"):
        dropped.step([0] * 101)
    assert dropped.faults.total == 101
