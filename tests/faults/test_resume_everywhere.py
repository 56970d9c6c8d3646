"""Every algorithm, cut at random points and resumed from a checkpoint on disk, equals the uninterrupted run (F25)."""

import dataclasses
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from palaestra import Collector, Trainer, TrainerConfig
from palaestra.algorithms import ALGORITHMS
from palaestra.core import Offline
from palaestra.envs import EnvConfig
from palaestra.rollout import OfflineData
from palaestra.training import CheckpointStore
from tests.algorithms.parts import ATTENTION, CASES, FAST, MEMORY, any_kind, collector_for, environment, make
from tests.faults.parts import differences
from tests.training.parts import Recorder, kept

TOTAL = 210
REMEMBERING = [  # a world model has a memory of its own, and takes no other
    name
    for name, kind in ALGORITHMS.items()
    if kind.recurrent and kind.config_class.plan_class is not Offline and not hasattr(kind.config_class, "memory_size")
]


def trainer(name: str, world: Any, env: Any, folder: Path, seed: int = 3, **changes: Any) -> tuple[Trainer, Recorder]:
    """A small trainer that saves at every turn, and what its loggers are told."""
    algorithm = make(name, env, seed, **changes)
    recorder = Recorder()
    config = TrainerConfig(total_env_steps=TOTAL, checkpoint_every_steps=40, log_every_steps=30)
    if isinstance(algorithm.plan, Offline):
        collect: Any = OfflineData(loaded(name, world))
    else:
        collect = Collector.of(env, algorithm)
    return Trainer(collect, algorithm, config, checkpoints=CheckpointStore(folder), loggers=[recorder]), recorder


def loaded(name: str, kind: Any) -> Any:
    """The same data set each time, for an algorithm that collects nothing."""
    with environment(kind, seed=21) as env:
        settings = {"kind": kind} if isinstance(kind, str) else {}
        collector = collector_for(env, make(name, env, seed=21, **settings))
        collector.unroll(30)
    return collector.buffer


def contents(made: Trainer, rows: list[dict[str, float]]) -> dict[str, Any]:
    """Everything that two equal runs have in common."""
    state = made.state()
    del state["trainer"]["seconds"]
    return {
        "state": state,
        "rows": [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows],
    }


def cut(made: Trainer, env_steps: int, in_the_middle: bool) -> None:
    """Sends SIGTERM once so many env steps are taken: within an unroll, or between two."""
    done = False

    def stop() -> None:
        nonlocal done
        if not done:
            done = True
            signal.raise_signal(signal.SIGTERM)

    if in_the_middle and isinstance(made.collector, Collector):
        step, before, taken = made.collector.env.step, made.collector.env_steps, 0

        def stepping(action: Any) -> Any:
            nonlocal taken
            taken += made.collector.num_lanes
            if before + taken >= env_steps:
                stop()
            return step(action)

        made.collector.env.step = stepping
    else:
        train_iter = made.train_iter

        def iterating() -> None:
            train_iter()
            if made.collector.env_steps >= env_steps:
                stop()

        made.train_iter = iterating


def check(name: str, config: EnvConfig | str, folder: Path, vectorization: str = "serial", **changes: Any) -> None:
    if isinstance(config, str):
        changes["kind"] = config
    vectorization = "native" if config == "game" else vectorization
    with environment(config, vectorization=vectorization) as env:
        whole, recorder = trainer(name, config, env, folder / "whole", **changes)
        whole.run()
        expected = contents(whole, recorder.rows)
    draw = random.Random(f"{name} {config} {vectorization}")
    points = sorted(draw.sample(range(10, TOTAL - 10), 3))
    rows: list[dict[str, float]] = []
    for number in range(len(points) + 1):
        with environment(config, vectorization=vectorization) as env:
            made, recorder = trainer(name, config, env, folder / "cut", seed=3 + number, **changes)
            if number:  # a killed run's rows beyond its checkpoint are cut off, as the file logger does
                made.load_state(CheckpointStore(folder / "cut").load_newest()[1])
            if number < len(points):
                cut(made, points[number], in_the_middle=number != 1)
            rows = rows[: kept(made)["position"]["metrics"]]
            made.run()
            rows += recorder.rows
            if number == len(points):
                assert differences(expected, contents(made, rows)) == []
    assert made.collector.env_steps >= TOTAL


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if name in FAST and kind == any_kind(name) else pytest.mark.slow)
        for name, kind in CASES
    ],
)
def test_a_run_cut_at_random_points_equals_the_uninterrupted_one(name, kind, tmp_path):
    """F25, F22: parameters, optimizers, buffer, generators, memories, metrics; cut within unrolls and between them."""
    check(name, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _ in CASES if any_kind(name) != "game"}))
def test_environments_in_processes_are_put_back_as_well(name, tmp_path):
    """F25: every algorithm, with environments in another process."""
    check(name, any_kind(name), tmp_path, vectorization="process")


@pytest.mark.slow
@pytest.mark.parametrize("vectorization", ["serial", "process"])
@pytest.mark.parametrize("network", [MEMORY["network"], ATTENTION], ids=["gru", "attention"])
@pytest.mark.parametrize("name", REMEMBERING)
def test_policies_with_a_memory_go_on_exactly(name, network, vectorization, tmp_path):
    """F25: the memory of every lane, and those stored with the rows, on-policy and replayed."""
    kind, fields = any_kind(name), {field.name for field in dataclasses.fields(ALGORITHMS[name].config_class)}
    length = {"mini_batch_length": 4} if "mini_batch_length" in fields else {}
    check(name, kind, tmp_path, vectorization, network=network, **length)
