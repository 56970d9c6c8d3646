"""`python -m benchmarks.speed.scale`: a simulation of many workers and learners, fed by costs that are measured first.

A discrete-event model (SimPy) of what `palaestra train --runtime process` does: workers act for one unroll and send it;
one process takes one message after another and learns, with further ranks beside it. First it is held against what this
machine does with 1 to 16 workers, then it says what a cluster would do. Results: `results/scale.*`, and tables on the
page about scaling.
"""

import argparse
import dataclasses
import json
import os
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.numbers import spread
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed.distributed import Run, sleepy
from benchmarks.speed.simulation import UNROLL, Cluster, Costs, Simulation
from benchmarks.speed.sleepy import ENVS_EACH, MINIBATCHES
from palaestra import PPO, Collector, EnvConfig, PPOConfig, RunSeeds, create_environment
from palaestra.core import POLICY
from palaestra.runtime import ProcessRuntime

RESULT = Path(__file__).parent / "results" / "scale.json"
TOLD = RESULT.with_name("distributed.json")
WORKERS, BAR = (1, 2, 4, 8, 16), 0.15


class Told(NamedTuple):
    """What `python -m benchmarks.speed.distributed` has measured; read first, as measuring here takes minutes."""

    call_s: dict[str, float]
    """By runtime."""
    byte_s: dict[str, float]
    """By runtime."""
    exchange_s: float
    """Of the gradient of a network of 10,000 parameters, between two ranks."""


def told(file: Path = TOLD) -> Told:
    """Reads it.

    Raises:
        SystemExit: a row is missing.
    """
    rows = json.loads(file.read_text())["rows"]

    def of_table(task: str, what: str) -> dict[str, Any]:
        for row in rows:
            if row["task"] == task and row["what"].startswith(what):
                return row
        command = f"python -m benchmarks.speed.distributed {task}"
        raise SystemExit(f"{file} has no row {what!r} of {task!r}, which the simulation needs; first run `{command}`")

    runtimes = ("process", "ray")
    call_s = {runtime: 1e-6 * of_table("call", runtime)["value"] for runtime in runtimes}
    byte_s = {runtime: 1e-6 / of_table("transport", runtime)["value"] for runtime in runtimes}
    row = of_table("learners", "2 ranks with 2 shards / 1 rank, 2 shards")
    steps = row["epochs"] * row["rows"] / row["minibatch_size"]
    # what two ranks took longer than half of the time of one
    extra_s = 1e-3 * row["value"] * (1 - row["share"] / 2) / steps
    return Told(call_s, byte_s, extra_s * 10_000 / row["parameters"] + call_s["process"])


def measured_costs(rounds: int, window_s: float, known: Told) -> Costs:
    """Of this machine: of one worker, and of updates of two sizes."""
    env = sleepy(1)
    with ProcessRuntime() as runtime:
        run = Run(runtime, env, 1)
        iteration_s = UNROLL * ENVS_EACH / statistics.median(run.speed(window_s) for _ in range(rounds))
        config = run.trainer.learner.algorithms[POLICY].config
    acting = [_acting(env, config) for _ in range(rounds)]
    wall_s, cpu_s = (statistics.median(column) for column in zip(*acting, strict=True))
    small, large = (_learning_s(num_envs, config, 3 * rounds) for num_envs in (ENVS_EACH, 16 * ENVS_EACH))
    row_s = (large - small) / (15 * UNROLL * ENVS_EACH)
    call_s = known.call_s["process"]
    return Costs(
        env_s=(wall_s - cpu_s) / UNROLL / ENVS_EACH,
        act_s=cpu_s / UNROLL,
        call_s=call_s,
        byte_s=known.byte_s["process"],
        row_s=row_s,
        update_s=iteration_s - wall_s - call_s - row_s * UNROLL * ENVS_EACH,
        exchange_s=known.exchange_s,
    )


def _acting(env: EnvConfig, config: PPOConfig) -> tuple[float, float]:
    """Seconds of an unroll, and those in which it computed."""
    with create_environment(env) as envs:
        algorithm = PPO(envs.observation_spec, envs.action_spec, config, RunSeeds(0))
        collector = Collector.of(envs, algorithm)
        collector.unroll(UNROLL)
        began, computed = time.perf_counter(), time.thread_time()
        collector.unroll(UNROLL)
        return time.perf_counter() - began, time.thread_time() - computed


def _learning_s(num_envs: int, config: PPOConfig, repeats: int) -> float:
    """Seconds of an update in four minibatches; CartPole's specs are those of the environment that sleeps."""
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=num_envs)) as envs:
        config = dataclasses.replace(config, mini_batch_size=UNROLL * num_envs // MINIBATCHES)
        algorithm = PPO(envs.observation_spec, envs.action_spec, config, RunSeeds(0))
        collector, taken = Collector.of(envs, algorithm), []
        for _ in range(repeats + 1):
            collector.unroll(UNROLL)
            began = time.perf_counter()
            algorithm.update(collector.buffer)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def held_against_measurements(rounds: int, window_s: float, known: Told) -> tuple[Costs, list[dict[str, Any]]]:
    """Costs from one worker, and env steps per second with more of them, measured and simulated."""
    costs = measured_costs(rounds, window_s, known)
    rows = []
    for workers in WORKERS:
        with ProcessRuntime() as runtime:
            run = Run(runtime, sleepy(workers), workers)
            speeds = [run.speed(window_s) for _ in range(rounds)]
        simulated = Simulation(costs, Cluster(workers, cores=os.cpu_count(), spread=0.0)).run(5).env_steps_per_s
        error = simulated / statistics.median(speeds) - 1
        rows.append({"workers": workers, "measured": spread(speeds)._asdict(), "simulated": simulated, "error": error})
        print(rows[-1], flush=True)
    return costs, rows


def clusters(costs: Costs, known: Told) -> list[dict[str, Any]]:
    """What a cluster of Ray would do, whose workers and learners have cores of their own."""
    costs, rows = dataclasses.replace(costs, call_s=known.call_s["ray"], byte_s=known.byte_s["ray"]), []
    for workers in (100, 1_000, 10_000):
        for asynchronous in (False, True):
            for learners in (1, 8, 64):
                cluster = Cluster(workers, learners, asynchronous=asynchronous, fragments=max(16, workers // 4))
                outcome = Simulation(costs, cluster).run(20)
                rows.append({**asdict(cluster), **asdict(outcome), "bottleneck": outcome.bottleneck})
    return rows


def text_of(record: dict[str, Any]) -> str:
    held = table(
        ["workers", "measured, env steps/s", "least to most", "simulated", "error"],
        [
            [
                f"{row['workers']}",
                f"{row['measured']['median']:,.0f}",
                f"{row['measured']['low']:,.0f} to {row['measured']['high']:,.0f}",
                f"{row['simulated']:,.0f}",
                f"{row['error']:+.0%}",
            ]
            for row in record["measured"]
        ],
    )
    cells = [
        [
            f"{row['workers']:,}",
            "asynchronous" if row["asynchronous"] else "synchronous",
            f"{row['learners']}",
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['ideal']:.0%}",
            f"{row['lag']:.1f}",
            f"{row['dropped']:.0%}",
            f"{row['bottleneck']} ({row['busy'][row['bottleneck']]:.0%})",
        ]
        for row in record["clusters"]
    ]
    header = ["workers", "mode", "learners", "env steps/s", "of ideal", "lag", "dropped", "bottleneck"]
    worst = max(abs(row["error"]) for row in record["measured"])
    verdict = "met" if worst <= BAR else "not met"
    first = (
        f"On this machine; costs are those of one worker. The greatest error is {worst:.0%} (bar {BAR:.0%}: {verdict})."
    )
    return "\n\n".join([first, held, "On a cluster, by the simulation:", table(header, cells), origin(record)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds measured at a time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.speed.scale --rounds {given.rounds} --window {given.window:g}"
    known = told()
    costs, measured = held_against_measurements(given.rounds, given.window, known)
    record = {**provenance(command), "costs": asdict(costs), "measured": measured, "clusters": clusters(costs, known)}
    write_json(RESULT, record)
    text = text_of(record)
    publish(RESULT.with_suffix(".md"), text, "docs/scaling.md")
    print(text)


if __name__ == "__main__":
    from benchmarks.speed import scale

    scale.main()  # what workers make has to be in a module that they can import
