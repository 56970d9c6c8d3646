"""The same weights from every manager on every runtime."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from palaestra import Collector, Trainer, TrainerConfig
from palaestra.algorithms import Algorithm
from palaestra.core import POLICY
from palaestra.distributed import DistributedPolicyManager, GradientWorkers
from palaestra.runtime import ProcessRuntime, RayRuntime, Runtime
from palaestra.testing.algorithms import different, whole_state
from palaestra.training import PolicyManager, SimplePolicyManager
from tests.algorithms.parts import any_kind, environment, make
from tests.distributed.parts import QUICK, local

LEARNERS = ["ppo", "dqn", "sac"]
Managing = Callable[[Mapping[str, Algorithm]], PolicyManager]


def trained(name: str, managing: Managing, iterations: int = 10) -> dict[str, Any]:
    """Everything a run holds after a few iterations of the one training loop."""
    with environment(any_kind(name), seed=3) as env:
        algorithm = make(name, env)
        manager = managing({POLICY: algorithm})
        trainer = Trainer(Collector.of(env, algorithm), manager, TrainerConfig(total_env_steps=1000))
        for _ in range(iterations):
            trainer.train_iter()
        manager.close()
    return whole_state(algorithm)


def hosted(runtime: Runtime) -> Managing:
    return lambda algorithms: DistributedPolicyManager(algorithms, runtime)


def in_two_shards(runtime: Runtime, workers: int) -> Managing:
    return lambda algorithms: SimplePolicyManager(
        algorithms, gradient_workers=GradientWorkers(algorithms, runtime, workers, num_shards=2)
    )


def in_two_shards_on_hosts(runtime: Runtime, workers: int) -> Managing:
    return lambda algorithms: DistributedPolicyManager(
        algorithms, runtime, gradient_workers=GradientWorkers(algorithms, runtime, workers, num_shards=2)
    )


PLACES = [
    "local",
    pytest.param("process", marks=pytest.mark.slow),
    pytest.param("ray", marks=pytest.mark.slow),
]


@pytest.fixture(params=PLACES, scope="module")
def runtime(request):
    if request.param == "ray":
        pytest.importorskip("ray", reason="ray is not installed; pip install 'palaestra[ray]'")
    made = {"local": local, "process": lambda: ProcessRuntime(QUICK), "ray": lambda: RayRuntime(QUICK, num_cpus=2)}
    with made[request.param]() as runtime:
        yield runtime


@pytest.mark.parametrize("name", LEARNERS)
def test_ten_iterations_give_the_same_weights_with_every_manager(name, runtime):
    """MARO-25, MARO-26: bit-equal to learning in place, wherever hosts live."""
    in_place = trained(name, SimplePolicyManager)
    assert not different(in_place, trained(name, hosted(runtime)))


@pytest.mark.parametrize("name", LEARNERS)
def test_two_ranks_give_the_weights_of_one_on_every_runtime(name, runtime):
    """MARO-27, MARO-30: with either manager; the cut decides the rounding, not the place."""
    with local() as here:
        expected = trained(name, in_two_shards(here, 0), 4)
    assert not different(expected, trained(name, in_two_shards(runtime, 1), 4))
    assert not different(expected, trained(name, in_two_shards_on_hosts(runtime, 1), 4))
