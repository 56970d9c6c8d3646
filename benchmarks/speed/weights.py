"""`python -m benchmarks.speed.weights`: what a new version of 8 MB of weights costs for each worker that loads it.

Whole, as everything was sent before; and as `ActingWeights` sends it, where all has changed, one policy of eight, the
last eighth of every policy (behind a frozen encoder), or nothing but what explores. Workers load copies of eight
policies of 1 MB. Both ways in turns.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.record import origin, provenance, table, write_json
from palaestra.distributed import ActingWeights, acting_weights
from palaestra.distributed.worker import load_acting_weights
from palaestra.runtime import ProcessRuntime, RayRuntime, Shared, keep_freed_memory

RESULTS = Path(__file__).parent / "results"
POLICIES, LAYERS, WIDTH = 8, 8, 181
SIZE_MB = POLICIES * LAYERS * 4 * WIDTH**2 / 1e6
RUNTIMES = {"process": ProcessRuntime, "ray": RayRuntime}
CASES = ("all of it", "one policy of eight", "an eighth of each", "nothing")
WAYS = ("whole", "what changed")


class Weights(torch.nn.Module):
    """As much of a policy as its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: Any = torch.nn.ParameterList(torch.zeros(WIDTH, WIDTH) for _ in range(LAYERS))
        self.version, self.exploration = 0, SimpleNamespace(strength=1.0)


def made() -> dict[str, Any]:
    return {str(number): Weights() for number in range(POLICIES)}


class Reader:
    """A worker that loads what is new to it, as a roll-out worker does."""

    def __init__(self) -> None:
        self._policies, self._known = made(), dict[str, Sequence[Any]]()

    def read(self, way: str, *weights: Mapping[str, Any]) -> None:
        for one in weights:
            if all(one is not known for known in self._known.get(way, ())):
                load_acting_weights(self._policies, one)
        self._known[way] = weights


def change(policies: Mapping[str, Any], case: str) -> None:
    for number, policy in enumerate(policies.values()):
        policy.exploration.strength *= 0.99
        first = {"all of it": 0, "one policy of eight": LAYERS * (number > 0), "an eighth of each": LAYERS - 1}.get(
            case
        )
        if first is not None and first < LAYERS:
            policy.version += 1
            for layer in policy.layers[first:]:
                layer.data += 1


def measured(name: str, number: int, versions: int) -> dict[tuple[str, str], float]:
    """Medians by case and way: from a new version to the last answer, in milliseconds."""
    taken: dict[tuple[str, str], list[float]] = {(case, way): [] for case in CASES for way in WAYS}
    with RUNTIMES[name]() as runtime:
        workers = [runtime.start(Reader, name="reader") for _ in range(number)]
        policies = made()
        sent = ActingWeights(policies)
        for case in CASES:
            for _ in range(versions + 3):
                change(policies, case)
                for way in WAYS:
                    began = time.perf_counter()
                    shared = [Shared(acting_weights(policies))] if way == "whole" else sent.newest()
                    answers = [runtime.call(worker, "read", way, *shared) for worker in workers]
                    for result in runtime.wait(answers, timeout_s=120):
                        result.unwrap()
                    taken[case, way].append(1e3 * (time.perf_counter() - began))
    return {key: statistics.median(each[3:]) for key, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.weights", description=__doc__)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and a table are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    record, rows = provenance("python -m benchmarks.speed.weights"), list[dict[str, Any]]()
    for name in RUNTIMES:
        one, eight = (measured(name, number, arguments.versions) for number in (1, 8))
        for case, way in one:
            each = 1e3 * (eight[case, way] - one[case, way]) / 7 / SIZE_MB
            costs = {"one_ms": one[case, way], "eight_ms": eight[case, way], "us_per_mb_and_worker": each}
            rows.append({"runtime": name, "changed": case, "sent": way, **costs})
    header = [
        "runtime",
        "changed",
        "sent",
        "8 MB to 1 worker, ms",
        "to 8 workers, ms",
        "a megabyte to one more worker, us",
    ]
    text = table(header, [[f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows])
    print(text)
    write_json(arguments.results / "weights.json", {**record, "rows": rows})
    (arguments.results / "weights.md").write_text(f"{origin(record)}\n\n{text}\n")


if __name__ == "__main__":
    from benchmarks.speed import weights

    weights.main()  # what workers make has to be in a module that they can import, on Ray too
