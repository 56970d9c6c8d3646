"""What is said of an environment is said once in a run, however many batches of it are made."""

import os
import subprocess
import sys

import pytest

from palaestra.core import errors, files

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


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("--env.vectorization", "process", "--env.num-workers", "2"), marks=pytest.mark.slow),
        pytest.param(("--runtime", "process", "--num-workers", "2"), marks=pytest.mark.slow),
    ],
    ids=["here", "environments elsewhere", "workers"],
)
def test_what_environments_are_like_is_said_once_in_a_run(more, tmp_path):
    """It was said by training, and by each evaluation anew; a name by each look; all of it by each worker."""
    (tmp_path / "outs.py").write_text(ENVIRONMENT)
    command = [sys.executable, "-m", "palaestra", "train", "ppo", "outs:Outside", "--env.info", "cots"]
    command += ["--env.num-envs", "4", "--trainer.total-env-steps", "100", "--trainer.eval-every-steps", "32", *more]
    command += ["--algorithm.unroll-length", "8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("are outside") == done.stderr.count("env.info has 'cots'") == 1


def test_outside_a_run_everything_is_news_and_a_run_knows_what_was_said_before_it():
    errors.said.clear()
    assert errors.is_news("it rains")
    assert errors.is_news("it rains")
    with files.told_once():
        assert not errors.is_news("it rains")
        assert errors.is_news("it snows")
        assert not errors.is_news("it snows")
        with files.told_once():
            assert errors.is_news("it snows")
        assert not errors.is_news("it snows")
    assert errors.is_news("it snows")
