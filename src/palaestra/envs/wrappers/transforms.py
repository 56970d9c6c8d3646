"""Layers that change what is observed, what is earned, or what is executed."""

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeGuard, final

import numpy as np
import torch

from palaestra.core.errors import ConfigError, EnvError, NonFiniteError, SpecError
from palaestra.core.spec import (
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    SpecTree,
    TensorSpec,
    numpy_dtype,
    spec_leaves,
)
from palaestra.core.time_step import TimeStep
from palaestra.envs.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.nest import flatten, unflatten
from palaestra.envs.wrappers import base

__all__ = ["ActionMask", "ActionRepeat", "CheckFinite", "ClipObservation", "ClipReward", "FrameStack"]
__all__ += ["NormalizeAction", "NormalizeObservation", "NormalizeReward", "ScaleReward", "SparseReward"]

_MASK = "action_mask"
_EPSILON = 1e-8


@final
class ActionMask(base.TimeStepMap):
    """Moves the mask that an environment reports in its `info` into the observation's key `action_mask`.

    There policies honour it: when acting, exploring, learning and bootstrapping. An observation that is no dict becomes
    the key `observation`. Executing an action that the mask forbids is an error here, not an undefined step.

    Args:
        env: the layer inside, with discrete actions.
        key: of the `info` entry: 1 or true for each action that is allowed.

    Raises:
        ConfigError: the actions are not discrete, or the observation has such a key already.
        EnvError: raised while stepping: there is no such entry, it has another length, or the action is forbidden.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ActionMask(load("Taxi-v4"))
        >>> env.reset().observation["action_mask"].shape
        (6,)
    """

    def __init__(self, env: SingleEnvironment, key: str = _MASK) -> None:
        super().__init__(env)
        spec, actions = env.observation_spec, env.action_spec
        if not isinstance(actions, DiscreteSpec):
            raise ConfigError(f"ActionMask needs discrete actions, and these are {actions}")
        if isinstance(spec, dict) and _MASK in spec:
            raise ConfigError(f"the observation has the key {_MASK!r} already; leave ActionMask out")
        self._key, self._num, self._start = key, actions.num, actions.start
        self._nested = isinstance(spec, dict)
        self._mask = np.ones(self._num, np.int8)
        observation = spec if self._nested else {"observation": spec}
        self._spec: SpecTree = {**observation, _MASK: MultiBinarySpec((self._num,))}

    @property
    def observation_spec(self) -> SpecTree:
        return self._spec

    def advance(self, action: Any) -> TimeStep:
        if not self._mask[int(action) - self._start]:
            allowed = (np.flatnonzero(self._mask) + self._start).tolist()
            raise EnvError(f"action {int(action)} is forbidden by the mask; allowed are {allowed}")
        return super().advance(action)

    def change(self, time_step: TimeStep) -> TimeStep:
        info = time_step.env_info or {}
        if self._key not in info:
            raise EnvError(f"the info has no {self._key!r}, only {list(info)}; report the mask with every step")
        mask = np.array(info[self._key]).astype(np.int8)
        if mask.shape != (self._num,):
            raise EnvError(f"the mask in info[{self._key!r}] has shape {mask.shape}, and there are {self._num} actions")
        self._mask = mask
        observation = time_step.observation if self._nested else {"observation": time_step.observation}
        return time_step._replace(observation={**observation, _MASK: mask})


@final
class FrameStack(base.ObservationMap):
    """Observes the newest K frames [K, ...], the newest last; zeros stand for frames before the episode.

    The spec says `stacked=K`, so a buffer stores every frame once and not K times. Layers outside that skip steps or
    change frames take that back, so put `ActionRepeat`, `RandomNoop`, `FireReset` and `EpisodicLife` inside.

    Args:
        env: the layer inside.
        num_frames: K, at least 1.
        keys: leaves to stack; by default all that hold numbers, pixels included.

    Raises:
        ConfigError: not an integer of at least 1, or there is nothing to stack.

    Examples:
        >>> from palaestra.envs import load
        >>> env = FrameStack(load("palaestra.envs.tiny:Endless"), num_frames=3)
        >>> env.reset().observation.tolist(), env.step(0).observation.tolist()
        ([[0.0], [0.0], [1.0]], [[0.0], [1.0], [1.0]])
    """

    def __init__(self, env: SingleEnvironment, num_frames: int = 4, keys: Sequence[str] | None = None) -> None:
        if type(num_frames) is not int or num_frames < 1:
            raise ConfigError(f"FrameStack(num_frames={num_frames!r}); it must be an integer of at least 1")
        self._num_frames = num_frames
        self._stacks: dict[str, np.ndarray] = {}
        super().__init__(env, keys)

    def fits(self, spec: TensorSpec) -> bool:
        return is_numeric(spec)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        shape, stacked = (self._num_frames, *spec.shape), self._num_frames
        if not isinstance(spec, BoundedSpec):
            return TensorSpec(shape, spec.dtype, stacked=stacked)
        low, high = np.minimum(spec.minimum, 0), np.maximum(spec.maximum, 0)
        return BoundedSpec(shape, spec.dtype, minimum=low, maximum=high, stacked=stacked)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        # always a new array: what was returned before is not written to
        before = np.zeros((self._num_frames, *value.shape), value.dtype) if first else self._stacks[path]
        self._stacks[path] = stack = np.concatenate([before[1:], value[None]])
        return stack


@final
class ClipObservation(base.ObservationMap):
    """Clips every number of the observation, nested ones as well.

    For simulators that return a huge velocity once in a million steps, which would ruin running statistics.

    Args:
        env: the layer inside.
        minimum: smallest value let through.
        maximum: largest value let through.
        keys: leaves to clip; by default all of floating-point numbers.

    Raises:
        ConfigError: the minimum is not below the maximum, or there is nothing to clip.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ClipObservation(load("Pendulum-v1"), maximum=0.5, minimum=-0.5)
        >>> env.observation_spec.maximum
        array([0.5, 0.5, 0.5], dtype=float32)
    """

    def __init__(
        self,
        env: SingleEnvironment,
        minimum: float = -200.0,
        maximum: float = 200.0,
        keys: Sequence[str] | None = None,
    ) -> None:
        if not minimum < maximum:
            raise ConfigError(f"ClipObservation(minimum={minimum}, maximum={maximum}); the minimum must be below")
        self._minimum, self._maximum = minimum, maximum
        super().__init__(env, keys)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        low, high = (spec.minimum, spec.maximum) if isinstance(spec, BoundedSpec) else (-np.inf, np.inf)
        low, high = (np.clip(bound, self._minimum, self._maximum) for bound in (low, high))
        # the zeros of a stack that stand for frames before the episode have to stay zeros
        stacked = spec.stacked if self._minimum <= 0 <= self._maximum else 1
        return BoundedSpec(spec.shape, spec.dtype, minimum=low, maximum=high, stacked=stacked)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        return np.clip(value, self._minimum, self._maximum)


@final
class NormalizeObservation(base.StatefulWrapper, base.ObservationMap):
    """Subtracts the running mean of what was observed so far and divides by the standard deviation.

    Each environment counts for itself, and evaluation starts from nothing. Where that is not meant, let the policy
    normalise (`normalize_observation=True` of most algorithms): its statistics are shared, saved and deployed with it.

    Args:
        env: the layer inside.
        clip: largest absolute value that comes out.
        keys: leaves to normalise; by default all of floating-point numbers.

    Raises:
        ConfigError: the clip is not positive, or there is nothing to normalise.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeObservation(load("Pendulum-v1"))
        >>> env.reset().observation
        array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, env: SingleEnvironment, clip: float = 10.0, keys: Sequence[str] | None = None) -> None:
        if not clip > 0:
            raise ConfigError(f"NormalizeObservation(clip={clip}); it must be above 0")
        self._clip = clip
        super().__init__(env, keys)
        leaves = spec_leaves(env.observation_spec)
        self._running = {path: base.RunningMeanVariance(leaves[path].shape) for path in self._paths if path is not None}

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        low, high = np.array(-self._clip), np.array(self._clip)
        return BoundedSpec(spec.shape, torch.float32, minimum=low, maximum=high)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        running = self._running[path]
        running.update(value)
        normal = (value - running.mean) / np.sqrt(running.variance + _EPSILON)
        return np.clip(normal, -self._clip, self._clip).astype(np.float32)

    def snapshot(self) -> Any:
        return {path: running.snapshot() for path, running in self._running.items()}

    def restore(self, snapshot: Any) -> None:
        for path, running in self._running.items():
            running.restore(snapshot[path])


@final
class CheckFinite(EnvironmentWrapper):
    """Refuses an observation or a reward that is NaN or infinite, at the very layer where it stands.

    The library checks what it collects anyway; between two layers this shows which of them is to blame.

    Args:
        env: the layer inside.

    Raises:
        NonFiniteError: raised while stepping; the message names the leaf, the index and the value.

    Examples:
        >>> from palaestra.envs import load
        >>> CheckFinite(load("CartPole-v1")).reset().observation.shape
        (4,)
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._inner = env.observation_spec
        self._paths = list(spec_leaves(self._inner))

    def begin_episode(self, seed: int) -> TimeStep:
        return self._checked(self.env.begin_episode(seed))

    def advance(self, action: Any) -> TimeStep:
        return self._checked(self.env.advance(action))

    def _checked(self, time_step: TimeStep) -> TimeStep:
        self._require("reward", time_step.reward)
        for path, leaf in zip(self._paths, flatten(time_step.observation, self._inner), strict=True):
            self._require(f"observation {path!r}" if path else "observation", leaf)
        return time_step

    def _require(self, name: str, value: Any) -> None:
        array = np.asarray(value)
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        where = f" at index {list(index)}" if index else ""
        raise NonFiniteError(
            f"{type(self.env).__name__} returned the {name} with {array[index]}{where}; look at that layer, or clip"
        )


@final
class ClipReward(base.RewardMap):
    """Clips rewards; with the defaults, to the signs that the Atari experiments learn from.

    What is learned is then how often something is earned, not how much. Episode returns in logs and evaluations are
    those of clipped rewards; `EpisodeStatistics` inside keeps the raw ones.

    Args:
        env: the layer inside.
        minimum: smallest reward let through.
        maximum: largest reward let through.

    Raises:
        ConfigError: the minimum is not below the maximum.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ClipReward(load("Pendulum-v1"), minimum=-0.5)
        >>> env.reward_spec.minimum, env.reward_spec.maximum
        (array(-0.5, dtype=float32), array(1., dtype=float32))
    """

    def __init__(self, env: SingleEnvironment, minimum: float = -1.0, maximum: float = 1.0) -> None:
        super().__init__(env)
        if not minimum < maximum:
            raise ConfigError(f"ClipReward(minimum={minimum}, maximum={maximum}); the minimum must be below")
        self._minimum, self._maximum = minimum, maximum

    @property
    def reward_spec(self) -> TensorSpec:
        return self._bounded(min(self._minimum, 0.0), max(self._maximum, 0.0))

    def map(self, reward: Any) -> Any:
        return np.clip(reward, self._minimum, self._maximum)


@final
class ScaleReward(base.RewardMap):
    """Multiplies rewards by a number, which changes no optimal policy.

    For tasks whose returns are in the thousands, where a value network would have to grow its weights first.

    Args:
        env: the layer inside.
        scale: factor, above 0.

    Raises:
        ConfigError: the scale is not a positive number.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ScaleReward(load("CartPole-v1"), scale=0.25)
        >>> env.reset().reward, env.step(np.int64(0)).reward
        (0.0, 0.25)
    """

    def __init__(self, env: SingleEnvironment, scale: float) -> None:
        super().__init__(env)
        if not 0 < scale < np.inf:
            raise ConfigError(f"ScaleReward(scale={scale}); it must be a finite number above 0")
        self._scale = scale

    @property
    def reward_spec(self) -> TensorSpec:
        spec = self.env.reward_spec
        if not isinstance(spec, BoundedSpec):
            return spec
        return self._bounded(spec.minimum * self._scale, spec.maximum * self._scale)

    def map(self, reward: Any) -> Any:
        return reward * self._scale


@final
class SparseReward(base.RewardMap):
    """Turns a reward above 0 into 1, and any other into 0.

    Shows what an algorithm does without the hints of a shaped reward.

    Args:
        env: the layer inside.

    Examples:
        >>> from palaestra.envs import load
        >>> env = SparseReward(load("Pendulum-v1"))  # rewards are costs
        >>> env.reset().reward, env.step(np.zeros(1, np.float32)).reward
        (0.0, 0.0)
    """

    @property
    def reward_spec(self) -> TensorSpec:
        return self._bounded(0.0, 1.0)

    def map(self, reward: Any) -> Any:
        return np.greater(reward, 0).astype(np.float32)


@final
class NormalizeReward(base.StatefulWrapper, base.RewardMap):
    """Divides rewards by the standard deviation of the discounted return, so that returns get a variance near 1.

    The mean is not subtracted: that would change which policies are good. Each environment counts for itself. Episode
    returns in logs and evaluations are those of the divided rewards; `EpisodeStatistics` inside keeps the raw ones.

    Args:
        env: the layer inside.
        gamma: discount per env step, as the learner's.
        clip: largest absolute value that comes out.

    Raises:
        ConfigError: gamma is not in [0, 1], or the clip not positive.
        SpecError: the reward is a vector.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeReward(load("Pendulum-v1"))
        >>> _ = env.reset()
        >>> -10 <= env.step(np.zeros(1, np.float32)).reward <= 10
        True
    """

    def __init__(self, env: SingleEnvironment, gamma: float = 0.99, clip: float = 10.0) -> None:
        super().__init__(env)
        if not (0 <= gamma <= 1 and clip > 0):
            raise ConfigError(f"NormalizeReward(gamma={gamma}, clip={clip}); gamma is in [0, 1] and the clip above 0")
        if env.reward_spec.shape:
            raise SpecError(f"NormalizeReward needs a scalar reward, and this one has shape {env.reward_spec.shape}")
        self._gamma, self._clip = gamma, clip
        self._return = 0.0
        self._running = base.RunningMeanVariance(())

    @property
    def reward_spec(self) -> TensorSpec:
        return self._bounded(-self._clip, self._clip)

    def begin_episode(self, seed: int) -> TimeStep:
        self._return = 0.0
        return super().begin_episode(seed)

    def map(self, reward: Any) -> Any:
        self._return = self._gamma * self._return + float(reward)
        self._running.update(np.array(self._return))
        return np.clip(reward / np.sqrt(self._running.variance + _EPSILON), -self._clip, self._clip)

    def snapshot(self) -> Any:
        return self._running.snapshot()

    def restore(self, snapshot: Any) -> None:
        self._running.restore(snapshot)


@final
class ActionRepeat(EnvironmentWrapper):
    """Executes every action K times: rewards are summed, the last observation is kept, an end cuts the repeat short.

    So does an `action_mask` that forbids the action for the next frame.

    One env step is then up to K frames; `info` counts them as `frames`, so metrics show both. A time limit inside
    (that of `max_episode_steps`) counts frames; put `TimeLimit` outside to count env steps.

    Args:
        env: the layer inside.
        repeat: K, at least 1.
        pool: above 1, the observation is the elementwise maximum of so many newest frames, against sprites that are
            drawn in every other frame only.

    Raises:
        ConfigError: a number is below 1, or more frames are pooled than repeated.
        SpecError: nested observations are to be pooled.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ActionRepeat(load("CartPole-v1"), repeat=4)
        >>> _ = env.reset()
        >>> time_step = env.step(np.int64(0))
        >>> time_step.reward, time_step.env_info["frames"]
        (4.0, 4)
    """

    def __init__(self, env: SingleEnvironment, repeat: int = 4, pool: int = 1) -> None:
        super().__init__(env)
        if not (type(repeat) is type(pool) is int and 1 <= pool <= repeat):
            raise ConfigError(f"ActionRepeat(repeat={repeat}, pool={pool}); integers 1 <= pool <= repeat are needed")
        if pool > 1 and not isinstance(env.observation_spec, TensorSpec):
            raise SpecError(f"ActionRepeat(pool={pool}) needs one array as the observation: {env.observation_spec}")
        self._repeat, self._pool = repeat, pool
        spec, actions = env.observation_spec, env.action_spec
        masked = isinstance(spec, dict) and _MASK in spec and isinstance(actions, DiscreteSpec)
        self._first_action = actions.start if masked else None

    def advance(self, action: Any) -> TimeStep:
        total: Any = 0.0
        raw_total: Any = 0.0
        newest: deque[np.ndarray] = deque(maxlen=self._pool)
        frames = 0
        while True:
            time_step = self.env.advance(action)
            frames += 1
            total = total + time_step.reward
            raw = time_step.untransformed
            if isinstance(raw, TimeStep):
                raw_total = raw_total + raw.reward
            if self._pool > 1:
                newest.append(np.array(time_step.observation))
            if frames == self._repeat or time_step.step_type == 2 or self._forbidden(time_step, action):
                break
        observation = np.max(newest, axis=0) if self._pool > 1 else time_step.observation
        info = {**(time_step.env_info or {}), "frames": frames}
        raw = raw._replace(reward=raw_total) if isinstance(raw, TimeStep) else raw
        return time_step._replace(observation=observation, reward=total, env_info=info, untransformed=raw)

    def _forbidden(self, time_step: TimeStep, action: Any) -> bool:
        first = self._first_action
        return first is not None and not time_step.observation[_MASK][int(action) - first]


@final
class NormalizeAction(EnvironmentWrapper):
    """Maps [-1, 1] linearly onto the bounds of each continuous action.

    What lies outside of [-1, 1] is refused by a batched environment, and clipped to a bound by a single one. For
    environments whose components have different units, where one exploration noise would fit none of them. Discrete
    components of nested actions stay as they are.

    Args:
        env: the layer inside.

    Raises:
        ConfigError: no action component has two finite bounds.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeAction(load("Pendulum-v1"))  # torque in [-2, 2]
        >>> env.action_spec.minimum, env.action_spec.maximum
        (array([-1.], dtype=float32), array([1.], dtype=float32))
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._inner = env.action_spec
        leaves = spec_leaves(self._inner)
        if not any(_bounded(spec) for spec in leaves.values()):
            raise ConfigError(f"NormalizeAction finds no action component with two finite bounds: {leaves}")
        self._leaves = [spec if _bounded(spec) else None for spec in leaves.values()]
        specs = [_normal(spec) if _bounded(spec) else spec for spec in leaves.values()]
        self._spec = unflatten(iter(specs), self._inner)

    @property
    def action_spec(self) -> SpecTree:
        return self._spec

    def advance(self, action: Any) -> TimeStep:
        pairs = zip(self._leaves, flatten(action, self._inner), strict=True)
        leaves = [leaf if spec is None else _denormalized(np.asarray(leaf), spec) for spec, leaf in pairs]
        return self.env.advance(unflatten(iter(leaves), self._inner))


def _bounded(spec: TensorSpec) -> TypeGuard[BoundedSpec]:
    return isinstance(spec, BoundedSpec) and spec.dtype.is_floating_point and spec.bounded


def _normal(spec: TensorSpec) -> BoundedSpec:
    return BoundedSpec(spec.shape, spec.dtype, minimum=np.array(-1.0), maximum=np.array(1.0))


def _denormalized(value: np.ndarray, spec: BoundedSpec) -> np.ndarray:
    low, high = spec.minimum, spec.maximum
    # rounding may leave the bounds by one unit in the last place
    return np.clip(low + (value + 1) * 0.5 * (high - low), low, high).astype(numpy_dtype(spec.dtype))
