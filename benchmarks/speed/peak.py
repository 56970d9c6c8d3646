"""`python -m benchmarks.speed.peak`: peak memory of training above `import torch`, beside Stable-Baselines3.

PPO on CartPole-v1, 8 environments, and SAC on HalfCheetah-v5 with a replay buffer for 10^6 rows, each for a few
thousand env steps and without evaluations, in a process of its own: `palaestra train` as it is typed, and the peer's
`learn`. Rows of a buffer take memory as they are written, on both sides, so that of SAC is nearly empty at the end.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed import peers

RESULTS = Path(__file__).parent / "results"
BAR = 0.7
"""Most of ours above torch, as a share of the peer's above torch."""
STEPS = {"PPO CartPole-v1": 20_000, "SAC HalfCheetah-v5": 4_000}
OURS = {
    "PPO CartPole-v1": ("ppo", "CartPole-v1", "--env.num-envs", "8"),
    "SAC HalfCheetah-v5": ("sac", "HalfCheetah-v5", "--env.num-envs", "1", "--algorithm.capacity", "1000000"),
}
BUFFER = {"SAC HalfCheetah-v5": " into a buffer for 10^6 rows"}
PEER = {
    "PPO CartPole-v1": "PPO('MlpPolicy', make_vec_env('CartPole-v1', 8)).learn({steps})",
    "SAC HalfCheetah-v5": "SAC('MlpPolicy', 'HalfCheetah-v5', buffer_size=1_000_000).learn({steps})",
}


def peak_mb(command: Sequence[str | Path]) -> float:
    """Of one process, until its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([str(one) for one in command], stdout=output, stderr=output, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            output.seek(0)
            raise RuntimeError(output.read().decode()[-2000:])
    return used.ru_maxrss / 1024


def measured(task: str, python: Path) -> dict[str, float]:
    """MB of each side's training, and of its `import torch`."""
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--trainer.total-env-steps",
            str(STEPS[task]),
            "--trainer.eval-episodes",
            "0",
            "--run.directory",
            folder,
        ]
        ours = peak_mb([sys.executable, "-m", "palaestra", "train", *OURS[task], *options, "--run.num-threads", "1"])
    head = "from stable_baselines3 import PPO, SAC; from stable_baselines3.common.env_util import make_vec_env; "
    peer = peak_mb([python, "-c", head + PEER[task].format(steps=STEPS[task])])
    torch = {name: peak_mb([one, "-c", "import torch"]) for name, one in (("ours", sys.executable), ("peer", python))}
    found = {"ours": ours, "peer": peer, "ours_torch": torch["ours"], "peer_torch": torch["peer"]}
    print(task, "  ".join(f"{name} {value:.0f} MB" for name, value in found.items()), flush=True)
    return found


def markdown(record: dict[str, Any]) -> str:
    rows = []
    for task, runs in record["runs"].items():
        ours, peer = ([run[side] - run[f"{side}_torch"] for run in runs] for side in ("ours", "peer"))
        share = spread(ratios(ours, peer))
        met = "met" if share.median <= BAR else "**not met**"
        sides = (
            f"{spread(one).median:.0f}"
            for one in (ours, peer, [run["ours"] for run in runs], [run["peer"] for run in runs])
        )
        name = f"{task}, {STEPS[task]:,} env steps{BUFFER.get(task, '')}"
        rows.append([name, *sides, f"{share.median:.2f} ({share.low:.2f} to {share.high:.2f})", f"{BAR} ({met})"])
    header = [
        "",
        "above torch, MB",
        "Stable-Baselines3",
        "whole process, MB",
        "Stable-Baselines3",
        "of the peer's above torch",
        "bar",
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record["peer"].items())
    return f"{table(header, rows)}\n\n{origin(record)} Peer: {versions}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.peak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-dir", type=Path, default=peers.default_directory(), help="where the peer is installed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    python, versions = peers.installed_peer(arguments.peer_dir, "sb3")
    runs = {task: [measured(task, python) for _ in range(arguments.rounds)] for task in STEPS}
    record = {
        **provenance(f"python -m benchmarks.speed.peak --rounds {arguments.rounds}"),
        "peer": versions,
        "runs": runs,
    }
    write_json(arguments.results / "peak.json", record)
    text = markdown(record)
    publish(arguments.results / "peak.md", text, "docs/concepts/speed.md", "peak")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
