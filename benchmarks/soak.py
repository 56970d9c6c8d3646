"""`python -m benchmarks.soak`: a run with many processes, which are killed at random for an hour.

It is a run of the command line: DQN, 16 workers, a policy host and a second learner, two shards of replay and a copy of
each. A process outside kills one of them every few seconds, every second time a worker; never the first two, so that it
shows whether old ones grow. What the run holds is written down with every row of metrics: memory, descriptors, threads,
blocks that Python has allocated, calls and answers that are kept. It has to be flat: the last tenth of the samples
beside the second tenth.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.record import ROOT, origin, provenance, table, write_json
from palaestra.training import Callback

RESULTS = Path(__file__).parent / "results"
COMMAND = "from palaestra.cli import main; main()"
KINDS = {
    "rollout": "workers",
    "policy host": "policy hosts",
    "learner": "learners",
    "replay shard": "shards of replay",
    "copy of replay shard": "copies of shards",
}
MOST = {"memory_mb": 1.05, "blocks": 1.02, "descriptors": 1.1, "threads": 1.1, "calls": 1.5, "workers_mb": 1.05}
"""What the end may be of the beginning. Descriptors and threads come and go, so their peaks count. Calls whose answer
was not taken yet are more on a busy machine, so the fewest count: one that is never taken stays in every row."""


class Napping(gymnasium.Env[np.ndarray, np.int64]):
    """Every step takes 10 ms and no CPU."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        return np.zeros(4, np.float32), 1.0, bool(self.np_random.random() < 0.01), False, {}


class Samples(Callback):
    """Adds what the driver holds to every row of metrics."""

    def logged(self, trainer: Any, row: dict[str, float]) -> None:
        runtime = trainer.collector.runtime
        row["soak/memory_mb"] = memory_mb(os.getpid())
        row["soak/descriptors"] = len(os.listdir("/proc/self/fd"))
        row["soak/threads"] = threading.active_count()
        row["soak/blocks"] = sys.getallocatedblocks()
        row["soak/calls"] = len(runtime._open) + len(runtime._results) + len(runtime._due)


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1e3
    return 0.0


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kinds_of(pid: int) -> dict[str, list[int]]:
    """Processes that the driver's fork server has begun, by what they are in the run."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for process in (one for child in children(pid) for one in children(child)):
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{process}/cmdline").read_text()
            for kind in (kind for kind in KINDS if title.startswith(f"palaestra: {kind}")):
                found[kind].append(process)
    return found


def soak(seconds: float, workers: int, pause_s: float, folder: Path) -> dict[str, Any]:
    """Runs, kills, stops the run as Ctrl-C does, and looks at what it wrote."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = (
        f"train dqn benchmarks.soak:Napping --env.num-envs {workers} --runtime process --num-workers {workers} "
        f"--run.directory {folder} --run.name soak --run.callbacks benchmarks.soak:Samples --run.num-threads 1 "
        "--trainer.total-env-steps 1000000000 --trainer.eval-every-steps 0 --trainer.log-every-steps 2000 "
        "--algorithm.network.hidden-sizes 64 64 --algorithm.capacity 8000 --algorithm.learning-starts 1000 "
        "--algorithm.unroll-length 32 --algorithm.gradient-steps 8 "
        "--distributed.num-learners 2 --distributed.gradient-shards 2 --distributed.num-policy-hosts 1 "
        "--distributed.replay-shards 2 --distributed.replay-copies "
        f"--distributed.min-finished-workers {max(1, workers * 3 // 4)} --distributed.max-lag 1 "
        "--distributed.max-restarts 1000000 --distributed.backoff-s 0 --distributed.timeout-s 1200"
    )
    log, killed, chance = folder / "log", Counter[str](), random.Random(0)
    with open(log, "wb") as out:
        run = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments.split()],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        while not all((found := kinds_of(run.pid)).values()) or len(found["rollout"]) < workers:
            if run.poll() is not None:
                raise SystemExit(f"the run ended with exit code {run.poll()}:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)
        spared, old_mb, began = set(found["rollout"][:2]), list[float](), time.monotonic()
        while (left := seconds - (time.monotonic() - began)) > 0 and run.poll() is None:
            time.sleep(min(left, pause_s * chance.uniform(0.5, 1.5)))
            kind = "rollout" if chance.random() < 0.5 else chance.choice(list(KINDS)[1:])
            if victims := [process for process in kinds_of(run.pid)[kind] if process not in spared]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(victims), signal.SIGKILL)
                    killed[kind] += 1
            old_mb.append(max(memory_mb(worker) for worker in spared))
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
        code = run.wait(120)
    if code != 130:
        raise SystemExit(f"the run ended with exit code {code}:\n{log.read_text()[-3000:]}")
    rows = [json.loads(line) for line in (folder / "soak/metrics.jsonl").read_text().splitlines()]
    return {
        "killed": {KINDS[kind]: killed[kind] for kind in KINDS},
        **summary([row for row in rows if "soak/blocks" in row], old_mb),
    }


def summary(rows: list[dict[str, float]], old_mb: list[float]) -> dict[str, Any]:
    """Second tenth of the samples, and last tenth."""
    found: dict[str, Any] = {name: rows[-1][f"workers/{name}"] for name in ("fragments", "restarts", "dropped")}
    found |= {name: rows[-1].get(name, 0.0) for name in ("learners/lost", "replay/lost_rows")}
    series = {name: [row[f"soak/{name}"] for row in rows] for name in MOST if f"soak/{name}" in rows[-1]}
    series["workers_mb"] = old_mb
    found |= {"iterations": len(rows), "env_steps": rows[-1]["env_steps"], "duplicates": rows[-1]["workers/duplicates"]}
    for name, values in series.items():
        tenth = max(1, len(values) // 10)
        middle = {"descriptors": max, "threads": max, "calls": min}.get(name, statistics.median)
        early, late = middle(values[tenth : 2 * tenth] or values), middle(values[-tenth:])
        flat = late <= max(MOST[name] * early, early + 3 if middle is not statistics.median else 0)
        found[name] = {"early": early, "late": late, "most": max(values), "flat": flat}
    return found


def report(record: dict[str, Any]) -> str:
    names = {
        "memory_mb": "driver, MB",
        "workers_mb": "oldest worker, MB",
        "blocks": "blocks of Python's memory in the driver",
        "descriptors": "descriptors of the driver",
        "threads": "threads of the driver",
        "calls": "calls and answers that the driver keeps",
    }
    rows = [
        [title, *(f"{record[name][when]:,.0f}" for when in ("early", "late", "most")), _yes(record[name]["flat"])]
        for name, title in names.items()
    ]
    killed = ", ".join(f"{count} {kind}" for kind, count in record["killed"].items())
    head = (
        f"{record['minutes']:g} minutes, {record['workers']} workers, 2 learners of which one is a policy host, 2 "
        f"shards of replay with copies. Killed: {killed}; {record['restarts']:,.0f} restarted, "
        f"{record['replay/lost_rows']:,.0f} rows of replay lost by name, {record['iterations']:,} rows of metrics, "
        f"{record['env_steps']:,.0f} env steps, "
        f"{record['fragments']:,.0f} fragments learned from once, {record['dropped']:,.0f} dropped by name."
    )
    return f"{head}\n\n{table(['what', 'second tenth', 'last tenth', 'most', 'flat'], rows)}"


def _yes(flat: bool) -> str:
    return "yes" if flat else "no"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between kills, on average")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and a table are written")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.soak --minutes {arguments.minutes:g} --workers {arguments.workers}"
    record = provenance(command) | {"minutes": arguments.minutes, "workers": arguments.workers}
    with tempfile.TemporaryDirectory() as folder:
        record |= soak(60 * arguments.minutes, arguments.workers, arguments.pause, Path(folder))
    text = report(record)
    print(text)
    write_json(arguments.results / "soak.json", record)
    (arguments.results / "soak.md").write_text(f"{origin(record)}\n\n{text}\n")


if __name__ == "__main__":
    main()
