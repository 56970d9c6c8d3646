"""Gradient workers that are killed while they compute, and ports that they listen on."""

import copy
import dataclasses
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from palaestra.algorithms import GradientAlgorithm
from palaestra.core import OnPolicy
from palaestra.distributed import DistributedPolicyManager, GradientWorkers
from palaestra.runtime import ProcessRuntime
from palaestra.testing.algorithms import different, whole_state
from palaestra.training import SimplePolicyManager
from tests.algorithms.parts import any_kind, collected
from tests.distributed.parts import QUICK, twin
from tests.faults.test_machine import listening

pytestmark = pytest.mark.fault
STEPS = 12


@pytest.fixture(autouse=True)
def _denormals_are_zeros() -> Iterator[None]:
    """As in every run."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


def many_steps(name: str) -> tuple[Any, Any]:
    """An algorithm whose updates have many gradient steps, and its data."""
    algorithm, collector = collected(name, any_kind(name))
    field = "num_epochs" if isinstance(algorithm.plan, OnPolicy) else "gradient_steps"
    algorithm.plan = dataclasses.replace(algorithm.plan, **{field: STEPS})
    return algorithm, collector.buffer


def unbroken(algorithm: Any, buffer: Any, updates: int) -> dict[str, Any]:
    alone = twin(algorithm)
    with ProcessRuntime(QUICK) as runtime:
        for _ in range(updates):
            GradientWorkers({"policy": alone}, runtime, 0, num_shards=4).update("policy", copy.deepcopy(buffer))
    return whole_state(alone)


def processes(runtime: ProcessRuntime, name: str) -> list[int]:
    return [seat.process.pid for seat in runtime._alive.values() if seat.worker.name == name]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "impala", "mappo"])
def test_a_replica_killed_in_the_middle_of_an_update_changes_no_bit(name, workers, monkeypatch):
    """F17: two or four learners, resumed with four or two, end with the weights of one that nothing happened to."""
    algorithm, buffer = many_steps(name)
    expected = unbroken(algorithm, buffer, 4)
    steps, killed, apply = [0], [], GradientAlgorithm.apply_shards
    with ProcessRuntime(QUICK) as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, workers, num_shards=4)

        def apply_and_kill(one: Any, parts: Any) -> Any:
            result = apply(one, parts)
            steps[0] += 1
            if steps[0] == STEPS + STEPS // 2:  # in the second update
                killed.append(processes(runtime, "grad-worker")[-1])
                os.kill(killed[0], signal.SIGKILL)
            return result

        monkeypatch.setattr(GradientAlgorithm, "apply_shards", apply_and_kill)
        for _ in range(3):
            pool.update("policy", copy.deepcopy(buffer))
        assert len(killed) == 1
        assert runtime.restarted == 1
        assert pool.regrouped >= 1
        pool.close()
    resumed, _ = many_steps(name)
    resumed.load_state_tensors(algorithm.state_tensors())
    with ProcessRuntime(QUICK) as runtime:
        pool = GradientWorkers({"policy": resumed}, runtime, 4 - workers, num_shards=4)
        pool.update("policy", copy.deepcopy(buffer))
        pool.close()
    assert not different(expected, whole_state(resumed))


@pytest.mark.parametrize("victim", ["grad-worker", "policy-host"])
def test_a_rank_killed_beside_a_policy_host_changes_no_bit(victim):
    """F14, F17: the host is rank 0; where it dies the update begins again with the data that was drawn."""
    algorithm, buffer = many_steps("ppo")
    algorithm.plan = dataclasses.replace(algorithm.plan, num_epochs=6 * STEPS)
    expected = unbroken(algorithm, buffer, 3)
    with ProcessRuntime(QUICK) as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, 1, num_shards=4)
        manager = DistributedPolicyManager({"policy": algorithm}, runtime, gradient_workers=pool)
        ask, finishes = runtime.call, []

        def call_and_kill(worker: str, method: str, *args: Any) -> Any:
            made = ask(worker, method, *args)
            if method == "finish" and "policy-host" in worker:
                finishes.append(worker)
                if len(finishes) == 2:  # asked again, so the update is on its way
                    os.kill(processes(runtime, victim)[0], signal.SIGKILL)
            return made

        runtime.call = call_and_kill
        for _ in range(3):
            manager.update({"policy": copy.deepcopy(buffer)})
        assert len(finishes) >= 2
        assert runtime.restarted == 1
        manager.close()
    assert not different(expected, whole_state(algorithm))


def test_ranks_of_this_machine_listen_on_loopback_alone():
    """F29, F30: the group needs ports; nobody on another machine can reach them."""
    algorithm, buffer = many_steps("ppo")
    with ProcessRuntime(QUICK) as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, 1)
        SimplePolicyManager({"policy": algorithm}, gradient_workers=pool).update({"policy": copy.deepcopy(buffer)})
        ports = listening([os.getpid(), *processes(runtime, "grad-worker")])
        pool.close()
    assert len(ports) >= 2
    assert {port.split(":")[0] for port in ports} == {"0100007F"}
