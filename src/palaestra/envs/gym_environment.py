"""`GymEnvironment`: where Gymnasium's five values become a `TimeStep`."""

from typing import Any, final

import gymnasium
import numpy as np

from palaestra.core import EnvError, SpecError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.nest import zeros
from palaestra.envs.spaces import spec_from_space

__all__ = ["GymEnvironment", "gym_env_of"]

# A NamedTuple's own constructor is a Python function that takes twice as long.
_new = tuple.__new__


@final
class GymEnvironment(SingleEnvironment):
    """Converts a Gymnasium environment. Fixed: change the task below it, time steps above it.

    `terminated` gives (LAST, 0), even if `truncated` is set as well; `truncated` alone gives (LAST, discount).

    Args:
        gym_env: with its Gymnasium wrappers. Vector rewards are declared by an attribute `reward_space`.
        env_id: which environment of a batch this is.
        discount: continuation of every step that does not terminate; 1 unless a ported task has its own.

    Raises:
        SpecError: a space is missing, or has no arrays of fixed shape.

    Examples:
        >>> env = GymEnvironment(gymnasium.make("CartPole-v1"))
        >>> env.reset().step_type, env.step(np.int64(1)).reward
        (0, 1.0)
    """

    def __init__(self, gym_env: gymnasium.Env[Any, Any], env_id: int = 0, discount: float = 1.0) -> None:
        self.gym_env = gym_env
        self.env_id = env_id
        self._discount = float(discount)
        for name in ("observation_space", "action_space"):
            if getattr(gym_env, name, None) is None:
                raise SpecError(
                    f"{gym_env} has no {name}; set it in __init__, for example to gymnasium.spaces.Discrete(2)"
                )
        self._observation_spec = spec_from_space(gym_env.observation_space, "observation_space")
        self._action_spec = spec_from_space(gym_env.action_space, "action_space")
        self._reward_spec = _reward_spec(gym_env)
        self._scalar = self._reward_spec.shape == ()
        self._step = gym_env.step
        self._no_action = zeros(self._action_spec)
        self._cut_off = False

    @property
    def observation_spec(self) -> SpecTree:
        return self._observation_spec

    @property
    def action_spec(self) -> SpecTree:
        return self._action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        return self._reward_spec

    @property
    def plain(self) -> bool:
        """Whether rewards are scalars and the discount is 1, so that a loop over many can do this layer's work."""
        return self._scalar and self._discount == 1.0

    @property
    def cut_off(self) -> bool:
        """Whether `terminated` came with `truncated`."""
        return bool(self._cut_off)

    def begin_episode(self, seed: int) -> TimeStep:
        observation, info = self.gym_env.reset(seed=seed)
        reward = 0.0 if self._scalar else np.zeros(self._reward_spec.shape, np.float32)
        return TimeStep(0, reward, 1.0, observation, self._no_action, self.env_id, (), info)

    def advance(self, action: Any) -> TimeStep:
        observation, reward, terminated, truncated, info = self._step(action)
        reward = self._number(reward) if self._scalar else self._vector(reward)
        self._cut_off = truncated
        kind, discount = end_of(terminated, truncated, self._discount)
        return _new(TimeStep, (kind, reward, discount, observation, action, self.env_id, (), info))

    def render(self) -> np.ndarray:
        """The picture that the environment draws.

        Raises:
            EnvError: it was made without `render_mode="rgb_array"`.
        """
        try:
            picture = self.gym_env.render()
        except NotImplementedError:
            picture = None
        if not isinstance(picture, np.ndarray):
            raise EnvError(
                f"{self.gym_env} drew {type(picture).__name__} with render_mode {self.gym_env.render_mode!r}; "
                'make it with render_mode="rgb_array"'
            )
        return picture

    def close(self) -> None:
        self.gym_env.close()

    def _number(self, reward: Any) -> float:
        try:
            return float(reward)
        except TypeError:  # an array: in a batch, too, one with a single number is taken for it
            if np.size(reward) != 1:
                raise SpecError(
                    f"environment {self.env_id} returned a reward of shape {np.shape(reward)}; return one number"
                ) from None
            return float(np.asarray(reward).item())

    def _vector(self, reward: Any) -> np.ndarray:
        vector = np.asarray(reward, np.float32)
        if vector.shape != self._reward_spec.shape:
            raise SpecError(
                f"environment {self.env_id} returned a reward of shape {vector.shape}; "
                f"its reward_space says {self._reward_spec.shape}"
            )
        return vector


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


def gym_env_of(env: SingleEnvironment) -> gymnasium.Env[Any, Any] | None:
    """The Gymnasium environment below all layers; `None` where there is none.

    Args:
        env: the outermost layer.

    Examples:
        >>> gym_env_of(GymEnvironment(gymnasium.make("CartPole-v1"))).spec.id
        'CartPole-v1'
    """
    layer: Any = env
    while not isinstance(layer, GymEnvironment):
        if not hasattr(layer, "env"):
            return None
        layer = layer.env
    return layer.gym_env


def _reward_spec(gym_env: gymnasium.Env[Any, Any]) -> TensorSpec:
    try:
        space = gym_env.get_wrapper_attr("reward_space")
    except AttributeError:
        return TensorSpec(())
    return TensorSpec(tuple(space.shape or ()))
