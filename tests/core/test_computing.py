"""Threads that compute use as many cores as who starts them; products are made by the faster library."""

import dataclasses
import itertools

import pytest
import torch

from palaestra import preset
from palaestra.algorithms import ALGORITHMS
from palaestra.config.config import config_from_mapping
from palaestra.core import computing, computing_thread, prefer_onednn
from palaestra.experiments import make_algorithm, make_learner
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
@pytest.mark.parametrize("picture", [(), (4, 84, 84), (1, 6, 6)])
def test_as_many_threads_as_are_measured_to_be_faster(gain, chosen, picture, monkeypatch):
    """The clock says what a gradient took, by the threads that computed it."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    now = itertools.accumulate(itertools.repeat(0), lambda total, _: total + 1e-4 / (gain ** (cores() > 1)), initial=0)
    cores = torch.get_num_threads
    monkeypatch.setattr(computing, "choose_library", lambda largest: None)
    monkeypatch.setattr(computing.time, "perf_counter", lambda: next(now))
    torch.set_num_threads(3)
    assert computing.faster_threads(256, (256, 256), 4, picture) == chosen
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


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"unified/cpu.max": "250000 100000"}, 2),
        ({"unified/cpu.max": "max 100000"}, 64),
        ({"unified/cpu.max": "50000 100000"}, 1),
        ({"cpu/outer/cpu.cfs_quota_us": "300000", "cpu/outer/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/outer/cpu.cfs_quota_us": "-1", "cpu/outer/cpu.cfs_period_us": "100000"}, 64),
        ({}, 64),
    ],
)
def test_a_container_has_no_more_cores_than_time_for_them(files, cores, tmp_path, monkeypatch):
    """Both kinds of control groups, of the own group and of those above it."""
    own = tmp_path / "cgroup"
    own.write_text("4:cpu,cpuacct:/outer/inner\n3:memory:/\n0::/unified\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    groups = computing.control_groups
    monkeypatch.setattr(computing, "control_groups", lambda controller: groups(controller, tmp_path, own))
    monkeypatch.setattr(computing.os, "sched_getaffinity", lambda _: range(64))
    assert computing.num_cores() == cores


def precision_of(_: object = None) -> str:
    return torch.get_float32_matmul_precision()


def is_exact() -> bool:
    """What is found out once in a process."""
    return computing._onednn_is_exact.__wrapped__()


class Multiplier:
    def library(self) -> tuple[str, bool]:
        return precision_of(), computing.prefers_onednn()


@pytest.mark.parametrize(("gain", "faster"), [(2.0, True), (1.1, False), (0.5, False)])
def test_products_are_made_by_onednn_where_it_is_much_faster(gain, faster, monkeypatch):
    """The clock says what a product took, by the library that made it."""
    now = itertools.accumulate(
        itertools.repeat(0), lambda total, _: total + 1e-4 / (gain if precision_of() == "medium" else 1), initial=0
    )
    monkeypatch.setattr(computing.time, "perf_counter", lambda: next(now))
    torch.set_num_threads(2)
    assert computing._onednn_is_faster.__wrapped__() == faster
    assert precision_of() == "highest"
    assert torch.get_num_threads() == 2


def test_a_library_that_loses_digits_makes_no_products(monkeypatch):
    """A product that rounds to bfloat16, as processors with AMX make it, at the precision that allows it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    multiply = torch.Tensor.__matmul__

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return multiply(a.bfloat16().float(), b) if precision_of() == "medium" else multiply(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not is_exact()
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: multiply(a.double(), b.double()).float())
    assert is_exact()
    assert precision_of() == "highest"


def test_a_precision_that_backends_have_alone_stays(monkeypatch):
    def mixed() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert not is_exact()


def test_where_a_gpu_would_round_the_library_stays(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not is_exact()


@pytest.fixture
def better(monkeypatch):
    """oneDNN is faster, and as exact."""
    monkeypatch.setattr(computing, "_onednn_is_exact", lambda: True)
    monkeypatch.setattr(computing, "_onednn_is_faster", lambda: True)


def test_what_was_set_before_is_put_back(better):
    torch.set_float32_matmul_precision("high")
    try:
        for wanted in (False, True, True, False, False):
            prefer_onednn(wanted)
            assert precision_of() == ("medium" if wanted else "high")
    finally:
        torch.set_float32_matmul_precision("highest")


def test_large_networks_prefer_onednn_and_small_ones_do_not(better):
    make_algorithm(preset("sac", "Pendulum-v1"))  # 256 x 256 units, minibatches of 256
    assert computing.prefers_onednn()
    assert precision_of() == "medium"
    make_algorithm(preset("ppo", "CartPole-v1"))
    assert not computing.prefers_onednn()
    assert precision_of() == "highest"
    small = preset("sac", "Pendulum-v1")
    make_algorithm(dataclasses.replace(small, algorithm=dataclasses.replace(small.algorithm, mini_batch_size=16)))
    assert not computing.prefers_onednn()


def test_the_largest_network_of_many_agents_decides(better):
    for names in (("large", "small"), ("small", "large")):
        config = preset("ppo", "palaestra.multiagent:Meeting")
        sizes = {"large": (256, 256), "small": (8,)}
        policies = {
            name: {"algorithm": "ppo", "mini_batch_size": 256, "network": {"hidden_sizes": sizes[name]}}
            for name in names
        }
        settings = {"agents": {"mapping": {"agent_0": names[0], "*": names[1]}, "policies": policies}}
        make_learner(config_from_mapping(type(config), settings, base=config))
        assert computing.prefers_onednn()


def test_a_worker_multiplies_as_the_process_that_made_it():
    prefer_onednn(True)
    exact = computing.prefers_onednn()
    for wanted in (True, False):
        prefer_onednn(wanted)
        with ProcessRuntime() as runtime:
            worker = runtime.start(Multiplier, name="worker")
            library = runtime.wait([runtime.call(worker, "library")], timeout_s=60)[0].unwrap()
        assert library == (("medium", True) if wanted and exact else ("highest", False))
