"""`python -m benchmarks.learning.reference FOLDER`: data sets of MuJoCo, and what six algorithms learn of them.

The policies of `zoo/ppo` act: in *medium* data as they sample, in *mixed* data with a share of random actions that each
episode draws from 0, 1/4, 1/2, 3/4 and 1. Nobody has to download anything: the first run makes the data, of which the
hashes are committed. Settings are the same for all sets and were chosen on none of them. Of a cell's first seed, fitted
Q evaluation says what the policy is worth beside what it is worth. A cell that time did not reach says "not run"; run
again to go on. A set whose policy is not in `zoo/ppo` is left out by name: those of Walker2d-v5, for now.
"""

import argparse
import dataclasses
import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.learning.fqe import truth
from benchmarks.numbers import mean_interval
from benchmarks.record import ROOT, origin, provenance, publish, table, write_json
from palaestra import load_policy
from palaestra.buffers import from_arrays
from palaestra.experiments import evaluate_offline, evaluate_run, find_run, policies_of_run, preset, train_seeds

RESULT = Path(__file__).parent / "results" / "reference.json"
PAGE = "docs/concepts/offline.md"
TASKS, KINDS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"), ("medium", "mixed")
SETS = [f"{task} {kind}" for task in TASKS for kind in KINDS]
SHARES = {"medium": (0.0,), "mixed": (0.0, 0.25, 0.5, 0.75, 1.0)}
"""Of random actions; each episode draws one."""
STEPS, UPDATES, EPISODES, GAMMA = 100_000, 50_000, 20, 0.99
AT_ONCE = 10
"""Gradient steps in an update."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "behaviour_cloning": {},
    "td3_bc": {"value_weight": 2.5, "normalize_observation": True},
    "iql": {},
    "rebrac": {"actor_penalty": 0.05, "critic_penalty": 0.01, "mini_batch_size": 256},
    "decision_transformer": {},
    "fql": {"normalize_value": True, "imitation_weight": 1.0},
}
"""Beside the defaults."""
SEEDS = range(3)


def collect(name: str, folder: Path, steps: int = STEPS) -> dict[str, Any]:
    """Makes a data set where it is not there yet; says what is in it.

    Args:
        name: of the set, the task and the kind.
        folder: where data sets are.
        steps: env steps in it.
    """
    place = folder / name.replace(" ", "_")
    told = place.with_suffix(".json")
    if told.exists():
        return json.loads(told.read_text())
    task, kind = name.split()
    policy, rng = load_policy(policy_of(name)), np.random.default_rng(SETS.index(name))
    policy.seed(SETS.index(name))
    rows: dict[str, list[Any]] = {key: [] for key in ("obs", "action", "reward", "next_obs", "terminated", "truncated")}
    returns: list[float] = []
    total = 0.0
    with gymnasium.make(task) as env:
        box: Any = env.action_space
        while len(rows["reward"]) < steps:
            observation, _ = env.reset(seed=int(rng.integers(2**31)))
            share, over, total = rng.choice(SHARES[kind]), False, 0.0
            while not over and len(rows["reward"]) < steps:
                action = policy(observation, deterministic=False)
                if rng.random() < share:
                    action = rng.uniform(box.low, box.high).astype(np.float32)
                after, reward, terminated, truncated, _ = env.step(action)
                over, total = terminated or truncated, total + float(reward)
                row = (observation, action, reward, after, terminated, truncated)
                for key, value in zip(rows, row, strict=True):
                    rows[key].append(value)
                observation = after
            returns += [total] if over else []
    arrays = {key: np.asarray(value) for key, value in rows.items()}
    specs = {"observation_spec": policy.observation_spec, "action_spec": policy.action_spec}
    from_arrays(arrays, **specs).save(place)
    digest = hashlib.sha256((place / "rows.safetensors").read_bytes()).hexdigest()
    found = {
        "steps": steps,
        "episodes": len(returns),
        "return_mean": statistics.fmean(returns or [total]),
        "sha256": digest,
    }
    told.write_text(json.dumps(found))
    return found


def policy_of(name: str) -> Path:
    """The folder of the policy that makes a data set."""
    return ROOT / "zoo" / "ppo" / name.split()[0] / "policy"


def learned(algorithm: str, name: str, seed: int, folder: Path, updates: int = UPDATES) -> dict[str, Any]:
    """What one seed's last policy reaches; of the first, also what the data says of it.

    Args:
        algorithm: which.
        name: of the data set.
        seed: of the run.
        folder: where data sets and runs are.
        updates: gradient steps.
    """
    task, data = name.split()[0], str(folder / name.replace(" ", "_"))
    config = preset(algorithm, task)
    changed = dataclasses.replace(config.algorithm, gradient_steps=AT_ONCE, **ALGORITHMS[algorithm])
    trainer = dataclasses.replace(config.trainer, total_env_steps=updates // AT_ONCE, eval_episodes=0)
    run = dataclasses.replace(config.run, directory=str(folder / "runs"), num_threads=1, tensorboard=False)
    offline = dataclasses.replace(config.offline, data=data)
    config = dataclasses.replace(config, algorithm=changed, trainer=trainer, run=run, offline=offline)
    done = train_seeds(config, [seed]).seeds[0].directory
    found: dict[str, Any] = {
        "return_mean": evaluate_run(done, episodes=EPISODES, seed=20_000, which="last").return_mean
    }
    if seed == SEEDS[0] and algorithm != "decision_transformer":  # which has a memory
        (policy,) = policies_of_run(find_run(done), "last")[1].values()
        value = evaluate_offline(policy, data, gamma=GAMMA, seed=seed)
        true = truth(policy, algorithm, task, GAMMA, lanes=EPISODES, rounds=1)
        found |= {"by_data": dataclasses.asdict(value), "true_value": true.mean}
    return found


def text(record: dict[str, Any]) -> str:
    """Two tables: returns, and of first seeds the value that the data tells beside the true one."""
    head = ["data", "its episodes", *ALGORITHMS]
    returns, values = list[list[str]](), list[list[str]]()
    for name in SETS:
        of_set = record["data"].get(name)
        cells = [record["cells"].get(f"{algorithm} {name}", {}) for algorithm in ALGORITHMS]
        told = "not made" if of_set is None else f"{of_set['return_mean']:,.0f}"
        returns.append([name, told, *(_reached(cell) for cell in cells)])
        values.append([name, "", *(_valued(cell) for cell in cells)])
    title = f"Mean return of the last policy after {UPDATES:,} gradient steps, with the 95% interval over seeds:"
    second = f"What the first seed's policy is worth, discounted by {GAMMA:g}, by its data, in brackets the true value:"
    parts = [title, table(head, returns), second, table(head, values), origin(record)]
    return "\n\n".join(parts)


def _reached(cell: dict[str, Any]) -> str:
    found = [one["return_mean"] for one in cell.values()]
    if len(found) < 2:
        return f"{found[0]:,.0f} (one seed)" if found else "not run"
    mean, half_width = mean_interval(found)
    return f"{mean:,.0f} ± {half_width:,.0f}" + ("" if len(found) == len(SEEDS) else f" ({len(found)} seeds)")


def _valued(cell: dict[str, Any]) -> str:
    one = cell.get(str(SEEDS[0]), {})
    if "by_data" not in one:
        return "-" if one else "not run"
    return f"{one['by_data']['value']['value']:.0f} ({one['true_value']:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.reference", description=__doc__)
    parser.add_argument("folder", type=Path, help="for data and runs; what is there already is used")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET", help="as 'Hopper-v5 medium'")
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no seed after so long")
    parser.add_argument("--results", type=Path, default=RESULT, help="another reference.json, to try it")
    arguments = parser.parse_args()
    folder, end = arguments.folder.resolve(), time.monotonic() + 60 * arguments.minutes
    folder.mkdir(parents=True, exist_ok=True)
    place: Path = arguments.results
    record = json.loads(place.read_text()) if place.exists() else {"data": {}, "cells": {}}
    committed = {name: of_set["sha256"] for name, of_set in record["data"].items()}
    sets = [name for name in arguments.sets if policy_of(name).exists()]
    for name in arguments.sets:
        if name not in sets:
            print(f"{name} is left out: `python -m benchmarks.learning.zoo ppo/{name.split()[0]}` makes its policy")
    for seed in SEEDS:
        for name in sets:
            found = record["data"][name] = collect(name, folder)
            if committed.get(name, found["sha256"]) != found["sha256"]:
                print(f"{name}: its bits are not those of the committed table; results are of other data", flush=True)
            for algorithm in arguments.algorithms:
                cell = record["cells"].setdefault(f"{algorithm} {name}", {})
                if str(seed) in cell or time.monotonic() > end:
                    continue
                of_this = provenance("python -m benchmarks.learning.reference FOLDER")
                cell[str(seed)] = {**learned(algorithm, name, seed, folder), "revision": of_this["revision"]}
                print(algorithm, name, seed, round(cell[str(seed)]["return_mean"]), flush=True)
                write_json(place, {**record, **of_this})
    record |= provenance("python -m benchmarks.learning.reference FOLDER")
    write_json(place, record)
    publish(place.with_suffix(".md"), text(record), PAGE, "reference")
    print(text(record))


if __name__ == "__main__":
    main()
