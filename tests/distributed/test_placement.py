"""Where learners live on a Ray cluster: in one placement group, on one machine where there is room."""

import copy
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.distributed import DistributedPolicyManager, GradientWorkers
from palaestra.runtime import ClusterError, RayRuntime
from palaestra.testing.algorithms import different, whole_state
from tests.algorithms.parts import any_kind, collected
from tests.contracts.workers import Counter
from tests.distributed.parts import QUICK, local, twin
from tests.faults.parts import COMMAND, child_environment, logged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fault,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

SOON = 120.0
ALIVE = ("ALIVE", "PENDING_CREATION", "RESTARTING", "DEPENDENCIES_UNREADY")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head with one CPU, where the driver is, and two nodes with two each."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    torch.set_flush_denormal(True)  # as in every run
    yield cluster
    torch.set_flush_denormal(False)
    ray.shutdown()  # a node that a driver is connected to cannot be removed
    cluster.shutdown()


def groups(state: str | None = None) -> list[dict[str, Any]]:
    """Placement groups that hold room, or wait for it."""
    import ray

    table = ray.util.placement_group_table().values()
    return [one for one in table if (one["state"] == state if state else one["state"] != "REMOVED")]


def actors() -> dict[int, str]:
    """Nodes by process, of actors that live."""
    import ray

    known = ray._private.state.actors().values()
    return {one["Pid"]: one["Address"]["NodeID"] for one in known if one["State"] in ALIVE and one["Pid"]}


def bundles_in_use() -> list[str]:
    """Of placement groups: which bundles somebody has, `0` say."""
    import ray

    free, whole = ray.available_resources(), ray.cluster_resources()
    taken = [name for name, amount in whole.items() if amount - free.get(name, 0.0) == 1 and "CPU_group_" in name]
    return sorted(name.split("_")[2] for name in taken if name.count("_") == 3)


def test_learners_are_one_placement_group_and_one_that_is_killed_comes_back_to_it(cluster, wait_until):
    """F17: packed onto one node; after `kill -9` the new one has the place of the old one, and no bit changes."""
    import ray

    algorithm, collector = collected("ppo", any_kind("ppo"))
    alone, buffer = twin(algorithm), collector.buffer
    with local() as here:
        for _ in range(4):
            GradientWorkers({"policy": alone}, here, 0, num_shards=4).update("policy", copy.deepcopy(buffer))
    with RayRuntime(QUICK, address=cluster.address) as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, 2, num_shards=4)
        pool.update("policy", copy.deepcopy(buffer))
        (group,) = groups()
        assert group["name"].startswith("learners-")
        (node,) = set(group["bundles_to_node_id"].values())  # both on one
        assert node != ray.get_runtime_context().get_node_id()  # whose room is for one
        before = actors()
        assert list(before.values()) == [node, node]
        os.kill(min(before), signal.SIGKILL)
        pool.update("policy", copy.deepcopy(buffer))

        def is_back() -> bool:
            runtime.wait([], timeout_s=0.0)  # begins what is due
            return len(actors().keys() - before.keys()) == 1 and len(actors()) == 2

        wait_until(is_back, SOON)
        pool.update("policy", copy.deepcopy(buffer))
        assert list(actors().values()) == [node, node]
        wait_until(lambda: bundles_in_use() == ["0", "1"], SOON)
        assert [one["placement_group_id"] for one in groups()] == [group["placement_group_id"]]
        pool.update("policy", copy.deepcopy(buffer))
        assert runtime.restarted == 1
        pool.close()
        assert groups() == []
        wait_until(lambda: runtime.room({}) == 5, SOON)
    assert not different(whole_state(algorithm), whole_state(alone))


def test_learners_are_where_their_driver_is_if_there_is_room(cluster):
    """Gradients stay on its machine."""
    import ray

    algorithm, collector = collected("ppo", any_kind("ppo"))
    with RayRuntime(QUICK, address=cluster.address) as runtime:
        group = runtime.placement_group([{}], name="learners")
        pool = GradientWorkers({"policy": algorithm}, runtime, 1, resources=group)
        pool.update("policy", collector.buffer)
        assert list(actors().values()) == [ray.get_runtime_context().get_node_id()]
    assert groups() == []


def test_hosts_are_in_the_group_of_the_replicas_that_learn_with_them(cluster):
    """Two policies, a host for each, and two replicas of both."""
    made = {name: collected("ppo", any_kind("ppo"), seed=number) for number, name in enumerate("ab")}
    algorithms = {name: algorithm for name, (algorithm, _) in made.items()}
    with RayRuntime(QUICK, address=cluster.address) as runtime:
        group = runtime.placement_group([{}] * 4, name="learners")
        pool = GradientWorkers(algorithms, runtime, 2, resources=group)
        manager = DistributedPolicyManager(algorithms, runtime, gradient_workers=pool, resources=group)
        manager.update({name: collector.buffer for name, (_, collector) in made.items()})
        (placed,) = groups()
        assert len(placed["bundles"]) == 4
        assert sorted(actors().values()) == sorted(placed["bundles_to_node_id"].values())
        manager.close()
        assert groups() == []


def test_learners_without_room_are_waited_for_and_what_is_missing_is_said(cluster, caplog):
    """Within a deadline; a node that joins meanwhile gives them room."""
    with RayRuntime(QUICK, address=cluster.address) as runtime:
        worker = runtime.start(Counter, name="counter", resources={"CPU": 2})
        (result,) = runtime.wait([runtime.call(worker, "add")], timeout_s=SOON)
        assert result.unwrap() == 1
        says = r"no room for 4 learners, which need 4 CPU together, and up to 1 CPU of one machine; free are 3 of 5 CPU"
        with pytest.raises(ClusterError, match=says):
            runtime.placement_group([{}] * 4, name="learners", timeout_s=3.5)
        assert "waiting up to 3.5 s for it" in caplog.text
        assert groups() == []
        with pytest.raises(ClusterError, match=r"up to 1 CPU, 1 GPU of one machine; free are 3 of 5 CPU, 0 of 0 GPU"):
            runtime.placement_group([{"GPU": 1.0}], name="learners", timeout_s=0.5)
        cluster.add_node(num_cpus=1)
        runtime.placement_group([{}] * 4, name="learners", timeout_s=SOON)
        assert len(groups("CREATED")) == 1


class Seen:
    """Says which GPUs it may use."""

    def gpus(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_learners_get_gpus_of_their_own_and_keep_them_and_nobody_else_does(cluster):
    """Issue 22, devices: by resource, also after a restart; two halves share one."""
    cluster.add_node(num_cpus=5, num_gpus=2)
    cluster.wait_for_nodes()

    def seen(runtime: Any, workers: list[str]) -> list[str | None]:
        calls = [runtime.call(worker, "gpus") for worker in workers]
        return [result.unwrap() for result in runtime.wait(calls, timeout_s=SOON)]

    with RayRuntime(QUICK, address=cluster.address) as runtime:
        group = runtime.placement_group([{"GPU": 1.0}] + [{"GPU": 0.5}] * 2, name="learners")
        workers = [runtime.start(Seen, name="learner", resources=group) for _ in range(3)]
        first, second, third = seen(runtime, workers)
        assert {first, second} == {"0", "1"}
        assert third == second
        runtime.restart(workers[0])
        assert seen(runtime, workers) == [first, second, third]
        assert seen(runtime, [runtime.start(Seen, name="other")]) == [None]
        with pytest.raises(ClusterError, match=r"need 1 CPU, 1 GPU together.* 0 of 2 GPU of all machines"):
            runtime.placement_group([{"GPU": 1.0}], name="learners", timeout_s=0.5)


TRAIN = (
    *("train", "ppo", "CartPole-v1", "--env.num-envs", "2", "--runtime", "ray", "--num-workers", "1"),
    *("--distributed.num-learners", "3", "--distributed.gradient-shards", "3", "--run.name", "run"),
    *("--trainer.total-env-steps", "50000000", "--trainer.log-every-steps", "50", "--trainer.eval-every-steps", "0"),
    *("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8", "--algorithm.num-epochs", "1"),
    "--run.no-tensorboard",
)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_run_that_is_interrupted_or_killed_leaves_no_group_behind(
    end: signal.Signals, cluster: Any, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """F15: its room is free again for others."""
    import ray

    program = [sys.executable, "-c", COMMAND, *TRAIN, "--address", cluster.address]
    log = tmp_path / "log"
    with log.open("wb") as file, RayRuntime(address=cluster.address):
        run = subprocess.Popen(program, cwd=tmp_path, env=child_environment(), stdout=file, stderr=file)
        try:
            wait_until(lambda: logged(tmp_path / "runs/run") or run.poll() is not None, SOON, what="a row of metrics")
            assert run.poll() is None, log.read_text()
            (group,) = groups()
            assert len(group["bundles"]) == 2
            assert len(set(group["bundles_to_node_id"].values())) == 1
            run.send_signal(end)
            run.wait(SOON)
        finally:
            run.kill()
            run.wait()
        wait_until(lambda: groups() == [], SOON, what="the end of the group")
        wait_until(lambda: ray.available_resources().get("CPU") == 5, SOON, what="its room")
