"""What loggers, metrics, callbacks and the panel cost: PPO on CartPole-v1 with all of them on, and with all off.

    python -m benchmarks.speed.overhead                # writes results/overhead.json
    python -m benchmarks.speed.overhead --rounds 3 --seconds 2 --no-write

Both sides run in fresh processes, one after the other and again, on the same preset. "On" is what `palaestra train` has
by default: metrics.jsonl, episodes.csv, TensorBoard, health warnings, and the panel on a terminal of its own. "Off" has
no logger and no callback. Neither evaluates or saves: that costs time on purpose.
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
        self._seconds, self._began = seconds, None
        self.env_steps_per_s = 0.0

    def iteration_began(self, trainer: Trainer) -> None:
        now, steps = time.perf_counter(), trainer.collect.env_steps
        if self._began is None and steps >= WARMUP_STEPS:
            self._began = (now, steps)
        elif self._began is not None and now - self._began[0] >= self._seconds:
            self.env_steps_per_s = (steps - self._began[1]) / (now - self._began[0])
            trainer.stop("measured")


def measure(on: bool, seconds: float) -> float:
    """Env steps per second of one side."""
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
    return watch.env_steps_per_s


def side(on: bool, seconds: float) -> float:
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
        print(measure(options.side == "on", options.seconds))
        return
    rates: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(options.rounds):
        for on in (False, True) if number % 2 == 0 else (True, False):
            rates["on" if on else "off"].append(side(on, options.seconds))
    ratios = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    result = {
        **provenance("python -m benchmarks.speed.overhead"),
        "env_steps_per_s": rates,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }
    print(f"with everything on: {result['ratio']:.3f} of the speed with everything off (at least 0.95 is the bar)")
    if not options.no_write:
        write_json(RESULT, result)


if __name__ == "__main__":
    main()
