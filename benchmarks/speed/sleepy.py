"""An environment that takes time and no CPU; without imports of ours, so that peers can step it too."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SLEEP_S, EPISODE_STEPS = 0.002, 200
ENVS_EACH, MINIBATCHES = 4, 4
"""Environments of a worker, and minibatches of an unroll."""


class Sleepy(gymnasium.Env[np.ndarray, np.int64]):
    """Every step takes 2 ms and no CPU."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(SLEEP_S)
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, False, self.steps == EPISODE_STEPS, {}
