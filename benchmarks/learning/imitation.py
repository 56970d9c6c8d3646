"""`python -m benchmarks.learning.imitation`: what GAIL learns on Pendulum from ten episodes of our own SAC, five seeds.

The demonstrator's steps are those that it makes while it collects. Returns are of 50 deterministic episodes, and beside
them those of the demonstrator and of chance.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import palaestra
from benchmarks.learning.teachers import RESULTS, SEEDS, SMALL, TEACHERS, chance, mean_return
from benchmarks.record import origin, provenance, table, write_json
from palaestra.envs import EnvConfig
from palaestra.experiments import policies_of_run
from palaestra.runs.data import collect_data
from palaestra.runs.run_directory import RunDirectory

TASK = "Pendulum-v1"
STEPS = 2_000
"""Demonstrated: ten episodes."""
SETTINGS: dict[str, Any] = {
    **SMALL,
    "algorithm__learning_rate": 1e-3,
    "algorithm__bonus__kind": "gail",
    "trainer__total_env_steps": 10_000,
    "trainer__eval_episodes": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.imitation", description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where runs go; those that are there are taken")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where imitation.json and .md are written")
    arguments = parser.parse_args()
    place: dict[str, Any] = {"run__directory": str(arguments.runs)}
    shown, data = arguments.runs / "demonstrator", arguments.runs / "demonstrated"
    if not shown.is_dir():
        algorithm, settings = TEACHERS[TASK]
        palaestra.train(algorithm, TASK, **place, run__name=shown.name, **SMALL, **settings)
    if not data.is_dir():
        (policy,) = policies_of_run(RunDirectory(shown))[1].values()
        collect_data(policy, EnvConfig(name=TASK), data, steps=STEPS)
    returns = {"demonstrator": mean_return(shown, "best"), "chance": chance(TASK)}
    each = list[float]()
    for seed in range(SEEDS):
        run = arguments.runs / f"gail_{seed}"
        if not run.is_dir():
            given = {**place, "run__name": run.name, "run__seed": seed, "offline__data": str(data)}
            palaestra.train("sac", TASK, **given, **SETTINGS)
        each.append(mean_return(run, "last"))
        print(seed, each[-1], flush=True)
    kept = [(one - returns["chance"]) / (returns["demonstrator"] - returns["chance"]) for one in each]
    record = provenance("python -m benchmarks.learning.imitation --runs RUNS")
    write_json(arguments.results / "imitation.json", {**record, **returns, "students": each, "kept": kept})
    head = ["task", "demonstrator", "by chance", "GAIL, mean of 5 seeds", "each", "kept of demonstrator over chance"]
    means = [f"{value:.1f}" for value in (*returns.values(), statistics.fmean(each))]
    row = [TASK, *means, ", ".join(f"{one:.1f}" for one in sorted(each)), f"{min(kept):.0%} to {max(kept):.0%}"]
    (arguments.results / "imitation.md").write_text(table(head, [row]) + "\n\n" + origin(record) + "\n")


if __name__ == "__main__":
    main()
