"""`python -m benchmarks.speed.room`: memory of a process with many robots; each row is a process of its own."""

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import origin, provenance, publish, table, write_json

RESULTS = Path(__file__).parent / "results"
ROWS = (("palaestra.envs:Go1Joystick", 64, None), ("palaestra.envs:Go1Joystick", 2048, 800))


def alone(name: str, num_envs: int) -> None:
    """Prints MiB before environments are made, and at most after ten of their steps."""
    import torch

    from palaestra.envs import EnvConfig, create_environment

    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    env = create_environment(EnvConfig(name=name, num_envs=num_envs, kwargs={"num_threads": 2}), seed=0)
    step = env.reset()
    for _ in range(10):
        step = env.step(torch.zeros_like(step.prev_action))
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def measured(name: str, num_envs: int, most: int | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.speed.room", "--alone", name, str(num_envs)]
    before, peak = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    return {"name": name, "num_envs": num_envs, "before_mib": before, "peak_mib": peak, "most_mib": most}


def _bar(row: dict[str, Any]) -> str:
    most = row["most_mib"]
    return f"{most:,} ({'met' if row['peak_mib'] <= most else 'missed'})" if most else ""


def markdown(record: dict[str, Any]) -> str:
    rows = [
        [row["name"], f"{row['num_envs']:,}", f"{row['before_mib']:,}", f"{row['peak_mib']:,}", _bar(row)]
        for row in record["rows"]
    ]
    header = ["environment", "lanes", "MiB before", "MiB with them, at most", "bar"]
    return f"{table(header, rows)}\n\n{origin(record)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.room", description=__doc__)
    parser.add_argument("--alone", nargs=2, metavar=("NAME", "NUM_ENVS"), help="measure one in this process")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where room.json and room.md are written")
    arguments = parser.parse_args()
    if arguments.alone:
        return alone(arguments.alone[0], int(arguments.alone[1]))
    record = {**provenance("python -m benchmarks.speed.room"), "rows": [measured(*row) for row in ROWS]}
    write_json(arguments.results / "room.json", record)
    publish(arguments.results / "room.md", markdown(record), "docs/tutorials/batches.md", "room")
    print(markdown(record))
    return None


if __name__ == "__main__":
    main()
