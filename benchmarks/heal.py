"""`python -m benchmarks.heal back run`: learners in processes of which one is killed while they learn.

`back` kills the replica of two learners, ten times, each in a run of its own, and takes the time until an update ends
that both have made. `run` makes 1,000 updates without and with one loss, an update of each in turns: wall time,
processor time of the run's own process, and whether the weights are the unbroken ones. Pairs are added to those that
were measured before.
"""

import argparse
import json
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import origin, provenance, table, write_json
from palaestra import PPO, Collector, EnvConfig, NetworkConfig, PPOConfig, RunSeeds, create_environment
from palaestra.distributed import GradientWorkers
from palaestra.distributed.exchange import fingerprint
from palaestra.runtime import ProcessRuntime

RESULTS = Path(__file__).parent / "results"
WARM, BACK_S, SHARE = 20, 10.0, 1.1


def made(units: int) -> tuple[Any, Any]:
    """PPO, and rows that it learns from again and again."""
    env = create_environment(EnvConfig(name="CartPole-v1", num_envs=8), seed=1)
    config = PPOConfig(
        unroll_length=64, num_epochs=1, mini_batch_size=256, network=NetworkConfig(hidden_sizes=(units, units))
    )
    algorithm = PPO(env.observation_spec, env.action_spec, config, RunSeeds(0))
    collector = Collector.of(env, algorithm)
    collector.unroll(64)
    env.close()
    return algorithm, collector.buffer


def update(pool: GradientWorkers, buffer: Any) -> None:
    buffer.writer.used = False  # learned from again, so that collecting takes no time
    pool.update("policy", buffer)


def replica(runtime: ProcessRuntime) -> int:
    """Process id of the last one."""
    return [seat.process.pid for seat in runtime._alive.values() if seat.worker.name == "grad-worker"][-1]


def back(units: int) -> dict[str, float]:
    """Seconds from a kill to the end of an update that is shared again."""
    algorithm, buffer = made(units)
    with ProcessRuntime() as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, 1, num_shards=2)
        for _ in range(WARM):
            update(pool, buffer)
        began, longest = time.monotonic(), 0.0
        os.kill(replica(runtime), signal.SIGKILL)
        while not (runtime.restarted and "policy" in pool._last):
            at = time.monotonic()
            update(pool, buffer)
            longest = max(longest, time.monotonic() - at)
        seconds = time.monotonic() - began
        pool.close()
    return {"back_s": seconds, "longest_update_s": longest}


def run(units: int, updates: int) -> list[dict[str, Any]]:
    """So many updates without a loss, and with one in the middle, in turns, so that other load cancels out."""
    made_two = [made(units) for _ in range(2)]
    with ProcessRuntime() as whole, ProcessRuntime() as lost:
        runtimes = [whole, lost]
        pools = [
            GradientWorkers({"policy": algorithm}, runtime, 1, num_shards=2)
            for runtime, (algorithm, _) in zip(runtimes, made_two, strict=True)
        ]
        for pool, (_, buffer) in zip(pools, made_two, strict=True):
            for _ in range(WARM):
                update(pool, buffer)
        seconds, cpu = [0.0, 0.0], [0.0, 0.0]
        for number in range(updates):
            for side, (pool, (_, buffer)) in enumerate(zip(pools, made_two, strict=True)):
                if side and number == updates // 2:
                    os.kill(replica(lost), signal.SIGKILL)
                began, used = time.monotonic(), time.process_time()
                update(pool, buffer)
                seconds[side] += time.monotonic() - began
                cpu[side] += time.process_time() - used
        assert (whole.restarted, lost.restarted) == (0, 1)
        for pool in pools:
            pool.close()
    prints = [fingerprint(algorithm) for algorithm, _ in made_two]
    return [{"seconds": seconds[side], "cpu_s": cpu[side], "fingerprint": prints[side]} for side in range(2)]


def report(record: dict[str, Any]) -> str:
    """The tables of a record."""
    rows: list[list[str]] = []
    if found := record.get("back"):
        times, longest = ([one[name] for one in found] for name in ("back_s", "longest_update_s"))
        rows += [
            [
                f"the learner is back after, median of {len(times)} losses",
                f"{statistics.median(times):.1f} s",
                f"{BACK_S:g} s",
            ],
            ["least and most", f"{min(times):.1f} to {max(times):.1f} s", ""],
            ["longest update meanwhile, median", f"{statistics.median(longest):.2f} s", ""],
        ]
    if found := record.get("run"):
        share = statistics.median(lost["seconds"] / whole["seconds"] for whole, lost in found)
        cpu = statistics.median(lost["cpu_s"] / whole["cpu_s"] for whole, lost in found)
        equal = len({one["fingerprint"] for pair in found for one in pair}) == 1
        whole_s = statistics.median(whole["seconds"] for whole, _ in found)
        rows += [
            [
                f"{record['updates']:,} updates with one loss, in {whole_s:.0f} s without (pairs: {len(found)})",
                f"{share:.2f}",
                f"{SHARE:g}",
            ],
            ["processor time of them in the run's process", f"{cpu:.2f}", ""],
            ["weights are those of the unbroken runs", "yes" if equal else "no", "yes"],
        ]
    load = ", ".join(f"{one:.1f}" for one in record["load"])
    said = f"Load of the machine, before and after: {load}; 2 is that of two learners."
    return f"{table(['two learners, processes', 'measured', 'at most'], rows)}\n{said}\n\n{origin(record)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=["back", "run"])
    parser.add_argument("--losses", type=int, default=10)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    path = arguments.results / "heal.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    load = os.getloadavg()[0]
    if "back" in arguments.tasks:
        record["back"] = [back(arguments.units) for _ in range(arguments.losses)]
    if "run" in arguments.tasks:
        kept = record.get("run", []) if record.get("updates") == arguments.updates else []
        record["run"] = kept + [run(arguments.units, arguments.updates) for _ in range(arguments.pairs)]
        record["updates"] = arguments.updates
    record |= {"load": [load, os.getloadavg()[0]], **provenance("python -m benchmarks.heal back run")}
    write_json(path, record)
    path.with_suffix(".md").write_text(report(record))
    print(report(record))


if __name__ == "__main__":
    main()
