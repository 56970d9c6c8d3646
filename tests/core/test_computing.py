"""Threads that compute use as many cores as who starts them; products are made by the faster library."""

import dataclasses
import functools
import itertools

import pytest
import torch

from palaestra import preset
from palaestra.algorithms import ALGORITHMS
from palaestra.core import computing, computing_thread
from palaestra.experiments import make_algorithm
from palaestra.runtime import ProcessRuntime
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
    monkeypatch.setattr(computing.time, "perf_counter", lambda: next(now))
    torch.set_num_threads(3)
    assert computing.faster_threads(256, (256, 256), 4) == chosen
    assert cores() == 3


@pytest.mark.parametrize("limit", ["1,2", " 1 ", "1"])
def test_the_first_level_of_openmp_counts(limit, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert computing.faster_threads(10**6, (512, 512), 4) == 1


@pytest.mark.parametrize("limit", ["0", "", "many"])
def test_a_limit_that_is_none_is_not_kept(limit, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert computing.faster_threads(10**6, (8,), 1) == 1
    assert computing.faster_threads(256, (64, 64), 4) == 1


def test_one_thread_for_small_networks_and_where_the_environment_says_so(monkeypatch):
    assert computing.faster_threads(10**6, (512, 512), 4) == 1  # OMP_NUM_THREADS=1 in tests
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", lambda number: pytest.fail("nothing has to be measured"))
    assert computing.faster_threads(256, (64, 64), 4) == 1
    assert computing.faster_threads(256, (), 4) == 1
    assert computing.faster_threads(10**6, (512,), 1) == 1


def precision_of(_: object = None) -> str:
    return torch.get_float32_matmul_precision()


class Multiplier:
    def library(self) -> tuple[str, bool]:
        return precision_of(), computing.prefers_onednn()


def chosen(monkeypatch: pytest.MonkeyPatch, gain: float) -> bool:
    """Whether oneDNN is, if the clock says that its products take so much less time."""
    choose = computing._onednn_is_better.__wrapped__
    now = itertools.accumulate(
        itertools.repeat(0), lambda total, _: total + 1e-4 / (gain if precision_of() == "medium" else 1), initial=0
    )
    with monkeypatch.context() as patched:
        patched.setattr(computing.time, "perf_counter", lambda: next(now))
        return choose()


def test_products_are_made_by_onednn_where_it_is_much_faster(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    exact = not any(torch.cpu.get_capabilities().get(name) for name in ("amx_bf16", "amx_tile"))
    assert chosen(monkeypatch, 2.0) == exact
    assert not chosen(monkeypatch, 1.1)
    assert not chosen(monkeypatch, 0.5)


def test_a_library_that_loses_digits_makes_no_products(monkeypatch):
    monkeypatch.setattr(torch, "full", lambda size, value: torch.rand(size))
    assert not chosen(monkeypatch, 2.0)


def test_where_a_gpu_would_round_the_library_stays(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not chosen(monkeypatch, 2.0)


def test_large_networks_prefer_onednn_and_small_ones_do_not(monkeypatch):
    monkeypatch.setattr(computing, "_onednn_is_better", lambda: True)
    make_algorithm(preset("sac", "Pendulum-v1"))  # 256 x 256 units, minibatches of 256
    assert computing.prefers_onednn()
    assert precision_of() == "medium"
    make_algorithm(preset("ppo", "CartPole-v1"))
    assert not computing.prefers_onednn()
    assert precision_of() == "highest"
    small = preset("sac", "Pendulum-v1")
    make_algorithm(dataclasses.replace(small, algorithm=dataclasses.replace(small.algorithm, mini_batch_size=16)))
    assert not computing.prefers_onednn()


def test_a_worker_multiplies_as_the_process_that_made_it(monkeypatch):
    monkeypatch.setattr(computing, "_onednn_is_better", functools.cache(lambda: True))
    for wanted in (True, False):
        computing.prefer_onednn(wanted)
        with ProcessRuntime() as runtime:
            worker = runtime.start(Multiplier, name="worker")
            library, preferred = runtime.wait([runtime.call(worker, "library")], timeout_s=60)[0].unwrap()
        assert preferred == (library == "medium")
        assert preferred <= wanted
