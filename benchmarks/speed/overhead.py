"""What loggers, metrics, callbacks and the panel cost: PPO on CartPole-v1 with all of them on, and with all off.

    python -m benchmarks.speed.overhead                # writes results/overhead.json
    python -m benchmarks.speed.overhead --rounds 1 --turns 4 --no-write

Both sides are one run of the same preset: its loggers are taken away and given back every half second, because one
process is faster than the next by more than what is measured. "On" is what `palaestra train` has by default:
metrics.jsonl, episodes.csv, TensorBoard, health warnings, and the panel on a terminal of its own. "Off" has no logger
and no callback. Neither evaluates or saves: that costs time on purpose. A round is a fresh process. Beside the wall
clock, the processor time of the whole process is measured: its ratio means something on a busy machine as well.
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
from palaestra.training import Callback, ConsoleLogger, FileLogger, Health, Logger, TensorBoardLogger

RESULT = Path(__file__).parent / "results" / "overhead.json"
TOTAL = 4_000_000
WARMUP_STEPS = 5_000


class Turns(Callback):
    """Takes a trainer's loggers away and gives them back; counts env steps of every turn, after a warm-up."""

    def __init__(self, turns: int, seconds: float) -> None:
        self._left, self._seconds = 2 * turns + 2, seconds
        self._began: tuple[float, float, int] | None = None
        self._away: tuple[list[Logger], list[Callback]] | None = None
        self.rates: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
        """Env steps per second and per second of processor time."""

    def iteration_began(self, trainer: Trainer) -> None:
        now, cpu_s, steps = time.perf_counter(), time.process_time(), trainer.collector.env_steps
        if self._began is None:
            if steps >= WARMUP_STEPS:
                self._began = (now, cpu_s, steps)
            return
        if now - self._began[0] < self._seconds:
            return
        done = steps - self._began[2]
        rates = self.rates["on" if self._away is None else "off"]
        rates.append((done / (now - self._began[0]), done / (cpu_s - self._began[1])))
        self._left -= 1
        if not self._left:
            trainer.stop("measured")
        self._toggle(trainer)
        self._began = (time.perf_counter(), time.process_time(), steps)

    def _toggle(self, trainer: Trainer) -> None:
        if self._away is None:
            self._away = trainer._loggers, trainer.callbacks
            alone: list[Callback] = [self]
            trainer._loggers, trainer.callbacks = [], alone
        else:
            (trainer._loggers, trainer.callbacks), self._away = self._away, None


def measure(turns: int, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Env steps per second, and per second of processor time, of every turn but the first of each side."""
    preset = palaestra.preset("ppo", "CartPole-v1")
    config = dataclasses.replace(
        preset,
        trainer=TrainerConfig(total_env_steps=TOTAL, log_every_steps=preset.trainer.period("log")),
        run=dataclasses.replace(preset.run, num_threads=1),
    )
    clock = Turns(turns, seconds)
    algorithm = make_algorithm(config)
    torch.set_num_threads(1)
    with create_environment(config.env, seed=0) as env, tempfile.TemporaryDirectory() as folder:
        console = Console(file=io.StringIO(), force_terminal=True, width=100)
        loggers = [FileLogger(folder), TensorBoardLogger(folder), ConsoleLogger("ppo", TOTAL, console)]
        collector = Collector.of(env, algorithm)
        Trainer(collector, algorithm, config.trainer, loggers=loggers, callbacks=[Health(), clock]).run()
    return {side: rates[1:] for side, rates in clock.rates.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=40, help="of each side, in each round")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.turns, options.seconds)))
        return
    command = [sys.executable, "-m", "benchmarks.speed.overhead", "--side", "--turns", str(options.turns)]
    rounds = []
    for _ in range(options.rounds):
        done = subprocess.run([*command, "--seconds", str(options.seconds)], capture_output=True, text=True, check=True)
        rounds.append(json.loads(done.stdout.splitlines()[-1]))
    wall, cpu = ([_ratio(found, clock) for found in rounds] for clock in (0, 1))
    result = {
        **provenance("python -m benchmarks.speed.overhead"),
        "env_steps_per_s_wall_and_cpu": rounds,
        "ratio_wall_of_each_round": wall,
        "ratio_wall": statistics.median(wall),
        "ratio_cpu": statistics.median(cpu),
    }
    print(
        f"with everything on: {result['ratio_wall']:.3f} of the speed with everything off by the clock "
        f"({min(wall):.3f} to {max(wall):.3f}), {result['ratio_cpu']:.3f} by processor time"
    )
    if not options.no_write:
        write_json(RESULT, result)


def _ratio(found: dict[str, list[list[float]]], clock: int) -> float:
    """Median over neighbouring turns."""
    return statistics.median(on[clock] / off[clock] for on, off in zip(found["on"], found["off"], strict=True))


if __name__ == "__main__":
    main()
