"""Small tasks on MuJoCo's batch: their contract, and their rewards beside a plain loop over one simulation."""

import math

import numpy as np
import pytest
import torch

from palaestra.envs import MujocoReacher, MujocoSwingUp
from palaestra.testing import BatchContract

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17 or later")


class TestSwingUp(BatchContract):
    def batch(self, seeds=(1, 2)):
        return MujocoSwingUp(len(seeds), lane_seeds=seeds, num_threads=1, max_episode_steps=25)

    def elsewhere(self):
        return MujocoSwingUp(2, lane_seeds=(1, 2), num_threads=2, max_episode_steps=25)


class TestReacher(BatchContract):
    def batch(self, seeds=(1, 2)):
        return MujocoReacher(len(seeds), lane_seeds=seeds, num_threads=1, max_episode_steps=25)


def along(env, steps=120):
    """Each step of the first lane, with a simulation of its own that had the same actions."""
    seen = env.reset().observation
    data = mujoco.MjData(env.model)
    data.qpos[:], data.qvel[:] = env.field("qpos")[0], env.field("qvel")[0]
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        action = torch.rand(env.batch_size, env.model.nu, generator=generator) * 2 - 1
        data.ctrl[:] = action[0].numpy()
        mujoco.mj_step(env.model, data, env.frame_skip)
        step = env.step(action)
        yield data, action[0].tolist(), seen[0].tolist(), step
        seen = step.observation


def test_a_pole_on_a_cart_earns_how_upright_central_and_calm_it_is():
    env, most = MujocoSwingUp(2, lane_seeds=[0, 1]), 0.0
    assert env.reset().observation[0, 1] < -0.99  # it hangs
    for data, _, _, step in along(env):
        place, angle = data.qpos
        calm = math.exp(-((data.qvel[1] / 4) ** 2))
        reward = (1 + math.cos(angle)) / 2 * math.exp(-place * place) * calm
        assert step.reward[0].item() == pytest.approx(reward, rel=1e-5)
        expected = [place, math.cos(angle), math.sin(angle), *data.qvel]
        np.testing.assert_allclose(step.observation[0], expected, rtol=1e-5, atol=1e-6)
        most = max(most, step.reward[0].item())
    assert most > 0.01, "it swings"


def test_an_arm_earns_its_distance_to_the_goal():
    env, passed = MujocoReacher(2, lane_seeds=[0, 1], max_episode_steps=0), []
    for data, action, seen, step in along(env):
        upper, lower = data.qpos
        tip = [0.12 * (f(upper) + f(upper + lower)) for f in (math.cos, math.sin)]
        away = math.hypot(seen[6] - tip[0], seen[7] - tip[1])
        reward = -away - 0.01 * (action[0] ** 2 + action[1] ** 2)
        assert step.reward[0].item() == pytest.approx(reward, rel=1e-5)
        assert step.reward[0].item() == pytest.approx(
            env.infos()["reward/distance"][0] + env.infos()["reward/effort"][0], rel=1e-5
        )
        passed.append(away)
    assert max(passed) - min(passed) > 0.02
    assert len({tuple(goal) for goal in env.kept()["goal"]}) == 2
