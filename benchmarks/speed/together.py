"""`python -m benchmarks.speed.together`: seeds of PPO on tensor CartPoles, together and in a process each.

All sides of ours are the command line with its defaults (8 environments x 128 steps, checkpoints), but without
evaluations, which each run makes alone; from the start of the interpreter to its end. Of the sides in a process each,
one seed is run and counts as often as there are seeds. Processor time is that of all processes, user and system: on a
machine that is not quiet it says more than the clock. With `--peer-python P --purejaxrl CHECKOUT` (see
`benchmarks.speed.tensors`) PureJaxRL trains the same seeds by `vmap`, in a process on each core that has its share of
them, as ours does: with threads of its own on two cores JAX 0.10.2 stopped for ever. It writes and saves nothing.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import origin, provenance, publish, table, write_json

RESULTS = Path(__file__).parent / "results"
OPTIONS = ("--env.kwargs", "max_episode_steps", "500", "--trainer.eval-episodes", "0")
TASK = ("train", "ppo", "palaestra.envs.tiny:TensorCartPole", *OPTIONS)
SIDES = {"eager": ("--no-compile",), "compiled": ("--compile",), "together": ("--compile", "--run.together")}
PEER, PEER_SHAPE = "PureJaxRL, `vmap`", ("8", "128")
BARS = {"eager": 8.0, "compiled": 2.0, PEER: 0.8}
"""How many times the seeds an hour of a side the population has to reach."""


def measured(side: str, seeds: int, steps: int, peer: Sequence[str]) -> dict[str, Any]:
    """Seconds of processors and of the clock, for all seeds."""
    number = 1 if side in ("eager", "compiled") else seeds
    with tempfile.TemporaryDirectory() as folder:
        if side == PEER:
            places = sorted(os.sched_getaffinity(0))
            shares = [seeds // len(places) + (place < seeds % len(places)) for place in range(len(places))]
            pinned = zip(places, shares, strict=True)
            commands = [
                ["taskset", "-c", f"{core}", *peer, *PEER_SHAPE, f"{share}", f"{steps}"] for core, share in pinned
            ]
        else:
            options = ("--trainer.total-env-steps", str(steps), "--run.directory", folder)
            options += ("--seeds", str(number)) if side == "together" else ()
            commands = [[sys.executable, "-m", "palaestra", *TASK, *SIDES[side], *options]]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for command in commands]
        codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError(f"{side} failed")
        clock_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    cores = 1 if number == seeds else len(os.sched_getaffinity(0))  # processes that run side by side
    result = {"cpu_s": cpu_s * seeds / number, "clock_s": clock_s * seeds / number / cores}
    print(f"{side:<9} {result['cpu_s']:.0f} s of processors, {result['clock_s']:.0f} s for {seeds} seeds", flush=True)
    return result


def markdown(record: dict[str, Any]) -> str:
    seeds, steps, runs = record["seeds"], record["steps"], record["runs"]
    rows = []
    for side in runs:
        cpu, clock = ([run[name] for run in runs[side]] for name in ("cpu_s", "clock_s"))
        times = spread(ratios(cpu, [run["cpu_s"] for run in runs["together"]])).median
        bar = f"{BARS[side]:g} ({'met' if times >= BARS[side] else '**not met**'})" if side in BARS else ""
        rows.append([side, f"{spread(cpu).median:,.0f}", f"{spread(clock).median:,.0f}", f"{times:.1f}", bar])
    header = ["", "processors, s", "clock, s", "population is times as fast", "bar"]
    title = f"{seeds} seeds of PPO on 8 tensor CartPoles x 128 steps, {steps:,} env steps each, start included:"
    return "\n\n".join([title, table(header, rows), f"{origin(record)} {record['load']}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.together", description=__doc__)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--purejaxrl", type=Path, help="a checkout of PureJaxRL")
    parser.add_argument("--peer-python", type=Path, help="the interpreter of its environment")
    arguments = parser.parse_args()
    seeds, steps = arguments.seeds, arguments.steps
    script = Path(__file__).with_name("peer_purejaxrl.py")
    peer = [str(arguments.peer_python), str(script), str(arguments.purejaxrl)]
    sides = [*SIDES, *([PEER] if arguments.purejaxrl else [])]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    loads: list[float] = []
    for _ in range(arguments.rounds):
        for side, found in runs.items():
            found.append(measured(side, seeds, steps, peer))
            loads.append(os.getloadavg()[0])
    command = f"python -m benchmarks.speed.together --seeds {seeds} --steps {steps} --rounds {arguments.rounds}"
    command += " --purejaxrl CHECKOUT --peer-python P" if arguments.purejaxrl else ""
    load = f"The machine had a load of {min(loads):.0f} to {max(loads):.0f} meanwhile."
    record = {**provenance(command), "seeds": seeds, "steps": steps, "load": load, "runs": runs}
    write_json(arguments.results / "together.json", record)
    text = markdown(record)
    publish(arguments.results / "together.md", text, "docs/concepts/speed.md", "together")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
