"""`python -m benchmarks.learning.go1`: a robot dog learns to walk, three seeds one after another.

Trains `ppo` on `palaestra.envs:Go1Joystick` with its preset, and measures how well commands are followed: means over
64 robots and their first 1,000 steps of `tracking/linear` and `tracking/yaw`, 1 where a robot moves as it is told; the
same of a robot that does nothing.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import palaestra
from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra.analysis import policy_of_run
from palaestra.envs import Go1Joystick
from palaestra.runs import RunDirectory

RESULTS = Path(__file__).parent / "results"
ROBOTS, STEPS, FIRST_SEED = 64, 1000, 10_000


def followed(policy: palaestra.Policy | None) -> dict[str, float]:
    """How well robots follow commands, by their deterministic actions.

    Args:
        policy: that moves them; without one they stand.
    """
    env = Go1Joystick(ROBOTS, lane_seeds=range(FIRST_SEED, FIRST_SEED + ROBOTS))
    time_step = env.reset()
    total: dict[str, float] = dict.fromkeys(("linear", "yaw", "return", "length"), 0.0)
    running = np.ones(ROBOTS, np.bool_)
    for _ in range(STEPS):
        action = torch.zeros(ROBOTS, 12) if policy is None else torch.as_tensor(policy(time_step.observation))
        time_step = env.step(action)
        values = {**env.infos(), "return": time_step.reward.numpy(), "length": np.ones(ROBOTS)}
        for name, value in values.items():
            total[name.rpartition("/")[2]] += float(value[running].sum())
        running &= time_step.step_type.numpy() != 2
    steps = total["length"]
    return {name: value / (steps if name in ("linear", "yaw") else ROBOTS) for name, value in total.items()}


def learned(seed: int, folder: Path) -> dict[str, Any]:
    """One run, and what its last policy does."""
    began, processor = time.monotonic(), time.process_time()
    run = palaestra.train("ppo", "palaestra.envs:Go1Joystick", run__seed=seed, run__directory=str(folder))
    seconds = {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - processor}
    policy = policy_of_run(RunDirectory(run.directory), "last")
    return {"seed": seed, "env_steps": run.result.env_steps, **seconds, **followed(policy)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.go1", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/go1"), help="where the runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where go1.json and go1.md are written")
    arguments = parser.parse_args()
    record = {**provenance("python -m benchmarks.learning.go1"), "standing": followed(None), "rows": []}
    for seed in arguments.seeds:
        record["rows"].append(learned(seed, arguments.runs))
        write(record, arguments.results)


def write(record: dict[str, Any], folder: Path) -> None:
    """The results so far, as numbers and as a page."""
    write_json(folder / "go1.json", record)
    rows = [("does nothing", "", "", record["standing"])]
    for row in record["rows"]:
        minutes = f"{row['seconds'] / 60:.1f} ({row['processor_seconds'] / 60:.1f})"
        rows.append((f"seed {row['seed']}", f"{row['env_steps']:,}", minutes, row))
    cells = [
        [who, steps, minutes, *(f"{values[name]:.2f}" for name in ("linear", "yaw")), f"{values['return']:.1f}"]
        for who, steps, minutes, values in rows
    ]
    head = ["", "env steps", "minutes (of processors)", "linear", "yaw", "return"]
    publish(
        folder / "go1.md",
        f"{table(head, cells)}\n\n{origin(record)}{record.get('note', '')}",
        "docs/tutorials/batches.md",
        place="go1",
    )


if __name__ == "__main__":
    main()
