"""Agents in processes and Ray actors: the same class, the same tasks, and what happens when one is killed."""

import contextlib
import importlib.util
import itertools
import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra import Trainer, TrainerConfig
from palaestra.robots import AgentError, RobotConfig
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime
from tests.robots.parts import OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

ENDLESS, REPORTS = "palaestra.envs.tiny:Endless", "tests.robots.test_hosted:Reports"
RAY = pytest.param(
    RayRuntime,
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    ],
)


class Reports(gymnasium.Env[np.ndarray, np.int64]):
    """Shows the number of the process that it lives in."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, np.inf, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([os.getpid()], np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.array([os.getpid()], np.float32), 1.0, False, False, {}


@contextlib.contextmanager
def at_work(kind=ProcessRuntime, num_agents=2, env=ENDLESS, num_workers=2, on_fault="raise", timeout_s=60.0, **kwargs):
    make = env_maker(env, **kwargs)
    settings = (("learning_starts", 0), ("mini_batch_size", 4))
    robot = robot_of(OneTaskRobot, make, OneTaskConfig(name="dqn", settings=settings))
    config = RobotConfig(timeout_s=timeout_s, steps_per_iteration=10)
    with kind() as runtime:
        parts = {"config": config, "runtime": runtime, "num_workers": num_workers, "on_fault": on_fault}
        with collector_of(robot, make, num_agents, **parts) as collector:
            yield robot, collector


@pytest.mark.parametrize("kind", [LocalRuntime, ProcessRuntime, RAY])
def test_agents_live_elsewhere_and_learn_here(kind, wait_until):
    """PARL-17: as many env steps, updates and rows as agents in threads make."""
    with at_work(kind, limit=8) as (robot, collector):
        Trainer(collector, robot, TrainerConfig(total_env_steps=60)).run()
        assert collector.env_steps == 60
        task = robot.tasks["policy"]
        assert task.predictions == 60 and task.algorithm.num_gradient_steps > 10
        assert task.buffer is not None and all(len(task.buffer.in_time_order(lane)) > 30 for lane in (0, 1))
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("agent")])


def test_agents_are_shared_out_over_workers_and_episodes_keep_their_numbers():
    with at_work(num_agents=3, limit=5) as (robot, collector):
        info = collector.unroll(20)
        assert info.env_steps == 60
        assert len(collector._group._hosts) == 2
    assert robot.tasks["policy"].rows_stored == 60
    assert [(e.env_id, e.length, e.episode_return) for e in info.episodes] == [
        (number, 5, 5.0) for number in (0, 1, 2) for _ in range(4)
    ]


def process_of(robot, agent):
    """The process that an agent's environment told."""
    buffer = robot.tasks["policy"].buffer
    return int(buffer.observation[buffer.in_time_order(agent)][-1, 0])


def killed_in_the_middle(robot, collector, steps=10_000):
    """Kills the process of agent 1 while its request is being computed; the unroll's error comes back."""
    collector.unroll(3)
    victim, asked = process_of(robot, 1), threading.Event()
    predict = robot.tasks["policy"].predict

    def slow(inputs):
        if not asked.is_set():
            os.kill(victim, signal.SIGKILL)
            asked.set()
        return predict(inputs)

    robot.tasks["policy"].predict = slow
    return collector.unroll(steps)


@pytest.mark.fault
def test_a_killed_agent_ends_the_run_by_name():
    """kill -9 in the middle of a request: no other agent hangs, and the error says who is gone."""
    with at_work(env=REPORTS) as (robot, collector), pytest.raises(AgentError, match=r"(?s)agent 1 is gone: .*SIGKILL"):
        killed_in_the_middle(robot, collector)


@pytest.mark.fault
@pytest.mark.parametrize("on_fault", ["drop", "restart"])
def test_the_others_go_on_after_an_agent_was_killed(on_fault, caplog):
    """Its place is free at once; or it is restarted in a worker of its own, and has its lane again."""
    with at_work(env=REPORTS, num_agents=3, num_workers=3, on_fault=on_fault) as (robot, collector):
        before = process_of(robot, 1) if robot.tasks["policy"].rows_stored else None
        assert killed_in_the_middle(robot, collector, steps=20).env_steps >= 40
        assert collector.unroll(5).env_steps >= 10
        assert "agent 1 is gone" in caplog.text
        assert before != process_of(robot, 1) or on_fault == "drop"


@pytest.mark.slow
def test_a_restarted_agent_leaves_no_idle_worker():
    with at_work(env="tests.robots.test_stops:World", on_fault="restart", fail_at=4) as (_, collector):
        with contextlib.suppress(AgentError):
            collector.unroll(30)
        assert len(multiprocessing.active_children()) <= 2


@pytest.mark.slow
def test_an_agents_exception_in_a_worker_is_named():
    told = r"(?s)agent \d failed in its episode 1, env step 4: .*arm is stuck"
    world = "tests.robots.test_stops:World"
    with at_work(env=world, fail_at=4) as (_, collector), pytest.raises(AgentError, match=told):
        collector.unroll(10)


def test_a_row_that_cannot_be_stored_costs_its_agent_and_not_the_run():
    with at_work(LocalRuntime, num_agents=2, on_fault="restart") as (robot, collector):
        task, count = robot.tasks["policy"], itertools.count()
        store = task.store

        def failing(*arguments, **named):
            if next(count) == 6:
                raise ValueError("a row that does not fit")
            return store(*arguments, **named)

        task.store = failing
        assert collector.unroll(10).env_steps >= 20
        assert next(count) > 7


class Brittle(Reports):
    """Fails in step 12 of its life."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 12:
            raise ValueError("the arm is stuck")
        return super().step(action)


@pytest.mark.parametrize("kind", [LocalRuntime, ProcessRuntime])
def test_an_agent_that_begins_anew_has_the_actions_that_are_left(kind):
    """Not those of the whole unroll, with which it would never end."""
    with at_work(kind, 1, "tests.robots.test_hosted:Brittle", 1, on_fault="restart", limit=100) as (_, collector):
        assert collector.unroll(40).env_steps == 40
        assert collector.unroll(5).env_steps == 5
        assert [fault.handled for fault in collector.faults] == ["restart"] * 3


@pytest.mark.parametrize("kind", [LocalRuntime, ProcessRuntime])
def test_a_pause_ends_an_unroll_of_agents_elsewhere(kind, wait_until):
    """Ctrl-C: that no more actions are allowed is said again and again, and is no leave to go on."""
    with at_work(kind, timeout_s=20.0, limit=100) as (robot, collector):
        thread = threading.Thread(target=lambda: collector.unroll(1_000_000), daemon=True)
        thread.start()
        wait_until(lambda: robot.tasks["policy"].predictions > 12)
        collector.pause()
        thread.join(60)
        assert not thread.is_alive() and 10 < collector.env_steps < 1_000_000
        assert collector.unroll(3).env_steps == 6


class HangsOnce(Reports):
    """Hangs in its third step, unless one has done so before.

    Args:
        file: that is made by the one that hangs.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file, self._steps = Path(file), 0

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 3 and not self._file.exists():
            self._file.touch()
            threading.Event().wait()
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("on_fault", ["drop", "restart"])
def test_an_agent_that_hangs_in_a_worker_counts_as_failed(on_fault, tmp_path, caplog):
    """F4: its worker is ended, and the run goes on as after one that died."""
    hangs = {"env": "tests.robots.test_hosted:HangsOnce", "file": str(tmp_path / "hangs"), "timeout_s": 3.0}
    with at_work(on_fault=on_fault, limit=100, **hangs) as (_, collector):
        assert collector.unroll(10).env_steps == {"drop": 13, "restart": 20}[on_fault]
        assert collector.unroll(10).env_steps == {"drop": 10, "restart": 20}[on_fault]
    assert re.search(r"agent \d is gone: the agents \[\d\] have not moved for 3 s", caplog.text)


@pytest.mark.slow
def test_agents_that_share_the_worker_of_one_that_is_dropped_begin_anew(tmp_path):
    hangs = {"env": "tests.robots.test_hosted:HangsOnce", "file": str(tmp_path / "hangs"), "timeout_s": 3.0}
    with at_work(num_agents=3, num_workers=1, on_fault="drop", limit=100, **hangs) as (_, collector):
        collector.unroll(10)
        assert sorted(fault.handled for fault in collector.faults) == ["drop", "restart", "restart"]
        assert collector.unroll(10).env_steps == 20


class Slow(Reports):
    """Leaves a file behind when it is closed, which takes a while.

    Args:
        folder: for the file.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def close(self) -> None:
        threading.Event().wait(0.2)
        (Path(self._folder) / f"{id(self)}_{os.getpid()}").touch()


def test_environments_in_processes_are_closed(tmp_path):
    with at_work(num_agents=4, env="tests.robots.test_hosted:Slow", folder=str(tmp_path)) as (_, collector):
        collector.unroll(8)
    assert len(list(tmp_path.iterdir())) == 4
