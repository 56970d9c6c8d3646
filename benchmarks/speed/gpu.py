"""`python -m benchmarks.speed.gpu`: learning on a GPU, eager and compiled in turns, in one process.

PPO on tensor CartPoles with the settings of `benchmarks.speed.tensors`, by the real `Trainer`. SAC with networks and
rows of HalfCheetah: its updates alone, from a replay buffer in main memory and from one on the GPU, one gradient step
in an update and sixteen. Products are in single precision, or in TF32 where the row says so.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.numbers import spread
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed import ours
from benchmarks.speed.tensors import trainer_of
from palaestra.algorithms import SAC, UpdateInfo
from palaestra.buffers import DeviceMemory, MainMemory, ReplayBuffer
from palaestra.core import BoundedSpec, TensorSpec, TimeStep
from palaestra.nn import Precision

RESULTS = Path(__file__).parent / "results"
SHAPES = (4096, 32), (4096, 128), (16384, 32)
"""Environments and steps of an iteration."""
LEAST = {"PPO 4096 x 128": 20e6, "SAC, 16 steps, rows on the GPU": 4000}
"""Of compiled code, in single precision or in TF32."""
TF32 = ", TF32"
OBSERVATION, ACTION, ROWS = TensorSpec((17,)), BoundedSpec((6,), minimum=-np.ones(6), maximum=np.ones(6)), 50_000


def ppo(num_envs: int, num_steps: int, device: str, compiled: bool, precision: Precision) -> Callable[[], int]:
    """An iteration, which says how many env steps it took."""
    trainer = trainer_of(num_envs, num_steps, compiled=compiled, device=device)
    trainer.algorithm.set_precision(precision)
    collector = trainer.collector

    def iteration() -> int:
        before = collector.env_steps
        trainer.train_iter()
        return collector.env_steps - before

    return iteration


def sac(steps: int, on_device: bool, device: str, compiled: bool, precision: Precision) -> Callable[[], int]:
    """An update, which says how many gradient steps it made."""
    config: Any = dataclasses.replace(ours.configuration("sac", compiled=compiled).algorithm, learning_starts=0)
    algorithm = SAC(OBSERVATION, ACTION, dataclasses.replace(config, gradient_steps=steps)).to(device)
    algorithm.set_precision(precision)
    if compiled:
        algorithm.compile()
    storage = DeviceMemory(device) if on_device else MainMemory()
    specs: Any = {"observation_spec": OBSERVATION, "action_spec": algorithm.policy.raw_action_spec}
    buffer = ReplayBuffer(ROWS, 1, storage=storage, **specs)
    random = np.random.default_rng(0)

    def time_step(kind: int) -> TimeStep:
        reward, observation = random.normal(size=1), random.normal(size=(1, 17))
        return TimeStep(
            torch.tensor([kind], dtype=torch.int32),
            torch.from_numpy(reward).float(),
            torch.ones(1),
            torch.from_numpy(observation).float(),
            torch.zeros(1, 6),
            torch.zeros(1, dtype=torch.int64),
        )

    buffer.open(time_step(0))
    for _ in range(5000):
        buffer.append(torch.from_numpy(random.uniform(-1, 1, (1, 6))).float(), time_step(1))
    before: list[UpdateInfo] = []

    def update() -> int:  # as a run does
        info = algorithm.begin_update(buffer)
        if before:
            before.pop().require_finite()
        before.append(info)
        return info.gradient_steps

    return update


def speed(call: Callable[[], int], window_s: float) -> float:
    torch.cuda.synchronize()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < window_s:
        done += call()
    torch.cuda.synchronize()
    return done / (time.perf_counter() - began)


def rows_of(device: str) -> dict[str, Callable[[bool], Callable[[], int]]]:
    """What is measured, by name: makes it, compiled or not."""
    made: dict[str, Callable[..., Callable[[], int]]] = {}
    for num_envs, num_steps in SHAPES:
        made[f"PPO {num_envs} x {num_steps}"] = functools.partial(ppo, num_envs, num_steps, device)
    for steps in (1, 16):
        for on_device in (False, True):
            name = f"SAC, {steps} steps, rows {'on the GPU' if on_device else 'in main memory'}"
            made[name] = functools.partial(sac, steps, on_device, device)
    rows = {name: functools.partial(make, precision="float32") for name, make in made.items()}
    return rows | {f"{name}{TF32}": functools.partial(made[name], precision="tf32") for name in LEAST}


def measured(name: str, make: Callable[[bool], Callable[[], int]], rounds: int, window_s: float) -> dict[str, Any]:
    calls, first_s = {}, {}
    for compiled in (False, True):
        began = time.perf_counter()
        call = calls["compiled" if compiled else "eager"] = make(compiled)
        call()
        torch.cuda.synchronize()
        first_s["compiled" if compiled else "eager"] = time.perf_counter() - began
        for _ in range(3):
            call()
    speeds: dict[str, list[float]] = {side: [] for side in calls}
    for _ in range(rounds):
        for side, call in calls.items():
            speeds[side].append(speed(call, window_s))
    print(name, {side: f"{spread(values).median:,.0f}" for side, values in speeds.items()}, first_s, flush=True)
    return {"speeds": speeds, "first_s": first_s}


def markdown(record: dict[str, Any]) -> str:
    rows = []
    for name, result in record["rows"].items():
        for side, speeds in result["speeds"].items():
            speed, least = spread(speeds), LEAST.get(name.removesuffix(TF32)) if side == "compiled" else None
            bar = "" if least is None else f"{least:,.0f} ({'met' if speed.median >= least else '**not met**'})"
            unit = "env steps/s" if name.startswith("PPO") else "gradient steps/s"
            numbers = [f"{speed.median:,.0f}", f"{speed.low:,.0f} to {speed.high:,.0f}", unit, bar]
            rows.append([name, side, *numbers, f"{result['first_s'][side]:.1f}"])
    header = ["", "", "median", "min to max", "", "bar", "until the first is over, s"]
    title = "PPO on tensor CartPoles (4 passes, 4 minibatches) and gradient steps of SAC, on one GPU:"
    return "\n\n".join([title, table(header, rows), f"{origin(record)} GPU: {record['gpu']}."])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=1.0, help="seconds of each measurement")
    parser.add_argument("--only", default="", help="rows whose name contains it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.speed.gpu --rounds {arguments.rounds} --window {arguments.window:g}"
    record = {**provenance(command), "gpu": torch.cuda.get_device_name(arguments.device), "rows": {}}
    for name, make in rows_of(arguments.device).items():
        if arguments.only in name:
            record["rows"][name] = measured(name, make, arguments.rounds, arguments.window)
            write_json(arguments.results / "gpu.json", record)
    text = markdown(record)
    publish(arguments.results / "gpu.md", text, "docs/concepts/devices.md", "gpu")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
