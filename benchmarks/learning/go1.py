"""`python -m benchmarks.learning.go1`: a robot dog learns to walk, three seeds one after another; or another robot.

Trains `ppo` on `palaestra.envs:Go1Joystick` (or `--robot Spot`, `BerkeleyHumanoid`, `G1`) with its preset, and measures
how well commands are followed: means over 64 robots and their first 1,000 steps of `tracking/linear` and
`tracking/yaw`, 1 where a robot moves as it is told; the same of a robot that does nothing.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import palaestra
from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra import envs
from palaestra.analysis import policy_of_run
from palaestra.runs import RunDirectory

RESULTS = Path(__file__).parent / "results"
ROBOTS, STEPS, FIRST_SEED = 64, 1000, 10_000
OTHERS = ("Spot", "BerkeleyHumanoid", "G1")
HEAD = ["env steps", "minutes (of processors)", "linear", "yaw", "return"]
PAGE = "docs/tutorials/batches.md"


def followed(robot: str, policy: palaestra.Policy | None) -> dict[str, float]:
    """How well robots follow commands, by their deterministic actions.

    Args:
        robot: which.
        policy: that moves them; without one they stand.
    """
    env = getattr(envs, f"{robot}Joystick")(ROBOTS, lane_seeds=range(FIRST_SEED, FIRST_SEED + ROBOTS))
    time_step = env.reset()
    total: dict[str, float] = dict.fromkeys(("linear", "yaw", "return", "length"), 0.0)
    running = np.ones(ROBOTS, np.bool_)
    for _ in range(STEPS):
        action = (
            torch.zeros_like(time_step.prev_action)
            if policy is None
            else torch.as_tensor(policy(time_step.observation))
        )
        time_step = env.step(action)
        tracking = {name: value for name, value in env.infos().items() if name.startswith("tracking/")}
        values = {**tracking, "return": time_step.reward.numpy(), "length": np.ones(ROBOTS)}
        for name, value in values.items():
            total[name.rpartition("/")[2]] += float(value[running].sum())
        running &= time_step.step_type.numpy() != 2
    steps = total["length"]
    return {name: value / (steps if name in ("linear", "yaw") else ROBOTS) for name, value in total.items()}


def learned(robot: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run, and what its last policy does."""
    began, processor = time.monotonic(), time.process_time()
    run = palaestra.train("ppo", f"palaestra.envs:{robot}Joystick", run__seed=seed, run__directory=str(folder))
    seconds = {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - processor}
    policy = policy_of_run(RunDirectory(run.directory), "last")
    return {"seed": seed, "env_steps": run.result.env_steps, **seconds, **followed(robot, policy)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.go1", description=__doc__)
    parser.add_argument("--robot", choices=("Go1", *OTHERS), default="Go1")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: only what doing nothing has")
    parser.add_argument("--runs", type=Path, default=Path("runs/go1"), help="where the runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where go1.json and go1.md are written")
    arguments = parser.parse_args()
    robot, command = arguments.robot, "python -m benchmarks.learning.go1"
    command += f" --robot {robot}" * (robot != "Go1")
    record = {**provenance(command), "standing": followed(robot, None), "rows": []}
    write(robot, record, arguments.results)
    for seed in arguments.seeds:
        record["rows"].append(learned(robot, seed, arguments.runs))
        write(robot, record, arguments.results)


def write(robot: str, record: dict[str, Any], folder: Path) -> None:
    """The results so far, as numbers and as a page."""
    write_json(folder / f"{robot.lower()}.json", record)
    if robot == "Go1":
        head, text = ["", *HEAD], origin(record) + record.get("note", "")
        return publish(folder / "go1.md", f"{table(head, _cells(record))}\n\n{text}", PAGE, place="go1")
    found = {name: folder / f"{name.lower()}.json" for name in OTHERS}
    records = {name: json.loads(file.read_text()) for name, file in found.items() if file.exists()}
    cells = [[name, *row] for name, one in records.items() for row in _cells(one)]
    text = "\n\n".join(origin(one) + one.get("note", "") for one in records.values())
    return publish(folder / "legs.md", f"{table(['robot', '', *HEAD], cells)}\n\n{text}", PAGE, place="legs")


def _cells(record: dict[str, Any]) -> list[list[str]]:
    rows = [("does nothing", "", "", record["standing"])]
    for row in record["rows"]:
        minutes = f"{row['seconds'] / 60:.1f} ({row['processor_seconds'] / 60:.1f})"
        rows.append((f"seed {row['seed']}", f"{row['env_steps']:,}", minutes, row))
    return [
        [who, steps, minutes, *(f"{values[name]:.2f}" for name in ("linear", "yaw")), f"{values['return']:.1f}"]
        for who, steps, minutes, values in rows
    ]


if __name__ == "__main__":
    main()
