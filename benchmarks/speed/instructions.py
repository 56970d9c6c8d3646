"""`python -m benchmarks.speed.instructions OLD NEW`: instructions of one call, in two checkouts of this repository.

On a shared machine the same code differs by a tenth and more from process to process (`revisions` says by how much);
the instructions that it takes do not. What is compiled is left out, because its loops depend on the processor, and so
are workers, and SAC and TD3, whose warm-up takes an hour there. Needs `valgrind` and a C compiler.
"""

import argparse
import ctypes
import gc
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHILD = Path(__file__)
CALLS = {
    "train ppo eager": 3,
    "train dqn eager": 60,
    "buffer add": 400,
    "buffer sample": 200,
    "buffer prioritized_100": 200,
    "step serial CartPole-v1 8": 400,
    "step serial CartPole-v1 64": 100,
    "step adapted_pool CartPole-v1 8": 200,
    "step tensor 0": 100,
    "tensor 1024": 2,
}
"""Workloads of `revisions`, and how many calls are counted after as many that are not."""
SWITCH = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""


def count(checkout: Path, workload: str, switch: Path, folder: Path) -> float:
    """Instructions of one call."""
    out, path = folder / "callgrind.out", os.pathsep.join([str(checkout / "src"), str(checkout)])
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
    own = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    subprocess.run(
        [*valgrind, sys.executable, "-P", "-W", "ignore", str(CHILD), "--child", workload, str(switch)],
        cwd=checkout,
        env={**os.environ, **own},
        check=True,
        capture_output=True,
    )
    total = re.search(r"^totals: (\d+)$", out.read_text(), re.MULTILINE)
    if total is None:
        raise SystemExit(f"callgrind counted nothing for {workload} in {checkout}")
    return int(total[1]) / CALLS[workload]


def measured(workload: str, switch: Path) -> None:
    """In valgrind: builds a workload, calls it, and calls it again while instructions are counted."""
    spec = importlib.util.spec_from_file_location("revision", CHILD.with_name("revision.py"))
    assert spec is not None and spec.loader is not None
    revision: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(revision)
    revision.torch.set_num_threads(1)
    switches, call = ctypes.CDLL(str(switch)), revision.call_of(workload)
    for _ in range(CALLS[workload]):
        call()
    gc.collect()
    gc.disable()
    switches.begin()
    for _ in range(CALLS[workload]):
        call()
    switches.end()
    os._exit(0)


def markdown(record: Mapping[str, Any]) -> str:
    from benchmarks.record import origin, table
    from benchmarks.speed.revisions import TITLES

    rows = [
        [TITLES[workload], f"{old:,.0f}", f"{new:,.0f}", f"{old / new:.3f}"]
        for workload, (old, new) in record["instructions"].items()
    ]
    old, new = record["revisions"]
    note = (
        "Instructions of one call on one thread, counted by callgrind; old by new is the speed at equal work per clock."
    )
    lines = table(["", f"old ({old})", f"new ({new})", "old / new"], rows)
    return "\n\n".join(["## Instructions, old beside new", lines, note, origin(record)])


def main() -> None:
    from benchmarks.record import provenance, write_json
    from benchmarks.speed.revisions import RESULTS, revision_of

    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.instructions", description=__doc__)
    parser.add_argument("old", type=Path, help="checkout of the old revision")
    parser.add_argument("new", type=Path, help="checkout of the new one")
    parser.add_argument("--only", default="", help="workloads that contain this, such as 'train' or 'buffer add'")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where instructions.json and .md are written")
    arguments = parser.parse_args()
    checkouts = [arguments.old.resolve(), arguments.new.resolve()]
    record = provenance("python -m benchmarks.speed.instructions OLD NEW")
    record |= {"revisions": [revision_of(path) for path in checkouts], "instructions": {}}
    with tempfile.TemporaryDirectory() as name:
        folder, switch = Path(name), Path(name) / "switch.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", switch], input=SWITCH.encode(), check=True
        )
        for workload in CALLS:
            if arguments.only in workload:
                record["instructions"][workload] = [count(path, workload, switch, folder) for path in checkouts]
                print(markdown(record).split("\n\n")[1].splitlines()[-1], flush=True)
                write_json(arguments.results / "instructions.json", record)
                (arguments.results / "instructions.md").write_text(markdown(record) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        measured(sys.argv[2], Path(sys.argv[3]))
    main()
