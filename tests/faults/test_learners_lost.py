"""Learners that are lost at each point of an update: the run goes on, and ends with the bits of the unbroken one.

python -m tests.faults.test_learners_lost    # writes the weights that it ends with, after a change that moves them
"""

import copy
import functools
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch

from palaestra.algorithms import GradientAlgorithm
from palaestra.distributed import GradientWorkers, PolicyHost, exchange, gradient_workers
from palaestra.distributed.exchange import Exchange, GroupSeat
from palaestra.distributed.policy_host import HostTask
from palaestra.runs import read_faults
from palaestra.runtime import LocalRuntime, ProcessRuntime, WorkerDiedError
from palaestra.runtime.calls import Arrival
from palaestra.testing.algorithms import different, whole_state
from tests.algorithms.parts import any_kind, collected
from tests.distributed.parts import QUICK
from tests.faults.parts import command, differences, logged, run_contents

UPDATES, SHARDS = 5, 4
GOLDEN = Path(__file__).with_name("learners_lost.json")
POINTS: dict[str, tuple[Any, str, int]] = {
    "before rows": (PolicyHost, "update", 2),
    "with rows": (PolicyHost, "_give_up", 2),
    "joining": (exchange, "_own_address", 1),
    "with values": (Exchange, "by_lanes", 2),
    "in gradients": (GradientAlgorithm, "gradients", 8),
    "with gradients": (Exchange, "_gathered", 5),
    "in apply": (GradientAlgorithm, "apply_shards", 5),
    "when done": (PolicyHost, "finish", 2),
}
"""Functions that a learner does not return from, at their how manieth call."""
LOST = [(2, 1), (4, 2), (4, 3)]
"""Learners, and which of them is lost: 2 of 4 is no neighbour of rank 0."""
_here = threading.local()  # the rank of a thread that makes an update
_hosts = WeakKeyDictionary[PolicyHost, int]()  # ranks of hosts


def rank_of(one: Any, args: Any) -> int | None:
    """The rank of who calls a function of `POINTS`."""
    if isinstance(one, PolicyHost):
        seats = [task.seat for task in args if isinstance(task, HostTask) and task.seat is not None]
        return seats[0].rank if seats else _hosts.get(one)
    if isinstance(one, Exchange):
        return one.seat.rank
    return one.rank if isinstance(one, GroupSeat) else getattr(_here, "rank", None)


def arm(put: Callable[[Any, str, Any], None], point: str, victim: int, die: Callable[[], None]) -> None:
    """Lets a rank die at a point, the first time that it comes there often enough."""
    owner, name, times = POINTS[point]
    step, update, count = Exchange.step, PolicyHost.update, [0]

    def with_rank(mine: Exchange, *args: Any) -> Any:
        _here.rank = mine.seat.rank
        return step(mine, *args)

    def updating(mine: PolicyHost, policy: str, task: HostTask, *args: Any) -> None:
        assert task.seat is not None
        _hosts[mine] = task.seat.rank
        update(mine, policy, task, *args)

    put(Exchange, "step", with_rank)
    put(PolicyHost, "update", updating)
    method = getattr(owner, name)

    @functools.wraps(method)
    def fatal(one: Any, *args: Any) -> Any:
        if rank_of(one, args) == victim:
            count[0] += 1
            if count[0] >= times:
                die()
        return method(one, *args)

    put(owner, name, fatal)


def started() -> tuple[Any, Any]:
    """An algorithm and its data."""
    algorithm, collector = collected("ppo", any_kind("ppo"))
    return algorithm, collector.buffer


def updated(pool: GradientWorkers, buffer: Any) -> None:
    for _ in range(UPDATES):
        pool.update("policy", copy.deepcopy(buffer))


@functools.cache
def unbroken() -> dict[str, Any]:
    """What one learner ends with, to whom nothing happens."""
    algorithm, buffer = started()
    with LocalRuntime(QUICK) as runtime:
        updated(GradientWorkers({"policy": algorithm}, runtime, 0, num_shards=SHARDS), buffer)
    return whole_state(algorithm)


def summary() -> dict[str, list[float]]:
    """Sums of weights and of their squares, by parameter."""
    weights = {name: value.double() for name, value in unbroken().items() if torch.is_tensor(value)}
    floats = {name: value for name, value in weights.items() if name.startswith("model.")}
    return {name: [float(value.sum()), float(value.square().sum())] for name, value in floats.items()}


def test_the_unbroken_run_ends_with_the_weights_that_are_kept():
    """F34: what all runs below end with; other processors may round the last digits otherwise."""
    kept, now = json.loads(GOLDEN.read_text()), summary()
    assert kept.keys() == now.keys()
    assert all(now[name] == pytest.approx(kept[name], rel=1e-5, abs=1e-6) for name in kept)


@pytest.mark.parametrize(("learners", "victim"), [LOST[0], pytest.param(*LOST[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", POINTS)
def test_a_learner_lost_at_any_point_of_an_update_changes_no_bit(point, learners, victim, monkeypatch):
    """F17, F34: it is replaced, its loss is named with rank and update, and the weights are the unbroken run's."""
    algorithm, buffer = started()
    monkeypatch.setattr(exchange, "_MEETING_S", 0.5)
    with LocalRuntime(QUICK) as runtime:
        pool, dead = GradientWorkers({"policy": algorithm}, runtime, learners - 1, num_shards=SHARDS), set[Any]()
        worker = list(runtime.status())[victim - 1]

        def die() -> None:
            if not dead:
                dead.add((worker, runtime.status()[worker].incarnation))
                raise RuntimeError("it was killed")

        def poll(timeout_s: float, polled: Any = runtime.poll) -> list[Arrival]:
            error = WorkerDiedError("it was killed by a test")
            return [
                Arrival(one.worker, one.incarnation, None, error=error) if one[:2] in dead else one
                for one in polled(timeout_s)
            ]

        monkeypatch.setattr(runtime, "poll", poll)
        arm(monkeypatch.setattr, point, victim, die)
        updated(pool, buffer)
        assert runtime.restarted == pool.lost == pool.faults.total == 1
        assert f"the learner of rank {victim} of {learners} is lost in update " in pool.faults[0].what
        assert pool.metrics() == {"learners/there": learners, "learners/lost": 1}
    assert not different(whole_state(algorithm), unbroken())


def mortal(factory: Callable[[], Any], point: str, victim: int, marker: Path) -> Any:
    """In the process of a replica: it kills itself at a point, if none has."""

    def die() -> None:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    arm(setattr, point, victim, die)
    return factory()


@pytest.mark.fault
@pytest.mark.parametrize(("learners", "victim"), LOST)
@pytest.mark.parametrize("point", POINTS)
def test_a_learner_killed_by_sigkill_at_any_point_changes_no_bit(point, learners, victim, tmp_path, monkeypatch):
    """F17, F34: in processes, and nobody waits for the deadline of two minutes."""
    algorithm, buffer = started()
    made = gradient_workers.host_factory

    def factory(algorithms: Any) -> Any:
        return lambda number: functools.partial(mortal, made(algorithms)(number), point, victim, tmp_path / "killed")

    monkeypatch.setattr(gradient_workers, "host_factory", factory)
    with ProcessRuntime(QUICK) as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, learners - 1, num_shards=SHARDS)
        updated(pool, buffer)
        assert runtime.restarted == pool.lost == 1
        pool.close()
    assert not different(whole_state(algorithm), unbroken())


KILLED_IN_SAVE = """
import os, signal
from palaestra.cli import main
from palaestra.runtime import ProcessRuntime
from palaestra.training import CheckpointStore
replicas, saves, launch, save = [], [0], ProcessRuntime.launch, CheckpointStore.save
def launched(runtime, worker):
    seat = launch(runtime, worker)
    replicas.extend([seat.process.pid] if worker.name == "grad-worker" else [])
    return seat
def saved(*args, **kwargs):
    saves[0] += 1
    if saves[0] == 2:
        os.kill(replicas[-1] if replicas else os.getpid(), signal.SIGKILL)
    return save(*args, **kwargs)
ProcessRuntime.launch, CheckpointStore.save = launched, saved
main()
"""
RUN = (
    *("ppo", "CartPole-v1", "--env.num-envs", "4", "--runtime", "process", "--num-workers", "1"),
    *("--distributed.gradient-shards", "4", "--trainer.total-env-steps", "3000", "--trainer.eval-episodes", "1"),
    *("--trainer.checkpoint-every-steps", "1000", "--run.seed", "1"),
)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2, 4])
def test_a_learner_killed_while_the_run_saves_changes_no_bit(learners, tmp_path):
    """F9, F34: the only learner is the run's own process, which `resume` restarts; another is replaced and named."""
    command("train", *RUN, "--run.name", "whole", folder=tmp_path)
    mine = ("--distributed.num-learners", str(learners), "--run.name", "lost")
    command("train", *RUN, *mine, folder=tmp_path, program=KILLED_IN_SAVE, check=-9 if learners == 1 else 0)
    if learners == 1:
        command("resume", "lost", folder=tmp_path)
    else:
        (fault,) = read_faults(tmp_path / "runs" / "lost")
        assert "is lost" in fault.message
        assert fault.action == "restarted"
        assert logged(tmp_path / "runs" / "lost")[-1]["learners/lost"] == 1
    whole, lost = (run_contents(tmp_path / "runs" / name) for name in ("whole", "lost"))
    assert not differences(whole["state"], lost["state"])
    assert whole["files"] == lost["files"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.write_text(json.dumps(summary(), indent=1) + "\n")
