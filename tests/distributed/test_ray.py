"""Roll-out workers on a Ray cluster of several nodes, of which one is killed and one joins."""

import functools
import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra import EnvConfig, Trainer, TrainerConfig
from palaestra.core import Batch, ConfigError
from palaestra.distributed import ShardMap
from palaestra.runtime import RayRuntime, RestartPolicy, Shared, WorkerDiedError, ray_cluster
from palaestra.runtime.messages import Message
from palaestra.runtime.ray_cluster import ClusterError
from tests.contracts.workers import Counter
from tests.distributed.runs import make_manager
from tests.distributed.shards import LANES, Pair, assert_equal, plan_of, up_to_ends
from tests.distributed.test_processes import calls_of, mean_return, ppo_for
from tests.faults.parts import COMMAND, child_environment, logged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fault,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

SOON = 120.0
PAYS = EnvConfig(name="tests.distributed.runs:Pays", num_envs=3)


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def test_a_cluster_grows_and_shrinks_while_a_run_goes_on(cluster):
    """F15, MARO-26: three nodes, one more, one killed; every sample is counted once and learning goes on."""
    first, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    make = functools.partial(ppo_for, PAYS, unroll_length=10, learning_rate=0.01, mini_batch_size=3, num_epochs=4)
    algorithm = make()
    with RayRuntime(RestartPolicy(max_restarts=20, backoff_s=0.1), address=cluster.address) as runtime:
        manager = make_manager(runtime, algorithm, PAYS, make, num_workers=3, timeout_s=SOON)
        trainer = Trainer(manager, algorithm, TrainerConfig(total_env_steps=10**9))
        asked, versions, steps = calls_of(runtime, "collect"), [], []

        def train(iterations):
            for _ in range(iterations):
                trainer.train_iter()
                versions.append(algorithm.policy_version)
                steps.append(manager.env_steps)

        train(10)
        assert manager.metrics()["workers/there"] == 3
        cluster.add_node(num_cpus=1)
        train(5)
        cluster.remove_node(first, allow_graceful=False)
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline and not (manager.faults and manager.metrics()["workers/there"] == 3):
            train(1)
        train(5)
        while mean_return(trainer) < 7 and time.monotonic() < deadline:
            train(1)
        metrics = manager.metrics()
    assert metrics["workers/there"] == 3
    assert len(manager.faults) == 1
    assert manager.faults[0].handled == "restart"
    assert len(set(asked)) == len(asked) == metrics["workers/fragments"] + metrics["workers/dropped"]
    assert metrics["workers/dropped"] <= 1
    assert all(after >= before for before, after in itertools.pairwise(steps))
    assert versions == list(range(1, len(versions) + 1))  # no iteration was lost
    assert mean_return(trainer) >= 7  # of 8; chance gives 4


WANTS_FOUR = (
    *("train", "ppo", "CartPole-v1", "--env.num-envs", "4", "--runtime", "ray", "--num-workers", "4"),
    *("--distributed.min-workers", "1", "--distributed.num-cpus", "1", "--distributed.timeout-s", "20"),
    *("--trainer.total-env-steps", "50000000", "--trainer.log-every-steps", "50", "--trainer.eval-every-steps", "0"),
    *("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8", "--algorithm.num-epochs", "1"),
    *("--run.name", "run", "--run.no-tensorboard"),
)


def test_a_run_begins_with_the_workers_that_have_room_grows_and_shrinks(cluster, tmp_path, wait_until):
    """F15, MARO-26: 4 workers wanted, room for 2; a node brings a third and takes it away; none counts as hanging."""
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    program = [sys.executable, "-c", COMMAND, *WANTS_FOUR, "--address", cluster.address]
    directory, log = tmp_path / "runs/run", tmp_path / "log"
    with log.open("wb") as file:
        run = subprocess.Popen(program, cwd=tmp_path, env=child_environment(), stdout=file, stderr=file)

    def so_many(workers):
        def there(beyond=0):
            assert run.poll() is None, log.read_text()
            rows = logged(directory)[-1:]
            return bool(rows) and rows[0]["workers/there"] == workers and rows[0]["env_steps"] > beyond

        wait_until(there, SOON, what=f"{workers} workers")
        reached = logged(directory)[-1]["env_steps"]
        wait_until(lambda: there(reached + 500), SOON, what=f"steps of {workers} workers")

    try:
        so_many(2)
        node = cluster.add_node(num_cpus=1)
        so_many(3)
        cluster.remove_node(node, allow_graceful=False)
        so_many(2)
        run.send_signal(signal.SIGINT)
        assert run.wait(SOON) == 130, log.read_text()
    finally:
        run.kill()
        run.wait()
    rows = logged(directory)
    assert "there is room for 2 of 4 workers" in " ".join(log.read_text().split())
    assert max(row["workers/there"] for row in rows) == 3
    assert rows[-1]["workers/restarts"] == 1  # of the one whose node was taken away
    assert rows[-1]["workers/dropped"] <= 1
    assert all(row["rows_trained"] == row["env_steps"] for row in rows)


def test_a_killed_actor_is_named_and_comes_back():
    """F14."""
    with RayRuntime(RestartPolicy(backoff_s=0.0)) as runtime:
        worker = runtime.start(Counter, name="counter")
        (result,) = runtime.wait([runtime.call(worker, "pid")], timeout_s=SOON)
        call = runtime.call(worker, "hang")
        os.kill(result.unwrap(), signal.SIGKILL)
        (result,) = runtime.wait([call], timeout_s=SOON)
        assert isinstance(result.error, WorkerDiedError)
        assert str(result.error).startswith("counter (Ray actor) died: ")
        runtime.restart(worker)
        (result,) = runtime.wait([runtime.call(worker, "add")], timeout_s=SOON)
        assert result.unwrap() == 1


def test_large_shared_values_are_read_where_the_node_has_them(cluster):
    """Issue 22, weights: no worker of a node has a copy of its own, so that who breaks the rule changes it for all."""
    cluster.add_node(num_cpus=2, resources={"there": 2})
    cluster.wait_for_nodes()
    with RayRuntime(address=cluster.address) as runtime:
        there = [runtime.start(Counter, name="counter", resources={"there": 1}) for _ in range(2)]
        weights = Shared({"w": torch.zeros(50_000)})

        def answers(workers, method, *args):
            calls = [runtime.call(worker, method, weights, *args) for worker in workers]
            return [result.unwrap() for result in runtime.wait(calls, timeout_s=SOON)]

        assert [float(value.sum()) for value in answers(there, "scale", 1)] == [0.0, 0.0]
        answers(there[:1], "overwrite", 1.0)
        assert [float(value[-1]) for value in answers(there, "scale", 1)] == [1.0, 1.0]


class Cutter:
    """Cuts fragments into parcels for shards, where it lives."""

    def split(self, shards: ShardMap, rows: Batch, lanes: list[int]) -> Any:
        return shards.split({"policy": [(lanes, rows)]}, {"policy": 0})


def test_a_node_that_ends_with_a_fragment_that_nobody_fetched_costs_its_rows_alone(cluster):
    """F14, F15: its shard names them as dropped, and goes on with all others; it was taken for dead."""
    doomed = cluster.add_node(num_cpus=1, resources={"doomed": 1})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    plan, lanes, steps = plan_of("n-step"), [0, 1, 2], 1_500  # of the first shard; too large to come here
    with RayRuntime(RestartPolicy(backoff_s=0.1), address=cluster.address) as runtime:
        cutter = runtime.start(Cutter, name="cutter", resources={"CPU": 1, "doomed": 1}, parcels=1)
        pair = Pair(runtime, plan, shards=2)
        pair.fill()
        rows = pair.streams.fragment(lanes, steps)
        (result,) = runtime.wait([runtime.call(cutter, "split", pair.shards.map, rows, lanes)], timeout_s=SOON)
        rest, parcels = result.unwrap()
        assert not isinstance(parcels[0].content, Message)
        cluster.remove_node(doomed, allow_graceful=False)
        for known, which in [(piece, lane) for lane, piece in rest["policy"]]:
            pair.sharded.extend(known, which)
        pair.shards.extend(parcels, ["policy"])
        pair.shards.keep_up()
        pair.whole.extend(rows, lanes)
        ring = pair.whole.positions.ring_size
        for lane in lanes:
            open_row = pair.whole.positions.cursors[lane]
            pair.whole.lose(np.setdiff1d(np.arange(ring), open_row), [lane])
        pair.sharded.draw(plan, torch.Generator())  # in place of a draw that noticed it
        for turn in range(8):
            assert_equal(*(up_to_ends(drawn) for drawn in pair.draws(turn)))
            pair.write(list(range(LANES)), 5)
        (fault,) = pair.shards.faults
        assert (fault.worker, fault.handled, pair.shards.lost_shards) == ("replay shard 1 of 2", "drop", 0)
        assert "rows of a fragment were lost on their way to a shard of replay: a parcel was lost with" in str(fault)
        assert pair.shards.lost_rows == len(lanes) * pair.whole.rows_per_lane
        assert runtime.restarted == 0


def test_a_cluster_that_is_not_there_is_named_at_once():
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"the Ray cluster at '127.0.0.1:1' cannot be joined: .*refused\. If"):
        RayRuntime(address="127.0.0.1:1")
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("knows", [False, True])  # Ray, that there is no token where one is needed
def test_a_cluster_with_another_token_is_told_from_one_that_is_not_there(knows, monkeypatch):
    """F27: it read as if there were none."""
    from ray.exceptions import AuthenticationError

    def refused(**options: Any) -> None:
        raise (AuthenticationError if knows else ConnectionError)("no")

    monkeypatch.setattr("ray.init", refused)
    with socket.create_server(("127.0.0.1", 0)) as there:
        address = f"127.0.0.1:{there.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"cannot be joined: no.* has a token, set RAY_AUTH_MODE=token here"):
            RayRuntime(address=address)


def test_a_machine_on_which_ray_does_not_start_is_no_mistake_of_the_configuration(monkeypatch):
    """F15: as where its head is killed meanwhile; Ray's own error is a plain `Exception`."""

    def timed_out(**options: Any) -> None:
        raise Exception("The current node timed out during startup")

    monkeypatch.setattr("ray.init", timed_out)
    with pytest.raises(ClusterError, match=r"Ray does not start on this machine: The current node timed out") as error:
        RayRuntime()
    assert error.value.exit_code == 3


def test_a_head_that_was_not_asked_for_long_has_half_a_minute_from_the_first_failure_on(monkeypatch):
    """F15: one failed probe after a long update was taken for its end."""
    now, there = [1000.0], [True]

    def reach(address, timeout_s):
        if not there[0]:
            raise ConnectionRefusedError(address)

    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray_cluster, "reach", reach)
    monkeypatch.setattr(ray_cluster.ClusterLine, "_connected", lambda self: None)
    context = SimpleNamespace(get_node_id=lambda: "here", gcs_address="head:6379")
    nodes = [{"NodeID": "here", "RayletSocketName": "/socket"}]
    line = ray_cluster.ClusterLine(SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: nodes))
    for passed_s, answers in [(5.0, True), (600.0, False), (3.0, True), (600.0, False), (29.0, False)]:
        now[0], there[0] = now[0] + passed_s, answers
        line.require_head()
    now[0] += 3.0
    with pytest.raises(ClusterError, match="head:6379, has not answered for 30 s"):
        line.require_head()


LISTENS = """
from palaestra.runtime import RayRuntime
from palaestra.runtime.messages import Message
from palaestra.runtime.ray_cluster import ClusterError
from tests.contracts.workers import Counter

if __name__ == "__main__":
    with RayRuntime() as runtime:
        runtime.start(Counter, name="counter")
        import psutil  # Ray brings it

        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    print(connection.laddr.ip)
"""


def test_without_a_cluster_ray_listens_on_this_machine_alone(tmp_path):
    """No other machine reaches what a run starts on one."""
    script = tmp_path / "listens.py"
    script.write_text(LISTENS)
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    listening = set(done.stdout.split())
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
