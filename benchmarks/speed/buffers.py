"""`python -m benchmarks.speed.buffers`: our buffers and `Batch` beside four other libraries, in turns."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import ROOT, origin, provenance, table, write_json
from benchmarks.speed import peers
from benchmarks.speed.buffer_tasks import TASKS, Task

RESULTS = Path(__file__).parent / "results"
PEERS = {
    "sb3": ("Stable-Baselines3", {"stable-baselines3": "2.9.2"}),
    "tianshou": ("Tianshou", {"tianshou": "2.0.1"}),
    "torchrl": ("TorchRL, TensorDict", {"torchrl": "0.14.1", "tensordict": "0.14.3"}),
    "cpprb": ("cpprb", {"cpprb": "11.0.0"}),
}
SHARED = ("torch", "gymnasium", "numpy")


class Child:
    """A side that has built its buffer and measures when it is asked to."""

    def __init__(self, side: str, task: str, python: Path) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if side != "ours":
            env.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", f"benchmarks.speed.buffer_{side}", task],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._side = side

    def wait(self) -> None:
        while self._answer() != "ready":  # some libraries greet on standard output
            pass

    def measure(self, seconds: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(json.loads(self._answer()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"the benchmark of {self._side} ended with {self._process.wait()}")
        return answer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.buffers", description=__doc__)
    parser.add_argument("tasks", nargs="*", default=[*TASKS], help=f"of {', '.join(TASKS)}; all by default")
    parser.add_argument("--rounds", type=int, default=15, help="one round: a window of ours, one of each peer")
    parser.add_argument("--window", type=float, default=0.4, help="seconds measured in each window")
    parser.add_argument(
        "--peer-dir", type=Path, default=peers.default_directory(), help="where the peers are installed"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and the table are written")
    return parser.parse_args()


def run_task(name: str, pythons: Mapping[str, Path], rounds: int, window_s: float) -> dict[str, list[float]]:
    sides = {"ours": Path(sys.executable), **{peer: pythons[peer] for peer in TASKS[name].bars}}
    children = {side: Child(side, name, python) for side, python in sides.items()}
    try:
        for child in children.values():
            child.wait()
        speeds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, child in children.items():
                speeds[side].append(child.measure(window_s))
    finally:
        for child in children.values():
            child.close()
    print(name, {side: f"{spread(values).median:,.0f}" for side, values in speeds.items()}, flush=True)
    return speeds


def evaluate(task: Task, speeds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Median ratios within the rounds, and the bars."""
    rounds = {peer: spread(ratios(speeds["ours"], speeds[peer]))._asdict() for peer in task.bars}
    return {
        "speeds": {side: spread(values)._asdict() for side, values in speeds.items()},
        "ratios": rounds,
        "bars": {p: {"least": least, "met": rounds[p]["median"] >= least} for p, least in task.bars.items()},
    }


def markdown(record: Mapping[str, Any]) -> str:
    lines = []
    for name, summary in record["summary"].items():
        task = TASKS[name]
        for peer, bar in summary["bars"].items():
            ratio, speed = summary["ratios"][peer], summary["speeds"]
            lines.append(
                [
                    task.title,
                    PEERS[peer][0],
                    f"{speed['ours']['median']:,.0f} {task.unit}",
                    f"{speed[peer]['median']:,.0f}",
                    f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
                    f"{bar['least']:g}" if bar["least"] else "none",
                    "yes" if bar["met"] else "**no**",
                ]
            )
    header = ["", "beside", "Palaestra", "peer", "ratio, median (min to max)", "bar", "met"]
    versions = "; ".join(", ".join(f"{n} {v}" for n, v in found.items()) for found in record["peers"].values())
    return "\n\n".join(
        [
            "## Buffers and batches, one thread",
            table(header, lines),
            "Observation 84 float32, action 6 float32, capacity 10^6 in 8 lanes. All sides build their buffer, touch "
            "its memory and then measure in turns, one window after another; a ratio is taken within each round. "
            "Peers that give numpy arrays convert them to tensors, as a learner needs them.",
            f"{origin(record)} Peers: {versions}.",
        ]
    )


def main() -> None:
    arguments = parse()
    needed = sorted({peer for name in arguments.tasks for peer in TASKS[name].bars})
    found = {peer: peers.environment(arguments.peer_dir, peer, PEERS[peer][1], SHARED) for peer in needed}
    pythons = {peer: python for peer, (python, _) in found.items()}
    options = f"--rounds {arguments.rounds} --window {arguments.window:g}"
    chosen = "" if arguments.tasks == [*TASKS] else " ".join(arguments.tasks) + " "
    record = provenance(f"python -m benchmarks.speed.buffers {chosen}{options}")
    runs = {name: run_task(name, pythons, arguments.rounds, arguments.window) for name in arguments.tasks}
    record |= {"peers": {peer: versions for peer, (_, versions) in found.items()}}
    record |= {"summary": {name: evaluate(TASKS[name], speeds) for name, speeds in runs.items()}, "runs": runs}
    text = markdown(record)
    write_json(arguments.results / "buffers.json", record)
    (arguments.results / "buffers.md").write_text(text + "\n")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
