"""`python -m examples.inventory VERB`, from the root of the repository; see README.md beside this file."""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, origin, provenance, versions, write_json
from examples.inventory.planning import RollingPlan, bound
from examples.inventory.rules import Greedy, Levels, Policy, Random, Shares, none
from examples.inventory.seeds import HELD_OUT
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS
from examples.inventory.tuning import share_lost, tuned_greedy, tuned_levels, tuned_plan, tuned_shares

KINDS = ("shared", "separate")
RESULTS = Path(__file__).parent / "results"


def record(verb: str, values: dict[str, Any], *, name: str = "") -> None:
    """Writes results beside where they come from."""
    made = provenance(f"python -m examples.inventory {verb}")
    made["versions"] |= versions(["scipy"])
    write_json(RESULTS / f"{name or verb}.json", {**made, **values})


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def speed(seconds: float = 5.0) -> None:
    """Ticks per second of one simulator in one thread, episodes' random numbers and decisions included."""
    rule, rates = Levels([800, 500, 100, 100], [800, 500, 100, 100]), []
    for number in range(6):
        ticks, calls, began = 0, 0, time.perf_counter()
        while time.perf_counter() - began < seconds / 6:
            simulator = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, ticks))
            while simulator.call is not None:
                simulator.decide(rule(simulator))
                calls += 1
            ticks += simulator.tick
        rates.append(ticks / (time.perf_counter() - began))
        print(f"round {number}: {rates[-1]:,.0f} ticks/s, {calls / ticks:.2f} decisions per tick", flush=True)
    record("speed", {"ticks_per_second": sorted(rates)[len(rates) // 2], "rounds": rates, "bar": 20_000})


def tune(names: list[str]) -> None:
    """Finds the rules' parameters on the tuning seeds; rules that are not named keep theirs."""
    searches = {"greedy": tuned_greedy, "levels": tuned_levels, "shares": tuned_shares, "plan": tuned_plan}
    rules = read("tune")["rules"] if names else {}
    for name in names or searches:
        rules[name] = dataclasses.asdict(searches[name](FOUR_PORTS))
        print(name, rules[name], flush=True)
    record("tune", {"rules": rules})


def rules() -> dict[str, Policy]:
    """Every policy without learning, as tuned."""
    tuned = read("tune")["rules"]
    return {
        "none": none,
        "random": Random(),
        "greedy": Greedy(**tuned["greedy"]),
        "(s, S)": Levels(**tuned["levels"]),
        "shares": Shares(**tuned["shares"]),
        "rolling plan": RollingPlan(**tuned["plan"]),
    }


def baselines(names: list[str]) -> None:
    """Shortage of every rule, and the bound, on the held-out seeds; rules that are not named keep their results."""
    lost = read("baselines")["share_lost"] if names else {}
    for name, rule in rules().items():
        if not names or name in names:
            lost[name] = share_lost(rule, FOUR_PORTS, HELD_OUT)
            print(f"{name:14} {sum(lost[name]) / len(HELD_OUT):7.2%}", flush=True)
    if not names:
        tapes = [Tape.draw(FOUR_PORTS, seed) for seed in HELD_OUT]
        lost["bound"] = [bound(FOUR_PORTS, tape) / int(tape.orders.sum()) for tape in tapes]
        print(f"{'bound':14} {sum(lost['bound']) / len(HELD_OUT):7.2%}")
    record("baselines", {"held_out_seeds": list(HELD_OUT), "share_lost": lost})


def train(kind: str, seeds: list[int]) -> None:
    """Trains ports with shared or separate policies and adds each seed to the results as soon as it is there."""
    from examples.inventory.training import train as run  # PyTorch, which the rules do not need

    name = f"train_{kind}"
    for seed in seeds:
        new = run(kind, seed, held_out=HELD_OUT)
        runs = read(name)["runs"] if (RESULTS / f"{name}.json").exists() else []
        runs = sorted([*(one for one in runs if one["seed"] != seed), new], key=lambda one: one["seed"])
        done = " ".join(str(one["seed"]) for one in runs)
        record(f"train --policies {kind} --seeds {done}", {"runs": runs}, name=name)


def hosts() -> None:
    """Trains separate policies with the same seed here, on hosts, and on hosts with gradient workers."""
    from examples.inventory.hosts import compare
    from palaestra.runtime import ProcessRuntime

    done = compare(ProcessRuntime)
    print(json.dumps(done, indent=2))
    record("hosts", done)


def report() -> None:
    """Writes the table and the picture from the results that there are."""
    from examples.inventory.report import draw, markdown

    lost = read("baselines")["share_lost"]
    kinds = [kind for kind in KINDS if (RESULTS / f"train_{kind}.json").exists()]
    learned = {kind: read(f"train_{kind}")["runs"] for kind in kinds}
    origins = [origin(read(name)) for name in ("baselines", *(f"train_{kind}" for kind in kinds))]
    text = "\n".join([markdown(lost, learned), "", *(f"- {line}" for line in origins)])
    (RESULTS / "report.md").write_text(text + "\n")
    print(text)
    print(draw(lost, learned, ROOT / "docs" / "assets" / "inventory.svg"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.inventory", description=__doc__)
    parser.add_argument("verb", choices=["speed", "tune", "baselines", "train", "hosts", "report"])
    parser.add_argument("--policies", choices=KINDS, default="shared", help="for train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="for train")
    parser.add_argument("--rules", nargs="+", default=[], help="for tune and baselines: only these; all by default")
    given = parser.parse_args()
    if given.verb == "train":
        train(given.policies, given.seeds)
    elif given.verb in ("tune", "baselines"):
        {"tune": tune, "baselines": baselines}[given.verb](given.rules)
    else:
        {"speed": speed, "hosts": hosts, "report": report}[given.verb]()


if __name__ == "__main__":
    main()
