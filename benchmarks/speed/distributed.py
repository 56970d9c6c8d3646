"""`python -m benchmarks.speed.distributed`: what workers bring, and what their messages cost.

| task | is measured | has to reach |
|---|---|---|
| sleep | PPO, environments whose steps sleep 2 ms, 4 in each of 1, 2, 4, 8 workers | 85% of workers / 0.002 s |
| cheetah | PPO, 32 HalfCheetah environments in 2 workers and in 1, in turns | 1.6 times as fast |
| transport | observations out of 2 workers | 500 MB/s by processes, 200 MB/s by Ray |
| call | one call without data | - |
"""

import argparse
import functools
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.record import origin, provenance, table, write_json
from palaestra import EnvConfig, RunSeeds, Trainer, TrainerConfig
from palaestra.algorithms import PPO, PPOConfig
from palaestra.core import POLICY
from palaestra.distributed import CollectorFactory, DistributedConfig, RolloutManager
from palaestra.envs import probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime, Runtime

RESULTS = Path(__file__).parent / "results"
SLEEP_S, ENVS_EACH, PIXELS = 0.002, 4, (256, 84, 84, 4)
EPOCHS, MINIBATCHES = 4, 4


class Sleepy(gymnasium.Env[np.ndarray, np.int64]):
    """Every step takes 2 ms and no CPU."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(SLEEP_S)
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, False, self.steps == 200, {}


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
        rows = 128 * env.num_envs
        config = PPOConfig(unroll_length=128, num_updates=EPOCHS, mini_batch_size=rows // MINIBATCHES)
        make = functools.partial(PPO, observation_spec, action_spec, config, RunSeeds(0))
        algorithm, self.runtime = make(), runtime
        self.settings = {"num_envs": env.num_envs, "rows": rows, "epochs": EPOCHS, "minibatches": MINIBATCHES}
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
        env = EnvConfig(name="benchmarks.speed.distributed:Sleepy", num_envs=ENVS_EACH * workers)
        with RUNTIMES[arguments.runtime]() as runtime:
            run = Run(runtime, env, workers)
            speed = statistics.median(run.speed(arguments.window) for _ in range(arguments.rounds))
        share = speed / (workers / SLEEP_S)
        rows.append(row("sleep", f"{workers} workers", speed, "env steps/s", share, 0.85, **run.settings))
    return rows


def cheetah(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    env = EnvConfig(name="HalfCheetah-v5", num_envs=32)
    with RUNTIMES[arguments.runtime]() as first, RUNTIMES[arguments.runtime]() as second:
        one, two = Run(first, env, 1), Run(second, env, 2)
        pairs = [(one.speed(arguments.window), two.speed(arguments.window)) for _ in range(arguments.rounds)]
    ratio = statistics.median(after / before for before, after in pairs)
    speed = statistics.median(after for _, after in pairs)
    return [row("cheetah", "2 workers / 1 worker", speed, "env steps/s", ratio, 1.6, **two.settings)]


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


def row(
    task: str, what: str, value: float, unit: str, share: float | None, least: float | None, **more: Any
) -> dict[str, Any]:
    met = None if share is None or least is None else share >= least
    return {"task": task, "what": what, "value": value, "unit": unit, "share": share, "least": least, "met": met} | more


RUNTIMES: dict[str, Any] = {"local": LocalRuntime, "process": ProcessRuntime, "ray": RayRuntime}
TASKS = {"sleep": sleep, "cheetah": cheetah, "transport": transport, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.distributed", description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=[*TASKS], metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--runtime", default="process", choices=["process", "ray"], help="of sleep and cheetah")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds measured at a time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and tables are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for task in arguments.tasks:
        rows += TASKS[task](arguments)
        print(
            *(f"{one['task']} {one['what']}: {one['value']:,.0f} {one['unit']} {one['share']}" for one in rows),
            sep="\n",
        )
    text = table(
        ["task", "what", "measured", "share", "needed", "met"],
        [[one["task"], one["what"], f"{one['value']:,.0f} {one['unit']}", *_bar(one)] for one in rows],
    )
    print(text)
    record = {**provenance("python -m benchmarks.speed.distributed"), "runtime": arguments.runtime, "rows": rows}
    write_json(arguments.results / "distributed.json", record)
    (arguments.results / "distributed.md").write_text(f"{origin(record)}\n\n{text}\n")


def _bar(one: dict[str, Any]) -> list[str]:
    if one["share"] is None:
        return ["", "", ""]
    return [f"{one['share']:.2f}", f"{one['least']:.2f}", "yes" if one["met"] else "no"]


if __name__ == "__main__":
    from benchmarks.speed import distributed

    distributed.main()  # what workers make has to be in a module that they can import, on Ray too
