"""Two studies of robots: a hierarchy beside flat learners, and a task for perception beside none.

    python -m benchmarks.learning.robots tune     # as many trials of each learner, on a seed of their own
    python -m benchmarks.learning.robots run      # 5 seeds of each with the best setting
    python -m benchmarks.learning.robots report   # tables and curves, also on the tutorial's page

The hierarchy: four rooms that pay only at the goal. Flat learners have three times its budget; flat SAC makes as many
updates per env step as the robot's control task, with networks and batches of the same size. The fourth learner is flat
SAC with hindsight, which says how much of the difference is due to hindsight alone.

The perception: a walker hidden among a thousand sensors, with and without the task that learns to see.

Each piece is a training run of a minute or two that writes one file below `results/robots/`; a piece whose file exists
is skipped, so that the command goes on where it stopped. The report says which pieces are missing.
"""

import argparse
import csv
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import palaestra
from benchmarks.learning.curves import draw_success
from benchmarks.numbers import mean_interval
from benchmarks.record import ROOT, origin, provenance, publish, table, write_json

RESULTS = Path(__file__).parent / "results"
PIECES = RESULTS / "robots"
PAGE = "docs/tutorials/robots.md"
CURVES = ROOT / "docs" / "assets" / "curves"
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100
POINTS = 8
BUDGET = 16_000
FLAT_BUDGET = 3 * BUDGET
SEEING_BUDGET = 12_000


@dataclass(frozen=True)
class Learner:
    """What is trained, in which settings."""

    name: str
    """In tables."""
    algorithm: str
    """As on the command line."""
    world: str
    """Environment."""
    num_envs: int
    budget: int
    """Env steps."""
    trials: list[dict[str, Any]]
    """Settings of the algorithm to be tried."""
    episode_steps: int = 200
    """Time limit."""
    while_training: bool = False
    """Success is that of the episodes of training; else of 20 greedy episodes, so many times."""
    judged_from: int = POINTS // 2
    """The first point whose success counts when trials are compared."""


FOUR_ROOMS, BACKDROP = "palaestra.envs.tiny:FourRooms", "palaestra.envs.tiny:Backdrop"
SMALL = {"network__hidden_sizes": (64, 64)}
REPLAY = {**SMALL, "mini_batch_size": 128, "unroll_length": 1, "gradient_steps": 2, "gamma": 0.99}
SAC = [
    {**REPLAY, "learning_rate": 1e-3, "initial_temperature": 0.1},
    {**REPLAY, "learning_rate": 3e-4, "initial_temperature": 1.0},
    {**REPLAY, "learning_rate": 1e-3, "initial_temperature": 0.1, "n_step": 5},
]
PPO = [
    {**SMALL, "unroll_length": 256, "learning_rate": 1e-3, "entropy_cost": 0.01},
    {**SMALL, "unroll_length": 256, "learning_rate": 3e-4, "entropy_cost": 0.0},
    {**SMALL, "unroll_length": 512, "learning_rate": 1e-3, "entropy_cost": 0.05, "gamma": 0.995},
]
HIERARCHY = [{}, {"goal_steps": 15, "distance": 0.5}, {"epsilon": 0.5}]
HINDSIGHT = [{}, {"gamma": 0.95}, {"learning_rate": 3e-4, "temperature": 1.0}]
PERCEPTION = [{"learning_rate": rate, "normalize": normalize} for rate in (1e-3, 2e-3) for normalize in (True, False)]


def seeing(name: str, see: bool) -> Learner:
    trials = [{"see": see, **trial} for trial in PERCEPTION]
    robot = "examples.robots.auxiliary:SeeingRobot"
    return Learner(name, robot, BACKDROP, 8, SEEING_BUDGET, trials, 60, while_training=True, judged_from=0)


LEARNERS = {
    "hierarchical": Learner(
        "hierarchical robot", "examples.robots.hierarchical:FourRoomsRobot", FOUR_ROOMS, 1, BUDGET, HIERARCHY
    ),
    "sac": Learner("SAC", "sac", FOUR_ROOMS, 4, FLAT_BUDGET, SAC),
    "ppo": Learner("PPO", "ppo", FOUR_ROOMS, 8, FLAT_BUDGET, PPO),
    "sac_hindsight": Learner(
        "SAC with hindsight", "benchmarks.learning.flat_robot:FlatRobot", FOUR_ROOMS, 1, FLAT_BUDGET, HINDSIGHT
    ),
    "seeing": seeing("A2C beside a task that learns to see", True),
    "blind": seeing("A2C alone", False),
}
STUDIES = {
    "hierarchy": ["hierarchical", "sac", "ppo", "sac_hindsight"],
    "perception": ["seeing", "blind"],
}


def piece(learner: str, trial: int, seed: int) -> dict[str, Any]:
    """One training run: success at so many points."""
    what = LEARNERS[learner]
    settings: dict[str, Any] = {f"algorithm__{name}": value for name, value in what.trials[trial].items()}
    evaluations: dict[str, Any] = {"trainer__eval_every_steps": what.budget // POINTS, "trainer__eval_episodes": 20}
    with tempfile.TemporaryDirectory() as folder:
        done = palaestra.train(
            what.algorithm,
            what.world,
            env__max_episode_steps=what.episode_steps,
            env__num_envs=what.num_envs,
            trainer__total_env_steps=what.budget,
            run__seed=seed,
            run__directory=folder,
            run__num_threads=1,
            run__tensorboard=False,
            **(settings if what.while_training else settings | evaluations),
        )
        if done.result.status != "done":
            raise SystemExit(f"{learner} with seed {seed} was interrupted; nothing is kept of it")
        points = (trained if what.while_training else evaluated)(done.directory, what.budget)
    return {
        "learner": learner,
        "trial": trial,
        "seed": seed,
        "env_steps": [steps for steps, _ in points],
        "success": [success for _, success in points],
        "train_s": done.result.train_s,
    }


def evaluated(run: Path, budget: int) -> list[tuple[int, float]]:
    """Success of each evaluation."""
    found = sorted((int(f.stem), json.loads(f.read_text())) for f in (run / "evals").glob("*.json"))
    return [(steps, evaluation["return_mean"]) for steps, evaluation in found]


def trained(run: Path, budget: int) -> list[tuple[int, float]]:
    """Success of the episodes that ended in each part of the run."""
    with (run / "episodes.csv").open() as file:
        rows = [(int(row["env_steps"]), float(row["return"])) for row in csv.DictReader(file)]
    ends = [budget * (i + 1) // POINTS for i in range(POINTS)]
    parts = [[earned for steps, earned in rows if end - budget // POINTS < steps <= end] for end in ends]
    return [(end, float(np.mean(part)) if part else 0.0) for end, part in zip(ends, parts, strict=True)]


def file_of(learner: str, trial: int, seed: int) -> Path:
    return PIECES / f"{learner}_{trial}_{seed}_{LEARNERS[learner].budget}.json"


def make(learner: str, trial: int, seed: int) -> None:
    file = file_of(learner, trial, seed)
    if file.exists():
        return
    record = provenance(f"python -m benchmarks.learning.robots ({file.stem})") | piece(learner, trial, seed)
    write_json(file, record)
    print(file.stem, record["success"], f"{record['train_s']:.0f} s", flush=True)


def best_trial(learner: str) -> int:
    """The one with the most success in its tuning run, from the point on that counts; the first of equals."""
    what = LEARNERS[learner]
    files = [file_of(learner, trial, TUNING_SEED) for trial in range(len(what.trials))]
    scores = [sum(json.loads(f.read_text())["success"][what.judged_from :]) if f.exists() else -1.0 for f in files]
    return scores.index(max(scores))


def report() -> dict[str, Any]:
    """What the pieces say, and what is missing."""
    learners = {}
    for learner, what in LEARNERS.items():
        trial = best_trial(learner)
        runs = [json.loads(f.read_text()) for f in (file_of(learner, trial, s) for s in SEEDS) if f.exists()]
        learners[learner] = {
            "setting": what.trials[trial],
            "trials": sum(file_of(learner, i, TUNING_SEED).exists() for i in range(len(what.trials))),
            "env_steps": what.budget,
            "seeds": [run["seed"] for run in runs],
            "final": [run["success"][-1] for run in runs],
            "mean": [float(np.mean(run["success"])) for run in runs],
            "curves": [[run["env_steps"], run["success"]] for run in runs],
            "train_s": [run["train_s"] for run in runs],
        }
    return provenance("python -m benchmarks.learning.robots report") | {"learners": learners}


def value(numbers: list[float]) -> str:
    if not numbers:
        return "–"
    mean = mean_interval(numbers)
    return f"{mean.mean:.2f}" + ("" if mean.half_width is None else f" ± {mean.half_width:.2f}")


def steps_to(success: float, curves: list[Any]) -> str:
    """The mean over seeds of the env steps at the first point with so much success; and how many never had."""
    reached = [next((step for step, found in zip(*curve, strict=True) if found >= success), None) for curve in curves]
    steps = [step for step in reached if step is not None]
    if not steps:
        return "never" if curves else "–"
    mean = mean_interval(steps)
    text = f"{mean.mean:,.0f}" + ("" if mean.half_width is None else f" ± {mean.half_width:,.0f}")
    return text if len(steps) == len(reached) else f"{text} ({len(steps)} of {len(reached)})"


def markdown(record: dict[str, Any], study: str) -> str:
    head = [
        "learner",
        "env steps",
        "trials",
        "seeds",
        "success at the end",
        "each seed",
        "steps to 0.8",
        "mean success",
    ]
    rows = []
    for learner in STUDIES[study]:
        found = record["learners"][learner]
        seeds, each = f"{len(found['seeds'])} of {len(SEEDS)}", ", ".join(f"{final:.2f}" for final in found["final"])
        name = LEARNERS[learner].name
        row = [name, f"{found['env_steps']:,}", str(found["trials"]), seeds, value(found["final"])]
        rows.append([*row, each, steps_to(0.8, found["curves"]), value(found["mean"])])
    return f"{table(head, rows)}\n\n{origin(record)}"


def write(record: dict[str, Any]) -> None:
    """Results, curves, and the tutorial's page."""
    write_json(RESULTS / "robots.json", record)
    for study, learners in STUDIES.items():
        curves = {LEARNERS[name].name: record["learners"][name]["curves"] for name in learners}
        draw_success(f"robots_{study}", {name: runs for name, runs in curves.items() if runs}, CURVES)
        picture = f"![success over env steps](../assets/curves/robots_{study}.svg)"
        publish(RESULTS / f"robots_{study}.md", f"{picture}\n\n{markdown(record, study)}", PAGE, f"measured {study}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.robots", description=__doc__)
    parser.add_argument("what", choices=["tune", "run", "report"])
    parser.add_argument("--learner", choices=[*LEARNERS], help="this one only")
    parser.add_argument("--pieces", type=int, help="stop after so many new ones")
    arguments = parser.parse_args()
    learners = [arguments.learner] if arguments.learner else [*LEARNERS]
    if arguments.what == "report":
        write(report())
        return
    todo = {
        "tune": [(name, trial, TUNING_SEED) for name in learners for trial in range(len(LEARNERS[name].trials))],
        "run": [(name, best_trial(name), seed) for seed in SEEDS for name in learners],
    }[arguments.what]
    for one in [one for one in todo if not file_of(*one).exists()][: arguments.pieces]:
        make(*one)


if __name__ == "__main__":
    main()
