"""One training run in a fresh process: `python -m benchmarks.learning.worker ALGORITHM ENV SEED DIRECTORY SETTINGS`.

`SETTINGS` are further keyword arguments of `palaestra.train`, as JSON. Prints one line of JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import palaestra
from palaestra.experiments import evaluation_environment, load_config

FINAL_EPISODES = 100
FINAL_SEED = 1_000_000
"""Added to the run's seed: the final episodes are none of those by which the best policy was chosen."""


def run(algorithm: str, env: str, seed: int, directory: str, settings: dict[str, Any]) -> dict[str, Any]:
    done = palaestra.train(
        algorithm, env, run__seed=seed, run__directory=directory, run__num_threads=1, run__tensorboard=False, **settings
    )
    evaluations = sorted(
        (int(file.stem), json.loads(file.read_text())) for file in (done.directory / "evals").glob("*.json")
    )
    best = palaestra.load_policy(done.directory / "policy")
    return {
        "seed": seed,
        "env_steps": [steps for steps, _ in evaluations],
        "return_mean": [evaluation["return_mean"] for _, evaluation in evaluations],
        "episodes": evaluations[-1][1]["episodes"],
        "final": {"last": final(done.policy, done.directory, seed), "best": final(best, done.directory, seed)},
        "train_s": done.result.train_s,
    }


def final(policy: palaestra.Policy, directory: Path, seed: int) -> dict[str, float]:
    config = load_config(directory / "config.yaml")
    env, lanes = evaluation_environment(config, FINAL_SEED + seed, config.run.eval_num_envs)
    with env:
        result = palaestra.evaluate(policy, env, episodes=FINAL_EPISODES, seeds=lanes)
    return {"return_mean": result.return_mean, "return_std": result.return_std, "episodes": result.episodes}


if __name__ == "__main__":
    algorithm, env, seed, directory, settings = sys.argv[1:]
    print(json.dumps(run(algorithm, env, int(seed), directory, json.loads(settings))))
