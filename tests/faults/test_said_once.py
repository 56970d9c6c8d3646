"""What is said of an environment is said once in a run, however many batches of it are made."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.fault
ENVIRONMENT = """
import gymnasium, numpy as np

class Outside(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.array([2.0], np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([2.0], np.float32), 1.0, self.steps == 20, False, {}
"""


def test_an_observation_outside_its_space_is_said_once_in_a_run(tmp_path):
    """It was said by training, and by each evaluation anew; a name in env.info by each look."""
    (tmp_path / "outs.py").write_text(ENVIRONMENT)
    command = [sys.executable, "-m", "palaestra", "train", "ppo", "outs:Outside", "--env.info", "cots"]
    command += [
        "--trainer.total-env-steps",
        "100",
        "--trainer.eval-every-steps",
        "32",
        "--algorithm.unroll-length",
        "16",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("are outside") == done.stderr.count("env.info has 'cots'") == 1
