"""Shards of replay whose processes are killed while a run goes on: what they held is gone, and nothing else (F14)."""

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import palaestra
from palaestra.training import Callback, CheckpointStore
from tests.faults.parts import differences

pytestmark = pytest.mark.fault
NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
)
SMALL: dict[str, Any] = {
    "env__num_envs": 4,
    "distributed__num_workers": 2,
    "distributed__replay_shards": 4,
    "algorithm__learning_starts": 100,
    "algorithm__network__hidden_sizes": (16,),
    "trainer__total_env_steps": 3_000,
    "trainer__checkpoint_every_steps": 500,
    "trainer__log_every_steps": 200,
    "trainer__eval_episodes": 0,
    "run__tensorboard": False,
}


class Killer(Callback):
    """Kills the processes of shards when so many env steps are taken."""

    def __init__(self, *at: int) -> None:
        self.at, self.held, self.gradient_steps = list(at), list[int](), list[int]()

    def iteration_ended(self, trainer: Any, updates: Any) -> None:
        if not self.at or trainer.collector.env_steps < self.at[0]:
            return
        self.at.pop(0)
        replay = trainer.collector.buffers["policy"]
        number = len(self.held) % 4
        lanes = range(number, number + 1)
        self.held.append(int(replay.positions.counts[lanes.start]))
        self.gradient_steps.append(trainer.algorithm.num_gradient_steps)
        end_of(trainer.collector.runtime, f"replay-{number}")


def end_of(runtime: Any, worker: str) -> None:
    """As the system, or a node that is switched off, ends it."""
    handle = runtime._workers[worker].handle
    if hasattr(handle, "process"):
        os.kill(handle.process.pid, signal.SIGKILL)
    else:
        runtime._ray.kill(handle)


@pytest.mark.parametrize("runtime", ["process", pytest.param("ray", marks=[pytest.mark.slow, NEEDS_RAY])])
def test_a_run_whose_shards_have_copies_ends_as_if_none_was_killed(runtime, tmp_path):
    """F14: weights, optimizer, and what can be drawn."""
    states = []
    for killer in (Killer(), Killer(1_000, 1_600)):
        made = palaestra.train(
            *("dqn", "CartPole-v1"),
            run__directory=str(tmp_path),
            distributed__runtime=runtime,
            distributed__replay_copies=True,
            callbacks=[killer],
            **SMALL,
        )
        assert len(list((Path(made.directory) / "faults").glob("*.json"))) == len(killer.held)
        last = json.loads((Path(made.directory) / "metrics.jsonl").read_text().splitlines()[-1])
        assert (last["replay/lost_shards"], last["replay/lost_rows"]) == (len(killer.held), 0)
        _, state = CheckpointStore(Path(made.directory) / "checkpoints").load_newest()
        states.append({"algorithm": state["algorithm"], "index": state["buffer"]["index"]})
    assert len(killer.held) == 2
    assert not differences(*states)


@pytest.mark.parametrize("runtime", ["process", pytest.param("ray", marks=[pytest.mark.slow, NEEDS_RAY])])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_goes_on_without_what_killed_shards_held(runtime, mode, tmp_path):
    """Each is named in `faults/` with the rows that it held; the run resumes, and its metrics count them."""
    killer = Killer(1_000, 1_600)
    made = palaestra.train(
        *("dqn", "CartPole-v1"),
        run__directory=str(tmp_path),
        distributed__runtime=runtime,
        distributed__mode=mode,
        callbacks=[killer],
        **SMALL,
    )
    assert made.result.status == "done" and made.result.env_steps >= 3_000
    assert len(killer.held) == 2 and min(killer.held) > 100
    faults = [json.loads(path.read_text()) for path in sorted((Path(made.directory) / "faults").glob("*.json"))]
    told = [fault["message"] for fault in faults if "a shard of replay was lost" in fault["message"]]
    assert len(told) == 2
    last = json.loads((Path(made.directory) / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["replay/lost_shards"] == 2
    fragment = 16  # rows of a lane that may have been written between counting and finding out
    assert sum(killer.held) <= last["replay/lost_rows"] <= sum(killer.held) + 2 * 4 * fragment
    assert last["gradient_steps"] > killer.gradient_steps[-1] > killer.gradient_steps[0]
    assert last["workers/restarts"] == 0  # of what collects
    resumed = palaestra.resume(Path(made.directory), trainer__total_env_steps=3_400)
    assert resumed.result.env_steps >= 3_400
