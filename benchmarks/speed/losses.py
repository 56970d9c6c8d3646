"""`python -m benchmarks.speed.losses`: what losses and copies cost, and what a cluster would do that has them.

The costs of a lost learner are those of `python -m benchmarks.heal back run`. Here are measured those of shards of
replay, of their copies, and of the loss of one, in processor time, which other load hardly changes. The simulation is
held against runs of both kinds that are longer, with losses and without. Results: `results/losses.*`, and tables on the
page about scaling.
"""

import argparse
import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import heal
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed.replay_shards import CAPACITY, LANES, SHAPES, SHARDS, STEPS, Both
from benchmarks.speed.scale import Told, told
from benchmarks.speed.simulation import UNROLL, Cluster, Costs, Simulation
from benchmarks.speed.sleepy import ENVS_EACH
from palaestra.runtime import ProcessRuntime, keep_freed_memory

RESULT = Path(__file__).parent / "results" / "losses.json"
DRAWS, ROUNDS, BAR = 4, 12, 0.15
MINUTE = 60.0
SHAPE = next(iter(SHAPES))
LIVES = (math.inf, 60 * MINUTE, 10 * MINUTE, MINUTE)


def shards(repeats: int) -> dict[str, Any]:
    """Processor seconds of the driver: for each cost alone, and of rounds that have them all.

    A draw's is that of the rounds without copies, of which the simulation has to make those with copies and losses.
    """
    keep_freed_memory()  # as every run does
    with ProcessRuntime() as one, ProcessRuntime() as two:
        single, copied = Both(one, SHAPE, False), Both(two, SHAPE, False, copies=True)
        found: dict[str, Any] = {"shape": SHAPE, "fragment_bytes": single.size_bytes}
        found["told_s"] = statistics.median(single.write_there() for _ in range(4 * repeats))
        found["told_copied_s"] = statistics.median(copied.write_there() for _ in range(4 * repeats))
        lost = [_lost(copied, two, number % SHARDS) for number in range(repeats)]
        found["lost_s"], found["copied_s"] = (statistics.median(row) for row in zip(*lost, strict=True))
        kinds: dict[str, Callable[[], None]] = {
            "single": lambda: _rounds(single),
            "copied": lambda: _rounds(copied),
            "lost": lambda: _rounds(copied, lambda: copied.kill(two, 1)),
        }
        turns = [{name: _driver_s(kind) for name, kind in kinds.items()} for _ in range(repeats)]
        found["rounds"] = {name: statistics.median(turn[name] for turn in turns) for name in kinds}
        assert copied.shards.lost_rows == 0
        assert copied.shards.lost_shards == 2 * repeats
    return found


def _driver_s(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def _lost(both: Both, runtime: Any, number: int) -> tuple[float, float]:
    """What a draw takes of the driver that meets with a loss; and what its copy computes to tell all that it has."""
    left = both.process(runtime, number, 1)
    both.kill(runtime, number)
    before = _computed_s(left)
    driver_s = _driver_s(lambda: both.draw(both.there))
    copied_s = _computed_s(left) - before
    for _ in range(8):
        both.draw(both.there)  # the one in its place is filled
    return driver_s, copied_s


def _computed_s(process: int) -> float:
    return 1e-9 * int(Path(f"/proc/{process}/schedstat").read_text().split()[0])


def _rounds(both: Both, half_way: Callable[[], None] | None = None) -> None:
    """What the learner does with replay in some iterations."""
    for number in range(ROUNDS):
        both.write_there()
        if half_way is not None and number == ROUNDS // 2:
            half_way()
        for _ in range(DRAWS):
            both.draw(both.there)


def costs_of_learners(record: dict[str, Any]) -> Costs:
    """Those of `benchmarks.heal`: of updates of 512 rows, so small that one learner takes as long as two."""
    whole_s = statistics.median(whole["seconds"] for whole, _ in record["run"]) / record["updates"]
    back, longest = (statistics.median(one[name] for one in record["back"]) for name in ("back_s", "longest_update_s"))
    row_s = whole_s / (UNROLL * ENVS_EACH)
    lost_s = max(0.0, longest - whole_s)
    return Costs(0.0, 0.0, 0.0, 0.0, row_s, 0.0, whole_s / 2, steps=1, lost_s=lost_s, back_s=max(0.0, back - longest))


def costs_of_shards(found: dict[str, Any], costs: Costs) -> Costs:
    """Adds those of shards and copies, for rows of the size that was measured; what a loss takes counts by bytes."""
    return dataclasses.replace(
        costs,
        draw_s=_draw_s(found),
        told_s=found["told_s"] / SHARDS,  # a fragment there has rows for each
        filled_byte_s=max(0.0, found["lost_s"] - _draw_s(found)) / _held_bytes(found),
    )


def _row_bytes(found: dict[str, Any]) -> int:
    return round(found["fragment_bytes"] / STEPS / LANES)


def _held_bytes(found: dict[str, Any]) -> float:
    """Of a shard that is full."""
    return _row_bytes(found) * CAPACITY / SHARDS


def _draw_s(one: dict[str, Any]) -> float:
    """Of a draw between writes, from the rounds without copies."""
    return max(0.0, one["rounds"]["single"] / ROUNDS - one["told_s"]) / DRAWS


def simulated_learners(costs: Costs, updates: int) -> float:
    """Seconds of so many updates of two learners, one of which is lost in the middle."""
    simulation = Simulation(costs, Cluster(1, learners=2))
    for number in range(updates):
        if number == updates // 2:
            simulation.next_learner = simulation.env.now
        simulation.env.run(simulation.env.process(simulation.learn(1)))
    return simulation.env.now


def simulated_rounds(costs: Costs, found: dict[str, Any], *, lost: bool) -> float:
    """Seconds of the driver, of the rounds with copies that were measured."""
    cluster = Cluster(1, shards=SHARDS, copies=True, held_rows=CAPACITY, row_bytes=_row_bytes(found))
    costs = dataclasses.replace(costs, steps=DRAWS, row_s=0.0, exchange_s=0.0, told_s=SHARDS * costs.told_s)
    simulation = Simulation(costs, cluster)
    for number in range(ROUNDS):
        simulation.env.run(simulation.env.process(simulation.message()))
        if lost and number == ROUNDS // 2:
            simulation.next_shard = simulation.env.now
        simulation.env.run(simulation.env.process(simulation.learn(1)))
    return simulation.env.now


def held(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds that were measured, beside those that the simulation says."""
    record = json.loads((heal.RESULTS / "heal.json").read_text())
    costs, updates = costs_of_learners(record), record["updates"]
    measured = statistics.median(lost["seconds"] for _, lost in record["run"])
    rows = [_row(f"{updates:,} updates of two learners, one is lost", measured, simulated_learners(costs, updates))]
    costs = costs_of_shards(found, costs)
    for name, what in (("copied", "with copies"), ("lost", "with copies, one is lost")):
        seconds = simulated_rounds(costs, found, lost=name == "lost")
        rows.append(_row(f"{ROUNDS} rounds of {SHARDS} shards {what}", found["rounds"][name], seconds))
    return rows


def _row(what: str, measured: float, simulated: float) -> dict[str, Any]:
    return {"what": what, "measured": measured, "simulated": simulated, "error": simulated / measured - 1}


def costs_of_cluster(found: dict[str, Any], known: Told) -> Costs:
    """Of the simulation without losses, with those of losses; messages are Ray's."""
    scale = Costs(**json.loads(RESULT.with_name("scale.json").read_text())["costs"])
    learners = costs_of_learners(json.loads((heal.RESULTS / "heal.json").read_text()))
    scale = dataclasses.replace(scale, call_s=known.call_s["ray"], byte_s=known.byte_s["ray"])
    scale = dataclasses.replace(scale, lost_s=learners.lost_s, back_s=learners.back_s)
    costs = costs_of_shards(found, scale)
    filled_byte_s = costs.filled_byte_s + found["copied_s"] / _held_bytes(found)
    return dataclasses.replace(costs, filled_byte_s=filled_byte_s)


def clusters(costs: Costs, row_bytes: int) -> list[dict[str, Any]]:
    """What a cluster of Ray would do that loses learners or shards; each lives so long on average."""
    plain = Cluster(1_000, 8)
    replay = dataclasses.replace(plain, shards=8, row_bytes=row_bytes)
    copied = dataclasses.replace(replay, copies=True)
    rows = [dataclasses.replace(plain, learners=count, learner_life_s=life_s) for count in (8, 64) for life_s in LIVES]
    rows += [dataclasses.replace(one, shard_life_s=life_s) for one in (replay, copied) for life_s in LIVES]
    found = []
    for cluster in rows:
        outcome = {**asdict(cluster), **asdict(Simulation(costs, cluster).run(100))}
        found.append({name: None if value == math.inf else value for name, value in outcome.items()})
    return found


def text_of(record: dict[str, Any]) -> str:
    worst = max(abs(row["error"]) for row in record["held"])
    first = (
        "On this machine: seconds of two learners on idle cores, and processor seconds of the driver of shards. "
        f"The greatest error is {worst:.0%} (bar {BAR:.0%}: {'met' if worst <= BAR else 'not met'})."
    )
    compared = [
        [row["what"], f"{row['measured']:.2f}", f"{row['simulated']:.2f}", f"{row['error']:+.0%}"]
        for row in record["held"]
    ]
    beside = table(["what", "measured, s", "simulated, s", "error"], compared)
    cells, before = [], 1.0
    for row in record["clusters"]:
        life_s = row["learner_life_s"] or row["shard_life_s"]
        before = before if life_s else row["env_steps_per_s"]
        shards = f"{row['shards']}{' with copies' if row['copies'] else ''}" if row["shards"] else "none"
        cells.append(
            [
                f"{row['learners']}",
                shards,
                f"{life_s / MINUTE:.0f} min" if life_s else "for ever",
                f"{row['env_steps_per_s']:,.0f}",
                f"{row['env_steps_per_s'] / before:.1%}",
                f"{row['lost_rows']:.1%}" if row["shards"] else "",
            ]
        )
    header = ["learners", "shards of replay", "each lives", "env steps/s", "of that without losses", "rows lost"]
    second = "On a cluster of 1,000 workers, by the simulation:"
    return "\n\n".join([first, beside, second, table(header, cells), origin(record)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.losses", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats",
        type=int,
        default=8,
        help="losses of a shard alone, and rounds of each kind in turns, of which medians are taken",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = told()
    found = {**shards(given.repeats), "load": os.getloadavg()[0]}
    costs = costs_of_cluster(found, known)
    record = {**provenance(f"python -m benchmarks.speed.losses --repeats {given.repeats}"), "shards": found}
    record |= {"held": held(found), "costs": asdict(costs), "clusters": clusters(costs, _row_bytes(found))}
    write_json(RESULT, record)
    text = text_of(record)
    publish(RESULT.with_suffix(".md"), text, "docs/scaling.md", "losses")
    print(text)


if __name__ == "__main__":
    from benchmarks.speed import losses

    losses.main()  # what workers make has to be in a module that they can import
