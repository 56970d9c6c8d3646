"""`python -m benchmarks.speed`: ours beside other libraries, interleaved, and how long a user waits at the start."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import provenance, write_json
from benchmarks.speed import compare, peers, start_up
from benchmarks.speed.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=[*WORKLOADS, "import", "all"])
    parser.add_argument(
        "--rounds", type=int, default=5, help="one round: ours eager, compiled, in bfloat16, and each peer"
    )
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds dropped after the first optimizer step")
    parser.add_argument("--window", type=float, default=6.0, help="seconds measured in each run")
    parser.add_argument("--peer-dir", type=Path, default=peers.default_directory(), help="where the peer is installed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and tables are written")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = [*WORKLOADS, "import"] if arguments.what == "all" else [arguments.what]
    options = f"--rounds {arguments.rounds} --warmup {arguments.warmup:g} --window {arguments.window:g}"
    records = {}
    for name in names:
        origin = provenance(f"python -m benchmarks.speed {name} {options}")
        records[name] = (
            start_up_record(arguments, origin) if name == "import" else speed_record(name, arguments, origin)
        )
        text = (start_up if name == "import" else compare).markdown(records[name])
        write_json(arguments.results / f"{name}.json", records[name])
        (arguments.results / f"{name}.md").write_text(text + "\n")
        print(f"\n{text}\n", flush=True)
    for name, record in records.items():
        for variant, bar in record["summary"]["bars"].items():
            target = f"at least {bar['least']}x" if "least" in bar else f"below {bar['below']:g}"
            print(f"{name:<11} {variant:<11} bar {target:<15} {'met' if bar['met'] else 'NOT MET'}")


def speed_record(name: str, arguments: argparse.Namespace, origin: dict[str, Any]) -> dict[str, Any]:
    installed = {
        peer: peers.installed_peer(arguments.peer_dir, peer) for peer in [WORKLOADS[name].peer, *WORKLOADS[name].beside]
    }
    pythons = {peer: python for peer, (python, _) in installed.items()}
    versions = {package: version for _, found in reversed(installed.values()) for package, version in found.items()}
    with tempfile.TemporaryDirectory() as cache:
        runs = compare.run_rounds(
            name, compare.Plan(arguments.rounds, arguments.warmup, arguments.window, pythons, cache)
        )
    return compare.make_record(name, runs, origin, versions)


def start_up_record(arguments: argparse.Namespace, origin: dict[str, Any]) -> dict[str, Any]:
    seconds = start_up.measure(arguments.rounds)
    return {**origin, "summary": start_up.evaluate(seconds), "seconds": seconds}


if __name__ == "__main__":
    main()
