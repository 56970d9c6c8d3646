"""`python -m benchmarks.learning.imitation`: what GAIL learns from ten episodes of our own agents, five seeds a task.

The demonstrator's steps are those that it makes while it collects. Returns are of 50 deterministic episodes, and beside
them those of the demonstrator and of chance. `--task` and `--seeds` say what to run; the table has every whole task.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import palaestra
from benchmarks.learning.teachers import RESULTS, SEEDS, SMALL, TEACHERS, chance, mean_return
from benchmarks.record import origin, provenance, table, write_json
from palaestra.envs import EnvConfig
from palaestra.experiments import policies_of_run
from palaestra.runs.datasets import collect_data
from palaestra.runs.run_directory import RunDirectory

DEMONSTRATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "Pendulum-v1": (TEACHERS["Pendulum-v1"][0], {**SMALL, **TEACHERS["Pendulum-v1"][1]}),
    "HalfCheetah-v5": (
        "xqc",
        {
            "trainer__total_env_steps": 60_000,
            "trainer__eval_every_steps": 10_000,
            "trainer__eval_episodes": 10,
            "run__compile": True,
            "run__num_threads": 1,
            "run__tensorboard": False,
        },
    ),
}
STEPS = {"Pendulum-v1": 2_000, "HalfCheetah-v5": 10_000}
"""Demonstrated: ten episodes."""
LEARNERS = {"Pendulum-v1": "sac", "HalfCheetah-v5": "xqc"}
"""Whose policy is rewarded for looking demonstrated."""
IMITATORS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        **SMALL,
        "algorithm__learning_rate": 1e-3,
        "trainer__total_env_steps": 10_000,
        "trainer__eval_episodes": 0,
    },
    "HalfCheetah-v5": {
        "trainer__total_env_steps": 60_000,
        "trainer__eval_every_steps": 20_000,
        "trainer__eval_episodes": 5,
        "run__compile": True,
        "run__precision": "bf16",
        "run__num_threads": 1,
        "run__tensorboard": False,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.imitation", description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where runs go; those that are there are taken")
    parser.add_argument("--task", choices=list(IMITATORS), default="Pendulum-v1")
    parser.add_argument("--seeds", type=int, nargs="*", default=range(SEEDS), help="those that this process runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where imitation.json and .md are written")
    arguments = parser.parse_args()
    task, runs = arguments.task, arguments.runs / arguments.task
    place: dict[str, Any] = {"run__directory": str(runs)}
    shown, data = runs / "demonstrator", runs / "demonstrated"
    if not shown.is_dir():
        algorithm, settings = DEMONSTRATORS[task]
        palaestra.train(algorithm, task, **place, run__name=shown.name, **settings)
    if not data.is_dir():
        (policy,) = policies_of_run(RunDirectory(shown))[1].values()
        collect_data(policy, EnvConfig(name=task), data, steps=STEPS[task])
    for seed in arguments.seeds:
        if not (runs / f"gail_{seed}").is_dir():
            given = {**place, "run__name": f"gail_{seed}", "run__seed": seed, "offline__data": str(data)}
            palaestra.train(LEARNERS[task], task, **given, algorithm__bonus__kind="gail", **IMITATORS[task])
    if all((runs / f"gail_{seed}").is_dir() for seed in range(SEEDS)):
        record(task, runs, arguments.results)


def record(task: str, runs: Path, results: Path) -> None:
    """Writes the row of a task into `imitation.json`, and the table anew."""
    returns = {"demonstrator": mean_return(runs / "demonstrator", "best"), "chance": chance(task)}
    each = [mean_return(runs / f"gail_{seed}", "last") for seed in range(SEEDS)]
    kept = [(one - returns["chance"]) / (returns["demonstrator"] - returns["chance"]) for one in each]
    place = results / "imitation.json"
    rows = json.loads(place.read_text())
    of_this = provenance(f"python -m benchmarks.learning.imitation --runs RUNS --task {task}")
    rows[task] = {**of_this, **returns, "students": each, "kept": kept}
    write_json(place, rows)
    (results / "imitation.md").write_text(text(rows) + "\n")


def text(rows: dict[str, Any]) -> str:
    """The table of all tasks."""
    head = ["task", "demonstrator", "by chance", "GAIL, mean of 5 seeds", "each", "kept of demonstrator over chance"]
    lines, origins = list[list[str]](), list[str]()
    for name, row in rows.items():
        means = [f"{value:.1f}" for value in (row["demonstrator"], row["chance"], statistics.fmean(row["students"]))]
        students = ", ".join(f"{one:.1f}" for one in sorted(row["students"]))
        lines.append([name, *means, students, f"{min(row['kept']):.0%} to {max(row['kept']):.0%}"])
        origins.append(origin(row) + row.get("note", ""))
    return "\n\n".join([table(head, lines), *origins])


if __name__ == "__main__":
    main()
