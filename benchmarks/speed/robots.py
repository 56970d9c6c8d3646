"""What batching is worth: agents against one task, batched and one by one; in threads, processes and Ray actors.

    python -m benchmarks.speed.robots            # 5 rounds, interleaved; some minutes
    python -m benchmarks.speed.robots --rounds 1 --window 1 --results /tmp/x

Throughput: so many threads ask a task for one prediction after another, with batches of all of them and with batches of
one. Overhead: agents step an environment that costs nothing, against a small network; the time of a request beyond its
share of the forward passes is what serving costs.
"""

import argparse
import functools
import importlib.util
import os
import statistics
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import origin, provenance, table, write_json
from palaestra.algorithms import DQN, AlgorithmConfig, DQNConfig
from palaestra.core import BoundedSpec, DiscreteSpec, RunSeeds, TensorSpec
from palaestra.envs import load
from palaestra.nn import NetworkConfig
from palaestra.robots import (
    Agent,
    ComputationTask,
    ComputationWrapper,
    Robot,
    RobotCollector,
    RobotConfig,
)
from palaestra.runtime import ProcessRuntime, RayRuntime

RESULTS = Path(__file__).parent / "results"
IMAGE = BoundedSpec((4, 84, 84), torch.uint8, minimum=np.array(0), maximum=np.array(255))
NETWORKS = {
    "Nature CNN": (IMAGE, NetworkConfig(hidden_sizes=(), activation="relu")),
    "2 x 64": (TensorSpec((4,)), NetworkConfig(hidden_sizes=(64, 64))),
}


def task_of(network: str) -> ComputationTask:
    spec, layers = NETWORKS[network]
    config = DQNConfig(network=layers, learning_starts=0, epsilon=0.0)
    return ComputationTask(DQN(spec, DiscreteSpec(num=6), config))


def throughput(network: str, num_agents: int, max_batch_size: int, window_s: float) -> dict[str, float]:
    """Requests a second of threads that ask one after another.

    Batches of pictures are computed with all cores, as runs on pictures do; single rows with one thread, where they are
    faster.
    """
    pictures = NETWORKS[network][0] is IMAGE
    torch.set_num_threads((os.cpu_count() or 1) if pictures and max_batch_size > 1 else 1)
    spec = NETWORKS[network][0]
    rng = np.random.default_rng(0)
    rows = [(255 * rng.random((1, *spec.shape))).astype(np.uint8 if spec is IMAGE else np.float32) for _ in range(8)]
    config = RobotConfig(max_batch_size=max_batch_size, max_wait_s=0.02)
    stop = threading.Event()
    with ComputationWrapper("act", task_of(network), config) as wrapper:
        lines = [wrapper.create_communicator(i) for i in range(num_agents)]

        def ask(number: int) -> None:
            inputs = {"observation": rows[number % len(rows)], "step_type": np.ones(1, np.int32)}
            while not stop.is_set():
                lines[number].predict(inputs)

        threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(num_agents)]
        for thread in threads:
            thread.start()
        time.sleep(min(1.0, window_s / 2))
        served = wrapper.prediction.statistics
        before, began = (served.requests, served.batches), time.monotonic()
        time.sleep(window_s)
        after = served.requests, served.batches
        took_s = time.monotonic() - began
        stop.set()
        for thread in threads:
            thread.join(10)
    requests, batches = after[0] - before[0], after[1] - before[1]
    return {"requests_per_s": requests / took_s, "batch_size": requests / max(batches, 1)}


class Asking(Agent):
    """Asks, steps, and stores nothing."""

    def run_one_episode(self) -> None:
        act, step = self.helpers["act"], self.env.reset()
        while not step.last:
            step = self.env.step(act.predict(step))


@dataclass(frozen=True, kw_only=True)
class AskingConfig(AlgorithmConfig):
    """No settings."""


class AskingRobot(Robot):
    """One small task."""

    config_class, agent_class = AskingConfig, Asking

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        config = DQNConfig(network=NETWORKS["2 x 64"][1], learning_starts=0, epsilon=0.0)
        return {"act": ComputationTask(DQN(self.observation_spec, self.action_spec, config, seeds))}


def endless(number: int) -> Any:
    return load("palaestra.envs.tiny:Endless", env_id=number, max_episode_steps=1_000, kwargs={"size": 4})


def overhead(where: str, num_agents: int, steps: int) -> dict[str, float]:
    """Microseconds of one request: in all, in forward passes, and what is left."""
    env = endless(0)
    robot = AskingRobot(env.observation_spec, env.action_spec)
    runtimes = {"threads": nullcontext, "processes": ProcessRuntime, "Ray actors": RayRuntime}
    with (
        runtimes[where]() as runtime,
        RobotCollector(robot, endless, num_agents, config=RobotConfig(), runtime=runtime, num_workers=2) as collector,
    ):
        collector.unroll(steps // 5)
        served = collector.wrappers["act"].prediction.statistics
        busy_s, batches, began = served.busy_s, served.batches, time.monotonic()
        done = collector.unroll(steps).env_steps
        took_s = time.monotonic() - began
        busy_s, batches = served.busy_s - busy_s, served.batches - batches
    whole, forward = 1e6 * took_s / done, 1e6 * busy_s / done
    return {"request_us": whole, "forward_us": forward, "overhead_us": whole - forward, "batch_size": done / batches}


def measure(rounds: int, window_s: float) -> dict[str, Any]:
    places = ["threads", "processes", *(["Ray actors"] if importlib.util.find_spec("ray") else [])]
    batched: dict[str, list[Any]] = {}
    serving: dict[str, list[Any]] = {}
    for _ in range(rounds):
        for network in NETWORKS:
            for num_agents in (8, 64):
                for name, size in (("batched", num_agents), ("one by one", 1)):
                    key = f"{network}, {num_agents} agents, {name}"
                    batched.setdefault(key, []).append(throughput(network, num_agents, size, window_s))
        for where, num_agents in ((w, n) for w in places for n in (8, 64)):
            steps = max(20, int(400 * window_s / num_agents))
            torch.set_num_threads(1)
            serving.setdefault(f"{where}, {num_agents} agents", []).append(overhead(where, num_agents, steps))
    return {"throughput": batched, "serving": serving}


def median(values: list[dict[str, float]], name: str) -> float:
    return statistics.median(value[name] for value in values)


def markdown(record: dict[str, Any]) -> str:
    first, second = [], []
    for network in NETWORKS:
        for num_agents in (8, 64):
            key = functools.partial("{}, {} agents, {}".format, network, num_agents)
            ours, alone = record["throughput"][key("batched")], record["throughput"][key("one by one")]
            ratios = [a["requests_per_s"] / b["requests_per_s"] for a, b in zip(ours, alone, strict=True)]
            row = [network, str(num_agents), *(f"{median(v, 'requests_per_s'):,.0f}" for v in (ours, alone))]
            spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
            first.append([*row, spread, f"{median(ours, 'batch_size'):.1f}"])
    for name, values in record["serving"].items():
        numbers = [f"{median(values, key):,.0f}" for key in ("request_us", "forward_us", "overhead_us")]
        second.append([name, *numbers, f"{median(values, 'batch_size'):.1f}"])
    head = ["network", "agents", "requests/s batched", "one by one", "ratio (range)", "rows in a batch"]
    left = ["agents as", "µs a request", "of these forward passes", "overhead", "rows in a batch"]
    return f"{table(head, first)}\n\n{table(left, second)}\n\n{origin(record)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.robots", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=2.0, help="seconds of each measurement")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.speed.robots --rounds {arguments.rounds} --window {arguments.window:g}"
    record = provenance(command) | measure(arguments.rounds, arguments.window)
    write_json(arguments.results / "robots.json", record)
    (arguments.results / "robots.md").write_text(markdown(record) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    from benchmarks.speed import robots  # workers cannot import the classes of `__main__`

    robots.main()
