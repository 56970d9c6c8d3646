"""`python -m benchmarks.speed.mujoco`: MuJoCo's own batch beside the other ways to step its tasks, the same threads.

As in `benchmarks.speed.envs`, sides take turns of a fraction of a second, and ratios are taken within each turn.
"""

import argparse
import functools
import importlib.util
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import provenance, publish, write_json
from benchmarks.speed.envs import RESULTS, Row, markdown, measure, ours
from palaestra import EnvConfig, create_environment


def batch(name: str, num_envs: int, threads: int) -> Any:
    config = EnvConfig(name=name, num_envs=num_envs, vectorization="batch", num_threads=threads)
    return ours(create_environment(config))


def lanes(name: str, num_envs: int, vectorization: Any) -> Any:
    workers = 2 if vectorization == "process" else None
    return ours(
        create_environment(EnvConfig(name=name, num_envs=num_envs, vectorization=vectorization, num_workers=workers))
    )


def pool(name: str, num_envs: int) -> Any:
    kwargs = {"num_threads": 2}
    return ours(create_environment(EnvConfig(name=f"envpool:{name}", num_envs=num_envs, kwargs=kwargs)))


def rows() -> list[Row]:
    call = functools.partial
    found = []
    for name, num_envs, beside, least in (
        ("HalfCheetah-v5", 8, "process", 2.5),
        ("HalfCheetah-v5", 8, "EnvPool", 1.8),
        ("HalfCheetah-v5", 64, "process", 2.0),
        ("HalfCheetah-v5", 64, "EnvPool", 1.2),
        ("Hopper-v5", 8, "serial", 2.5),
        ("Hopper-v5", 64, "serial", 2.0),
        ("Ant-v5", 8, "process", 1.0),
        ("Humanoid-v5", 8, "process", 1.0),
    ):
        threads = 1 if beside == "serial" else 2
        other = call(pool, name, num_envs) if beside == "EnvPool" else call(lanes, name, num_envs, beside)
        title = f"batch / {beside}, {threads} {'threads' if threads > 1 else 'thread'}, {name}"
        found.append(Row(title, num_envs, call(batch, name, num_envs, threads), other, least))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.mujoco", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="turns of each side")
    parser.add_argument("--window", type=float, default=0.3, help="seconds of a turn")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where mujoco.json and mujoco.md are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = f"--rounds {arguments.rounds} --window {arguments.window:g}"
    record = {**provenance(f"python -m benchmarks.speed.mujoco {options}"), "rows": []}
    for row in rows():
        if "EnvPool" in row.name and importlib.util.find_spec("envpool") is None:
            print(f"{row.name}: left out, for EnvPool is not installed", flush=True)
        elif arguments.only in row.name:
            record["rows"].append(measure(row, arguments.rounds, arguments.window))
            print(markdown(record).splitlines()[-3], flush=True)
    if not arguments.only:
        write_json(arguments.results / "mujoco.json", record)
        publish(arguments.results / "mujoco.md", markdown(record), "docs/tutorials/batches.md")


if __name__ == "__main__":
    main()
