"""MuJoCo by its own batch: many simulations of one model, stepped in C threads, with the bits of one after another.

`--env.vectorization batch` steps Gymnasium's eleven `-v5` tasks so (`palaestra.envs.simulators.mujoco_tasks`); a task
of your own derives from `MujocoBatch`.
"""

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box

from palaestra.core import ConfigError, EnvError, import_extra
from palaestra.envs.contract.batch import BatchEnvironment
from palaestra.envs.suites.gym import quiet_mujoco

__all__ = ["MujocoBatch"]

_UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")


class MujocoBatch(BatchEnvironment):
    """A task on MuJoCo's batch: one model, B simulations, bits that do not depend on the number of threads.

    A subclass writes rewards, ends and observations from arrays [B, ...], which `field` gives; the state of the
    simulations is kept, saved and restored here. A simulation that becomes unstable, which MuJoCo silently resets, is
    an error that names the environment, its episode and its step.

    Args:
        batch_size: B.
        model: a `mujoco.MjModel`, or the path or text of an XML.
        frame_skip: simulation steps of an env step.
        observation_space: Gymnasium's, of one environment.
        action_space: the same; the ranges of the model's controls by default, without end where it gives none.
        num_threads: that step them; as many as PyTorch uses by default.
        settings: for `BatchEnvironment`.

    Attributes:
        model: the `mujoco.MjModel`.
        batch: the `mujoco.batch.Batch`.
        dt: seconds of an env step.

    Raises:
        MissingExtraError: MuJoCo is not installed.
        ConfigError: it is older than 3.17, which has no batches, or a number is out of range.
    """

    rne_post_constraint: bool = False
    """Whether `cfrc_ext` and the like are computed after each step, as Gymnasium does. A batch leaves them at zero, and
    one call a lane costs about 12 us."""

    def __init__(
        self,
        batch_size: int,
        model: Any,
        frame_skip: int,
        *,
        observation_space: Space[Any],
        action_space: Space[Any] | None = None,
        num_threads: int | None = None,
        **settings: Any,
    ) -> None:
        mujoco = mujoco_with_batches()
        if isinstance(model, str):
            model = loaded(model)
        if frame_skip < 1 or (num_threads is not None and num_threads < 1):
            raise ConfigError(f"frame_skip is {frame_skip} and num_threads {num_threads}; each must be at least 1")
        if action_space is None:
            given = model.actuator_ctrllimited.astype(bool).reshape(-1, 1)
            action_space = Box(*np.where(given, model.actuator_ctrlrange, (-np.inf, np.inf)).astype(np.float32).T)
        super().__init__(batch_size, observation_space, action_space, **settings)
        threads = min(num_threads or torch.get_num_threads(), batch_size)
        self.model, self.frame_skip, self.dt = model, frame_skip, model.opt.timestep * frame_skip
        self.batch = mujoco.batch.Batch(model, batch_size, threads, persistent=self.rne_post_constraint)
        self._ctrl = self.batch.bind("ctrl")
        self._fields: dict[str, np.ndarray] = {}
        self._varied: dict[str, np.ndarray] = {}
        self._began = False
        self._drawn: tuple[Any, Any] | None = None
        self.metadata = {"render_fps": round(1 / self.dt)}
        if self.rne_post_constraint:
            self._scratch = mujoco.MjData(model)
            self._fields["cfrc_ext"] = np.zeros((batch_size, model.nbody, 6))
        self._post_constraint = mujoco.mj_rnePostConstraint
        self._unstable = [int(getattr(mujoco.mjtWarning, name)) for name in _UNSTABLE]

    # -- the task

    @abstractmethod
    def states(self, lanes: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities at the start of episodes.

        Args:
            lanes: int [n]: in which.
            seeds: one for each.

        Returns:
            `qpos` [n, nq] and `qvel` [n, nv].
        """

    @abstractmethod
    def outcome(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and ends of the step of all lanes that has just been made.

        Args:
            action: [B, nu]; zeros where an episode is to begin.

        Returns:
            Rewards [B], and whether the task is over, bool [B]; what they say of lanes that begin is not looked at.
        """

    def controls(self, action: np.ndarray) -> np.ndarray:
        """The model's controls [n, nu] for actions [n, ...]: the same, unless a subclass says otherwise."""
        return action

    def began(self, lanes: np.ndarray) -> None:
        """Called after episodes have begun, for what a task keeps beside the simulation.

        Args:
            lanes: int [n]: where.
        """

    def kept(self) -> Mapping[str, np.ndarray]:
        """Arrays [B, ...] by name that the task keeps beside the simulation, which are changed in place."""
        return {}

    def field(self, name: str) -> np.ndarray:
        """A field of all simulations, [B, ...], which follows them; state may be written to.

        Args:
            name: of `mujoco.MjData`, such as `qpos`, `xpos`, `sensordata`.

        Raises:
            ConfigError: steps compute it, and it was not asked for before the first.
        """
        if name not in self._fields:
            found = self.batch.bind(name)
            if self._began and not found.flags.writeable:
                raise ConfigError(
                    f"{name} is computed by steps, and would be all zeros until the next, as it was not asked for "
                    f'before the first; ask in __init__, after super().__init__(...): self.field("{name}")'
                )
            self._fields[name] = found
        return self._fields[name]

    def expand(self, name: str) -> np.ndarray:
        """A field of the model with values for each lane, [B, ...], kept as the state is.

        After it has been written to, `batch.set_const()` computes what depends on it.

        Args:
            name: of `mujoco.MjModel`, such as `body_mass`.
        """
        return self._varied.setdefault(f"model.{name}", self.batch.expand(name))

    def render(self) -> np.ndarray:
        """A picture of the first simulation, by the model's camera `track` or from afar, uint8 [480, 640, 3].

        Raises:
            EnvError: there is no screen to draw on.
        """
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer  # needs MuJoCo

        mujoco = mujoco_with_batches()
        if self._drawn is None:
            data = mujoco.MjData(self.model)
            camera = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1: from afar
            self._drawn = data, MujocoRenderer(self.model, data, width=640, height=480, camera_id=camera)
        data, renderer = self._drawn
        self.batch.get_data(0, data)
        mujoco.mj_forward(self.model, data)  # a batch gives the state alone
        try:
            return np.array(renderer.render("rgb_array"))
        except Exception as error:
            raise EnvError(f"MuJoCo found no screen to draw on ({error}); set MUJOCO_GL=egl, or osmesa") from error

    def close(self) -> None:
        if self._drawn is not None:
            self._drawn[1].close()
            self._drawn = None

    # -- the batch

    def fresh(self, lanes: np.ndarray, seeds: Sequence[int]) -> None:
        qpos, qvel = self.states(lanes, seeds)
        self.batch.reset(ids=lanes, stage=0)
        self.field("qpos")[lanes], self.field("qvel")[lanes] = qpos, qvel
        self.batch.forward(ids=lanes)
        self._began = True
        if self.rne_post_constraint:
            self._fields["cfrc_ext"][lanes] = 0.0
        self.began(lanes)

    def transition(self, lanes: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        everywhere = len(lanes) == self.batch_size
        if not everywhere:
            some, action = action, np.zeros((self.batch_size, *action.shape[1:]), action.dtype)
            action[lanes] = some
        self._ctrl[lanes] = self.controls(action[lanes])
        self.batch.step(ids=None if everywhere else lanes, nstep=self.frame_skip)
        self._require_stable()
        if self.rne_post_constraint:
            for lane in lanes.tolist():
                self.batch.get_data(lane, self._scratch)
                self._post_constraint(self.model, self._scratch)
                self._fields["cfrc_ext"][lane] = self._scratch.cfrc_ext
        reward, terminated = self.outcome(action)
        return reward[lanes], terminated[lanes]

    def rows(self) -> Mapping[str, np.ndarray]:
        return {"state": self.batch.state, **self._varied, **self.kept()}

    def set_rows(self, rows: Mapping[str, np.ndarray]) -> None:
        self._began = True
        self.batch.state[:] = rows["state"]
        for name, array in (self._varied | dict(self.kept())).items():
            array[:] = rows[name]
        if self._varied:
            self.batch.set_const()

    def _require_stable(self) -> None:
        warned = self.batch.warning  # [B, kinds, (info, count)]
        if not warned.any():
            return
        unstable = np.flatnonzero(warned[:, self._unstable, 1].any(axis=1))
        warned[:] = 0
        if len(unstable):
            lane = int(unstable[0])
            raise EnvError(
                f"the simulation of environment {lane} became unstable ({self.place(lane)}): NaN, infinity or huge "
                "numbers in its state; give it smaller actions, a smaller time step, or a better model"
            )


_shared: list[dict[str, Any]] = []


@contextmanager
def shared_models() -> Iterator[None]:
    """Within, whoever loads a model again gets the same one: to measure what lanes take beside it."""
    _shared.append({})
    try:
        yield
    finally:
        _shared.pop()


def loaded(model: str) -> Any:
    """A `mujoco.MjModel` of the path or text of an XML."""
    if _shared and model in _shared[-1]:
        return _shared[-1][model]
    kind = mujoco_with_batches().MjModel
    made = (kind.from_xml_string if "<" in model else kind.from_xml_path)(model)
    for models in _shared:
        models[model] = made
    return made


def mujoco_with_batches() -> Any:
    """The module, with its batches."""
    mujoco = import_extra("mujoco", "mujoco", "vectorization=batch")
    quiet_mujoco(mujoco)
    try:
        importlib.import_module("mujoco.batch")
    except ImportError as error:
        raise ConfigError(
            f"vectorization=batch needs MuJoCo 3.17 or later, which steps batches, and {mujoco.__version__} is "
            "installed: pip install -U mujoco"
        ) from error
    return mujoco
