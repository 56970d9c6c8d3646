"""The same seeds and workers give the same weights wherever the workers live."""

import importlib.util

import pytest
import torch

from palaestra import Collector, RunSeeds, Trainer, create_environment
from palaestra.algorithms import ALGORITHMS
from palaestra.core import Offline
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime
from tests.algorithms.parts import CASES, FAST, slow_but_of
from tests.distributed.runs import assert_same, env_of, iterate, make_algorithm, make_trainer

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
)
RUNS = {"ppo": "discrete", "dqn": "discrete", "sac": "continuous"}
ONLINE = [(name, kind) for name, kind in CASES if ALGORITHMS[name].config_class.plan_class is not Offline]


@pytest.fixture(scope="module")
def reference():
    """What `LocalRuntime`, the definition, gives after ten iterations."""
    states = {}
    for name, kind in RUNS.items():
        with LocalRuntime() as runtime:
            states[name] = iterate(make_trainer(runtime, name, kind), 10)
    return states


@pytest.mark.parametrize("name", RUNS)
def test_processes_give_the_same_weights_bit_by_bit(name, reference):
    with ProcessRuntime() as runtime:
        assert_same(iterate(make_trainer(runtime, name, RUNS[name]), 10), reference[name])


@pytest.mark.slow
def test_processes_with_shards_of_replay_give_them_too(reference):
    with ProcessRuntime() as runtime:
        assert_same(iterate(make_trainer(runtime, "dqn", replay_shards=3), 10), reference["dqn"])


@pytest.mark.slow
@NEEDS_RAY
def test_ray_gives_the_same_weights_bit_by_bit(reference):
    with RayRuntime() as runtime:
        for name, kind in RUNS.items():
            assert_same(iterate(make_trainer(runtime, name, kind), 10), reference[name])
        for name, kind in (("dqn", "discrete"), ("sac", "continuous")):
            assert_same(iterate(make_trainer(runtime, name, kind, replay_shards=3), 10), reference[name])


@pytest.mark.parametrize(("name", "kind"), slow_but_of(FAST, ONLINE))
def test_one_worker_is_a_collector_somewhere_else(name, kind):
    """Every algorithm learns the same, bit by bit, from a worker's fragments as from a collector's rows."""
    with LocalRuntime() as runtime:
        remote = iterate(make_trainer(runtime, name, kind, num_workers=1), 4)
    algorithm = make_algorithm(name, kind)
    algorithm.policy.seed(RunSeeds(0).integer("acting", 1))
    with create_environment(env_of(kind)) as env:
        here = iterate(Trainer(Collector.of(env, algorithm), algorithm), 4)
    for state in (remote, here):
        for key in ("generator.acting", "exploration.noise", "exploration.left"):
            state.pop(key, None)  # the worker's own has moved, not the learner's
    assert_same(remote, here)


def test_environments_have_the_seeds_that_they_have_in_one_process():
    algorithm = make_algorithm("ppo", "discrete")
    with create_environment(env_of("discrete")) as env:
        collector = Collector.of(env, algorithm)
        collector.unroll(1)
    with LocalRuntime() as runtime:
        manager = make_trainer(runtime, "ppo").collector
        manager.unroll(1)
    first = [buffer.newest(1).observation[0] for buffer in (collector.buffer, manager.buffers["policy"])]
    assert torch.equal(*first)
