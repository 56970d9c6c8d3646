"""One training run of Stable-Baselines3: `python -m benchmarks.learning.peer_worker ALGORITHM ENV SEED ENV_STEPS`.

Runs in the peer's own virtual environment, with the hyperparameters of our presets of continuous control. Prints one
line of JSON, with the fields of `benchmarks.learning.worker`.
"""

import copy
import dataclasses
import json
import sys
import time
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.speed.peer_sb3 import model
from benchmarks.speed.workloads import WORKLOADS

INITIAL_STEPS = 10_000
EVALUATIONS = 10
EPISODES = 10
FINAL_EPISODES = 100
FINAL_SEED = 1_000_000
"""Added to the run's seed: the final episodes are none of those by which the best policy was chosen."""


class Evaluations(BaseCallback):
    """Evaluates the deterministic policy ten times over the run, and keeps the best one."""

    def __init__(self, env: str, seed: int, env_steps: int) -> None:
        super().__init__()
        self._env = make_vec_env(env, n_envs=1, seed=FINAL_SEED // 2 + seed)
        self._period = env_steps // EVALUATIONS
        self.env_steps: list[int] = []
        self.return_mean: list[float] = []
        self.best: dict[str, Any] = {}
        self.seconds = 0.0
        """That evaluations took."""

    def _on_step(self) -> bool:
        if self.num_timesteps % self._period == 0:
            self.evaluate()
        return True

    def evaluate(self) -> None:
        began = time.perf_counter()
        mean, _ = evaluate_policy(self.model, self._env, EPISODES)
        if not self.return_mean or mean > max(self.return_mean):
            self.best = copy.deepcopy(self.model.policy.state_dict())
        self.env_steps.append(self.num_timesteps)
        self.return_mean.append(float(mean))
        self.seconds += time.perf_counter() - began


def run(algorithm: str, env: str, seed: int, env_steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    workload = WORKLOADS[algorithm]
    settings = dataclasses.replace(workload.settings, initial_steps=INITIAL_STEPS)
    learner = model(dataclasses.replace(workload, settings=settings, env=env), seed)
    evaluations = Evaluations(env, seed, env_steps)
    began = time.perf_counter()
    learner.learn(total_timesteps=env_steps, callback=evaluations)
    train_s = time.perf_counter() - began - evaluations.seconds
    last = final(learner, env, seed)
    learner.policy.load_state_dict(evaluations.best)
    return {
        "seed": seed,
        "env_steps": evaluations.env_steps,
        "return_mean": evaluations.return_mean,
        "episodes": EPISODES,
        "final": {"last": last, "best": final(learner, env, seed)},
        "train_s": train_s,
    }


def final(learner: Any, env: str, seed: int) -> dict[str, float]:
    returns, _ = evaluate_policy(
        learner, make_vec_env(env, n_envs=1, seed=FINAL_SEED + seed), FINAL_EPISODES, return_episode_rewards=True
    )
    values = torch.tensor(returns, dtype=torch.float64)
    return {"return_mean": float(values.mean()), "return_std": float(values.std()), "episodes": FINAL_EPISODES}


if __name__ == "__main__":
    algorithm, env, seed, env_steps = sys.argv[1:]
    print(json.dumps(run(algorithm, env, int(seed), int(env_steps))))
