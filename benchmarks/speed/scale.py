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
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simpy
import torch

from benchmarks.numbers import spread
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed.distributed import Run, sleepy
from benchmarks.speed.sleepy import ENVS_EACH, MINIBATCHES
from palaestra import PPO, Collector, EnvConfig, PPOConfig, RunSeeds, create_environment
from palaestra.core import POLICY
from palaestra.runtime import ProcessRuntime

RESULT = Path(__file__).parent / "results" / "scale.json"
WORKERS, BAR = (1, 2, 4, 8, 16), 0.15
UNROLL, ROW_BYTES = 128, 64
Events = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Costs:
    """Seconds that things take."""

    env_s: float
    """A step of one environment."""
    act_s: float
    """Of a processor, for one step of all environments of a worker: the policy, and what is around the environments."""
    call_s: float
    """Of the driver, for a message."""
    byte_s: float
    """Of the driver, for a byte of it."""
    row_s: float
    """Of one learner, for a row: all passes over it."""
    update_s: float
    """Of a learner, for an update, whatever its size; and of the driver for all else that an iteration needs."""
    exchange_s: float
    """Of a gradient step, for the exchange between two learners; of more, as of a ring."""
    steps: int = 16
    """Gradient steps in an update."""


@dataclass(frozen=True)
class Cluster:
    """Who takes part."""

    workers: int
    learners: int = 1
    cores: int | None = None
    """That all share; by default each worker and learner has its own."""
    asynchronous: bool = False
    """Whether workers act on while there is learning."""
    fragments: int = 16
    """In an update of an asynchronous run."""
    max_lag: int = 4
    """Policy versions, after which a fragment of an asynchronous run is dropped."""
    spread: float = 0.1
    """Standard deviation of the logarithm of the time that a worker acts."""


@dataclass
class Outcome:
    """What came of it."""

    env_steps_per_s: float
    """That were learned from."""
    ideal: float
    """Divided by those of workers that never wait."""
    lag: float
    """Mean policy versions between acting and learning."""
    dropped: float
    """Share of what was collected."""
    busy: dict[str, float]
    """Share of the time in which workers act, and the driver takes messages and learns."""

    @property
    def bottleneck(self) -> str:
        """What is busy longest."""
        return max(self.busy, key=lambda name: self.busy[name])


class Simulation:
    """One cluster at work.

    Args:
        costs: of everything.
        cluster: who takes part.
    """

    def __init__(self, costs: Costs, cluster: Cluster) -> None:
        self.costs, self.cluster, self.env = costs, cluster, simpy.Environment()
        self.cores = None if cluster.cores is None else simpy.Resource(self.env, cluster.cores)
        self.rng = np.random.default_rng(0)
        self.began, self.version, self.learned, self.dropped = 0.0, 0, 0, 0
        self.lags: list[int] = []
        self.busy = {"workers": 0.0, "messages": 0.0, "learning": 0.0}
        self.arrived: simpy.Store = simpy.Store(self.env)

    def run(self, updates: int) -> Outcome:
        """Lets it work for so many updates, after two that do not count."""
        driver = self._waits_for_none if self.cluster.asynchronous else self._waits_for_all
        warm = self.env.process(driver(2))
        self.env.run(warm)
        began = self.began = self.env.now
        self.learned, self.dropped, self.lags = 0, 0, []
        self.busy = dict.fromkeys(self.busy, 0.0)
        self.env.run(self.env.process(driver(updates)))
        seconds, rows = self.env.now - began, UNROLL * ENVS_EACH
        busy = {name: value / seconds for name, value in self.busy.items()}
        busy["workers"] /= self.cluster.workers
        rate = self.learned * rows / seconds
        collected = self.learned + self.dropped
        lag = statistics.fmean(self.lags) if self.lags else 0.0
        return Outcome(rate, rate * self.costs.env_s / self.cluster.workers, lag, self.dropped / collected, busy)

    def _compute(self, seconds: float, kind: str) -> Events:
        """Takes a processor for so long."""
        if self.cores is None:
            yield self.env.timeout(seconds)
        else:
            with self.cores.request() as mine:
                yield mine
                yield self.env.timeout(seconds)
        self.busy[kind] += seconds

    def _act(self) -> Events:
        """One unroll of a worker."""
        step_s, costs = ENVS_EACH * self.costs.env_s, self.costs
        slow = float(self.rng.lognormal(0.0, self.cluster.spread))
        if self.cores is None:
            seconds = UNROLL * (step_s + costs.act_s) * slow
            yield self.env.timeout(seconds)
            self.busy["workers"] += min(seconds, self.env.now - self.began)
            return
        for _ in range(UNROLL):
            yield self.env.timeout(step_s * slow)
            self.busy["workers"] += step_s * slow
            yield from self._compute(costs.act_s, "workers")

    def _message(self) -> Events:
        yield from self._compute(self.costs.call_s + UNROLL * ENVS_EACH * ROW_BYTES * self.costs.byte_s, "messages")

    def _update(self, fragments: int) -> Events:
        count, rows = self.cluster.learners, fragments * UNROLL * ENVS_EACH
        exchange = self.costs.steps * self.costs.exchange_s * 2 * (count - 1) / count
        yield from self._compute(self.costs.update_s + rows * self.costs.row_s / count + exchange, "learning")
        self.version += 1
        self.learned += fragments

    # -- synchronous: everybody acts with the same weights, and waits

    def _waits_for_all(self, updates: int) -> Events:
        for _ in range(updates):
            for _ in range(self.cluster.workers):
                self.env.process(self._once())
            for _ in range(self.cluster.workers):
                yield self.arrived.get()
                yield from self._message()
            self.lags += [0] * self.cluster.workers
            yield from self._update(self.cluster.workers)

    def _once(self) -> Events:
        yield from self._act()
        yield self.arrived.put(self.version)

    # -- asynchronous: everybody acts on with the newest weights there are

    def _waits_for_none(self, updates: int) -> Events:
        if not self.version:
            for _ in range(self.cluster.workers):
                self.env.process(self._forever())
        for _ in range(updates):
            taken = 0
            while taken < self.cluster.fragments:
                version, taken_over = yield self.arrived.get()
                lag = self.version - version
                yield from self._message()
                taken_over.succeed()
                if lag > self.cluster.max_lag:
                    self.dropped += 1
                    continue
                taken += 1
                self.lags.append(lag)
            yield from self._update(taken)

    def _forever(self) -> Events:
        while True:
            version = self.version
            yield from self._act()
            taken_over = self.env.event()
            yield self.arrived.put((version, taken_over))
            yield taken_over


def measured_costs(rounds: int, window_s: float) -> Costs:
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
    call_s = 1e-6 * of_table("call", "process")
    return Costs(
        env_s=(wall_s - cpu_s) / UNROLL / ENVS_EACH,
        act_s=cpu_s / UNROLL,
        call_s=call_s,
        byte_s=1e-6 / of_table("transport", "process"),
        row_s=row_s,
        update_s=iteration_s - wall_s - call_s - row_s * UNROLL * ENVS_EACH,
        exchange_s=_exchange_s(),
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


def of_table(task: str, what: str) -> float:
    """A number that `python -m benchmarks.speed.distributed` measured."""
    rows = json.loads(RESULT.with_name("distributed.json").read_text())["rows"]
    return next(row["value"] for row in rows if (row["task"], row["what"]) == (task, what))


def _exchange_s() -> float:
    """Of a network of 10,000 parameters, by what two ranks took longer than half of the time of one."""
    rows = json.loads(RESULT.with_name("distributed.json").read_text())["rows"]
    row = next(row for row in rows if row["task"] == "learners" and "two shards" in row["what"])
    steps = row["epochs"] * row["rows"] / row["minibatch_size"]
    extra_s = 1e-3 * row["value"] * (1 - row["share"] / 2) / steps
    return extra_s * 10_000 / row["parameters"] + 1e-6 * of_table("call", "process")


def held_against_measurements(rounds: int, window_s: float) -> tuple[Costs, list[dict[str, Any]]]:
    """Costs from one worker, and env steps per second with more of them, measured and simulated."""
    costs = measured_costs(rounds, window_s)
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


def clusters(costs: Costs) -> list[dict[str, Any]]:
    """What a cluster of Ray would do, whose workers and learners have cores of their own."""
    call_s, byte_s = 1e-6 * of_table("call", "ray"), 1e-6 / of_table("transport", "ray")
    costs, rows = dataclasses.replace(costs, call_s=call_s, byte_s=byte_s), []
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
    costs, measured = held_against_measurements(given.rounds, given.window)
    record = {**provenance(command), "costs": asdict(costs), "measured": measured, "clusters": clusters(costs)}
    write_json(RESULT, record)
    text = text_of(record)
    publish(RESULT.with_suffix(".md"), text, "docs/scaling.md")
    print(text)


if __name__ == "__main__":
    from benchmarks.speed import scale

    scale.main()  # what workers make has to be in a module that they can import
