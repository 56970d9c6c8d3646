"""A hierarchical robot beside flat learners with three times its budget, on a maze that pays only at its end.

    python -m benchmarks.learning.robots tune     # as many trials of each, on a seed of their own
    python -m benchmarks.learning.robots run      # 5 seeds of each with the best setting
    python -m benchmarks.learning.robots report   # the table and the curves, also on the tutorial's page

Flat SAC makes as many updates per env step as the robot's control task, with networks and batches of the same size. The
fourth learner is flat SAC with hindsight, which says how much of the difference is due to hindsight alone.

Each piece is a training run of a minute or two that writes one file below `results/robots/`; a piece whose file exists
is skipped, so that the command goes on where it stopped. The report says which pieces are missing.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import palaestra
from benchmarks.numbers import mean_interval
from benchmarks.record import origin, provenance, table, write_json

RESULTS = Path(__file__).parent / "results"
PIECES = RESULTS / "robots"
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100
WORLD = "palaestra.envs.tiny:FourRooms"
BUDGET = 16_000
FLAT_BUDGET = 3 * BUDGET
SMALL = {"network__hidden_sizes": (64, 64)}
REPLAY = {**SMALL, "mini_batch_size": 128, "unroll_length": 1, "num_updates": 2, "gamma": 0.99}
EVALUATIONS = 8

TRIALS: dict[str, list[dict[str, Any]]] = {
    "hierarchical": [{}, {"goal_steps": 15, "distance": 0.5}, {"epsilon": 0.5}],
    "sac": [
        {**REPLAY, "learning_rate": 1e-3, "initial_temperature": 0.1},
        {**REPLAY, "learning_rate": 3e-4, "initial_temperature": 1.0},
        {**REPLAY, "learning_rate": 1e-3, "initial_temperature": 0.1, "n_step": 5},
    ],
    "ppo": [
        {**SMALL, "unroll_length": 256, "learning_rate": 1e-3, "entropy_cost": 0.01},
        {**SMALL, "unroll_length": 256, "learning_rate": 3e-4, "entropy_cost": 0.0},
        {**SMALL, "unroll_length": 512, "learning_rate": 1e-3, "entropy_cost": 0.05, "gamma": 0.995},
    ],
    "sac_hindsight": [{}, {"gamma": 0.95}, {"learning_rate": 3e-4, "temperature": 1.0}],
}
NAMES = {
    "hierarchical": "examples.robots.hierarchical:FourRoomsRobot",
    "sac": "sac",
    "ppo": "ppo",
    "sac_hindsight": "benchmarks.learning.flat_robot:FlatRobot",
}
NUM_ENVS = {"hierarchical": 1, "sac": 4, "ppo": 8, "sac_hindsight": 1}


def piece(learner: str, trial: int, seed: int, budget: int) -> dict[str, Any]:
    """One training run: success of 20 greedy episodes, so many times."""
    settings = {f"algorithm__{name}": value for name, value in TRIALS[learner][trial].items()}
    with tempfile.TemporaryDirectory() as folder:
        done = palaestra.train(
            NAMES[learner],
            WORLD,
            env__max_episode_steps=200,
            env__num_envs=NUM_ENVS[learner],
            trainer__total_env_steps=budget,
            trainer__eval_every_steps=budget // EVALUATIONS,
            trainer__eval_episodes=20,
            run__seed=seed,
            run__directory=folder,
            run__num_threads=1,
            run__tensorboard=False,
            **settings,
        )
        if done.result.status != "done":
            raise SystemExit(f"{learner} with seed {seed} was interrupted; nothing is kept of it")
        found = sorted((int(f.stem), json.loads(f.read_text())) for f in (done.directory / "evals").glob("*.json"))
    return {
        "learner": learner,
        "trial": trial,
        "seed": seed,
        "env_steps": [steps for steps, _ in found],
        "success": [evaluation["return_mean"] for _, evaluation in found],
        "train_s": done.result.train_s,
    }


def file_of(learner: str, trial: int, seed: int, budget: int) -> Path:
    return PIECES / f"{learner}_{trial}_{seed}_{budget}.json"


def make(learner: str, trial: int, seed: int, budget: int) -> None:
    file = file_of(learner, trial, seed, budget)
    if file.exists():
        return
    record = provenance(f"python -m benchmarks.learning.robots ({file.stem})") | piece(learner, trial, seed, budget)
    write_json(file, record)
    print(file.stem, record["success"], f"{record['train_s']:.0f} s", flush=True)


def best_trial(learner: str) -> int:
    """The one with the most success in the second half of its tuning run; the first of equals."""
    files = [file_of(learner, trial, TUNING_SEED, budget_of(learner)) for trial in range(len(TRIALS[learner]))]
    scores = [sum(json.loads(f.read_text())["success"][EVALUATIONS // 2 :]) if f.exists() else -1.0 for f in files]
    return scores.index(max(scores))


def budget_of(learner: str) -> int:
    return BUDGET if learner == "hierarchical" else FLAT_BUDGET


def report() -> dict[str, Any]:
    """What the pieces say, and what is missing."""
    learners = {}
    for learner in TRIALS:
        trial, budget = best_trial(learner), budget_of(learner)
        files = [file_of(learner, trial, seed, budget) for seed in SEEDS]
        runs = [json.loads(file.read_text()) for file in files if file.exists()]
        tuned = [i for i in range(len(TRIALS[learner])) if file_of(learner, i, TUNING_SEED, budget).exists()]
        learners[learner] = {
            "setting": TRIALS[learner][trial],
            "trials": len(tuned),
            "env_steps": budget,
            "seeds": [run["seed"] for run in runs],
            "final": [run["success"][-1] for run in runs],
            "curves": [[run["env_steps"], run["success"]] for run in runs],
        }
    return provenance("python -m benchmarks.learning.robots report") | {"learners": learners}


def markdown(record: dict[str, Any]) -> str:
    rows = []
    for learner, found in record["learners"].items():
        value = mean_interval(found["final"]) if found["final"] else None
        half = "–" if value is None or value.half_width is None else f"{value.half_width:.2f}"
        mean = "–" if value is None else f"{value.mean:.2f} ± {half}"
        row = [learner, f"{found['env_steps']:,}", str(found["trials"]), f"{len(found['seeds'])} of {len(SEEDS)}", mean]
        rows.append([*row, ", ".join(f"{final:.2f}" for final in found["final"])])
    head = ["learner", "env steps", "tuning trials", "seeds", "success at the end (95%)", "each seed"]
    return f"{table(head, rows)}\n\n{origin(record)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.robots", description=__doc__)
    parser.add_argument("what", choices=["tune", "run", "report"])
    parser.add_argument("--learner", choices=[*TRIALS], help="this one only")
    parser.add_argument("--pieces", type=int, help="stop after so many new ones")
    arguments = parser.parse_args()
    learners = [arguments.learner] if arguments.learner else [*TRIALS]
    todo = [
        (learner, trial, TUNING_SEED, budget_of(learner)) for trial in range(3) for learner in learners
    ] if arguments.what == "tune" else [
        (learner, best_trial(learner), seed, budget_of(learner)) for seed in SEEDS for learner in learners
    ]  # fmt: skip
    missing = [one for one in todo if not file_of(*one).exists()] if arguments.what != "report" else []
    for one in missing[: arguments.pieces]:
        make(*one)
    record = report()
    write_json(RESULTS / "robots.json", record)
    (RESULTS / "robots.md").write_text(markdown(record) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
