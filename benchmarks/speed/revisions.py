"""`python -m benchmarks.speed.revisions OLD NEW`: two checkouts of this repository, one beside the other.

For each workload both sides are built, each in a process of its own, and then measure in turns, a fifth of a second
each, so that a change of the machine's speed hits both. A ratio, new to old, is taken within each pair of turns; that
of a round is their median. Both are built anew for every round: where a process has its memory moves all of its numbers
by some percent. In a round both have the same core, for what else a machine does slows its cores unequally; workers
of environments have all of them.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import origin, provenance, table, write_json

RESULTS = Path(__file__).parent / "results"
CHILD = Path(__file__).with_name("revision.py")
TURN_S = 0.2
"""How long a side measures before it is the other's turn; a shared machine's speed changes within seconds."""
LEAST = 0.98
"""Median ratio below which a workload counts as slower."""
TITLES = {
    **{
        f"train {name} {variant}": f"{title}, {variant}"
        for name, title in {
            "ppo": "PPO, 8 CartPoles x 128 steps",
            "dqn": "DQN, CartPole, one update per step",
            "sac": "SAC, HalfCheetah, one update per step",
            "td3": "TD3, HalfCheetah, one update per step",
        }.items()
        for variant in ("eager", "compiled")
    },
    "tensor 1024": "PPO, 1,024 CartPoles as tensors x 16 steps",
    "buffer add": "buffer: append 8 rows",
    "buffer sample": "buffer: draw 256 transitions",
    "buffer prioritized_100": "buffer: prioritized draw of 256 and write back",
    "step serial CartPole-v1 8": "step 8 CartPoles in this process",
    "step serial CartPole-v1 64": "step 64 CartPoles in this process",
    "step process CartPole-v1 64": "step 64 CartPoles in 2 worker processes",
    "step adapted_pool CartPole-v1 8": "step Gymnasium's vectorised CartPoles, 8",
    "step tensor 0": "step 4,096 CartPoles as tensors",
}


class Side:
    """A checkout that has built a workload, and measures when it is asked to."""

    def __init__(self, checkout: Path, workload: str, clock: str, core: int, cache: str) -> None:
        path = os.pathsep.join([str(checkout / "src"), str(checkout)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(CHILD), workload, clock, str(core)],
            cwd=checkout,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": cache},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._checkout = checkout

    def wait(self) -> None:
        while self._answer() != "ready":
            pass

    def measure(self, seconds: float) -> float:
        """Calls per second."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(json.loads(self._answer()))

    def close(self) -> None:
        """Environments in worker processes end with their parent."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"the side of {self._checkout} ended with {self._process.wait()}")
        return answer


def run(
    workload: str, checkouts: Mapping[str, Path], rounds: int, window_s: float, clock: str
) -> dict[str, list[list[float]]]:
    """Calls per second of each side in each turn of each round; who is first changes from turn to turn."""
    cores = sorted(os.sched_getaffinity(0))
    speeds: dict[str, list[list[float]]] = {name: [[] for _ in range(rounds)] for name in checkouts}
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds):
            core = cores[number % len(cores)]
            sides = {name: Side(path, workload, clock, core, f"{cache}/{name}") for name, path in checkouts.items()}
            try:
                for side in sides.values():
                    side.wait()
                for turn in range(math.ceil(window_s / TURN_S)):
                    for name in sides if turn % 2 else reversed(sides):
                        speeds[name][number].append(sides[name].measure(TURN_S))
            finally:
                for side in sides.values():
                    side.close()
    return speeds


def evaluate(speeds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    rounds = zip(speeds["new"], speeds["old"], strict=True)
    ratio = spread([spread(ratios(new, old)).median for new, old in rounds])
    medians = {name: spread(list(itertools.chain(*values))).median for name, values in speeds.items()}
    return {"calls_per_s": medians, "ratio": ratio._asdict(), "met": ratio.median >= LEAST}


def markdown(record: Mapping[str, Any]) -> str:
    lines = []
    for workload, summary in record["summary"].items():
        ratio, speed = summary["ratio"], summary["calls_per_s"]
        line = [TITLES.get(workload, workload), f"{speed['old']:,.1f}", f"{speed['new']:,.1f}"]
        line += [f"{ratio['median']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}"]
        lines.append([*line, "yes" if summary["met"] else "**no**"])
    revisions = record["revisions"]
    header = ["", f"old ({revisions['old']}), 1/s", f"new ({revisions['new']}), 1/s", "new / old, median"]
    return "\n\n".join(
        [
            "## Old beside new, one thread",
            table([*header, "min to max", f"at least {LEAST}"], lines),
            "Iterations of a trainer, calls of a buffer or steps of an environment per second; a ratio is taken within "
            f"each pair of turns of {TURN_S:g} s and its median in each of {record['rounds']} rounds; the table has "
            "the median and the extremes of these. Both sides are built anew for every round, in which both have the "
            f"same core. Seconds are of the clock {record['clock']!r}.",
            origin(record),
        ]
    )


def revision_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.revisions", description=__doc__)
    parser.add_argument("old", type=Path, help="checkout of the old revision")
    parser.add_argument("new", type=Path, help="checkout of the new one")
    parser.add_argument("--only", default="", help="workloads that contain this, such as 'train' or 'buffer add'")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--window", type=float, default=1.0, help="seconds of each side in each round")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time of the process")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where revisions.json and revisions.md are written"
    )
    arguments = parser.parse_args()
    checkouts = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    options = f"--rounds {arguments.rounds} --window {arguments.window:g} --clock {arguments.clock}"
    record = provenance(f"python -m benchmarks.speed.revisions OLD NEW {options}")
    record |= {"revisions": {name: revision_of(path) for name, path in checkouts.items()}}
    record |= {"rounds": arguments.rounds, "clock": arguments.clock, "summary": {}, "runs": {}}
    for workload in TITLES:
        if arguments.only in workload:
            speeds = run(workload, checkouts, arguments.rounds, arguments.window, arguments.clock)
            record["runs"][workload], record["summary"][workload] = speeds, evaluate(speeds)
            print(markdown(record).split("\n\n")[1].splitlines()[-1], flush=True)
            write_json(arguments.results / "revisions.json", record)
            (arguments.results / "revisions.md").write_text(markdown(record) + "\n")
    print(f"\n{markdown(record)}")


if __name__ == "__main__":
    main()
