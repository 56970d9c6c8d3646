"""Small tasks on MuJoCo's batch that a minute of training learns: a pole on a cart, and an arm that reaches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from palaestra.envs.simulators.mujoco import MujocoBatch

__all__ = ["MujocoReacher", "MujocoSwingUp"]

_CART = """<mujoco><option timestep="0.01" integrator="RK4"><flag contact="disable"/></option><worldbody>
<light pos="0 -1 3"/><camera name="track" pos="0 -4 1" xyaxes="1 0 0 0 0.1 1"/>
<geom type="capsule" size="0.02" fromto="-2 0 1 2 0 1" rgba="0.4 0.4 0.4 1"/>
<body name="cart" pos="0 0 1">
<joint name="slide" type="slide" axis="1 0 0" range="-1.8 1.8" limited="true" damping="0.1"/>
<geom type="box" size="0.2 0.1 0.1" mass="1" rgba="0.2 0.4 0.8 1"/>
<body name="pole"><joint name="hinge" type="hinge" axis="0 1 0" damping="0.002"/>
<geom type="capsule" size="0.03" fromto="0 0 0 0 0 1" mass="0.1" rgba="0.9 0.5 0.1 1"/></body></body></worldbody>
<actuator><motor joint="slide" gear="10" ctrlrange="-1 1"/></actuator></mujoco>"""
_ARM = """<mujoco><option timestep="0.01"><flag contact="disable" gravity="disable"/></option><worldbody>
<light pos="0 0 3"/><camera name="track" pos="0 0 0.8"/>
<body name="upper"><joint name="shoulder" type="hinge" axis="0 0 1" damping="0.01"/>
<geom type="capsule" size="0.01" fromto="0 0 0 0.12 0 0" mass="0.05" rgba="0.2 0.4 0.8 1"/>
<body name="lower" pos="0.12 0 0">
<joint name="elbow" type="hinge" axis="0 0 1" range="-160 160" limited="true" damping="0.01"/>
<geom type="capsule" size="0.01" fromto="0 0 0 0.12 0 0" mass="0.05" rgba="0.9 0.5 0.1 1"/>
<site name="tip" pos="0.12 0 0" size="0.012"/></body></body></worldbody>
<actuator><motor joint="shoulder" gear="0.05" ctrlrange="-1 1"/>
<motor joint="elbow" gear="0.05" ctrlrange="-1 1"/></actuator>
</mujoco>"""

_LINK = 0.12  # m


class MujocoSwingUp(MujocoBatch):
    """A pole that hangs from a cart and is to be swung up and held, in the middle of its rail.

    Observed are the place of the cart (m), cosine and sine of the pole's angle (upright is 0), and the two velocities.
    A reward is in [0, 1], a product of how upright the pole is, how near the cart is to the middle, and how slowly the
    pole turns. An episode is 250 steps, 10 seconds, and is never over before.

    Args:
        batch_size: B.
        settings: for `MujocoBatch`: `lane_seeds`, `max_episode_steps`, `num_threads`.

    Examples:
        >>> MujocoSwingUp(2, lane_seeds=[0, 1]).reset().observation.shape
        torch.Size([2, 5])
    """

    def __init__(self, batch_size: int, **settings: Any) -> None:
        space = Box(-np.inf, np.inf, (5,), np.float32)
        super().__init__(batch_size, _CART, 4, observation_space=space, **{"max_episode_steps": 250, **settings})
        self._qpos, self._qvel = self.field("qpos"), self.field("qvel")

    def states(self, lanes: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        spread = np.stack([np.random.default_rng(seed).uniform(-0.1, 0.1, 4) for seed in seeds])
        return spread[:, :2] + [0.0, np.pi], spread[:, 2:]

    def observe(self) -> np.ndarray:
        place, angle = self._qpos[:, :1], self._qpos[:, 1:]
        return np.concatenate((place, np.cos(angle), np.sin(angle), self._qvel), axis=1).astype(np.float32)

    def outcome(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (place, angle), turn = self._qpos.T, self._qvel[:, 1]
        calm = np.exp(-np.square(turn / 4.0))  # else it learns to spin
        return (1 + np.cos(angle)) / 2 * np.exp(-np.square(place)) * calm, np.zeros(self.batch_size, np.bool_)


class MujocoReacher(MujocoBatch):
    """An arm of two links in a plane whose tip is to reach a goal, which is elsewhere in every episode.

    Observed are cosines and sines of both angles, their velocities, the goal and the way from the tip to it (m). The
    reward is minus that distance, less a little for effort. An episode is 100 steps, 2 seconds.

    Args:
        batch_size: B.
        settings: for `MujocoBatch`: `lane_seeds`, `max_episode_steps`, `num_threads`.

    Examples:
        >>> MujocoReacher(2, lane_seeds=[0, 1]).reset().observation.shape
        torch.Size([2, 10])
    """

    def __init__(self, batch_size: int, **settings: Any) -> None:
        space = Box(-np.inf, np.inf, (10,), np.float32)
        super().__init__(batch_size, _ARM, 2, observation_space=space, **{"max_episode_steps": 100, **settings})
        self._qpos, self._qvel = self.field("qpos"), self.field("qvel")
        self._goal = np.zeros((batch_size, 2))
        self._reported = {f"reward/{name}": np.full(batch_size, np.nan) for name in ("distance", "effort")}

    def states(self, lanes: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.stack([np.random.default_rng(seed).uniform(-1.0, 1.0, 4) for seed in seeds])
        distance, angle = _LINK + 0.1 * drawn[:, 2], np.pi * drawn[:, 3]
        self._goal[lanes] = np.stack((distance * np.cos(angle), distance * np.sin(angle)), axis=1)
        return drawn[:, :2] * [np.pi, 2.0], np.zeros((len(lanes), 2))

    def _away(self) -> np.ndarray:
        """The way from the tip to the goal [B, 2], in m."""
        directions = np.cumsum(self._qpos, axis=1)  # of both links; places that MuJoCo computed are a substep old
        return self._goal - _LINK * np.stack((np.cos(directions).sum(axis=1), np.sin(directions).sum(axis=1)), axis=1)

    def observe(self) -> np.ndarray:
        parts = (np.cos(self._qpos), np.sin(self._qpos), 0.1 * self._qvel, self._goal, self._away())
        return np.concatenate(parts, axis=1).astype(np.float32)

    def outcome(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        distance, effort = -np.sqrt(np.square(self._away()).sum(axis=1)), -0.01 * np.square(action).sum(axis=1)
        self._reported = {"reward/distance": distance, "reward/effort": effort}
        return distance + effort, np.zeros(self.batch_size, np.bool_)

    def kept(self) -> Mapping[str, np.ndarray]:
        return {"goal": self._goal}

    def infos(self) -> Mapping[str, np.ndarray]:
        return self._reported
