"""Ten runs that are broken on purpose, each found; ten that learn, in which nothing is found."""

import gymnasium
import numpy as np
import pytest

import palaestra
from tests.analysis.test_played import LoudPendulum

pytestmark = pytest.mark.slow


class RichPendulum(gymnasium.RewardWrapper):
    """A million times the reward."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))

    def reward(self, reward):
        return float(reward) * 1e6


class BlindCartPole(gymnasium.ObservationWrapper):
    """Nothing is seen."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def observation(self, observation):
        return np.zeros_like(observation)


HERE = "tests.analysis.test_diagnosis_proof"
LOUD = f"{LoudPendulum.__module__}:LoudPendulum"
BROKEN = [
    ("policy_jumps", "ppo", "CartPole-v1", {"algorithm__learning_rate": 0.03}),
    ("policy_stands_still", "ppo", "CartPole-v1", {"algorithm__learning_rate": 1e-12}),
    ("short_sighted", "ppo", "CartPole-v1", {"algorithm__gamma": 0.0}),
    ("acts_at_random", "ppo", "CartPole-v1", {"algorithm__entropy_cost": 10.0}),
    ("no_updates", "dqn", "CartPole-v1", {"algorithm__learning_starts": 1_000_000}),
    ("replay_ratio", "dqn", "CartPole-v1", {"algorithm__unroll_length": 256, "algorithm__gradient_steps": 1}),
    ("no_reward_signal", "ppo", "MountainCar-v0", {}),
    ("reward_scale", "sac", f"{HERE}:RichPendulum", {}),
    (
        "large_observations",
        "ppo",
        f"{LoudPendulum.__module__}:LoudPendulum",
        {"algorithm__normalize_observation": False},
    ),
    ("one_action", "dqn", f"{HERE}:BlindCartPole", {}),
]
HEALTHY = [
    ("ppo", "CartPole-v1", 60_000),
    ("a2c", "CartPole-v1", 60_000),
    ("reinforce", "CartPole-v1", 20_000),
    ("dqn", "CartPole-v1", 12_000),
    ("qr_dqn", "CartPole-v1", 12_000),
    ("c51", "CartPole-v1", 12_000),
    ("discrete_sac", "CartPole-v1", 12_000),
    ("sac", "Pendulum-v1", 5_000),
    ("td3", "Pendulum-v1", 5_000),
    ("ppo", "Pendulum-v1", 60_000),
]


def names(algorithm, env, env_steps, folder, **settings):
    settings |= {"run__directory": str(folder), "run__tensorboard": False, "trainer__eval_episodes": 5}
    run = palaestra.train(algorithm, env, trainer__total_env_steps=env_steps, **settings)
    return {finding.name for finding in palaestra.diagnose(run.directory).findings}


@pytest.mark.parametrize(("name", "algorithm", "env", "settings"), BROKEN, ids=[case[0] for case in BROKEN])
def test_a_broken_run_is_found(name, algorithm, env, settings, tmp_path):
    assert name in names(algorithm, env, 6_000, tmp_path, **settings)


@pytest.mark.parametrize(("algorithm", "env", "env_steps"), HEALTHY)
def test_nothing_is_found_in_a_run_that_learns(algorithm, env, env_steps, tmp_path):
    assert names(algorithm, env, env_steps, tmp_path) == set()
