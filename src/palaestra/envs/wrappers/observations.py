"""Layers that change what is observed."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import ConfigError, EnvError, MultiBinarySpec, MultiDiscreteSpec, NonFiniteError, TimeStep
from palaestra.core.spec import ACTION_MASK, BoundedSpec, DiscreteSpec, TensorSpec, spec_leaves
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.gym_environment import bare_of
from palaestra.envs.contract.nest import flatten
from palaestra.envs.contract.spaces import flat_mask
from palaestra.envs.wrappers.base import (
    ObservationMap,
    RunningMeanVariance,
    StatefulWrapper,
    TimeStepMap,
    clipped,
    is_numeric,
    square_root,
)

__all__ = ["ActionMask", "CheckFinite", "ClipObservation", "FrameStack", "NormalizeObservation", "SelectEntries"]

_EPSILON = 1e-8


@final
class ActionMask(TimeStepMap):
    """Moves the mask that an environment reports in its `info` into the observation's key `action_mask`.

    There policies honour it: when acting, exploring, learning and bootstrapping. An observation that is no dict becomes
    the key `observation`. Executing an action that the mask forbids is an error here, not an undefined step.

    Args:
        env: the layer inside, with `Discrete` or `MultiDiscrete` actions.
        key: of the `info` entry: 1 or true for each action that is allowed, choice after choice.
        ignored: whether the entry is dropped instead, for policies that are to try forbidden actions, too.

    Raises:
        ConfigError: the actions are not discrete, or the observation has such a key already.
        EnvError: raised while stepping: there is no such entry, it has another length, or the action is forbidden.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ActionMask(load("Taxi-v4"))
        >>> env.reset().observation["action_mask"].shape
        (6,)
    """

    def __init__(self, env: SingleEnvironment, key: str = ACTION_MASK, ignored: bool = False) -> None:
        super().__init__(env)
        spec, actions = env.observation_spec, env.action_spec
        if not isinstance(actions, DiscreteSpec | MultiDiscreteSpec):
            raise ConfigError(f"ActionMask needs discrete actions, and these are {actions}")
        if isinstance(spec, dict) and ACTION_MASK in spec:
            raise ConfigError(f"the observation has the key {ACTION_MASK!r} already; leave ActionMask out")
        self._key, self._ignored, self._num = key, ignored, actions.encoded_size
        if (bare := bare_of(env)) is not None:
            bare.mask_key = key
        sizes = actions.nvec if isinstance(actions, MultiDiscreteSpec) else (actions.num,)
        self._starts = np.cumsum([0, *sizes[:-1]]) - getattr(actions, "start", 0)
        self._nested = isinstance(spec, dict)
        self._mask = np.ones(self._num, np.int8)
        if not ignored:
            self.specs = self.specs._replace(observation=self._with(spec, MultiBinarySpec((self._num,))))

    def advance(self, action: Any) -> TimeStep:
        if not self._mask[np.asarray(action) + self._starts].all():
            parts = np.split(self._mask, (self._starts - self._starts[0])[1:])
            allowed = [(np.flatnonzero(part) - self._starts[0]).tolist() for part in parts]
            shown = allowed[0] if len(allowed) == 1 else allowed
            raise EnvError(f"action {action} is forbidden by the mask; allowed are {shown}")
        return super().advance(action)

    def change(self, time_step: TimeStep) -> TimeStep:
        info = time_step.env_info or {}
        if self._ignored:
            return time_step._replace(env_info={key: value for key, value in info.items() if key != self._key})
        if self._key not in info:
            raise EnvError(f"the info has no {self._key!r}, only {list(info)}; report the mask with every step")
        mask = flat_mask(info[self._key])
        if mask.shape != (self._num,):
            raise EnvError(f"the mask in info[{self._key!r}] has shape {mask.shape}, and there are {self._num} actions")
        self._mask = mask
        return time_step._replace(observation=self._with(time_step.observation, mask))

    def _with(self, inner: Any, mask: Any) -> dict[str, Any]:
        return {**(inner if self._nested else {"observation": inner}), ACTION_MASK: mask}


@final
class FrameStack(ObservationMap):
    """Observes the newest K frames [K, ...], the newest last; zeros stand for frames before the episode.

    The spec says `stacked=K`, so a buffer stores every frame once and not K times. Layers outside that skip steps or
    change frames take that back, so put `ActionRepeat`, `RandomNoop`, `FireReset` and `EpisodicLife` inside.

    Args:
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
class SelectEntries(ObservationMap):
    """Observes only some numbers of a vector, in the order given: to hide velocities, or sensors that do not help.

    Of arrays with more axes, stacked frames among them, it takes them along the last one.

    Where what is hidden has to be worked out from earlier observations, the policy needs a memory.

    Args:
        entries: which numbers are left, counted from 0; negative ones count from the end.
        keys: leaves to take them from; by default all arrays of floating-point numbers.

    Raises:
        ConfigError: there are no entries, one is none of the array's, or there is no array.

    Examples:
        >>> from palaestra.envs import load
        >>> env = SelectEntries(load("CartPole-v1"), entries=[0, 2])  # without the two velocities
        >>> env.observation_spec.shape, env.reset().observation.shape
        ((2,), (2,))
    """

    elementwise = True

    def __init__(self, env: SingleEnvironment, entries: Sequence[int], keys: Sequence[str] | None = None) -> None:
        self._entries = list(entries)
        if not self._entries or any(type(entry) is not int for entry in self._entries):
            raise ConfigError(f"SelectEntries(entries={entries!r}); give whole numbers, such as [0, 2]")
        super().__init__(env, keys)

    def fits(self, spec: TensorSpec) -> bool:
        return super().fits(spec) and len(spec.shape) > 0

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        *outer, size = spec.shape
        if odd := [entry for entry in self._entries if not -size <= entry < size]:
            raise ConfigError(f"SelectEntries names the entry {odd[0]}; the observation has {size}, counted from 0")
        shape, stacked = (*outer, len(self._entries)), spec.stacked if outer else 1
        if not isinstance(spec, BoundedSpec):
            return TensorSpec(shape, spec.dtype, stacked=stacked)
        low, high = (np.broadcast_to(bound, spec.shape)[..., self._entries] for bound in (spec.minimum, spec.maximum))
        return BoundedSpec(shape, spec.dtype, minimum=low, maximum=high, stacked=stacked)

    def leaf(self, value: Any, path: str, first: bool) -> Any:
        return value[..., self._entries]


@final
class ClipObservation(ObservationMap):
    """Clips every number of the observation, nested ones as well.

    For simulators that return a huge velocity once in a million steps, which would ruin running statistics.

    Args:
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

    elementwise = True

    def __init__(
        self, env: SingleEnvironment, minimum: float = -200.0, maximum: float = 200.0, keys: Sequence[str] | None = None
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

    def leaf(self, value: Any, path: str, first: bool) -> Any:
        return clipped(value, self._minimum, self._maximum)


@final
class NormalizeObservation(StatefulWrapper, ObservationMap):
    """Subtracts the running mean of what was observed so far and divides by the standard deviation.

    Each environment counts for itself, in a batch that is stepped as one, too, and evaluation starts from nothing.
    Where that is not meant, let the policy normalise (`normalize_observation=True` of most algorithms): its statistics
    are shared, saved and deployed with it.

    Args:
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

    learned = True

    def __init__(self, env: SingleEnvironment, clip: float = 10.0, keys: Sequence[str] | None = None) -> None:
        if not clip > 0:
            raise ConfigError(f"NormalizeObservation(clip={clip}); it must be above 0")
        self._clip = clip
        super().__init__(env, keys)
        leaves = spec_leaves(env.observation_spec)
        self._running = {path: RunningMeanVariance(leaves[path].shape) for path in self.changed_paths}

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        low, high = np.array(-self._clip), np.array(self._clip)
        return BoundedSpec(spec.shape, torch.float32, minimum=low, maximum=high)

    def leaf(self, value: np.ndarray, path: str, first: bool) -> np.ndarray:
        running = self._running[path]
        running.update(value)
        return self.normal(value, running.mean, running.variance).astype(np.float32)

    def normal(self, value: Any, mean: Any, variance: Any) -> Any:
        """An array, or rows of a tensor, by statistics.

        Args:
            value: as it was observed.
            mean: of the elements.
            variance: of the elements.
        """
        return clipped((value - mean) / square_root(variance + _EPSILON), -self._clip, self._clip)

    def snapshot(self) -> Any:
        return {path: running.snapshot() for path, running in self._running.items()}

    def restore(self, snapshot: Any) -> None:
        for path, running in self._running.items():
            running.restore(snapshot[path])


@final
class CheckFinite(EnvironmentWrapper):
    """Refuses an observation or a reward that is NaN or infinite, at the very layer where it stands.

    The library checks what it collects anyway; between two layers this shows which of them is to blame.

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
        self._names = ["reward"] + [
            f"observation {path!r}" if path else "observation" for path in spec_leaves(self._inner)
        ]

    def begin_episode(self, seed: int) -> TimeStep:
        return self._checked(self.env.begin_episode(seed))

    def advance(self, action: Any) -> TimeStep:
        return self._checked(self.env.advance(action))

    def _checked(self, time_step: TimeStep) -> TimeStep:
        values = [time_step.reward, *flatten(time_step.observation, self._inner)]
        for name, value in zip(self._names, values, strict=True):
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                index = np.argwhere(~np.isfinite(array))[0].tolist()
                place = f"{array[tuple(index)]} at index {index}" if index else str(array)
                layer = type(self.env).__name__
                raise NonFiniteError(f"{layer} returned the {name} with {place}; look at that layer, or clip")
        return time_step
