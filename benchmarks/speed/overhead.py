"""What loggers, metrics, callbacks and the panel cost: PPO on CartPole-v1 with all of them on, and with all off.

    python -m benchmarks.speed.overhead                # writes results/overhead.json
    python -m benchmarks.speed.overhead --rounds 3 --seconds 2 --no-write

Both sides run in fresh processes, one after the other and again, on the same preset. "On" is what `palaestra train` has
by default: metrics.jsonl, episodes.csv, TensorBoard, health warnings, and the panel on a terminal of its own. "Off" has
no logger and no callback. Neither evaluates or saves: that costs time on purpose. Beside the wall clock, the processor
time of the whole process is measured: its ratio means something on a busy machine as well.
"""

import argparse
import dataclasses
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

import palaestra
from benchmarks.record import provenance, write_json
from palaestra import Collector, Trainer, TrainerConfig, create_environment
from palaestra.experiments import make_algorithm
from palaestra.training import Callback, ConsoleLogger, FileLogger, Health, TensorBoardLogger

RESULT = Path(__file__).parent / "results" / "overhead.json"
TOTAL = 400_000
WARMUP_STEPS = 5_000


class Stopwatch(Callback):
    """Counts env steps in a window of time, after a warm-up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: tuple[float, float, int] | None = None
        self.rates = (0.0, 0.0)

    def iteration_began(self, trainer: Trainer) -> None:
        now, cpu_s, steps = time.perf_counter(), time.process_time(), trainer.collect.env_steps
        if self._began is None and steps >= WARMUP_STEPS:
            self._began = (now, cpu_s, steps)
        elif self._began is not None and now - self._began[0] >= self._seconds:
            done = steps - self._began[2]
            self.rates = (done / (now - self._began[0]), done / (cpu_s - self._began[1]))
            trainer.stop("measured")


def measure(on: bool, seconds: float) -> tuple[float, float]:
    """Env steps per second and per second of processor time, of one side."""
    preset = palaestra.preset("ppo", "CartPole-v1")
    config = dataclasses.replace(
        preset,
        trainer=TrainerConfig(total_env_steps=TOTAL, log_every_steps=preset.trainer.period("log")),
        run=dataclasses.replace(preset.run, num_threads=1),
    )
    watch = Stopwatch(seconds)
    algorithm = make_algorithm(config)
    torch.set_num_threads(1)
    with create_environment(config.env, seed=0) as env, tempfile.TemporaryDirectory() as folder:
        loggers, callbacks = [], []
        if on:
            console = Console(file=io.StringIO(), force_terminal=True, width=100)
            loggers = [FileLogger(folder), TensorBoardLogger(folder), ConsoleLogger("ppo", TOTAL, console)]
            callbacks = [Health()]
        collector = Collector.of(env, algorithm)
        Trainer(collector, algorithm, config.trainer, loggers=loggers, callbacks=[*callbacks, watch]).run()
    return watch.rates


def side(on: bool, seconds: float) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.speed.overhead", "--side", "on" if on else "off"]
    done = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--side", choices=("on", "off"))
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side == "on", options.seconds)))
        return
    rates: dict[str, list[list[float]]] = {"off": [], "on": []}
    for number in range(options.rounds):
        for on in (False, True) if number % 2 == 0 else (True, False):
            rates["on" if on else "off"].append(side(on, options.seconds))
    ratios = [[a / b for a, b in zip(on, off, strict=True)] for on, off in zip(rates["on"], rates["off"], strict=True)]
    wall, cpu = (statistics.median(ratio[clock] for ratio in ratios) for clock in (0, 1))
    result = {
        **provenance("python -m benchmarks.speed.overhead"),
        "env_steps_per_s_wall_and_cpu": rates,
        "ratio_wall": wall,
        "ratio_cpu": cpu,
    }
    print(f"with everything on: {wall:.3f} of the speed with everything off by the clock, {cpu:.3f} by processor time")
    if not options.no_write:
        write_json(RESULT, result)


if __name__ == "__main__":
    main()
