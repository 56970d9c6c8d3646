"""`python -m benchmarks.learning.teachers`: what students of DAgger keep of their teachers' returns, five seeds each.

On Pendulum the teacher is a policy of our own SAC, and 2,000 steps are labelled. On CartPole the teacher, one of
PPO, sees velocities as a key that its student does not have; the student has a memory instead.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import palaestra
from benchmarks.record import origin, provenance, table, write_json
from palaestra.experiments import evaluate_run

RESULTS = Path(__file__).parent / "results"
SEEDS = 5
EPISODES = 50
APART = "benchmarks.learning.teachers:Apart"
SMALL = {"algorithm__network__hidden_sizes": (64, 64), "run__tensorboard": False, "run__num_threads": 1}


class Apart(gymnasium.ObservationWrapper):
    """CartPole that says place and angle in one key, and their velocities in another."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)
        places, velocities = (spaces.Box(-np.inf, np.inf, (2,), np.float32) for _ in range(2))
        self.observation_space = spaces.Dict({"privileged_velocity": velocities, "state": places})

    def observation(self, observation: Any) -> dict[str, np.ndarray]:
        return {"privileged_velocity": observation[1::2], "state": observation[0::2]}


TEACHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Pendulum-v1": (
        "sac",
        {
            "trainer__total_env_steps": 14_000,
            "trainer__eval_every_steps": 2_000,
            "trainer__eval_episodes": 20,
            "algorithm__learning_rate": 1e-3,
            "algorithm__mini_batch_size": 128,
        },
    ),
    APART: (
        "ppo",
        {
            "env__max_episode_steps": 500,
            "env__num_envs": 8,
            "trainer__total_env_steps": 60_000,
            "trainer__eval_every_steps": 15_000,
            "trainer__eval_episodes": 20,
            "algorithm__learning_rate": 1e-3,
            "algorithm__unroll_length": 32,
            "algorithm__num_epochs": 20,
            "algorithm__gae_lambda": 0.8,
            "algorithm__gamma": 0.98,
        },
    ),
}
STUDENTS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"trainer__total_env_steps": 2_000, "algorithm__gradient_steps": 64},
    APART: {
        "env__max_episode_steps": 500,
        "trainer__total_env_steps": 5_000,
        "algorithm__network__policy_sees": ("state",),
        "algorithm__network__recurrent": "gru",
        "algorithm__network__recurrent_size": 32,
        "algorithm__gradient_steps": 8,
        "algorithm__burn_in": 0,
    },
}


def mean_return(run: Path, which: str) -> float:
    """Of 50 episodes, deterministic."""
    return evaluate_run(run, episodes=EPISODES, which=which).return_mean


def taught(task: str, teacher: Path, seed: int, folder: Path) -> float:
    """The mean return of a student at the end of its run."""
    run = folder / f"student_{task.rpartition(':')[2]}_{seed}"
    if not run.is_dir():
        place = {"run__directory": str(folder), "run__name": run.name, "run__seed": seed}
        settings = {**SMALL, **STUDENTS[task], "algorithm__teacher": str(teacher), "trainer__eval_episodes": 0}
        palaestra.train("dagger", task, **place, **settings)
    return mean_return(run, "last")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.teachers", description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where runs go; those that are there are taken")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where teachers.json and teachers.md are written")
    arguments = parser.parse_args()
    record = {**provenance("python -m benchmarks.learning.teachers --runs RUNS"), "rows": []}
    for task, (algorithm, settings) in TEACHERS.items():
        name = task.rpartition(":")[2]
        teacher = arguments.runs / f"teacher_{name}"
        if not (teacher / "policy").is_dir():
            place = {"run__directory": str(arguments.runs), "run__name": teacher.name}
            palaestra.train(algorithm, task, **place, **SMALL, **settings)
        returns = {"teacher": mean_return(teacher, "best"), "chance": chance(task)}
        each = [taught(task, teacher, seed, arguments.runs) for seed in range(SEEDS)]
        span = returns["teacher"] - returns["chance"]
        kept = [(value - returns["chance"]) / span for value in each]
        steps = STUDENTS[task]["trainer__total_env_steps"]
        record["rows"].append({"env": name, "labels": steps, **returns, "students": each, "kept": kept})
        print(record["rows"][-1], flush=True)
    write_json(arguments.results / "teachers.json", record)
    (arguments.results / "teachers.md").write_text(text(record) + "\n")


def text(record: dict[str, Any]) -> str:
    """The table."""
    algorithms, lines = {task.rpartition(":")[2]: kind for task, (kind, _) in TEACHERS.items()}, []
    for row in record["rows"]:
        each, kept = row["students"], f"{min(row['kept']):.0%} to {max(row['kept']):.0%}"
        means = [
            f"{row['teacher']:.1f} ({algorithms[row['env']]})",
            f"{row['chance']:.1f}",
            f"{statistics.fmean(each):.1f}",
        ]
        lines.append([row["env"], f"{row['labels']:,}", *means, ", ".join(f"{one:.1f}" for one in sorted(each)), kept])
    head = ["task", "labels", "teacher", "by chance", "student, mean of 5 seeds", "each", "kept of teacher over chance"]
    return f"{table(head, lines)}\n\n{origin(record)}{record.get('note', '')}"


def chance(task: str) -> float:
    """The mean return of uniform actions, over 50 episodes."""
    env = gymnasium.make(task) if task != APART else gymnasium.wrappers.TimeLimit(Apart(), 500)
    env.action_space.seed(0)
    total = 0.0
    for episode in range(EPISODES):
        env.reset(seed=episode)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, over = total + float(reward), terminated or truncated
    return total / EPISODES


if __name__ == "__main__":
    main()
