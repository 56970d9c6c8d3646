"""What is learned, and what RL Baselines3 Zoo publishes for it.

The Zoo's `benchmark.md` (https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md) evaluates one tuned run
of each, deterministically, for 150,000 env steps; `episodes` is its column `eval_episodes`.
"""

import math
from dataclasses import dataclass

BAR_EPISODES = 100
"""Episodes that the bar's standard error is for: as many as our final evaluation has."""


@dataclass(frozen=True)
class ZooRow:
    env_steps: int
    mean: float
    std: float
    episodes: int

    def bar(self, episodes: int = BAR_EPISODES) -> float:
        """The mean minus two standard errors of a mean over so many episodes."""
        return self.mean - 2 * self.std / math.sqrt(episodes)


ZOO = {
    ("ppo", "CartPole-v1"): ZooRow(100_000, 500.0, 0.0, 300),
    ("dqn", "CartPole-v1"): ZooRow(50_000, 500.0, 0.0, 300),
    ("dqn", "Acrobot-v1"): ZooRow(100_000, -76.639, 11.752, 1932),
    ("dqn", "MountainCar-v0"): ZooRow(120_000, -100.849, 9.925, 1487),
    ("ppo", "Pendulum-v1"): ZooRow(100_000, -172.225, 104.159, 750),
}
NAMES = {f"{algorithm}_{env}": (algorithm, env) for algorithm, env in ZOO}
"""Presets by the name of their file of results."""
