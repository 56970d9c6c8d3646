"""`python -m benchmarks.speed.minatar`: env steps a second of training, PQN beside DQN, on MinAtar's games.

Both train as their learning rows do (`benchmarks.learning`: settings, one thread, compiled), but evaluate nothing. They
measure in turns, each in a fresh process on one core. The window opens at the same env step for both, where they have
ended exploring: neither compilation nor the steps that DQN only collects fall into it.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed.compare import pinned

RESULTS = Path(__file__).parent / "results"
GAMES, SIDES = ("Breakout", "SpaceInvaders"), ("pqn", "dqn")
BAR = 5.0
"""How many times as fast as DQN PQN has to be."""


def measured(side: str, game: str, start: int, window_s: float) -> dict[str, float]:
    """Env steps a second of one training run.

    Args:
        side: algorithm.
        game: which.
        start: env steps before the window.
        window_s: its length; it begins and ends between two iterations.
    """
    import palaestra
    from palaestra.experiments import published_rows
    from palaestra.training import Callback, Trainer

    class Timer(Callback):
        """Stops the run when the window is over."""

        began: tuple[float, int] | None = None
        result: dict[str, float]

        def iteration_ended(self, trainer: Trainer, updates: Mapping[str, Any]) -> None:
            now, env_steps = time.perf_counter(), trainer.collector.env_steps
            if self.began is None:
                self.began = (now, env_steps) if updates and env_steps >= start else None
            elif now - self.began[0] >= window_s:
                seconds, steps = now - self.began[0], env_steps - self.began[1]
                self.result = {"env_steps_per_s": steps / seconds, "env_steps": steps, "window_s": seconds}
                trainer.stop("the window is over")

    row, timer = published_rows()[f"{side}_MinAtar{game}"], Timer()
    with tempfile.TemporaryDirectory() as folder:
        settings = {**row.settings, "trainer__eval_episodes": 0, "run__directory": folder}
        settings |= {"run__num_threads": 1, "run__tensorboard": False}
        palaestra.train(row.algorithm, row.env, callbacks=[timer], **settings)
    return timer.result


def run_once(side: str, game: str, arguments: argparse.Namespace) -> dict[str, float]:
    numbers = [str(arguments.start), str(arguments.window)]
    command = [sys.executable, "-m", "benchmarks.speed.minatar", "--child", side, game, *numbers]
    result = pinned(command)
    print(f"{game:<14} {side}  {result['env_steps_per_s']:,.0f} env steps/s", flush=True)
    return result


def markdown(record: Mapping[str, Any]) -> str:
    rows = []
    for game, runs in record["runs"].items():
        speeds = {side: [run["env_steps_per_s"] for run in runs[side]] for side in SIDES}
        each = [f"{median:,.0f} ({low:,.0f} to {high:,.0f})" for median, low, high in map(spread, speeds.values())]
        ratio = spread(ratios(speeds["pqn"], speeds["dqn"]))
        met = "met" if ratio.median >= BAR else "**not met**"
        rows.append([game, *each, f"{ratio.median:.1f} ({ratio.low:.1f} to {ratio.high:.1f})", f"{BAR:g} ({met})"])
    header = ["game", "PQN (min to max)", "DQN (min to max)", "ratio (min to max)", "bar"]
    title = f"Env steps a second from step {record['start']:,} on, one core, compiled, without evaluations:"
    return "\n\n".join([title, table(header, rows), origin(record)])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        side, game, start, window_s = sys.argv[2:]
        print(json.dumps(measured(side, game, int(start), float(window_s))))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.minatar", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--start", type=int, default=100_000, help="env steps before the window")
    parser.add_argument("--window", type=float, default=10.0, help="seconds measured in each run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs: dict[str, dict[str, list[Any]]] = {game: {side: [] for side in SIDES} for game in GAMES}
    for _ in range(arguments.rounds):
        for game in GAMES:
            for side in SIDES:
                runs[game][side].append(run_once(side, game, arguments))
    options = f"--rounds {arguments.rounds} --start {arguments.start} --window {arguments.window:g}"
    record = {**provenance(f"python -m benchmarks.speed.minatar {options}"), "start": arguments.start, "runs": runs}
    write_json(arguments.results / "minatar.json", record)
    text = markdown(record)
    publish(arguments.results / "minatar.md", text, "docs/algorithms/pqn.md", "speed")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
