"""Threads that compute use as many cores as who starts them."""

import itertools

import pytest
import torch

from palaestra.algorithms import ALGORITHMS
from palaestra.core import computing_thread, threads
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


@pytest.mark.parametrize(("gain", "chosen"), [(1.1, 1), (0.4, 1), (1.5, 4)])
def test_as_many_threads_as_are_measured_to_be_faster(gain, chosen, monkeypatch):
    """The clock says what a gradient took, by the threads that computed it."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    now = itertools.accumulate(itertools.repeat(0), lambda total, _: total + 1e-4 / (gain ** (cores() > 1)), initial=0)
    cores = torch.get_num_threads
    monkeypatch.setattr(threads.time, "perf_counter", lambda: next(now))
    torch.set_num_threads(3)
    assert threads.faster_threads(256, (256, 256), 4) == chosen
    assert cores() == 3


@pytest.mark.parametrize("limit", ["1,2", " 1 ", "1"])
def test_the_first_level_of_openmp_counts(limit, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert threads.faster_threads(10**6, (512, 512), 4) == 1


@pytest.mark.parametrize("limit", ["0", "", "many"])
def test_a_limit_that_is_none_is_not_kept(limit, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert threads.faster_threads(10**6, (8,), 1) == 1
    assert threads.faster_threads(256, (64, 64), 4) == 1


def test_one_thread_for_small_networks_and_where_the_environment_says_so(monkeypatch):
    assert threads.faster_threads(10**6, (512, 512), 4) == 1  # OMP_NUM_THREADS=1 in tests
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", lambda number: pytest.fail("nothing has to be measured"))
    assert threads.faster_threads(256, (64, 64), 4) == 1
    assert threads.faster_threads(256, (), 4) == 1
    assert threads.faster_threads(10**6, (512,), 1) == 1
