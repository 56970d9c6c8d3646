"""Gymnasium's eleven MuJoCo tasks of version 5, on MuJoCo's batch: `--env.vectorization batch`.

Observations, rewards, ends and `info` have Gymnasium's bits. Settings are those of Gymnasium's constructors, whose
environment gives the model and the starts of episodes; here is only what is computed for all lanes at once, in the
same order of operations.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from palaestra.core import ConfigError, did_you_mean
from palaestra.envs.simulators.mujoco import MujocoBatch
from palaestra.envs.suites.gym import find_spec, single

__all__ = ["TASKS", "GymnasiumMujoco", "gymnasium_mujoco"]

Infos = dict[str, np.ndarray]


class GymnasiumMujoco(MujocoBatch):
    """One of Gymnasium's tasks, with its constructor's settings.

    Args:
        batch_size: B.
        lane_seeds: one for each environment; new ones by default.
        max_episode_steps: the time limit; the registered one by default, 0 for none.
        num_threads: that step them; as many as PyTorch uses by default.
        kwargs: of Gymnasium's constructor, such as `ctrl_cost_weight`.

    Examples:
        >>> env = TASKS["InvertedPendulum-v5"](2, lane_seeds=[0, 1])
        >>> env.reset().observation.shape
        torch.Size([2, 4])
    """

    name: str
    """Its id."""
    skipped: int = 1
    """Leading positions that observations leave out."""
    fields: tuple[str, ...] = ()
    """Derived fields that are read, bound before the first step."""

    def __init__(
        self,
        batch_size: int,
        *,
        lane_seeds: Sequence[int] | None = None,
        max_episode_steps: int | None = None,
        num_threads: int | None = None,
        **kwargs: Any,
    ) -> None:
        env: Any = single(self.name, kwargs, None).env
        self.gym_env, self._settings = env.unwrapped, _settings_of(env.unwrapped, kwargs)
        limit = find_spec(self.name).max_episode_steps or 0
        super().__init__(
            batch_size,
            self.gym_env.model,
            self.gym_env.frame_skip,
            observation_space=env.observation_space,
            action_space=env.action_space,
            num_threads=num_threads,
            lane_seeds=lane_seeds,
            max_episode_steps=limit if max_episode_steps is None else max_episode_steps,
        )
        self.qpos, self.qvel = self.field("qpos"), self.field("qvel")
        for name in self.fields:
            self.field(name)
        self.body = {self.model.body(index).name: index for index in range(self.model.nbody)}
        self._left = self.position().copy()  # [B, ...] which the next velocity is measured from
        self._infos: Infos = {}

    def states(self, lanes: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        data, found = self.gym_env.data, []
        for seed in seeds:
            self.gym_env.reset(seed=seed)
            found.append((data.qpos.copy(), data.qvel.copy()))
        qpos, qvel = zip(*found, strict=True)
        return np.stack(qpos), np.stack(qvel)

    def began(self, lanes: np.ndarray) -> None:
        """What `info` says at the start, which is what it says of places."""
        self._left[lanes] = self.position()[lanes]
        places = self.places()
        self._infos = {name: np.array(values, np.float64) for name, values in (self._infos or places).items()}
        for name, values in self._infos.items():
            values[lanes] = places[name][lanes] if name in places else np.nan

    def outcome(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        position = self.position().copy()
        velocity = (position - self._left) / self.dt
        self._left = position
        terminated = self.terminated()
        reward, parts = self.reward(action, velocity, terminated)
        self._infos = {**self.places(), **parts}
        return reward, terminated

    def kept(self) -> Mapping[str, np.ndarray]:
        return {"before": self._left}

    def infos(self) -> Infos:
        return self._infos

    # -- the task

    def position(self) -> np.ndarray:
        """Where a robot is, [B] or [B, 2], for its velocity."""
        return self.qpos[:, 0]

    def places(self) -> Infos:
        """What `info` says of places, at the start of an episode, too."""
        return {}

    def terminated(self) -> np.ndarray:
        """Whether the task is over, [B]."""
        return ~self.healthy() & self._settings.get("terminate_when_unhealthy", False)

    def healthy(self) -> np.ndarray:
        """Whether it stands, [B]."""
        return np.ones(self.batch_size, np.bool_)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        """Rewards [B], and their parts as `info` has them.

        Args:
            action: [B, nu].
            velocity: of `position`, [B] or [B, 2].
            terminated: [B].
        """
        raise NotImplementedError

    def observe(self) -> np.ndarray:
        return np.concatenate((self._seen_position(), self.qvel), axis=1)

    def _seen_position(self) -> np.ndarray:
        return (
            self.qpos[:, self.skipped :] if self._settings["exclude_current_positions_from_observation"] else self.qpos
        )

    def _control_cost(self, control: np.ndarray) -> np.ndarray:
        return self._settings["ctrl_cost_weight"] * np.sum(np.square(control), axis=1)

    def _forward(self, velocity: np.ndarray) -> np.ndarray:
        return self._settings["forward_reward_weight"] * velocity

    def _flat(self, name: str, first: int = 0) -> np.ndarray:
        """A field [B, n, ...] as [B, m], without its first entries."""
        return self.field(name)[:, first:].reshape(self.batch_size, -1)

    def _squares(self, field: np.ndarray) -> np.ndarray:
        """The sum of squares of a field [B, ...], [B]."""
        return np.sum(np.square(field).reshape(self.batch_size, -1), axis=1)


class HalfCheetah(GymnasiumMujoco):
    """A cheetah of two legs that runs."""

    name = "HalfCheetah-v5"

    def places(self) -> Infos:
        return {"x_position": self.qpos[:, 0]}

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        forward, cost = self._forward(velocity), self._control_cost(action)
        return forward - cost, {"x_velocity": velocity, "reward_forward": forward, "reward_ctrl": -cost}


class Swimmer(GymnasiumMujoco):
    """A worm of three links."""

    name = "Swimmer-v5"
    skipped = 2

    def position(self) -> np.ndarray:
        return self.qpos[:, :2]

    def places(self) -> Infos:
        return _plane(self.qpos)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        forward, cost = self._forward(velocity[:, 0]), self._control_cost(action)
        return forward - cost, {**_velocities(velocity), "reward_forward": forward, "reward_ctrl": -cost}


class _Upright(GymnasiumMujoco):
    """A robot that moves in a plane and must not fall."""

    def places(self) -> Infos:
        return {"x_position": self.qpos[:, 0], "z_distance_from_origin": self.qpos[:, 1] - self.gym_env.init_qpos[1]}

    def healthy(self) -> np.ndarray:
        height, angle = self.qpos[:, 1], self.qpos[:, 2]
        return _within(height, self._settings["healthy_z_range"]) & _within(
            angle, self._settings["healthy_angle_range"]
        )

    def observe(self) -> np.ndarray:
        return np.concatenate((self._seen_position(), np.clip(self.qvel, -10, 10)), axis=1)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        forward, cost = self._forward(velocity), self._control_cost(action)
        alive = self.healthy() * self._settings["healthy_reward"]
        parts = {"reward_forward": forward, "reward_ctrl": -cost, "reward_survive": alive}
        return forward + alive - cost, {"x_velocity": velocity, **parts}


class Hopper(_Upright):
    """One leg."""

    name = "Hopper-v5"

    def healthy(self) -> np.ndarray:
        state = np.concatenate((self.qpos[:, 2:], self.qvel), axis=1)
        return super().healthy() & _within(state, self._settings["healthy_state_range"]).all(axis=1)


class Walker2d(_Upright):
    """Two legs."""

    name = "Walker2d-v5"


class Ant(GymnasiumMujoco):
    """Four legs in space, which feels its contacts."""

    name = "Ant-v5"
    skipped = 2
    fields = ("xpos",)
    rne_post_constraint = True

    def position(self) -> np.ndarray:
        main = self._settings["main_body"]
        return self.field("xpos")[:, self.body[main] if isinstance(main, str) else main, :2]

    def places(self) -> Infos:
        return _plane(self.qpos)

    def healthy(self) -> np.ndarray:
        low, high = self._settings["healthy_z_range"]
        finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        return finite & (low <= self.qpos[:, 2]) & (self.qpos[:, 2] <= high)

    def _contacts(self) -> np.ndarray:
        return np.clip(self.field("cfrc_ext"), *self._settings["contact_force_range"])

    def observe(self) -> np.ndarray:
        parts = [self._seen_position(), self.qvel]
        if self._settings["include_cfrc_ext_in_observation"]:
            parts.append(self._contacts()[:, 1:].reshape(self.batch_size, -1))
        return np.concatenate(parts, axis=1)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        forward, cost = self._forward(velocity[:, 0]), self._control_cost(action)
        alive = self.healthy() * self._settings["healthy_reward"]
        contact = self._settings["contact_cost_weight"] * self._squares(self._contacts())
        parts = {"reward_forward": forward, "reward_ctrl": -cost, "reward_contact": -contact, "reward_survive": alive}
        return forward + alive - (cost + contact), {**_velocities(velocity), **parts}


class _Human(GymnasiumMujoco):
    """A body of two arms and two legs."""

    skipped = 2
    fields = ("xipos", "cinert", "cvel", "qfrc_actuator", "ten_length", "ten_velocity")
    rne_post_constraint = True

    def observe(self) -> np.ndarray:
        parts = [self._seen_position(), self.qvel]
        for name, first in (("cinert", 1), ("cvel", 1), ("qfrc_actuator", 6), ("cfrc_ext", 1)):
            if self._settings[f"include_{name}_in_observation"] is True:
                parts.append(self._flat(name, first))
        return np.concatenate(parts, axis=1)

    def _tendons(self) -> Infos:
        return {"tendon_length": self.field("ten_length"), "tendon_velocity": self.field("ten_velocity")}


class Humanoid(_Human):
    """A body that walks."""

    name = "Humanoid-v5"

    def position(self) -> np.ndarray:
        mass = self.model.body_mass
        weighted = np.einsum("b,nbj->nj", mass, self.field("xipos"))  # [B, bodies, 3] to [B, 3]
        return (weighted / mass.sum())[:, :2]

    def places(self) -> Infos:
        plane = _plane(self.qpos)
        distance = plane.pop("distance_from_origin")
        return {**plane, **self._tendons(), "distance_from_origin": distance}

    def healthy(self) -> np.ndarray:
        return _within(self.qpos[:, 2], self._settings["healthy_z_range"])

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        forward, cost = self._forward(velocity[:, 0]), self._control_cost(self.field("ctrl"))
        alive = self.healthy() * self._settings["healthy_reward"]
        contact = self._settings["contact_cost_weight"] * self._squares(self.field("cfrc_ext"))
        contact = np.clip(contact, *self._settings["contact_cost_range"])
        parts = {"reward_survive": alive, "reward_forward": forward, "reward_ctrl": -cost, "reward_contact": -contact}
        return forward + alive - (cost + contact), {**_velocities(velocity), **parts}


class HumanoidStandup(_Human):
    """A body that gets up."""

    name = "HumanoidStandup-v5"

    def places(self) -> Infos:
        rise = self.qpos[:, 2] - self.gym_env.init_qpos[2]
        x, y = self.qpos[:, 0], self.qpos[:, 1]
        return {"x_position": x, "y_position": y, "z_distance_from_origin": rise, **self._tendons()}

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        up = self.qpos[:, 2] / self.model.opt.timestep
        cost = self._control_cost(self.field("ctrl"))
        impact = self._settings["impact_cost_weight"] * self._squares(self.field("cfrc_ext"))
        impact = np.clip(impact, *self._settings["impact_cost_range"])
        return up - cost - impact + 1, {"reward_linup": up, "reward_quadctrl": -cost, "reward_impact": -impact}


class InvertedPendulum(GymnasiumMujoco):
    """A pole on a cart."""

    name = "InvertedPendulum-v5"

    def observe(self) -> np.ndarray:
        return np.concatenate((self.qpos, self.qvel), axis=1)

    def terminated(self) -> np.ndarray:
        seen = self.observe()
        return ~np.isfinite(seen).all(axis=1) | (np.abs(seen[:, 1]) > 0.2)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        alive = (~terminated).astype(np.float64)
        return alive, {"reward_survive": alive}


class InvertedDoublePendulum(GymnasiumMujoco):
    """Two poles on a cart."""

    name = "InvertedDoublePendulum-v5"
    fields = ("site_xpos", "qfrc_constraint")

    def observe(self) -> np.ndarray:
        cart, angles = self.qpos[:, :1], self.qpos[:, 1:]
        push = np.clip(self.field("qfrc_constraint"), -10, 10)[:, :1]
        return np.concatenate((cart, np.sin(angles), np.cos(angles), np.clip(self.qvel, -10, 10), push), axis=1)

    def terminated(self) -> np.ndarray:
        return self.field("site_xpos")[:, 0, 2] <= 1

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        x, height = self.field("site_xpos")[:, 0, 0], self.field("site_xpos")[:, 0, 2]
        first, second = self.qvel[:, 1], self.qvel[:, 2]
        # Gymnasium squares scalars, which NumPy does by C's `pow`, and arrays by a product, which rounds otherwise
        far = 0.01 * np.float_power(x, 2) + np.float_power(height - 2, 2)
        fast = 0.001 * np.float_power(first, 2) + 0.005 * np.float_power(second, 2)
        alive = self._settings["healthy_reward"] * (~terminated).astype(np.float64)
        parts = {"reward_survive": alive, "distance_penalty": -far, "velocity_penalty": -fast}
        return alive - far - fast, parts


class _Arm(GymnasiumMujoco):
    """An arm whose task is a distance."""

    fields = ("xpos",)

    def _between(self, one: str, other: str) -> np.ndarray:
        """From one body to another, [B, 3]."""
        return self.field("xpos")[:, self.body[one]] - self.field("xpos")[:, self.body[other]]

    def _effort(self, action: np.ndarray) -> np.ndarray:
        return -np.square(action).sum(axis=1) * self._settings["reward_control_weight"]


class Reacher(_Arm):
    """An arm of two links."""

    name = "Reacher-v5"

    def observe(self) -> np.ndarray:
        angles = self.qpos[:, :2]
        far = self._between("fingertip", "target")[:, :2]
        return np.concatenate((np.cos(angles), np.sin(angles), self.qpos[:, 2:], self.qvel[:, :2], far), axis=1)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        far = -_norm(self._between("fingertip", "target")) * self._settings["reward_dist_weight"]
        effort = self._effort(action)
        return far + effort, {"reward_dist": far, "reward_ctrl": effort}


class Pusher(_Arm):
    """An arm that pushes a thing to its goal."""

    name = "Pusher-v5"

    def observe(self) -> np.ndarray:
        bodies = [self.field("xpos")[:, self.body[name]] for name in ("tips_arm", "object", "goal")]
        return np.concatenate((self.qpos[:, :7], self.qvel[:, :7], *bodies), axis=1)

    def reward(self, action: np.ndarray, velocity: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, Infos]:
        near = -_norm(self._between("object", "tips_arm")) * self._settings["reward_near_weight"]
        far = -_norm(self._between("object", "goal")) * self._settings["reward_dist_weight"]
        effort = self._effort(action)
        return far + effort + near, {"reward_dist": far, "reward_ctrl": effort, "reward_near": near}


_TASKS = (
    Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher,
    Swimmer, Walker2d,
)  # fmt: skip
TASKS: dict[str, type[GymnasiumMujoco]] = {task.name: task for task in _TASKS}
"""By id."""


def gymnasium_mujoco(name: str) -> type[GymnasiumMujoco]:
    """The task of an id.

    Raises:
        ConfigError: it is not one that is stepped in batches.
    """
    if name not in TASKS:
        raise ConfigError(
            f"env.vectorization=batch is for MuJoCo's tasks of version 5, and {name!r} is none"
            f"{did_you_mean(name, TASKS)}; a task of your own derives from palaestra.envs.MujocoBatch"
        )
    return TASKS[name]


def _settings_of(env: gymnasium.Env[Any, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a constructor, given or by default."""
    bound = inspect.signature(type(env)).bind(**kwargs)
    bound.apply_defaults()
    return bound.arguments


def _within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    return (bounds[0] < values) & (values < bounds[1])


def _norm(vectors: np.ndarray) -> np.ndarray:
    """[B, k] to [B]."""
    return np.sqrt(np.vecdot(vectors, vectors))


def _plane(qpos: np.ndarray) -> Infos:
    distance = _norm(np.ascontiguousarray(qpos[:, :2]))
    return {"x_position": qpos[:, 0], "y_position": qpos[:, 1], "distance_from_origin": distance}


def _velocities(velocity: np.ndarray) -> Infos:
    return {"x_velocity": velocity[:, 0], "y_velocity": velocity[:, 1]}
