"""Agents in processes and Ray actors: the same class, the same tasks, and what happens when one is killed."""

import importlib.util
import os
import signal
import threading


import pytest

from palaestra import Trainer, TrainerConfig
from palaestra.robots import AgentError, RobotConfig
from tests.robots.parts import OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

ENDLESS, PENDULUM = "palaestra.envs.tiny:Endless", "Pendulum-v1"
RUNTIMES = [
    "process",
    pytest.param(
        "ray",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
        ],
    ),
]


def setup(agents="process", num_agents=2, env=ENDLESS, on_fault="raise", per_worker=1, **kwargs):
    make = env_maker(env, **kwargs)
    settings = (("initial_collect_steps", 0), ("mini_batch_size", 4))
    robot = robot_of(OneTaskRobot, make, OneTaskConfig(name="dqn", settings=settings))
    config = RobotConfig(agents=agents, timeout_s=30.0, steps_per_iteration=10, agents_per_worker=per_worker)
    return robot, collector_of(robot, make, num_agents, config=config, on_fault=on_fault)


def pids(collector):
    """Of the worker processes, by their runtime's own record."""
    return {s.id: s.pid for s in collector._crew._runtime.status().values()}


@pytest.mark.parametrize("agents", RUNTIMES)
def test_agents_live_elsewhere_and_learn_here(agents):
    """PARL-17: as many env steps, updates and rows as agents in threads make."""
    robot, collector = setup(agents, limit=8)
    with collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=60)).run()
        assert collector.env_steps == 60
        task = robot.tasks["policy"]
        assert task.predictions == 60 and task.algorithm.num_gradient_steps > 10
        assert task.buffer is not None and all(len(task.buffer.in_time_order(lane)) > 30 for lane in (0, 1))
        assert [e.length for e in collector.drain()] == [] and collector._crew.steps == 60


def test_several_agents_share_a_worker():
    robot, collector = setup(num_agents=3, per_worker=2)
    with collector:
        assert collector.unroll(10).env_steps == 30
        assert len(collector._crew._hosts) == 2
    assert robot.tasks["policy"].rows_stored == 30


def test_episodes_come_back_with_the_number_of_their_agent():
    _, collector = setup(limit=5)
    with collector:
        episodes = collector.unroll(20).episodes
    assert [(e.env_id, e.length, e.episode_return) for e in episodes[:3]] == [(0, 5, 5.0)] * 3
    assert {e.env_id for e in episodes} == {0, 1}
