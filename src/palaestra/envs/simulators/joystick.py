"""Robots on legs that are told how fast to walk and turn: their task, on MuJoCo's batch."""

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict

from palaestra.core import ConfigError, did_you_mean, import_extra
from palaestra.envs.contract.tensor import uniform
from palaestra.envs.simulators.mujoco import MujocoBatch, loaded, mujoco_with_batches

__all__ = ["JoystickRobot", "LeggedRobot"]

_DT = 0.02  # s, of an env step
_ASKED = np.array([0.9, 0.25, 0.5])  # how often a later command has each part
_SECONDS = 5.0  # for which a command holds on average
_NOISE = 0.1, 0.2, 0.05, 0.03, 1.5  # of what a robot measures: motion, turning, gravity, angles, their rates

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


@dataclass(frozen=True, kw_only=True)
class LeggedRobot:
    """What the task has to know of a robot whose every joint has a position motor."""

    scene: str
    """Path of the model's XML; below the wheel's folder, if it comes with one."""
    wheel: str = ""
    """The package that brings the model."""
    home: str = "home"
    """The keyframe that it starts from, and that actions are counted from."""
    time_step: float
    """Of the simulation, in seconds."""
    feet: tuple[str, ...]
    """Sites, left and right in turns; `FOOT_global_linvel` are sensors."""
    touch: str = "{}_floor_found"
    """The sensor of a foot that says whether it touches the floor."""
    imu: str = "imu"
    """The site where motion is measured."""
    sensors: str = "{}"
    """How the names of `gyro`, `local_linvel` and the like are written."""
    limbs: tuple[tuple[int, tuple[int, ...], tuple[float, ...]], ...]
    """How many alike, left and right in turns; of each joint of one, the sign of its mirror image, and how much the
    reward minds it away from `home`."""
    gains: tuple[float, float] | None = None
    """Of motors, stiffness and damping, instead of those of the model."""
    sideways: float = 0.0
    """m, how far to the left of the middle motion is measured."""
    fastest: tuple[float, float, float]
    """Commands: m/s forwards, m/s to the left, rad/s to the left."""
    step: float
    """m, the height of a step."""
    swing: float = 0.1
    """s that a foot is to be in the air."""
    upright: float = 0.0
    """It has fallen where its vertical axis has a smaller part upwards, -1 to 1."""
    gait: float = 0.0
    """Hz of a clock that two feet follow in turns, seen as cosine and sine; 0 for none."""
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Of terms of the reward, which replace those in `WEIGHTS`."""


_Image = tuple[Sequence[int], Sequence[int]]  # where each element of a mirror image comes from, and its sign
_VECTOR: _Image = range(3), (1, -1, 1)
_ROTATION: _Image = range(3), (-1, 1, -1)  # of an axis that is turned about


def _image(*parts: _Image) -> tuple[list[int], list[int]]:
    """Where each element of an observation's mirror image comes from, and its sign.

    Args:
        parts: one after another; their orders count from their own first element.
    """
    order, sign = list[int](), list[int]()
    for places, signs in parts:
        start = len(order)
        order += [start + place for place in places]
        sign += signs
    return order, sign


@functools.cache
def _images(robot: LeggedRobot) -> tuple[dict[str, tuple[list[int], list[int]]], dict[str, list[tuple[int, int]]]]:
    """Images of actions and observations, and where the latter have linear velocities and rates of turning."""
    order, sign = list[int](), list[int]()
    for count, signs, _ in robot.limbs:
        first, size = len(order), len(signs)
        order += [
            first + size * (limb ^ 1 if count > 1 else limb) + joint for limb in range(count) for joint in range(size)
        ]
        sign += list(signs) * count
    joints, others = (order, sign), [foot ^ 1 for foot in range(len(robot.feet))]
    feet = others, [1] * len(others)
    feet_move = [3 * foot + axis for foot in others for axis in range(3)], [*_VECTOR[1]] * len(others)
    command, clock = (range(3), (1, -1, -1)), (range(2), (-1, -1))
    state = _VECTOR, _ROTATION, _VECTOR, *[joints] * 3, command, *[clock] * bool(robot.gait)
    more = _ROTATION, _VECTOR, _VECTOR, _VECTOR, _ROTATION, *[joints] * 3, feet, feet_move, feet, feet
    images = {"action": joints, "state": _image(*state), "privileged_state": _image(*state, *more)}
    seen = len(images["state"][0])
    return images, {"state": [(0, 3)], "privileged_state": [(0, 3), (seen + 9, seen)]}


def _weights(own: Mapping[str, float], given: Mapping[str, float]) -> dict[str, float]:
    """Of all terms of the reward."""
    known = {**WEIGHTS, **own}
    for name, weight in given.items():
        if name not in known:
            raise ConfigError(f"the reward has no term {name!r}{did_you_mean(name, known)}")
        if not isinstance(weight, int | float) or not np.isfinite(weight):
            raise ConfigError(f"the weight of {name} is {weight!r}; a finite number is needed")
    return {**known, **given}


def _model(robot: LeggedRobot) -> tuple[Any, np.ndarray]:
    """The `MjModel`, and the heights of feet that stand, [feet]."""
    path = Path(robot.scene)
    if robot.wheel:
        path = Path(import_extra(robot.wheel, "envpool", "the robot's model").__file__).parent / path
    mujoco = mujoco_with_batches()
    model = loaded(str(path))
    model.opt.timestep = robot.time_step
    model.vis.quality.shadowsize = 1024  # of pictures, which are drawn without a GPU, too
    if robot.gains is not None:
        stiffness, damping = robot.gains
        model.dof_damping[6:] = 0.0  # the motors' own damping follows
        model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1] = stiffness, -stiffness
        model.actuator_biasprm[:, 2] = -damping
    data = mujoco.MjData(model)
    data.qpos[:] = model.key_qpos[model.key(robot.home).id]
    mujoco.mj_kinematics(model, data)
    return model, data.site_xpos[[model.site(foot).id for foot in robot.feet], 2].copy()


class JoystickRobot(MujocoBatch):
    """A robot on legs that follows a joystick: velocities forwards and sideways, and a rate of turning.

    Position targets around its stance at 50 Hz, a new command about every 5 seconds, a reward for following it less
    what harms motors or looks odd. The policy's `state` is what a robot measures, with noise; `privileged_state` is
    for critics in training. A robot of your own is a subclass that returns its `facts`.

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
        robot = self.robot = self.facts()
        self.weights, self.noise = _weights(robot.weights, weights or {}), noise
        model, ground = _model(robot)
        images, _ = _images(robot)
        spaces: dict[str, Any] = {
            name: Box(-np.inf, np.inf, (len(images[name][0]),), np.float32) for name in ("state", "privileged_state")
        }
        super().__init__(
            batch_size,
            model,
            round(_DT / robot.time_step),
            observation_space=Dict(spaces),
            action_space=Box(-1.0, 1.0, (model.nu,), np.float32),
            num_threads=num_threads,
            lane_seeds=lane_seeds,
            max_episode_steps=1000 if max_episode_steps is None else max_episode_steps,
        )
        self._home = model.key_qpos[model.key(robot.home).id].copy()
        self._stance = self._home[7:]
        self._stiffness = np.concatenate([np.tile(stiff, count) for count, _, stiff in robot.limbs])
        low, high = 0.95 * model.jnt_range[1:].T
        self._limits, self._fastest = (low, high), np.array(robot.fastest)
        self._spread = np.repeat(_NOISE, [3, 3, 3, model.nu, model.nu])
        self._qpos, self._qvel, self._force = (self.field(name) for name in ("qpos", "qvel", "actuator_force"))
        self._sensors, self._sites, self._frames = (
            self.field(name) for name in ("sensordata", "site_xpos", "site_xmat")
        )
        self._imu, self._feet = model.site(robot.imu).id, [model.site(foot).id for foot in robot.feet]
        self._touch = [int(model.sensor(robot.touch.format(foot)).adr[0]) for foot in robot.feet]
        self._ground, feet = ground, len(robot.feet)
        floats = {"action": model.nu, "air": feet, "peak": feet, "command": 3}
        self._kept: dict[str, np.ndarray] = {name: np.zeros((batch_size, size)) for name, size in floats.items()}
        self._kept["contact"] = np.zeros((batch_size, feet), np.bool_)
        self._kept["key"] = np.zeros((batch_size, 2), np.int32)  # halves of the seed of the episode
        self._kept["tick"] = np.zeros((batch_size, 1), np.int32)
        self._kept["until"] = np.zeros((batch_size, 1))  # s, when the command changes
        self._reported = {f"tracking/{name}": np.full(batch_size, np.nan) for name in ("linear", "yaw")}

    @classmethod
    @abstractmethod
    def facts(cls) -> LeggedRobot:
        """The robot; the attribute `robot` has it."""

    @classmethod
    def mirror(cls, observation: Any, action: Any) -> tuple[Any, Any]:
        """Left for right, as `algorithm.symmetry` takes it.

        Args:
            observation: of the two keys, or of `state` alone; leaves [N, ...].
            action: [N, A].
        """
        robot = cls.facts()
        (images, moves), offset = _images(robot), 2 * robot.sideways
        seen: dict[str, Any] = {}
        for name, places in moves.items():
            if name in observation:
                order, sign = images[name]
                seen[name] = rows = observation[name][:, order] * observation[name].new_tensor(sign)
                for linear, turning in places:  # v + omega x r, of a sensor that is not where its image is
                    rows[:, linear] -= offset * rows[:, turning + 2]
                    rows[:, linear + 2] += offset * rows[:, turning]
        order, sign = images["action"]
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
        drawn = self._uniform(lanes, 13, first=max(100, len(self._spread)))  # behind those of the noise
        spread = 2.0 * drawn[:, :12] - 1.0
        qpos, qvel = np.tile(self._home, (len(lanes), 1)), np.zeros((len(lanes), self.model.nv))
        qpos[:, :2] += 0.5 * spread[:, :2]
        yaw = np.pi * spread[:, 2]
        qpos[:, 3], qpos[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
        qvel[:, :6] = 0.5 * spread[:, 3:9]
        self._kept["command"][lanes] = self._fastest * spread[:, 9:12]
        self._kept["until"][lanes] = -_SECONDS * np.log1p(-drawn[:, 12:])
        return qpos, qvel

    def outcome(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept = self._kept
        height = self._sites[:, self._feet, 2]
        contact = self._sensors[:, self._touch] > 0
        landed = (kept["air"] > 0) & (contact | kept["contact"])
        kept["air"] += self.dt
        np.maximum(kept["peak"], height, out=kept["peak"])
        fallen = self._measured("upvector")[:, 2] < self.robot.upright
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
        drawn = self._uniform(lanes, 10, first=max(50, len(self._spread)))
        asked = self._fastest * (2.0 * drawn[:, :3] - 1.0) * (drawn[:, 3:6] < _ASKED)
        command = self._kept["command"]
        command[lanes] = np.where(drawn[:, 6:9] < 0.5, asked, command[lanes])
        self._kept["until"][lanes] -= _SECONDS * np.log1p(-drawn[:, 9:])

    def _terms(
        self, action: np.ndarray, height: np.ndarray, contact: np.ndarray, landed: np.ndarray, fallen: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Terms of the reward [B], before they are weighted."""
        measured, kept, square, robot = self._measured, self._kept, np.square, self.robot
        command, force, joints = kept["command"], self._force, self._qpos[:, 7:]
        moving = np.linalg.norm(command, axis=1) > 0.01
        away = joints - self._stance
        low, high = self._limits
        feet = np.stack([self._sensor(f"{foot}_global_linvel")[:, :2] for foot in robot.feet], axis=1)  # [B, feet, 2]
        speed = square(feet).sum(axis=2)
        terms = {
            "linear": np.exp(-square(command[:, :2] - measured("local_linvel")[:, :2]).sum(axis=1) / 0.25),
            "yaw": np.exp(-square(command[:, 2] - measured("gyro")[:, 2]) / 0.25),
            "height": square(measured("global_linvel")[:, 2]),
            "roll": square(measured("global_angvel")[:, :2]).sum(axis=1),
            "tilt": square(measured("upvector")[:, :2]).sum(axis=1),
            "pose": np.exp(-(square(away) * self._stiffness).sum(axis=1)),
            "still": np.abs(away).sum(axis=1) * ~moving,
            "fall": fallen,
            "torque": np.sqrt(square(force).sum(axis=1)) + np.abs(force).sum(axis=1),
            "jerk": square(action - kept["action"]).sum(axis=1),
            "energy": (np.abs(self._qvel[:, 6:]) * np.abs(force)).sum(axis=1),
            "slip": (speed * contact).sum(axis=1) * moving,
            "clearance": (np.abs(height - robot.step) * np.sqrt(np.sqrt(speed))).sum(axis=1),
            "step_height": (square(kept["peak"] / robot.step - 1.0) * landed).sum(axis=1) * moving,
            "air": ((kept["air"] - robot.swing) * landed).sum(axis=1) * moving,
            "limits": (np.maximum(low - joints, 0.0) + np.maximum(joints - high, 0.0)).sum(axis=1),
        }
        if robot.gait:  # a foot is to be as high as half a wave, the other in the other half
            lift = robot.step * np.maximum(np.sin(self._clock()[:, None] + np.pi * np.arange(2)), 0.0)
            terms["gait"] = np.exp(-square(height - self._ground - lift).sum(axis=1) / (robot.step / 2) ** 2) * moving
        return terms

    def _clock(self) -> np.ndarray:
        """The angle of the clock [B] that feet follow."""
        return 2 * np.pi * self.robot.gait * self.dt * self._kept["tick"][:, 0]

    def observe(self) -> dict[str, np.ndarray]:
        measured, kept = self._measured, self._kept
        up = self._frames[:, self._imu].reshape(-1, 3, 3)[:, 2]
        joints = self._qpos[:, 7:] - self._stance, self._qvel[:, 6:]
        true = measured("local_linvel"), measured("gyro"), -up, *joints
        spread = 2.0 * self._uniform(np.arange(self.batch_size), len(self._spread)) - 1.0
        noisy = np.concatenate(true, axis=1) + self.noise * self._spread * spread
        parts = [noisy, kept["action"], kept["command"]]
        if self.robot.gait:
            clock = self._clock()[:, None]
            parts += [np.cos(clock), np.sin(clock)]
        state = np.concatenate(parts, axis=1)
        linear, gyro, gravity, *_ = true
        feet = (self._sensor(f"{foot}_global_linvel") for foot in self.robot.feet)
        more = gyro, measured("accelerometer"), gravity, linear, measured("global_angvel"), *joints, self._force
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

    def _measured(self, name: str) -> np.ndarray:
        return self._sensor(self.robot.sensors.format(name))
