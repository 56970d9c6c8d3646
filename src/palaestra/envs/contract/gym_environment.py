"""`GymEnvironment`: where Gymnasium's five values become a `TimeStep`."""

import contextlib
import copy
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from palaestra.core import ACTION_MASK, EnvError, SpecError, SpecTree, TensorSpec, TimeStep, errors, torch_dtype
from palaestra.envs.contract.environment import HasSpecs, SingleEnvironment
from palaestra.envs.contract.nest import problem, zeros
from palaestra.envs.contract.rows import TEXT, Specs, no_number, not_five, wrong_info
from palaestra.envs.contract.spaces import OLD_GYM, plain, reward_spec_of, sample_allowed, spec_from_space
from palaestra.envs.supervision.faults import no_pictures

__all__ = ["GymEnvironment", "gym_env_of", "plain_choices"]

# A NamedTuple's own constructor is a Python function that takes twice as long.
_new = tuple.__new__
LOOK_STEPS = 1_000
"""Steps of a first look at what an environment reports; it ends with the episode."""
FINAL = ("final_obs", "final_observation")
"""Entries of `info` in which environments that reset themselves have an episode's last observation."""
REPORTED = "TimeLimit.truncated"
"""Entry of `info` by which environments of old Gym said that a limit, not the task, ended the episode."""
FLAGS = frozenset([bool, np.bool_])  # types of flags that need no closer look
_log = logging.getLogger(__name__)


@final
class GymEnvironment(HasSpecs, SingleEnvironment):
    """Converts a Gymnasium environment. Fixed: change the task below it, time steps above it.

    `terminated` gives (LAST, 0), even if `truncated` is set as well; `truncated` alone gives (LAST, discount). Of one
    that resets itself at an end, and returns the next episode's first observation there, the LAST step shows what its
    `info` has as `final_obs` or `final_observation`.

    Args:
        gym_env: with its Gymnasium wrappers. Vector rewards are declared by an attribute `reward_space`.
        env_id: which environment of a batch this is.
        discount: continuation of every step that does not terminate; 1 unless a ported task has its own.
        auto_reset: whether the step after a LAST one begins the next episode; if not, it is an error.

    Raises:
        SpecError: a space is missing, or has no arrays of fixed shape.

    Examples:
        >>> env = GymEnvironment(gymnasium.make("CartPole-v1"))
        >>> env.reset().step_type, env.step(np.int64(1)).reward
        (0, 1.0)
    """

    def __init__(
        self, gym_env: gymnasium.Env[Any, Any], env_id: int = 0, discount: float = 1.0, auto_reset: bool = True
    ) -> None:
        self.env_id = env_id
        self.auto_reset = auto_reset
        self.usual_discount = float(discount)
        for name in ("observation_space", "action_space"):
            if getattr(gym_env, name, None) is None:
                raise SpecError(
                    f"{gym_env} has no {name}; set it in __init__, for example to gymnasium.spaces.Discrete(2)"
                )
        self.gym_env = gym_env
        observation = spec_from_space(gym_env.observation_space, "observation_space")
        action = spec_from_space(gym_env.action_space, "action_space")
        space = gym_env.get_wrapper_attr("reward_space") if gym_env.has_wrapper_attr("reward_space") else None
        self.specs = Specs(observation, action, reward_spec_of(space))
        self._scalar = self.reward_spec.shape == ()
        self._step = gym_env.step
        self._no_action = zeros(action)
        self._begun, self._info_spec = False, None
        self._cut_off = False

    mask_key: str = ACTION_MASK
    """The entry of `info` with the mask of actions, by which a first look and `check` draw theirs."""

    def __init_subclass__(cls) -> None:
        raise TypeError(
            f"{cls.__name__} extends GymEnvironment, which is fixed: change the task in a Gymnasium wrapper below it, "
            "time steps in an EnvironmentWrapper above it"
        )

    @property
    def plain(self) -> bool:
        """Whether rewards are scalars and the discount is 1, so that a loop over many can do this layer's work."""
        return self._scalar and self.usual_discount == 1.0

    @property
    def cut_off(self) -> bool:
        """Whether `terminated` came with `truncated`."""
        return bool(self._cut_off)

    @property
    def env_info_spec(self) -> SpecTree:
        """What it reports: numbers and arrays in the `info` of an episode of random steps, at most 1,000 of them.

        These are made when the spec is asked for, before the first episode.

        Raises:
            EnvError: an episode has begun, which the steps would end.
        """
        if self._info_spec is None:
            if self._begun:
                raise EnvError(
                    "env_info_spec is found by steps that would end the running episode; ask for it before the first "
                    "reset, or ask another environment made for that"
                )
            self._info_spec = _first_look(self.gym_env, self.mask_key)
        return self._info_spec

    def begin_episode(self, seed: int) -> TimeStep:
        self._begun = True
        observation, info = begun(self.gym_env, seed)
        reward = 0.0 if self._scalar else np.zeros(self.reward_spec.shape, np.float32)
        return TimeStep(0, reward, 1.0, observation, self._no_action, self.env_id, (), info)

    def advance(self, action: Any) -> TimeStep:
        result: Any = self._step(action)
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise SpecError(not_five(result)) from None
        if not (type(terminated) in FLAGS and type(truncated) in FLAGS) and (
            wrong := wrong_flags(terminated, truncated)
        ):
            raise SpecError(wrong)
        self._cut_off = truncated
        kind, discount = end_of(terminated, truncated, self.usual_discount)
        if kind == 2:
            observation = last_seen(self, observation, info, terminated)
        return _new(TimeStep, (kind, self._reward(reward), discount, observation, action, self.env_id, (), info))

    def render(self) -> np.ndarray:
        """The picture that the environment draws.

        Raises:
            EnvError: it was made without `render_mode="rgb_array"`, or there is no screen to draw on.
        """
        try:
            with _without_a_screen():
                picture = self.gym_env.render()
        except NotImplementedError:
            raise EnvError(f"{self.gym_env} cannot be drawn: it has no method render") from None
        except Exception as error:
            if not (advice := errors.no_screen(error)):
                raise
            raise EnvError(f"{self.gym_env} {advice}") from None
        if not isinstance(picture, np.ndarray):
            kind, mode = type(picture).__name__, self.gym_env.render_mode
            raise EnvError(f"{self.gym_env} drew {kind} with render_mode {mode!r}{no_pictures(mode)}")
        return picture

    def close(self) -> None:
        self.gym_env.close()

    def _reward(self, reward: Any) -> Any:
        if self._scalar and type(reward) not in TEXT:
            try:
                return float(reward)
            except TypeError:  # an array: as in a batch, one with a single number is taken for it
                pass
        if wrong := no_number(reward):
            raise SpecError(wrong)
        array, shape = np.asarray(reward), self.reward_spec.shape
        if array.shape != shape and (shape or array.size != 1):
            several = isinstance(self.observation_spec, tuple) and array.shape == (len(self.observation_spec),)
            hint = "; where each number is one agent's, name the environment `agents/<its id>`" if several else ""
            raise SpecError(
                f"environment {self.env_id} returned a reward of shape {array.shape}, expected {shape}{hint}"
            )
        return array.astype(np.float32) if shape else float(array.item())


@contextlib.contextmanager
def _without_a_screen() -> Iterator[None]:
    """While entered, MuJoCo draws by EGL where it could not open a window, unless the user has chosen."""
    chosen = not {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if not chosen or "mujoco" not in sys.modules or sys.platform != "linux":
        yield
        return
    os.environ["MUJOCO_GL"] = "egl"  # read when the first picture is drawn; an import would fail by it without EGL
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]


def plain_choices(gym_env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """A wrapper that makes one row of choices, from 0 on, of a `MultiDiscrete` of another shape or start.

    So it does with actions that are a box of integers with at most 4,096 values over all elements; of one element it
    makes `Discrete`. Policies, exports and data have the actions of the wrapped environment.

    Args:
        gym_env: that is wrapped, for example by `--env.gym-wrappers palaestra.envs:plain_choices`.
    """
    space, translate = plain(gym_env.action_space, actions=True)
    if translate is not None:
        gym_env = gymnasium.wrappers.TransformAction(gym_env, translate, space)
    space, translate = plain(gym_env.observation_space, actions=False)
    return gym_env if translate is None else gymnasium.wrappers.TransformObservation(gym_env, translate, space)


def _first_look(gym_env: gymnasium.Env[Any, Any], mask_key: str) -> dict[str, SpecTree]:
    found: dict[str, SpecTree] = {}
    space = copy.deepcopy(gym_env.action_space)
    space.seed(0)
    observation, info = begun(gym_env, 0)
    _learn(info, found)
    for _ in range(LOOK_STEPS):
        observation, _, terminated, truncated, info = gym_env.step(sample_allowed(space, observation, info, mask_key))
        _learn(info, found)
        if terminated or truncated:
            break
    return found


def begun(gym_env: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """The first observation and `info` of an episode.

    Args:
        gym_env: of Gymnasium, or what has its `reset`.
        seed: of the episode.

    Raises:
        SpecError: `reset` returns something else, as those of old versions of Gym do.
    """
    try:
        found = gym_env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in str(error):
            raise
        raise SpecError(
            f"reset takes no seed; it must be reset(self, *, seed=None, options=None). {OLD_GYM}"
        ) from error
    if not (type(found) is tuple and len(found) == 2 and isinstance(found[1], dict)):
        is_pair = type(found) is tuple and len(found) == 2 and found[1] is None
        what, hint = ("(observation, None)", "") if is_pair else (f"a {type(found).__name__}", f". {OLD_GYM}")
        raise SpecError(
            f"reset(seed=...) returned {what}; it must return (observation, info), and info is a dict{hint}"
        )
    return found


def last_seen(env: SingleEnvironment, observation: Any, info: Any, terminated: Any) -> Any:
    """The observation of an episode's end; of an environment that resets itself there, that which `info` has.

    Warns once where `info` calls the end a time limit, and `terminated` calls it the task's.

    Args:
        env: that was stepped, with a Gymnasium environment inside.
        observation: that the step returned, the next episode's first where it resets itself.
        info: of that step.
        terminated: of that step.

    Raises:
        SpecError: the one in `info` does not fit, or is of inside a wrapper that changes observations.
    """
    if not info:
        return observation
    if terminated and info.get(REPORTED):
        name = type(gym_env_of(env) or env).__name__
        text = f"{name} terminated where its info has {REPORTED}: the future counts for nothing at its time limit"
        if text not in errors.said and errors.is_news(text):
            _log.warning("%s. There step has to return terminated=False, truncated=True. Said once", text)
    key = next((name for name in FINAL if info.get(name) is not None), None)
    if key is None:
        return observation
    layer: Any = gym_env_of(env)
    while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, gymnasium.ObservationWrapper):
        layer = layer.env
    if isinstance(layer, gymnasium.ObservationWrapper):
        wrong = f"is from inside {type(layer).__name__}, which changes observations"
    else:
        wrong = problem(info[key], env.observation_spec)
        wrong = wrong and f"has {wrong}"
    if wrong:
        raise SpecError(
            f"{layer} resets itself where an episode ends: its info has {key}, which {wrong}. Return the last "
            "observation of the episode from step, and leave resetting to reset()"
        )
    return info[key]


def _learn(info: Any, found: dict[str, SpecTree]) -> None:
    """Adds the specs of numbers and arrays that were not known."""
    if wrong := wrong_info(info):
        raise SpecError(wrong)
    for key, value in info.items():
        if isinstance(value, dict):
            inside = found.setdefault(key, {})
            if isinstance(inside, dict):
                _learn(value, inside)
        elif key not in found and isinstance(value, bool | int | float | np.number | np.bool_ | np.ndarray):
            array = np.asarray(value)
            if array.dtype.kind in "fiub":
                found[key] = TensorSpec(array.shape, torch_dtype(array.dtype))


def end_of(terminated: Any, truncated: Any, discount: float = 1.0) -> tuple[int, float]:
    """The step type and the discount that Gymnasium's two flags mean.

    Args:
        terminated: whether the task ended; it counts, whatever `truncated` is.
        truncated: whether the episode was cut off.
        discount: of every step that does not terminate.

    Examples:
        >>> end_of(True, True), end_of(False, True), end_of(False, False)
        ((2, 0.0), (2, 1.0), (1, 1.0))
    """
    if terminated:
        return 2, 0.0
    return (2 if truncated else 1), discount


def over_of(terminated: Sequence[Any], truncated: Sequence[Any]) -> list[int]:
    """The lanes whose episodes have ended.

    Args:
        terminated: of every environment, and so
        truncated: too.

    Raises:
        SpecError: a flag is neither a bool nor the number 0 or 1.
    """
    if not FLAGS.issuperset(map(type, (*terminated, *truncated))) and (
        wrong := "".join(map(wrong_flags, terminated, truncated))
    ):
        raise SpecError(wrong)
    return [lane for lane, ends in enumerate(zip(terminated, truncated, strict=True)) if any(ends)]


def wrong_flags(terminated: Any, truncated: Any) -> str:
    """Why the ends of an episode cannot be told; empty if both flags are a bool, or the number 0 or 1.

    Args:
        terminated: as an environment returned it, and so
        truncated: too.

    Examples:
        >>> wrong_flags("False", False), wrong_flags(np.bool_(True), 0)
        ("terminated must be a bool, and is 'False'", '')
    """
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        try:
            fits = value in (0, 1)
        except Exception:  # an array, say
            fits = False
        if not fits:
            return f"{name} must be a bool, and is {value!r}"
    return ""


def gym_env_of(env: SingleEnvironment) -> gymnasium.Env[Any, Any] | None:
    """The Gymnasium environment below all layers; `None` where there is none.

    Args:
        env: the outermost layer.

    Examples:
        >>> gym_env_of(GymEnvironment(gymnasium.make("CartPole-v1"))).spec.id
        'CartPole-v1'
    """
    bare = bare_of(env)
    return None if bare is None else bare.gym_env


def bare_of(env: SingleEnvironment) -> GymEnvironment | None:
    """The layer that converts the Gymnasium environment; `None` where there is none.

    Args:
        env: the outermost layer.
    """
    layer: Any = env
    while not isinstance(layer, GymEnvironment):
        if not hasattr(layer, "env"):
            return None
        layer = layer.env
    return layer
