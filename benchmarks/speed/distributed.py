"""`python -m benchmarks.speed.distributed`: what workers bring, and what their messages cost.

| task | is measured | has to reach |
|---|---|---|
| sleep | PPO, environments whose steps sleep 2 ms, 4 in each of 1, 2, 4, 8 workers | 85% of workers / 0.002 s |
| rllib | the same, and in turns RLlib's PPO with as many env runners and the same settings | RLlib's speed |
| cheetah | PPO, HalfCheetah, 2 workers and 1 in turns; 32 environments in each, and 32 in all | 1.6 times as fast |
| learners | an update of PPO with 2.1M parameters, by two ranks (2 shards, 8) and one process in turns | 1.75, 1.35 |
| bookkeeping | the driver's part for 10,000 workers that answer at once | start in 5 s, a round in 0.5 s, flat memory |
| transport | observations out of 2 workers | 500 MB/s by processes, 200 MB/s by Ray |
| call | one call without data | - |
| replay | draws of 256 rows from 4 shards and from one buffer in turns, and rows written | - |
"""

import argparse
import copy
import dataclasses
import functools
import itertools
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.numbers import ratios
from benchmarks.record import ROOT, origin, provenance, table, versions, write_json
from benchmarks.speed import peers, replay_shards
from benchmarks.speed.instant import Instant
from benchmarks.speed.ours import ppo
from benchmarks.speed.sleepy import ENVS_EACH, MINIBATCHES, SLEEP_S
from benchmarks.speed.workloads import PPOSettings
from palaestra import (
    PPO,
    Collector,
    EnvConfig,
    NetworkConfig,
    PPOConfig,
    RunSeeds,
    Trainer,
    TrainerConfig,
    create_environment,
)
from palaestra.core import POLICY
from palaestra.distributed import CollectorFactory, DistributedConfig, GradientWorkers, RolloutManager
from palaestra.distributed.worker_group import WorkerGroup
from palaestra.envs import probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime, Runtime, keep_freed_memory

RESULTS = Path(__file__).parent / "results"
PIXELS = (256, 84, 84, 4)
PEER = "ray[rllib]"
LEARNERS = {2: 1.75, 8: 1.35}  # shards, and how much faster two learners have to be than one without


class Camera:
    """A worker that has observations to send."""

    def observations(self) -> np.ndarray:
        return np.ones(PIXELS, np.uint8)

    def nothing(self) -> None:
        pass


class Run:
    """A PPO run on workers."""

    def __init__(self, runtime: Runtime, env: EnvConfig, num_workers: int) -> None:
        observation_spec, action_spec, reward_spec = probe_specs(env)
        settings = PPOSettings(num_envs=env.num_envs)
        rows = settings.unroll_length * env.num_envs
        config = ppo(dataclasses.replace(settings, minibatch_size=rows // MINIBATCHES))
        make = functools.partial(PPO, observation_spec, action_spec, config, RunSeeds(0))
        algorithm = make()
        self.settings = {"num_envs": env.num_envs, "rows": rows, "epochs": settings.epochs, "minibatches": MINIBATCHES}
        buffer = buffer_for(algorithm, env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
        workers = CollectorFactory(env=env, algorithm=make, num_workers=num_workers)
        distributed = DistributedConfig(runtime="local", num_workers=num_workers)
        self.manager = RolloutManager(runtime, workers, {POLICY: algorithm.policy}, {POLICY: buffer}, distributed)
        self.trainer = Trainer(self.manager, algorithm, TrainerConfig(total_env_steps=10**12))
        for _ in range(2):  # workers start, caches warm up
            self.trainer.train_iter()

    def speed(self, window_s: float) -> float:
        """Env steps per second, learning included."""
        began, before = time.perf_counter(), self.manager.env_steps
        while time.perf_counter() - began < window_s:
            self.trainer.train_iter()
        return (self.manager.env_steps - before) / (time.perf_counter() - began)


def sleep(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for workers in (1, 2, 4, 8):
        with RUNTIMES[arguments.runtime]() as runtime:
            run = Run(runtime, sleepy(workers), workers)
            speed = statistics.median(run.speed(arguments.window) for _ in range(arguments.rounds))
        rows.append(of_ideal(workers, speed, run))
    return rows


def of_ideal(workers: int, speed: float, run: Run) -> dict[str, Any]:
    return row("sleep", f"{workers} workers", speed, "env steps/s", speed / (workers / SLEEP_S), 0.85, **run.settings)


def sleepy(workers: int) -> EnvConfig:
    return EnvConfig(name="benchmarks.speed.sleepy:Sleepy", num_envs=ENVS_EACH * workers)


def rllib(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of `sleep`, and beside them RLlib; the one that does not measure does nothing."""
    python, found = peers.environment(arguments.peer_dir, "rllib", {PEER: versions(["ray"])["ray"]}, ("torch", "numpy"))
    rows = []
    for workers in (1, 2, 4, 8):
        with peer(python, workers, arguments.window) as ask, RUNTIMES[arguments.runtime]() as runtime:
            run = Run(runtime, sleepy(workers), workers)
            turns = [(run.speed(arguments.window), ask()) for _ in range(arguments.rounds)]
        ours, theirs = (statistics.median(speeds) for speeds in zip(*turns, strict=True))
        ratio = statistics.median(ratios(*([*speeds] for speeds in zip(*turns, strict=True))))
        more = {**run.settings, "peer": theirs, "peer_versions": found}
        rows.append(of_ideal(workers, ours, run))
        rows.append(row("rllib", f"{workers} workers, RLlib {theirs:,.0f}", ours, "env steps/s", ratio, 1.0, **more))
    return sorted(rows, key=lambda one: one["task"], reverse=True)


@contextmanager
def peer(python: Path, workers: int, window_s: float) -> Iterator[Any]:
    """RLlib in a process of its own; what is given measures one window of it, in env steps per second."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("PYTHONPATH", None)
    command = [str(python), "-m", "benchmarks.speed.peer_rllib", str(workers), str(window_s)]
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def answer() -> dict[str, Any]:
            for line in process.stdout or ():
                if line.startswith("{"):
                    return json.loads(line)
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.wait()}; run it to see why")

        def ask() -> float:
            assert process.stdin is not None
            print("window", file=process.stdin, flush=True)
            return float(answer()["env_steps_per_s"])

        answer()  # it is ready
        yield ask
        process.stdin.close()
        process.wait(timeout=60)


def cheetah(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for how, counts in (("32 environments in each", (32, 64)), ("32 environments in all", (32, 32))):
        envs = [EnvConfig(name="HalfCheetah-v5", num_envs=count) for count in counts]
        with RUNTIMES[arguments.runtime]() as first, RUNTIMES[arguments.runtime]() as second:
            one, two = Run(first, envs[0], 1), Run(second, envs[1], 2)
            pairs = [(one.speed(arguments.window), two.speed(arguments.window)) for _ in range(arguments.rounds)]
        alone, together = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
        ratio = statistics.median(after / before for before, after in pairs)
        what = f"2 workers / 1 worker ({alone:,.0f}), {how}"
        rows.append(row("cheetah", what, together, "env steps/s", ratio, 1.6, **two.settings))
    return rows


def learners(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Updates of the same rows: of whole minibatches, and of shards by one rank and by two."""
    env, settings = EnvConfig(name="Pendulum-v1", num_envs=64), {"minibatch_size": 2048, "epochs": 4, "rows": 4096}
    observation_spec, action_spec, _ = probe_specs(env)
    network = NetworkConfig(hidden_sizes=(1024, 1024))
    config = PPOConfig(unroll_length=64, num_epochs=4, mini_batch_size=2048, network=network)
    whole = PPO(observation_spec, action_spec, config, RunSeeds(0))
    settings["parameters"] = sum(parameter.numel() for parameter in whole.model.parameters())
    with create_environment(env) as envs:
        collector = Collector.of(envs, whole)
        collector.unroll(64)
    rows = []
    for shards, least in LEARNERS.items():
        turns = _turns(arguments, whole, collector.buffer, shards)
        seconds, computing = ([[turn[i][k] for turn in turns] for i in range(3)] for k in range(2))
        for before, busy, name, needed in (
            (seconds[0], computing[0], "whole minibatches", least),
            (seconds[1], computing[1], f"{shards} shards", None),
        ):
            share = sorted(ratios(before, seconds[2]))
            more = {"least_pair": share[0], "most_pair": share[-1], "load_average": os.getloadavg()[0]}
            more["cpu_share"] = statistics.median(ratios(busy, computing[2]))
            what = f"2 ranks with {shards} shards / 1 rank, {name} ({1e3 * statistics.median(before):,.0f} ms)"
            value = 1e3 * statistics.median(seconds[2])
            rows.append(row("learners", what, value, "ms", statistics.median(share), needed, **settings, **more))
    return rows


def _turns(arguments: argparse.Namespace, whole: PPO, buffer: Any, shards: int) -> list[list[tuple[float, float]]]:
    """What updates take: of whole minibatches, of shards by one rank, and by two."""
    one, two = copy.deepcopy(whole), copy.deepcopy(whole)
    with RUNTIMES[arguments.runtime]() as runtime:
        alone = GradientWorkers({POLICY: one}, runtime, 0, num_shards=shards)
        both = GradientWorkers({POLICY: two}, runtime, 1, num_shards=shards)
        updates = [whole.update, *(functools.partial(pool.update, POLICY) for pool in (alone, both))]
        turns = [[_taken(update, copy.deepcopy(buffer)) for update in updates] for _ in range(5 * arguments.rounds + 1)]
        both.close()
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    return turns[1:]


def _taken(update: Callable[[Any], Any], buffer: Any) -> tuple[float, float]:
    """Seconds, and those in which this process computed: the difference is waiting, for a rank or for a core."""
    began, computed = time.perf_counter(), time.thread_time()
    update(buffer)
    return time.perf_counter() - began, time.thread_time() - computed


def bookkeeping(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds to start the workers and to ask and hear each once; and megabytes that 20 more rounds leave behind."""
    number, rows = 10_000, []
    group = WorkerGroup(Instant(batch=100), functools.partial(list), DistributedConfig(num_workers=number), name="w")

    def ask_all() -> None:
        for worker in group.idle:
            group.give(worker, "work")
        assert len(group.take(at_least=number, timeout_s=60.0)) == number

    started = _seconds(group.start)
    rounds = [_seconds(ask_all) for _ in range(5 * arguments.rounds)]
    before = _memory_mb()
    for _ in range(20):
        ask_all()
    grown, median = _memory_mb() - before, statistics.median(rounds)
    what = f"{number:,} workers"
    rows.append(row("bookkeeping", f"{what}: start", started, "s", 5.0 / started, 1.0))
    rows.append(row("bookkeeping", f"{what}: a round", median, "s", 0.5 / median, 1.0, most=max(rounds)))
    rows.append(row("bookkeeping", f"{what}: growth in 20 rounds", grown, "MB", None, None))
    return rows


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _memory_mb() -> float:
    """The most there was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def transport(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    size, rows = int(np.prod(PIXELS)), []
    for name, least in (("process", 500.0), ("ray", 200.0)):
        with RUNTIMES[name]() as runtime:
            workers = [runtime.start(Camera, name="camera") for _ in range(2)]
            speeds = [_moved(runtime, workers, arguments.window) * size / 1e6 for _ in range(arguments.rounds + 1)]
        speed = statistics.median(speeds[1:])
        rows.append(row("transport", name, speed, "MB/s", speed / least, 1.0))
    return rows


def _moved(runtime: Runtime, workers: list[str], window_s: float) -> float:
    """Messages per second."""
    calls = [runtime.call(worker, "observations") for worker in workers]
    runtime.wait(calls, timeout_s=120)
    calls, count, began = [runtime.call(worker, "observations") for worker in workers], 0, time.perf_counter()
    while time.perf_counter() - began < window_s:
        for result in runtime.wait(calls, at_least=1, timeout_s=60):
            result.unwrap()
            calls.remove(result.call)
            calls.append(runtime.call(result.call.worker, "observations"))
            count += 1
    speed = count / (time.perf_counter() - began)
    runtime.wait(calls, timeout_s=60)
    return speed


def call(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name, kind in RUNTIMES.items():
        with kind() as runtime:
            worker = runtime.start(Camera, name="camera")
            runtime.wait([runtime.call(worker, "nothing")], timeout_s=120)
            times = []
            for _ in range(300):
                began = time.perf_counter()
                runtime.wait([runtime.call(worker, "nothing")], timeout_s=60)
                times.append(time.perf_counter() - began)
        rows.append(row("call", name, 1e6 * statistics.median(times), "us", None, None))
    return rows


def replay(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for shape, prioritized in itertools.product(replay_shards.SHAPES, (False, True)):
        with RUNTIMES[arguments.runtime]() as runtime:
            both, window = replay_shards.Both(runtime, shape, prioritized), arguments.window / 4
            pairs = [(both.draws(both.here, window), both.draws(both.there, window)) for _ in range(arguments.rounds)]
            writes = [(both.write_here(), both.write_there()) for _ in range(20)]
        (here, busy_here), (there, busy_there) = (
            [statistics.median(one) for one in zip(*[pair[i] for pair in pairs], strict=True)] for i in range(2)
        )
        more = {"driver_ms_one_buffer": 1e3 * busy_here, "driver_ms_shards": 1e3 * busy_there}
        written = [1e3 * statistics.median(one) / (both.size_bytes / 1e6) for one in zip(*writes, strict=True)]
        more |= {"driver_ms_per_mb_one_buffer": written[0], "driver_ms_per_mb_shards": written[1]}
        more["load_average"] = os.getloadavg()[0]
        how = "by priority" if prioritized else "uniform"
        what = f"4 shards / one buffer ({here:,.0f}), {how}, {shape}; driver {more['driver_ms_shards']:.2f} ms a draw"
        rows.append(row("replay", what, there, "draws/s", there / here, None, **more))
    return rows


def row(
    task: str, what: str, value: float, unit: str, share: float | None, least: float | None, **more: Any
) -> dict[str, Any]:
    met = None if share is None or least is None else share >= least
    return {"task": task, "what": what, "value": value, "unit": unit, "share": share, "least": least, "met": met} | more


RUNTIMES: dict[str, Any] = {"local": LocalRuntime, "process": ProcessRuntime, "ray": RayRuntime}
TASKS = {"sleep": sleep, "rllib": rllib, "cheetah": cheetah, "learners": learners, "bookkeeping": bookkeeping}
TASKS |= {"transport": transport, "call": call, "replay": replay}

DEFAULT = [task for task in TASKS if task != "sleep"]
"""`rllib` measures the same."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.distributed", description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=DEFAULT, metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--runtime", default="process", choices=["process", "ray"], help="of sleep, rllib and cheetah")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds measured at a time")
    parser.add_argument("--peer-dir", type=Path, default=peers.default_directory(), help="where RLlib is installed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and tables are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    rows: list[dict[str, Any]] = []
    for task in arguments.tasks:
        rows += TASKS[task](arguments)
        print(
            *(f"{one['task']} {one['what']}: {one['value']:,.0f} {one['unit']} {one['share']}" for one in rows),
            sep="\n",
        )
    options = f"{' '.join(arguments.tasks)} --rounds {arguments.rounds} --window {arguments.window:g}"
    record = {**provenance(f"python -m benchmarks.speed.distributed {options}"), "runtime": arguments.runtime}
    record["rows"] = kept(arguments.results / "distributed.json", arguments.tasks)
    record["rows"] += [{**one, **origin_of_rows(record)} for one in rows]
    text = report(record)
    print(text)
    write_json(arguments.results / "distributed.json", record)
    (arguments.results / "distributed.md").write_text(f"{text}\n")


def report(record: dict[str, Any]) -> str:
    rows = list[list[str]]()
    for one in record["rows"]:
        measured = f"{_number(one['value'])} {one['unit']}"
        rows.append([one["task"], one["what"], measured, *_bar(one), one["date"], one["cpu"], one["revision"]])
    head = ["task", "what", "measured", "share", "needed", "met", "date", "processor", "revision"]
    return f"{table(head, rows)}\n\nThe newest rows: {origin(record)}"


def origin_of_rows(record: dict[str, Any]) -> dict[str, Any]:
    """What rows keep that a later run leaves out."""
    return {"date": record["date"][:10], "cpu": record["hardware"]["cpu"], "revision": record["revision"]}


def kept(path: Path, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of earlier runs, of tasks that this one leaves out."""
    if not path.is_file():
        return []
    record, measured = json.loads(path.read_text()), {*tasks, *(["sleep"] if "rllib" in tasks else [])}
    return [{**origin_of_rows(record), **one} for one in record["rows"] if one["task"] not in measured]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2f}"


def _bar(one: dict[str, Any]) -> list[str]:
    share = "" if one["share"] is None else f"{one['share']:.2f}"
    return [share, *(["", ""] if one["least"] is None else [f"{one['least']:.2f}", "yes" if one["met"] else "no"])]


if __name__ == "__main__":
    from benchmarks.speed import distributed

    distributed.main()  # what workers make has to be in a module that they can import, on Ray too
