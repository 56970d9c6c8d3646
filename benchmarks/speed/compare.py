"""Ours and the peer in turns, each in a fresh process; and what comes out as JSON and a table."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.numbers import ratios, spread
from benchmarks.record import ROOT, origin, table
from benchmarks.speed.peers import PEERS
from benchmarks.speed.workloads import WORKLOADS, Workload

Runs = dict[str, list[dict[str, float]]]
CACHED_BAR_S = 3.0
"""Longest compilation of a run whose code an earlier one has left in the cache."""


@dataclass(frozen=True)
class Plan:
    rounds: int
    warmup_s: float
    window_s: float
    pythons: Mapping[str, Path]
    """Interpreters of the peers, by name."""
    cache: str
    """Empty folder for compiled code, so that the first compilation is a cold one."""


def run_rounds(name: str, plan: Plan) -> Runs:
    workload = WORKLOADS[name]
    runs: Runs = {variant: [] for variant in workload.variants}
    for number in range(plan.rounds):
        for variant in workload.variants:
            result = run_once(name, variant, plan)
            if (said := other_work(workload, variant, result)) is not None:
                print(f"{said}; measured once more", flush=True)  # a window may end between two counters of a peer
                result = run_once(name, variant, plan)
            if (said := other_work(workload, variant, result)) is not None:
                raise SystemExit(said)
            runs[variant].append(result)
            speed = f"{result[workload.metric]:,.0f} {workload.unit}"
            print(f"{name}  round {number + 1}/{plan.rounds}  {variant:<8}  {speed}", flush=True)
    return runs


def run_once(name: str, variant: str, plan: Plan) -> dict[str, float]:
    seconds = [str(plan.warmup_s), str(plan.window_s)]
    threads, env = WORKLOADS[name].threads, {**os.environ, "TORCHINDUCTOR_CACHE_DIR": plan.cache}
    env.pop("OMP_NUM_THREADS", None)
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)  # each side's torch takes it up
    if variant == "peer" or variant in PEERS:
        peer = WORKLOADS[name].peer if variant == "peer" else variant
        env.pop("PYTHONPATH", None)
        env["PEER_REPOSITORY"] = str(plan.pythons[peer].parents[1] / "repository")
        module = ["-m", f"benchmarks.speed.peer_{peer}", name, *seconds]
        command = [*(PEERS[peer].prefix if threads else ()), str(plan.pythons[peer]), *module]
    else:
        command = [sys.executable, "-m", "benchmarks.speed.ours", name, variant, *seconds]
    return printed(command, env)


def pinned(command: Sequence[str]) -> dict[str, Any]:
    """What a process on one core prints."""
    return printed(["taskset", "-c", str(max(os.sched_getaffinity(0))), *command])


def printed(command: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON in the last line that a process prints; the benchmark ends if it fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def other_work(workload: Workload, variant: str, result: Mapping[str, float]) -> str | None:
    """What is wrong unless both sides made as many optimizer steps on as many rows, on as many threads.

    Resets are rows of ours but no env steps: for the same env steps we learn a little more often than the peer.
    """
    expected = workload.updates_per_iteration * result["iterations"]
    rows = workload.rows_per_iteration * result["iterations"]
    least = rows if variant == "peer" or variant in PEERS else 0.8 * rows
    steps_are_right = least <= result["env_steps"] <= rows
    threads_are_right = workload.threads in (None, result["threads"])
    if result["updates"] != expected or not (steps_are_right and threads_are_right):
        return f"{variant} did other work than it should: {expected} updates, {rows} rows; it did {result}"
    return None


def evaluate(workload: Workload, runs: Runs) -> dict[str, Any]:
    """Medians, ratios to the peer within each round, and the bars."""
    speeds = {variant: [run[workload.metric] for run in runs[variant]] for variant in runs}
    rounds = {variant: ratios(speeds[variant], speeds["peer"]) for variant in runs if variant != "peer"}
    extra_s = [run["first_update_extra_s"] for run in runs["compiled"]]
    cached_s = spread(extra_s[1:]).median if extra_s[1:] else None
    return {
        "speeds": {variant: spread(values)._asdict() for variant, values in speeds.items()},
        "ratios": {variant: {**spread(values)._asdict(), "rounds": values} for variant, values in rounds.items()},
        "bars": {
            variant: {"least": least, "met": spread(rounds[variant]).median >= least}
            for variant, least in workload.bars.items()
        },
        "beside": {peer: beside(workload, speeds, peer) for peer in workload.beside},
        "compile_s": {"cold": extra_s[0], "cached": cached_s, "met": cached_s is not None and cached_s <= CACHED_BAR_S},
        "updates_per_iteration": {
            v: sum(r["updates"] for r in rs) / sum(r["iterations"] for r in rs) for v, rs in runs.items()
        },
        "env_steps_per_update": {
            v: sum(r["env_steps"] for r in rs) / sum(r["updates"] for r in rs) for v, rs in runs.items()
        },
    }


def beside(workload: Workload, speeds: Mapping[str, list[float]], peer: str) -> dict[str, Any]:
    """Ratios of our variants to another peer, and its bars."""
    found: dict[str, Any] = {}
    for variant in workload.variants:
        if variant != "peer" and variant not in workload.beside:
            ratio, least = spread(ratios(speeds[variant], speeds[peer])), workload.beside[peer].get(variant)
            bar = {} if least is None else {"least": least, "met": ratio.median >= least}
            found[variant] = {**ratio._asdict(), **bar}
    return found


def make_record(name: str, runs: Runs, origin_record: Mapping[str, Any], peer: Mapping[str, str]) -> dict[str, Any]:
    workload = WORKLOADS[name]
    return {
        "title": workload.title,
        "unit": workload.unit,
        "environment": f"{workload.env}, "
        + (
            "rows in memory"
            if workload.is_offline
            else "a pool in C++"
            if workload.is_pool
            else "ours in MuJoCo's own batch, the peer's in-process Python environments"
            if workload.vectorization == "batch"
            else "in-process Python environments"
        ),
        "threads": "1 thread"
        if workload.threads
        else "threads as each chooses: "
        + ", ".join(f"{variant} {runs[variant][0]['threads']:g}" for variant in runs if runs[variant][0]["threads"]),
        "settings": {"about": type(workload.settings).__doc__, **asdict(workload.settings)},
        **origin_record,
        "load": {"cores": len(os.sched_getaffinity(0)), "average": os.getloadavg()[0]},
        "peer": {"name": PEERS[workload.peer].title, "versions": dict(peer)},
        "summary": evaluate(workload, runs),
        "runs": runs,
    }


def markdown(record: Mapping[str, Any]) -> str:
    summary, unit, peer = record["summary"], record["unit"], record["peer"]
    names = {"eager": "Palaestra", "compiled": "Palaestra, `--compile`", "peer": peer["name"]}
    names |= {"bf16": "Palaestra, `--compile --run.precision bf16`"}
    names |= {key: other.title for key, other in PEERS.items()}
    rows = []
    for variant in summary["speeds"]:
        speed, ratio = summary["speeds"][variant], summary["ratios"].get(variant)
        line = [names[variant], f"{speed['median']:,.0f}", f"{speed['low']:,.0f} to {speed['high']:,.0f}"]
        if ratio is None:
            rows.append([*line, "1", "", "", ""])
        else:
            bar = summary["bars"].get(variant)
            each = ", ".join(f"{value:.2f}" for value in ratio["rounds"])
            judged = ["", ""] if bar is None else [f"{bar['least']}", "yes" if bar["met"] else "**no**"]
            rows.append([*line, f"{ratio['median']:.2f}", each, *judged])
    header = ["", f"{unit}, median", "min to max", "ratio, median", "ratio in each round", "bar", "met"]
    compile_s = summary["compile_s"]
    cached = ""
    if compile_s["cached"] is not None:
        met = "met" if compile_s["met"] else "**not met**"
        cached = f", {compile_s['cached']:.1f} s from its cache (bar {CACHED_BAR_S:g}: {met})"
    others = [
        f"Beside {names[peer]}: "
        + ", ".join(
            f"{names[variant]} {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}"
            + (f"; bar {ratio['least']}: {'met' if ratio['met'] else '**not met**'})" if "least" in ratio else ")")
            for variant, ratio in found.items()
        )
        + "."
        for peer, found in summary["beside"].items()
    ]
    settings = ", ".join(
        f"{key} {tuple(value) if isinstance(value, list) else value}"  # as in `Settings`; JSON has no tuples
        for key, value in record["settings"].items()
        if key != "about"
    )
    load = ""
    if found := record.get("load"):  # since 2026-11-29
        load = f" Cores: {found['cores']}; the machine's load at the end: {found['average']:.0f}."
    counts = ", ".join(
        f"{names[v]} {summary['updates_per_iteration'][v]:g} ({summary['env_steps_per_update'][v]:.3g} env steps each)"
        for v in summary["speeds"]
    )
    return "\n\n".join(
        [
            f"## {record['title']}, {record['environment']}, {record['threads']}",
            table(header, rows),
            *others,
            f"Compilation is not in these numbers: it took {compile_s['cold']:.1f} s{cached}.",
            f"The same work: optimizer steps per iteration, counted by Adam itself: {counts}.",
            f"Both sides: {settings}. {record['settings']['about']}",
            "Palaestra runs its `Trainer` and writes `metrics.jsonl` and `episodes.csv`; the peer writes nothing. "
            "Evaluation, checkpoints and TensorBoard are off on both sides.",
            f"{origin(record)}{load} Peer: " + ", ".join(f"{n} {v}" for n, v in peer["versions"].items()) + ".",
        ]
    )
