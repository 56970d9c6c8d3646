"""Threads that compute use as many cores as who starts them."""

import pytest
import torch

from palaestra.algorithms import ALGORITHMS
from palaestra.core import computing_thread
from tests.robots.parts import OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_a_thread_computes_with_the_cores_of_who_makes_it(cores):
    torch.set_num_threads(cores)
    found = []
    thread = computing_thread(lambda value: found.append((value, torch.get_num_threads())), 7)
    thread.start()
    thread.join()
    assert found == [(7, cores)]
    assert torch.get_num_threads() == cores


@pytest.mark.parametrize("cores", [2, 3])
def test_a_robot_learns_with_the_cores_that_the_run_chose(cores, monkeypatch):
    """Weights differ in the last bit where a task learns with more cores than its `Trainer` would."""
    torch.set_num_threads(cores)
    found, kind = [], ALGORITHMS["a2c"]
    update = kind.update
    monkeypatch.setattr(kind, "update", lambda *args: (found.append(torch.get_num_threads()), update(*args))[1])
    make_env = env_maker("palaestra.envs.tiny:Endless", random=True, size=3)
    robot = robot_of(OneTaskRobot, make_env, OneTaskConfig(name="a2c", settings=(("unroll_length", 5),)))
    with collector_of(robot, make_env) as collector:
        collector.unroll(20)
    assert set(found) == {cores}
