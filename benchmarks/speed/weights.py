"""`python -m benchmarks.speed.weights`: what a new version of 8 MB of weights costs for each worker that reads it."""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.record import origin, provenance, table, write_json
from palaestra.runtime import ProcessRuntime, RayRuntime, Runtime, Shared

RESULTS = Path(__file__).parent / "results"
NUMBER = 2 << 20
SIZE_MB = 4 * NUMBER / 1e6
RUNTIMES = {"process": ProcessRuntime, "ray": RayRuntime}


class Reader:
    """A worker that reads all of its weights."""

    def read(self, weights: torch.Tensor) -> float:
        return float(weights.sum())


def taken_s(runtime: Runtime, workers: Sequence[str]) -> float:
    """From a new version to the last answer."""
    value, began = torch.ones(NUMBER), time.perf_counter()
    shared = Shared(value)
    for result in runtime.wait([runtime.call(worker, "read", shared) for worker in workers], timeout_s=120):
        result.unwrap()
    return time.perf_counter() - began


def measured(name: str, number: int, versions: int) -> float:
    with RUNTIMES[name]() as runtime:
        workers = [runtime.start(Reader, name="reader") for _ in range(number)]
        taken = [taken_s(runtime, workers) for _ in range(versions + 3)]
    return statistics.median(taken[3:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.weights", description=__doc__)
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and a table are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record, rows = provenance("python -m benchmarks.speed.weights"), []
    for name in RUNTIMES:
        one, eight = (measured(name, number, arguments.versions) for number in (1, 8))
        each = 1e6 * (eight - one) / 7 / SIZE_MB
        rows.append({"runtime": name, "one_ms": 1e3 * one, "eight_ms": 1e3 * eight, "us_per_mb_and_worker": each})
    header = ["runtime", "8 MB to 1 worker, ms", "to 8 workers, ms", "a megabyte to one more worker, us"]
    text = table(header, [[str(next(iter(r.values()))), *(f"{v:.1f}" for v in list(r.values())[1:])] for r in rows])
    print(text)
    write_json(arguments.results / "weights.json", {**record, "rows": rows})
    (arguments.results / "weights.md").write_text(f"{origin(record)}\n\n{text}\n")


if __name__ == "__main__":
    from benchmarks.speed import weights

    weights.main()  # what workers make has to be in a module that they can import, on Ray too
